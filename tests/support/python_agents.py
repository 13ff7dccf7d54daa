"""Python agents that the tests of such agents give tasks to.

Run as a program it is a worker: it takes one turn of `many_steps`, and writes its trajectory.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchflow import AgentTurn
from benchflow.contracts.agent import AgentPlace, ModelRoute, TurnLimits, TurnRequest
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import SandboxRef
from benchflow.planes.agent import create_agent
from benchflow.planes.agent.registry import find_agent
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider
from benchflow.trajectories.journal import NodeWriter


async def obedient(turn: AgentTurn) -> str | None:
    """Do what the first word of the prompt says."""
    order, _, rest = turn.prompt.partition(" ")
    if order == "refuse":
        return "refusal"
    await turn.say(f"{order}: {(await turn.exec('echo $$; date +%N >>marks; wc -l <marks')).stdout.split()[-1]}")
    if order == "last":
        await asyncio.sleep(3600)
    if order == "ask":
        await turn.say(f"so {await turn.ask_user('Which?', ['red', 'blue'])}")
    if order == "learn":
        turn.memory["name"] = rest
    if order == "tell":
        await turn.say(turn.memory.get("name", "nobody"))
    return None


MANY = 12


async def many_steps(turn: AgentTurn) -> None:
    """Take so many steps, each of which leaves a mark in the workspace, and say something after each."""
    for number in range(MANY):
        await turn.exec(f"echo {number} >>marks; sleep 0.1")
        await turn.say(str(number))
        turn.memory["last"] = number
    await turn.write_file("answer", "42\n")


async def _work(job: dict[str, Any]) -> None:
    """Take turn 0 of a session as a worker does, and write its trajectory."""
    provider = make_provider(job["provider"])
    held = AgentSession.model_validate(job["held"])
    with closing(NodeWriter(Path(job["trajectory"]), "n1", "agent")) as writer:
        place = AgentPlace(
            record=find_agent("support.python_agents:many_steps"),
            provider=provider,
            state=Path(job["state"]),
            directory=Path(job["directory"]),
            access="none",
            route=ModelRoute,
            run_relay=_no_relay,
            started=await provider.attach(SandboxRef.model_validate(job["ref"])),
            user=held.user,
        )
        session = await create_agent(place).session(held)
        await session.prompt(TurnRequest(0, "go", TurnLimits(), writer.add, writer.skip))
        await session.close()
    await provider.close()


async def _no_relay(program: Sequence[str]) -> None:
    raise AssertionError("it calls no model")


if __name__ == "__main__":
    asyncio.run(_work(json.loads(sys.argv[1])))
