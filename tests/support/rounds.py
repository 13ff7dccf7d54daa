"""What of the sandbox conformance suite is more of the same with every provider, and so not for each run."""

from __future__ import annotations

MORE_ROUNDS = frozenset(
    {
        "test_a_process_that_starts_one_may_be_killed_at_any_moment[10]",
        "test_a_process_that_starts_a_world_may_be_killed_at_any_moment[first-10]",
        "test_a_process_that_starts_a_world_may_be_killed_at_any_moment[below-10]",
        "test_a_caller_may_be_killed_at_any_moment[20]",
        "test_a_command_that_is_ended_while_it_comes_up_is_gone_too[0]",
        "test_a_command_that_is_ended_while_it_comes_up_is_gone_too[0.005]",
        "test_a_command_that_is_ended_while_it_comes_up_is_gone_too[0.05]",
    }
)
"""Killed or ended at more moments."""
