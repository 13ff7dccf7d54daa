"""Judge a rollout in a role that the verifier's author wrote: one score in [0, 1], with reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from benchflow.contracts.reward import Judge, JudgeQuestion, JudgeScale, RewardEvent, VerifyResult
from benchflow.planes.reward.judge.criteria import SYSTEM, cut_reasoning, summarise_answers
from benchflow.planes.reward.judge.documents import JudgedDocument, make_prompt

_SCALE = JudgeScale(id="score", description="How good the agent's work is, in your role.")


async def judge_as_role(
    role_prompt: str,
    *,
    judge: Judge,
    documents: Sequence[JudgedDocument],
    instruction: str,
    model: str | None = None,
    now: datetime,
    task: str = "",
    source: str = "agent-judge",
    timeout_sec: float = 120.0,
) -> VerifyResult:
    """Return the score that a judge gives in a role, with one event.

    Args:
        role_prompt: Description of the role.
        judge: Judge to ask.
        documents: Documents to show it.
        instruction: Instruction of the agent.
        model: Model to ask if the settings name none.
        now: Time of the event.
        task: Name of the task.
        source: Source of the event, and id of the question.
        timeout_sec: Seconds that one call may take.

    Raises:
        JudgeError: There is no usable answer.
    """
    prompt = await asyncio.to_thread(
        make_prompt, task=task, instruction=instruction, documents=documents, ask=f"Your role:\n{role_prompt.strip()}"
    )
    answer = await judge.ask(
        JudgeQuestion(id=source, system=SYSTEM, prompt=prompt, scales=(_SCALE,), model=model, timeout_sec=timeout_sec)
    )
    verdict = answer.verdicts[_SCALE.id]
    event = RewardEvent(
        value=verdict.score,
        source=source,
        ts=now,
        meta={"reasoning": cut_reasoning(verdict.reasoning), "transcript": answer.transcript},
    )
    return VerifyResult(reward=verdict.score, events=[event], metadata={"judge": summarise_answers([answer])})
