"""While an agent waits for an answer: users' answers, a child's own, and looks at what the verifier would say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.branch import OnAskUser
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rollout import Answer, Question, Step
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import HostLost


MAX_ANSWERS = 100
"""Most answers that are retained for questions which were not asked yet."""


class Answers:
    """The answers of users. A question's first valid one counts; those that can't be one are counted, and ignored."""

    def __init__(self) -> None:
        self._given: dict[str, Answer] = {}
        self._ignored = 0

    def add(self, answer: Answer, asked: Question | None) -> None:
        """Retain an answer. asked: the question that waits for one; another may be asked again on another host."""
        is_asked = asked is not None and asked.id == answer.question
        if not is_asked and len(self._given) >= MAX_ANSWERS:
            self._ignored += 1
            return
        self._given.setdefault(answer.question, answer)
        if asked is not None:
            self.has(asked)

    def has(self, question: Question) -> bool:
        """Tell whether the question has an answer. One that names none of its options is dropped."""
        given = self._given.get(question.id)
        if given is not None and given.option is not None and given.option not in {one.id for one in question.options}:
            del self._given[question.id]
            self._ignored += 1
            return False
        return given is not None

    def to(self, question: Question) -> Answer:
        """Return the answer to a question that has one."""
        return self._given[question.id]

    def clear(self) -> None:
        """Forget all answers: what was asked is asked anew."""
        self._given.clear()

    @property
    def warnings(self) -> list[str]:
        """The warning for the rollout's result, if answers were ignored."""
        why = "they name no option of their question, or a question that was not asked"
        return [f"ignored answers: {self._ignored}; {why}"] if self._ignored else []


@contextmanager
def as_update_failure() -> Iterator[None]:
    """Fail an update with an error that is raised inside; of an unknown type, it would fail the workflow's task."""
    try:
        yield
    except FailureError:
        raise
    except Exception as error:
        workflow.logger.exception("an update failed by a fault of the engine")
        raise ApplicationError(f"{type(error).__name__}: {error}", type="InternalError") from error


async def seen_by(look: asyncio.Task[Any], looks: list[asyncio.Task[Any]]) -> VerifyResult:
    """What a look comes to. looks: those under way, of which it is one until then.

    Raises `ApplicationError`: anything else would fail the workflow's task, and not the update.
    """
    looks.append(look)
    try:
        result: VerifyResult = await look
    except (asyncio.CancelledError, HostLost) as error:
        raise ApplicationError("the rollout has ended, or lost its host", type="NotWaiting") from error
    except ActivityError as error:
        raise ApplicationError(failure_from(error, "verify").message, type="VerifierError") from error
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
