"""Sessions: opened once, with questions to their user, and restored in a copy of their sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchflow.contracts.agent import AgentPlace, Unanswered
from benchflow.contracts.rollout_records import AgentSession, Answer, Question
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SessionNotLoadedError
from benchflow.planes.agent import create_agent
from benchflow.planes.agent.question_answers import answer_by_policy
from benchflow.testing.agent_conformance.agent_fixtures import AgentFixtures, Place, Take, Taking
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Keep

MAX_CAPTURED = 64 * 1024
"""Maximum size of a captured session, in bytes: it is stored in a workflow's history."""


class SessionOpeningTests(AgentFixtures):
    """Tests of `open`."""

    async def test_a_session_opens_once(self, place: AgentPlace, held: AgentSession) -> None:
        assert await create_agent(place).open(0) == held

    async def test_a_session_of_another_number_is_another(self, place: AgentPlace, held: AgentSession) -> None:
        other = await create_agent(place).open(1)
        assert (other.index, held.index) == (1, 0)
        assert other.directory != held.directory
        await create_agent(place).end(other)

    async def test_a_session_says_where_it_is(self, place: AgentPlace, held: AgentSession) -> None:
        assert held.cwd == place.sandbox.ref.workdir
        assert held.home.startswith("/")


class QuestionTests(AgentFixtures):
    """Tests of `on_ask_user`, for agents that ask."""

    @pytest.fixture
    def question(self) -> str:
        """Return the prompt for a turn that asks; skip the test without one."""
        if self.asks is None:
            pytest.skip("this agent does not ask its user")
        return self.asks

    async def test_its_user_is_asked(self, question: str, taking: Take) -> None:
        asked: list[Question] = []

        async def answer(question: Question) -> Answer:
            asked.append(question)
            return answer_by_policy(question, "auto")

        turn = taking(0, question, answer=answer)
        assert (await turn.take()).ended_by is None
        assert asked
        again = taking(0, question, answer=_refuse)
        await again.take()
        assert again.lines == turn.lines

    async def test_a_question_waits_for_its_answer(self, question: str, taking: Take) -> None:
        asked = []
        for _ in range(2):
            with pytest.raises(Unanswered) as waits:
                await taking(0, question, answer=_wait).take()
            asked.append(waits.value.question)
        # The question must be the same in every process, because its answer is found by its id.
        assert asked[0] == asked[1]
        turn = taking(0, question, answer=_answer)
        assert (await turn.take()).ended_by is None
        assert turn.lines


async def _wait(question: Question) -> Answer:
    """Raise `Unanswered`, as a user who has not answered yet."""
    raise Unanswered(question)


async def _answer(question: Question) -> Answer:
    """Return the answer of the policy `auto`."""
    return answer_by_policy(question, "auto")


async def _refuse(question: Question) -> Answer:
    """Fail the test: the question was answered before."""
    raise AssertionError(f"it was answered, and is asked again: {question.text}")


class SessionRestoreTests(AgentFixtures):
    """Tests of `capture` and `restore`, in a copy of the sandbox."""

    @pytest.fixture
    def snapshots(self, provider: SandboxProvider) -> None:
        """Skip the test if the provider takes no snapshots."""
        if not provider.capabilities().snapshot:
            pytest.skip("this provider keeps no states of sandboxes")

    async def test_a_session_goes_on_in_a_copy_of_its_world(
        self,
        snapshots: None,
        place: AgentPlace,
        held: AgentSession,
        taking: Take,
        placed: Place,
        keep: Keep,
        spec: SandboxSpec,
        tmp_path: Path,
    ) -> None:
        agent = create_agent(place)
        if agent.rung(held, "load") != "load":
            pytest.skip("its sessions are not known to go on in a copy")
        said, asks, expected = self.remembers or (self.talks, self.talks, "")
        await taking(0, said).take()
        session = await agent.session(held)
        captured = await session.capture()
        await session.close()
        assert len(json.dumps(captured)) < MAX_CAPTURED
        image = await keep(place.sandbox)
        copied = await placed(spec.model_copy(update={"image": image, "name": f"{spec.name}-copy"}), tmp_path / "copy")
        restored = await create_agent(copied).restore(0, held, captured)
        assert await create_agent(copied).restore(0, held, captured) == restored
        # Turn numbers are the rollout's: the copy resumes after those of the parent.
        turn = Taking(create_agent(copied), restored, 1, asks)
        assert not await (await create_agent(copied).session(restored)).was_begun(1)
        assert (await turn.take()).ended_by is None
        assert turn.lines
        assert expected in json.dumps(turn.lines)
        await create_agent(copied).end(restored)

    async def test_what_cannot_go_on_says_so(self, place: AgentPlace, held: AgentSession) -> None:
        agent = create_agent(place)
        if agent.rung(held, "load") == "load":
            pytest.skip("its sessions go on in a copy")
        with pytest.raises(SessionNotLoadedError):
            await agent.restore(1, held, None)
