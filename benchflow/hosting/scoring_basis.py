"""What a stored rollout is scored by: its task, as it is now and as it was at first, and the rubric that was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchflow.contracts.failures import error_of
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout import Failure
from benchflow.contracts.scoring import ScoredBy, Scoring
from benchflow.errors import BenchFlowError, StoreError, TaskNotFoundError
from benchflow.host import SlotOwner
from benchflow.hosting.host import Host
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.rubric_code import Scorer, load_scorer


class ScoringBasis:
    """What scores one stored rollout on this host, for one run of its workflow."""

    def __init__(self, host: Host, spec: RolloutSpec, scoring: Scoring, run_id: str) -> None:
        """Make it."""
        self.host = host
        self.spec = spec
        self.scoring = scoring
        self.owner = SlotOwner(spec.id, run_id)
        self._hosted: dict[tuple[str, bool], Hosted] = {}
        self._scorer: Scorer | None = None

    @classmethod
    async def of(cls, host: Host, spec: RolloutSpec, run_id: str) -> ScoringBasis:
        """Read what scores from the store. run_id: first run of the rollout's workflow."""
        assert spec.stored is not None
        return cls(host, spec, Scoring.model_validate_json(await host.store.read(spec.stored.scoring)), run_id)

    def scored_by(self, *, first: bool = False) -> ScoredBy:
        """Return the task that the rollout is scored by now, or was at first."""
        table = self.scoring.recorded if first else self.scoring.tasks
        return table.get(self.spec.task.name) or ScoredBy()

    async def hosted(self, *, first: bool = False) -> Hosted:
        """Return the rollout with the task that it is scored by now, or was at first.

        Raises `TaskError` for a task that may not be used, or can't be had.
        """
        by = self.scored_by(first=first)
        if by.failure is not None:
            raise error_of(by.failure)
        assert by.ref is not None
        key = (by.ref.model_dump_json(), first)
        if key not in self._hosted:
            run = self.spec.run.model_copy(update={"allow_code": self.scoring.allow_code})
            spec = self.spec.model_copy(update={"task": by.ref, "run": run})
            try:
                self._hosted[key] = await Hosted.of(self.host, spec)
            except StoreError as error:
                if error.retryable:
                    raise
                raise TaskNotFoundError(
                    f"task {by.ref.name!r} is not what it was, or gone, and it cannot be had from the store: "
                    f"{error.message}",
                    file=by.ref.source,
                    key="--tasks",
                    remedy="name a directory of tasks to score by: --tasks DIR",
                ) from error
        return self._hosted[key]

    @contextmanager
    def redacted_errors(self) -> Iterator[None]:
        """Take the secrets of both tasks out of the errors of a block, as far as the tasks were read in it."""
        try:
            yield
        except BenchFlowError as error:
            for rollout in self._hosted.values():
                rollout.redact_error(error)
            raise

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure without the secrets of either task."""
        for rollout in self._hosted.values():
            failure = rollout.redacted(failure)
        return failure

    def redacted_text(self, text: str) -> str:
        """Return a text without the secrets of either task."""
        for rollout in self._hosted.values():
            text = rollout.redact.cut(text)
        return text

    def scorer(self) -> Scorer | None:
        """Return the rubric in Python that scores, if one was given."""
        rubric = self.scoring.rubric
        if rubric is not None and rubric.code is not None and self._scorer is None:
            self._scorer = load_scorer(rubric.code, rubric.code_root or ".")
        return self._scorer
