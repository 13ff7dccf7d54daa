"""Verification of a node by the strategy that the task's verifier declares: a program, a judge, an episode's record."""

from __future__ import annotations

import asyncio
from datetime import datetime

from benchflow.contracts.reward import Judge, RolloutNode, VerifyResult
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import VerifierConfig, VerifierStrategy
from benchflow.errors import JudgeError, VerifierError
from benchflow.planes.reward.inputs import find_inputs, get_judged_directory, resolve_strategy
from benchflow.planes.reward.judge import JudgedDocument, Material, judge_as_role, judge_rubric, list_documents
from benchflow.planes.reward.ors import read_episode


async def verify(
    node: RolloutNode, task: Task, config: VerifierConfig, *, step: str | None, now: datetime
) -> VerifyResult:
    """Verify a node and return the result.

    Args:
        node: The node.
        task: The task.
        config: Configuration of the verifier: the step's own if the task has several.
        step: Name of the step; None if the task has only one.
        now: Time of events without one.

    Raises:
        VerifierError: The evidence that the strategy reads is missing, or the verifier's program failed
            (`ScriptVerifier.run`).
        JudgeError: The model gives no usable answer, or there is none to ask.
        RewardFileError: An episode's record is invalid; `RewardMissingError` if it states no reward.
    """
    strategy = resolve_strategy(task, config)
    match strategy.type:
        case "script" | "reward-kit":
            return await _run_program(node)
        case "llm-judge":
            return await _judge_by_rubric(node, task, strategy, step, now)
        case "agent-judge":
            return await _judge_by_role(node, task, strategy, step, now)
        case "ors-episode":
            inputs = find_inputs(strategy.inputs, node.rollout, step)
            form, allowed = strategy.format or "auto", config.reward_range
            return await asyncio.to_thread(read_episode, inputs, form, reward_range=allowed, now=now)


async def _run_program(node: RolloutNode) -> VerifyResult:
    """Run the verifier's program in the node's workbench. Raise `VerifierError` if there is none."""
    if node.rollout.workbench is None:
        raise VerifierError(
            "there is no world left in which the verifier could be run",
            file=str(node.rollout.directory) if node.rollout.directory else None,
            remedy="give a workbench, for example benchflow.rescoring.open_stored_workbench(rollout_dir)",
        )
    return await node.rollout.workbench.tests()


async def _judge_by_rubric(
    node: RolloutNode, task: Task, strategy: VerifierStrategy, step: str | None, now: datetime
) -> VerifyResult:
    """Have a model judge the files of the strategy's input directory by a rubric."""
    rubric = task.rubrics.get(strategy.rubric or "")
    if rubric is None:
        raise VerifierError("the rubric was not read with the task", file=strategy.rubric, remedy="check the task")
    directory = get_judged_directory(strategy)
    place = find_inputs([directory], node.rollout, step)[directory]
    documents = await asyncio.to_thread(list_documents, place, prefix=f"{directory.rstrip('/')}/")
    return await judge_rubric(
        rubric,
        Material(documents, node.rollout.task, node.rollout.instruction, strategy.context or ""),
        judge=_require_judge(node),
        model=strategy.model,
        now=now,
    )


async def _judge_by_role(
    node: RolloutNode, task: Task, strategy: VerifierStrategy, step: str | None, now: datetime
) -> VerifyResult:
    """Have a model judge the strategy's inputs by the prompt of a role."""
    role = task.verifier_document.role_prompts.get(strategy.role or "") if task.verifier_document else None
    if role is None:
        raise VerifierError(f"there is no role {strategy.role!r}", key="role", remedy="add its section to verifier.md")
    documents: list[JudgedDocument] = []
    for path, place in find_inputs(strategy.inputs, node.rollout, step).items():
        prefix = f"{path.rstrip('/')}/" if place.is_directory() else path
        documents += await asyncio.to_thread(list_documents, place, prefix=prefix)
    return await judge_as_role(
        role,
        judge=_require_judge(node),
        documents=documents,
        task=node.rollout.task,
        instruction=node.rollout.instruction,
        model=strategy.model,
        now=now,
    )


def _require_judge(node: RolloutNode) -> Judge:
    """Return the node's judge. Raise `JudgeError` if there is none."""
    if node.rollout.judge is None:
        raise JudgeError(
            "there is no model to judge", key="judge.model", remedy="name one: --judge-model openai/… or anthropic/…"
        )
    return node.rollout.judge
