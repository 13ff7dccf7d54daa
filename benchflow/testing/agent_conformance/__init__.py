"""Conformance tests for agents. An agent that passes them all resumes its turns whichever process dies.

`docs/custom-agent.md` shows how to write one. This suite then shows what is missing (pytest and pytest-asyncio must be
installed):

    # test_my_agent.py
    from benchflow.testing.agent_conformance import AgentConformance

    class TestMyAgent(AgentConformance):
        provider_path = "benchflow.planes.sandbox.local.local_driver:LocalDriver"
        agent = "my_package.agent:MyAgent"
        talks = "Say hello."
        lasts = "Say hello, then wait for an hour."
        asks = "Ask me whether to go on."
        remembers = ("My name is Ann.", "What is my name?", "Ann")

`agent` is a value of `--agent-import-path` or `--agent`. The prompts make the agent do what a test is about. An agent
that calls a model needs one that follows them, such as `benchflow.testing.scripted_model`: override the fixture
`route`. Without `asks` and `remembers` their tests are skipped. Override `furnish` to put files into the sandbox before
the agent starts. A test gives each process an agent object of its own, since all state must survive the process.

Each theme is a class of its own (`SessionOpeningTests`, `TurnTests`, ...): an unfinished agent can begin with one.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{theme}" for theme in ("fixtures", "sessions", "turns", "endings")))

# After the call above, so that a failing assertion of the suite shows its values.
from benchflow.testing.agent_conformance.agent_ending_tests import AgentEndingTests  # noqa: E402
from benchflow.testing.agent_conformance.session_tests import QuestionTests, SessionOpeningTests, SessionRestoreTests  # noqa: E402
from benchflow.testing.agent_conformance.turn_tests import TurnTests  # noqa: E402

__all__ = [
    "AgentConformance",
    "AgentEndingTests",
    "QuestionTests",
    "SessionOpeningTests",
    "SessionRestoreTests",
    "TurnTests",
]


@pytest.mark.asyncio
class AgentConformance(SessionOpeningTests, TurnTests, AgentEndingTests, QuestionTests, SessionRestoreTests):
    """The whole suite. Subclass it under a name that pytest collects, and set `agent` and the prompts."""
