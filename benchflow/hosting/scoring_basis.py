"""The tasks and the rubric by which a stored rollout is scored again.

There are two tasks: the one to score by now, and the one of the first scoring. They differ if the request named a
directory of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchflow.contracts.failures import error_of
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rescoring_basis import ScoredBy, Scoring
from benchflow.contracts.rollout_records import Failure
from benchflow.errors import BenchFlowError, StoreError, TaskError
from benchflow.host import SlotOwner
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.rubric_code import Scorer, load_scorer
from benchflow.hosting.worker_host import Host


class ScoringBasis:
    """Tasks, rubric and secrets by which one stored rollout is scored on this host, in one run of its workflow.

    `hosted` and `scorer` read and import at their first call, and cache the result.

    Args:
        host: This host.
        spec: Specification of the rollout; `stored` is set.
        scoring: Tasks, rubric and settings of the request.
        run_id: Run id of the first run of the rollout's workflow, which owns sandboxes and slots of the scoring.
    """

    def __init__(self, host: Host, spec: RolloutSpec, scoring: Scoring, run_id: str) -> None:
        """Make it."""
        self.host = host
        self.spec = spec
        self.scoring = scoring
        self.owner = SlotOwner(spec.id, run_id)
        self._hosted: dict[tuple[str, bool], Hosted] = {}
        self._scorer: Scorer | None = None

    @classmethod
    async def load(cls, host: Host, spec: RolloutSpec, run_id: str) -> ScoringBasis:
        """Return the basis of a rollout, with the `Scoring` that the rollout names read from the store.

        Args:
            host: This host.
            spec: Specification of the rollout.
            run_id: Run id of the first run of the rollout's workflow.

        Raises:
            StoreError: The `Scoring` can't be read.
        """
        assert spec.stored is not None
        return cls(host, spec, Scoring.model_validate_json(await host.store.read(spec.stored.scoring)), run_id)

    def find_task(self, *, first: bool = False) -> ScoredBy:
        """Return the reference to the task to score by, or the failure in its place; empty for an unknown task.

        Args:
            first: Whether the task of the first scoring is meant.
        """
        table = self.scoring.recorded if first else self.scoring.tasks
        return table.get(self.spec.task.name) or ScoredBy()

    async def load_rollout(self, *, first: bool = False) -> Hosted:
        """Return the rollout with its task replaced by the one to score by; fetched and parsed once, then cached.

        Args:
            first: Whether the task of the first scoring is meant.

        Raises:
            TaskError: The task may not be used, or can no longer be had from the store. A task that is there and can't
                be parsed raises it only where `task` or `files` is read.
            StoreError: The store fails retryably.
        """
        by = self.find_task(first=first)
        if by.failure is not None:
            raise error_of(by.failure)
        assert by.ref is not None
        key = (by.ref.model_dump_json(), first)
        if key not in self._hosted:
            run = self.spec.run.model_copy(update={"allow_code": self.scoring.allow_code})
            spec = self.spec.model_copy(update={"task": by.ref, "run": run})
            try:
                self._hosted[key] = await Hosted.load(self.host, spec)
            except StoreError as error:
                if error.retryable:
                    raise
                raise TaskError(
                    f"task {by.ref.name!r} is not what it was, or gone, and it cannot be had from the store: "
                    f"{error.message}",
                    file=by.ref.source,
                    key="--tasks",
                    remedy="name a directory of tasks to score by: --tasks DIR",
                ) from error
        return self._hosted[key]

    @contextmanager
    def redact_errors(self) -> Iterator[None]:
        """Redact the secrets of the tasks that `hosted` has returned by then in a `BenchFlowError` of the block."""
        try:
            yield
        except BenchFlowError as error:
            for rollout in self._hosted.values():
                rollout.redact_error(error)
            raise

    def redact_failure(self, failure: Failure) -> Failure:
        """Return a failure without the secrets of the tasks that `hosted` has returned so far."""
        for rollout in self._hosted.values():
            failure = rollout.redact_failure(failure)
        return failure

    def redact_text(self, text: str) -> str:
        """Return a text without the secrets of the tasks that `hosted` has returned so far."""
        for rollout in self._hosted.values():
            text = rollout.redact.cut(text)
        return text

    def get_scorer(self) -> Scorer | None:
        """Return the user's rubric in Python, imported at the first call; None if the request names none.

        Raises:
            ConfigError: It can't be imported, or is no rubric.
        """
        rubric = self.scoring.rubric
        if rubric is not None and rubric.code is not None and self._scorer is None:
            self._scorer = load_scorer(rubric.code, rubric.code_root or ".")
        return self._scorer
