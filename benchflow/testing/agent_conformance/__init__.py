"""What every agent must do, as tests. An agent that passes them all resumes its turns whichever process dies.

`docs/custom-agent.md` says how one is written. Let this suite say what is missing (pytest and pytest-asyncio must be
installed):

    # test_my_agent.py
    from benchflow.testing.agent_conformance import AgentConformance

    class TestMyAgent(AgentConformance):
        provider_path = "benchflow.planes.sandbox.local.driver:LocalDriver"
        agent = "my_package.agent:MyAgent"
        talks = "Say hello."
        lasts = "Say hello, then wait for an hour."
        asks = "Ask me whether to go on."
        remembers = ("My name is Ann.", "What is my name?", "Ann")

`agent` is what `--agent-import-path` or `--agent` takes. The prompts are what makes the agent do what a test is about;
one that calls a model needs a model that does what they ask for, such as `benchflow.testing.scripted_model`: override
the fixture `route`. `asks` and `remembers` may be left out: then these tests are skipped. Override `furnish` to put
files into the sandbox before the agent starts. A test gives each process an agent object of its own, since none may
keep in memory what it could not find again.

Each theme is a class of its own (`Opening`, `Turns`, ...), so that an agent in the making can begin with one of them.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{theme}" for theme in ("fixtures", "sessions", "turns", "endings")))

# After the call above, so that a failing assertion of the suite shows its values.
from benchflow.testing.agent_conformance.endings import Endings  # noqa: E402
from benchflow.testing.agent_conformance.sessions import Opening, Questions, Restoring  # noqa: E402
from benchflow.testing.agent_conformance.turns import Turns  # noqa: E402

__all__ = ["AgentConformance", "Endings", "Opening", "Questions", "Restoring", "Turns"]


@pytest.mark.asyncio
class AgentConformance(Opening, Turns, Endings, Questions, Restoring):
    """All of it. Subclass it under a name that pytest collects, and give it the agent."""
