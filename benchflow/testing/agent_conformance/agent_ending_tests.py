"""Turns that are cancelled or reach a limit, and the end of agents."""

from __future__ import annotations

import asyncio

import pytest

from benchflow.contracts.agent import AgentPlace, TurnLimits
from benchflow.contracts.rollout_records import AgentSession
from benchflow.planes.agent import create_agent
from benchflow.testing.agent_conformance.agent_fixtures import AgentFixtures, Take
from benchflow.testing.waiting import TIMEOUT_SEC


class AgentEndingTests(AgentFixtures):
    """Tests of `cancel`, limits, `end` and `close`."""

    async def test_another_process_cancels_a_turn(self, place: AgentPlace, held: AgentSession, taking: Take) -> None:
        turn = taking(0, self.lasts)
        async with turn.until_it_tells() as task:
            session = await create_agent(place).session(held)
            session.cancel(0)
            session.cancel(0)
            await session.close()
            async with asyncio.timeout(TIMEOUT_SEC):
                stop = await task
        assert stop.ended_by == "cancelled"

    async def test_a_turn_that_was_cancelled_stays_so(
        self, place: AgentPlace, held: AgentSession, taking: Take
    ) -> None:
        first = taking(0, self.lasts)
        async with first.until_it_tells() as task:
            (await create_agent(place).session(held)).cancel(0)
            stop = await task
        again = taking(0, self.lasts)
        async with asyncio.timeout(TIMEOUT_SEC):
            assert await again.take() == stop
        assert again.lines == first.lines

    @pytest.mark.parametrize(
        ("limits", "ended_by"),
        [(TurnLimits(wall=2.0, idle=600), "wall_clock"), (TurnLimits(wall=600, idle=2.0), "idle")],
        ids=["wall", "idle"],
    )
    async def test_a_limit_ends_a_turn(self, taking: Take, limits: TurnLimits, ended_by: str) -> None:
        first = taking(0, self.lasts)
        async with first.until_it_tells():
            pass
        # Only the second process has limits, so that they don't end the turn before it has sent its lines.
        async with asyncio.timeout(TIMEOUT_SEC):
            stop = await taking(0, self.lasts, limits=limits).take()
        assert stop.ended_by == ended_by

    async def test_ending_an_agent_twice_is_success(self, place: AgentPlace, held: AgentSession, taking: Take) -> None:
        await taking(0, self.talks).take()
        await create_agent(place).end(held)
        await create_agent(place).end(held)

    async def test_a_turn_that_has_ended_is_known_after_the_end_of_its_agent(
        self, place: AgentPlace, held: AgentSession, taking: Take
    ) -> None:
        first = taking(0, self.talks)
        stop = await first.take()
        await create_agent(place).end(held)
        again = taking(0, self.talks)
        assert await again.take() == stop
        assert again.lines == first.lines
