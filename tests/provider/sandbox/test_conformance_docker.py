"""The Docker provider against the suite that every provider must pass."""

from __future__ import annotations

import os

import pytest
from support.rounds import MORE_ROUNDS
from support.world_readiness import WorldReadiness

from benchflow.testing.sandbox_conformance import SandboxConformance


@pytest.mark.docker
class TestDocker(SandboxConformance, WorldReadiness):
    provider_path = "benchflow.planes.sandbox.docker:DockerProvider"
    base_image = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")
    long = frozenset(
        {
            *MORE_ROUNDS,
            # Shown by the same test for a plain sandbox, as far as it is Docker's.
            "test_a_process_that_starts_a_world_may_be_killed_at_any_moment[first-3]",
            "test_a_process_that_starts_a_world_may_be_killed_at_any_moment[below-3]",
            # Shown by the fork of which each child is one moment of the world.
            *("test_worlds_forked_again_and_again_are_whole_each_time", "test_thirty_generations_are_as_good_as_one"),
            *(
                "test_a_snapshot_may_be_taken_while_the_world_goes_on",
                "test_a_sandbox_may_be_forked_by_two_at_the_same_time",
            ),
            # Shown by test_docker_snapshots.py, by what the daemon says of both.
            "test_children_have_what_their_parent_was_given",
            # Shown by restoring, and by children.
            "test_a_snapshot_is_an_image_to_start_from_and_so_is_one_of_what_began_from_it",
            # Shown by the snapshot of one layer, and by the one that is damaged.
            "test_a_snapshot_above_another_comes_back_with_both",
            *(
                "test_unpacking_at_the_same_time_is_unpacking_once",
                "test_a_process_that_dies_in_the_middle_leaves_no_image",
            ),
            # Shown by the image that resets its base's command, and for the rest of Dockerfiles by the daemon itself.
            *(
                "test_a_dockerfile_is_carried_out_step_by_step",
                "test_a_dockerfile_builds_upon_an_image_that_was_built_here",
                "test_the_name_may_be_an_argument_and_over_several_lines",
                "test_an_image_upon_a_changed_one_is_another",
                "test_an_image_upon_another_runs_the_others_entrypoint_if_asked",
            ),
            *("test_a_build_that_failed_may_be_mended", "test_no_step_sees_this_hosts_files"),
            "test_a_removed_image_is_gone_and_removing_it_again_is_success",
            "test_removing_an_image_in_use_is_refused_or_does_its_sandbox_no_harm",
            *(
                f"test_entrypoint_and_command_combine_as_in_docker[{steps}]"
                for steps in ("exec", "shell", "exec and shell", "exec and exec", "shell and exec", "another shell")
            ),
            # Shown by test_docker_entrypoint.py.
            "test_an_entrypoint_may_end_and_says_how",
            # More of the same log, and the other form of what the first shows.
            "test_a_long_log_is_shown_from_its_end",
            "test_an_entrypoint_runs_once_as_the_image_says_and_with_its_secrets[below]",
            "test_an_entrypoint_below_can_be_ended_with_all_it_started",
            "test_what_an_entrypoint_starts_stays_and_what_the_agent_started_goes[below]",
            "test_a_port_of_each_of_two_sandboxes_is_reached_from_this_host",
            # Shown by test_docker_lifecycle.py: what the container's limits are.
            "test_a_sandbox_cannot_use_up_this_hosts_processes",
            "test_enough_memory_is_enough_and_a_limit_that_cannot_be_kept_is_a_warning",
            # Shown by starts and sweeps, and by those that start one at the same moment.
            "test_many_start_and_go_at_the_same_time",
            "test_starting_and_sweeping_at_the_same_time_does_no_harm",
            *("test_one_provider_serves_one_event_loop_after_another", "test_closing_a_provider_ends_no_sandbox"),
            "test_a_sandbox_that_is_full_of_processes_goes_all_the_same",
            "test_processes_that_multiply_are_all_killed_and_services_live",
            # Shown by the caller that is killed, and by starts at the same moment.
            "test_a_process_that_starts_one_may_be_killed_at_any_moment[3]",
            "test_callers_and_processes_at_the_same_moment_share_one_build",
            # Shown by a timeout that kills, and by many commands that are one execution.
            *(
                "test_time_counts_from_the_start_also_for_those_who_attach",
                "test_many_commands_at_the_same_time_do_not_mix",
            ),
            "test_a_build_that_takes_too_long_is_stopped",
            # What is above commands is the same code for all providers.
            *(
                "test_a_setup_command_that_takes_too_long_is_killed",
                "test_a_healthcheck_that_hangs_is_killed_each_time",
            ),
            "test_a_world_that_stays_ill_is_told_with_its_last_words",
            *(
                "test_ignored_and_excluded_files_and_a_dockerfile_from_elsewhere_are_not_sent",
                "test_the_root_as_working_directory_counts_as_unset",
            ),
            # Shown by the sandbox that has only its loopback, and by the fork bomb.
            "test_a_service_without_a_network_is_there_for_its_own_sandbox_only",
            "test_a_timeout_kills_what_multiplies",
            # As another user as well as for root.
            "test_processes_at_the_same_moment_share_one_execution[as root]",
            "test_a_killed_callers_execution_goes_on_and_is_found_again[as root]",
            "test_a_timeout_kills_the_command_and_all_it_started[nobody]",
            "test_a_timeout_kills_what_root_started_as_another_user",
            *("test_a_timeout_leaves_everything_else_alone", "test_a_command_that_ends_in_time_keeps_what_it_left"),
        }
    )
