"""Capture an agent's skills and memory before a step and after it, for the reward functions that read them."""

from __future__ import annotations

import asyncio
from typing import Literal

from benchflow.contracts.rollout_records import AgentSession, Step
from benchflow.hosting.hosted import Hosted
from benchflow.planes.agent.account import find_account
from benchflow.planes.reward.memory import capture_memory, list_directories, store_memory


async def store_step_memory(
    rollout: Hosted, step: Step, session: AgentSession | None, when: Literal["before", "after"]
) -> None:
    """Capture the agent's skills and memory before or after a step, redacted, into the step's evidence.

    Nothing is captured if no reward function of the task reads them.

    Args:
        rollout: The rollout, attached to its sandbox.
        step: The step.
        session: Session of the agent; None for an agent without sessions, whose account is then looked up.
        when: Whether the agent has acted.
    """
    task, sandbox = rollout.task, rollout.sandbox
    directories = list_directories(task, rollout.record.skills, rollout.spec.run.allow_code)
    if not directories:
        return
    home = session.home if session is not None else (await find_account(sandbox, task.agent.user or "root")).home
    capture = await capture_memory(sandbox, directories, home=home, clean=rollout.redact)
    await asyncio.to_thread(store_memory, capture, rollout.paths.evidence(step.name), when)
