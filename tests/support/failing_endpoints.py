"""Model endpoints that serve no call, each in its own way, and jobs in which every agent meets every one of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.agent_world import Seen, finished, submit_tasks

from benchflow.contracts.job import AgentSpec
from benchflow.testing.scripted_model import Reply, ScriptedModel, SideCalls

NOBODY = "http://127.0.0.1:9"
"""An address at which nobody listens."""


def _error(status: int, message: str) -> Reply:
    return Reply(error={"status": status, "message": message}, times="always")


REPLIES: dict[str, Reply] = {
    "refused-key": _error(401, "the key was revoked"),
    "no-such-model": _error(404, "the model scripted-x does not exist"),
    "quota": _error(429, "you exceeded your current quota"),
    "broken-stream": Reply(text="a long text " * 40, fault={"kind": "truncate", "after": 3}, times="always"),
    "empty-answer": Reply(text="", usage={"input": 10, "output": 0}, times="always"),
    "hangs": Reply(delay=3600, times="always"),
}
"""Faults at which an agent gives up, or that its limits end."""

REPEATED: dict[str, Reply] = {
    "too-many-calls": _error(429, "slow down"),
    "server-error": _error(500, "out of order"),
    "refused-connection": Reply(text="nobody says this"),
}
"""Faults for which the gateway asks again."""

WORDS = {
    "refused-key": "the key was revoked",
    "no-such-model": "does not know the model",
    "quota": "the quota of",
    "broken-stream": "closed the connection",
    "empty-answer": "every answer was empty",
    "hangs": "no answer in",
    "too-many-calls": "turns calls away",
    "server-error": "out of order",
    "refused-connection": "did not answer",
}
"""What the error of each says, in part."""

MakeSpec = Callable[[ScriptedModel, str], AgentSpec]
"""Makes an agent's spec of an endpoint and a model's name, which is another one for each fault."""


@asynccontextmanager
async def _endpoints(replies: dict[str, Reply]) -> AsyncIterator[dict[str, ScriptedModel]]:
    with contextlib.ExitStack() as stack:
        models = {
            fault: stack.enter_context(
                ScriptedModel({"replies": [reply]}, side=SideCalls(without_tools=False, known=False))
            )
            for fault, reply in replies.items()
        }
        yield models


async def run_faults(
    task: Path, jobs_dir: Path, agents: Sequence[MakeSpec], replies: dict[str, Reply], **options: Any
) -> list[Seen]:
    """Run a job in which each agent meets each of the endpoints. Return its rollouts."""
    async with _endpoints(replies) as models:
        specs = []
        for make in agents:
            for fault, model in models.items():
                spec = make(model, fault)
                if fault == "refused-connection":
                    base_url = str(spec.base_url).replace(model.base_url, NOBODY)
                    spec = spec.model_copy(update={"base_url": base_url})
                specs.append(spec)
        job = await submit_tasks([task], jobs_dir, agents=specs, preflight=False, **options)
        await finished(job)
        return [Seen(result) for result in job.results()]


def fault_of(seen: Seen) -> str:
    """Return the fault that a rollout's agent met."""
    assert seen.result.model is not None
    return seen.result.model.rpartition("/")[2]
