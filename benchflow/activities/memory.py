"""What an agent's skills and memory are before a step and after it, for the reward functions that read them."""

from __future__ import annotations

import asyncio
from typing import Literal

from benchflow.activities.agents import redactor_for
from benchflow.activities.context import WorkerContext
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout import AgentSession, Step
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import Task
from benchflow.planes.agent.acp.process import find_account
from benchflow.planes.agent.registry import record_for
from benchflow.planes.reward.memory import capture_memory, directories_of, keep_memory


async def keep_step_memory(
    context: WorkerContext,
    spec: RolloutSpec,
    task: Task,
    sandbox: Sandbox,
    step: Step,
    session: AgentSession | None,
    when: Literal["before", "after"],
) -> None:
    """Capture the agent's skills and memory before or after a step, where a reward function reads them."""
    directories = directories_of(task, record_for(spec.agent).skills, spec.run.allow_code)
    if not directories:
        return
    home = session.home if session is not None else (await find_account(sandbox, task.agent.user or "root")).home
    redact = redactor_for(context, spec, task)
    capture = await capture_memory(sandbox, directories, home=home, clean=redact)
    await asyncio.to_thread(keep_memory, capture, context.results(spec).evidence(step.name), when)
