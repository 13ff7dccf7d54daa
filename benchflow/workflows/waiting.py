"""While an agent waits for an answer: what a child answers by itself, and looks at what the verifier would say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.branch import OnAskUser
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rollout import Answer, Question, Step
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import HostLost


async def seen_by(look: asyncio.Task[Any], looks: list[asyncio.Task[Any]]) -> VerifyResult:
    """What a look comes to. looks: those under way, of which it is one until then.

    Raises `ApplicationError`: anything else would fail the workflow's task, and not the update.
    """
    looks.append(look)
    try:
        result: VerifyResult = await look
    except ActivityError as error:
        raise ApplicationError(failure_from(error, "verify").message, type="VerifierError") from error
    except (asyncio.CancelledError, HostLost) as error:
        raise ApplicationError("the rollout has ended, or lost its host", type="NotWaiting") from error
    finally:
        looks.remove(look)
    return result


def own_answer(spec: RolloutSpec, step: Step, question: Question, given: Sequence[Answer]) -> Answer | None:
    """A child's answer to what its parent was asked; of what comes after, the first that allows to go on; None where
    somebody else answers. given: its answers in this step.
    """
    own, config = spec.branch, spec.run.branch
    if own is None or config is None or not isinstance(config.policy, OnAskUser):
        return None
    if own.child.answer is not None and step.index == own.checkpoint.steps_done and not given:
        return own.child.answer.model_copy(update={"question": question.id})
    kinds = {option.kind: option.id for option in reversed(question.options)}
    allowed = kinds.get("allow_once") or kinds.get("allow_always")
    return Answer(question=question.id, option=allowed or next((one.id for one in question.options), None))
