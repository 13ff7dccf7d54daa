"""Turns: run to their ends, run again, and resumed by other processes."""

from __future__ import annotations

import asyncio
import json

from benchflow.contracts.agent import AgentPlace
from benchflow.contracts.rollout_records import AgentSession
from benchflow.planes.agent import create_agent
from benchflow.testing.agent_conformance.agent_fixtures import AgentFixtures, Take


class TurnTests(AgentFixtures):
    """Tests of `prompt`, `nudge` and `was_begun`."""

    async def test_a_turn_is_taken_to_its_end(self, place: AgentPlace, held: AgentSession, taking: Take) -> None:
        assert not await (await create_agent(place).session(held)).was_begun(0)
        turn = taking(0, self.talks)
        stop = await turn.take()
        assert stop.ended_by is None
        assert stop.reason and isinstance(stop.reason, str)
        assert turn.lines
        for line in turn.lines:
            assert isinstance(line["type"], str)
            assert json.loads(json.dumps(line)) == line
        assert await (await create_agent(place).session(held)).was_begun(0)
        assert not await (await create_agent(place).session(held)).was_begun(1)

    async def test_a_turn_that_has_ended_tells_the_same_to_whoever_takes_it_again(self, taking: Take) -> None:
        first = taking(0, self.talks)
        stop = await first.take()
        again = taking(0, self.talks)
        assert await again.take() == stop
        assert again.lines == first.lines
        assert again.tool_calls == first.tool_calls

    async def test_lines_that_are_written_need_not_be_told_again(self, taking: Take) -> None:
        first = taking(0, self.talks)
        stop = await first.take()
        again = taking(0, self.talks, present=len(first.lines))
        assert await again.take() == stop
        assert again.lines == first.lines[again.skipped :]
        assert again.tool_calls == first.tool_calls

    async def test_another_process_resumes_a_turn(self, place: AgentPlace, held: AgentSession, taking: Take) -> None:
        first = taking(0, self.lasts)
        async with first.until_it_tells():
            pass
        assert await (await create_agent(place).session(held)).was_begun(0)
        heir = taking(0, self.lasts)
        async with heir.until_it_tells() as task:
            session = await create_agent(place).session(held)
            session.cancel(0)
            await session.close()
            stop = await task
        assert stop.ended_by == "cancelled"
        assert heir.lines[: len(first.lines)] == first.lines

    async def test_two_processes_that_take_one_turn_are_told_the_same(self, taking: Take) -> None:
        turns = [taking(0, self.talks), taking(0, self.talks)]
        stops = await asyncio.gather(*(turn.take() for turn in turns))
        assert stops[0] == stops[1]
        assert turns[0].lines == turns[1].lines

    async def test_a_session_has_several_turns(self, taking: Take) -> None:
        first, second = taking(0, self.talks), taking(1, self.talks, is_nudge=True)
        for turn in (first, second):
            assert (await turn.take()).ended_by is None
            assert turn.lines
