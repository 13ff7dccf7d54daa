"""The rollouts that a job has still to start: pending indices, named rollouts (with a specification), and retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from benchflow.contracts.job import Retry, RolloutSpec

Range = tuple[int, int]
"""Half-open range of rollout indices: first, end."""


class Spans:
    """Queue of rollout indices, stored as ranges, since a job may have 10^5 indices."""

    def __init__(self, spans: Iterable[Range]) -> None:
        """Make the queue from ranges of indices; empty ranges are dropped."""
        self._spans = [(first, end) for first, end in spans if first < end]

    def __len__(self) -> int:
        """Return the number of indices."""
        return sum(end - first for first, end in self._spans)

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges, not the indices."""
        return iter(self._spans)

    def peek(self, count: int) -> list[Range]:
        """Return the ranges of the first `count` indices, or of all if there are fewer. Remove nothing."""
        found: list[Range] = []
        for first, end in self._spans:
            if count <= 0:
                break
            found.append((first, min(end, first + count)))
            count -= end - first
        return found

    def drop(self, count: int) -> None:
        """Remove the first `count` indices."""
        left: list[Range] = []
        for first, end in self._spans:
            dropped = min(count, end - first)
            count -= dropped
            if first + dropped < end:
                left.append((first + dropped, end))
        self._spans = left

    def prepend(self, first: int, end: int) -> None:
        """Add the range of indices from `first` up to, not including, `end` to the front."""
        self._spans.insert(0, (first, end))


class Backlog:
    """The rollouts of a job that are still to be started: pending, named, or waiting for a retry."""

    def __init__(self, pending: Iterable[Range], retries: Iterable[Retry]) -> None:
        """Make the backlog, with no rollout named.

        Args:
            pending: Ranges of the indices of rollouts that had no attempt yet.
            retries: Scheduled attempts of rollouts that failed, or failed to start.
        """
        self.pending = Spans(pending)
        self.named: deque[RolloutSpec] = deque()
        self.retries = list(retries)

    def __len__(self) -> int:
        """Return the number of rollouts that are still to be started, retries included."""
        return self.n_unstarted + len(self.retries)

    @property
    def n_unstarted(self) -> int:
        """Return the number of rollouts that are pending or named; of the retries, only named ones count."""
        return len(self.named) + len(self.pending)

    def has(self, index: int) -> bool:
        """Return whether the rollout of this index is still to be started, for the first time or again."""
        indices = [*(spec.index for spec in self.named), *(retry.index for retry in self.retries)]
        return index in indices or any(first <= index < end for first, end in self.pending)

    def peek(self, now: float, count: int, batch: int) -> tuple[list[Retry], list[Range]]:
        """Return the rollouts to name next: due retries, or if there are none, pending rollouts. Remove nothing.

        Args:
            now: Workflow time.
            count: Maximum number of retries.
            batch: Maximum number of pending rollouts.

        Returns:
            The due retries, empty for pending rollouts, and the index ranges of the rollouts in either case.
        """
        due = [retry for retry in self.retries if retry.not_before <= now][:count]
        return due, [(retry.index, retry.index + 1) for retry in due] or self.pending.peek(batch)

    def add_named(self, due: Sequence[Retry], specs: Sequence[RolloutSpec]) -> None:
        """Move rollouts that `next` returned to the named ones, with the number of the attempt in their specifications.

        Args:
            due: The retries that `next` returned.
            specs: Specifications of the rollouts, in order. Rollouts beyond these stay where they are.
        """
        attempts = {retry.index: retry.attempt for retry in due}
        self.named.extend(spec.model_copy(update={"attempt": attempts.get(spec.index, 1)}) for spec in specs)
        if due:
            self._drop_retries({spec.index for spec in specs})
        else:
            self.pending.drop(len(specs))

    def add_retry(self, index: int, attempt: int, not_before: float) -> Retry:
        """Schedule an attempt of a rollout, and return the retry.

        Args:
            index: Index of the rollout.
            attempt: Number of the attempt.
            not_before: Earliest workflow time of the start, in seconds since the epoch.
        """
        retry = Retry(index=index, attempt=attempt, not_before=not_before)
        self.retries.append(retry)
        return retry

    def requeue_named(self, now: float) -> None:
        """Move the named rollouts back: first attempts to the front of the pending ones, others to the retries.

        Args:
            now: Workflow time, from which those retries are due.
        """
        for spec in reversed(self.named):
            if spec.attempt > 1:
                self.add_retry(spec.index, spec.attempt, now)
            else:
                self.pending.prepend(spec.index, spec.index + 1)
        self.named.clear()

    def drop(self, due: Sequence[Retry], pending: Sequence[Range]) -> tuple[int, list[Range]]:
        """Remove retries, and pending rollouts from the front.

        Args:
            due: Retries to remove.
            pending: Ranges of the first pending rollouts, as `next` returns them.

        Returns:
            The number of rollouts removed, and the ranges of the indices of those that had no attempt yet.
        """
        self._drop_retries({retry.index for retry in due})
        count = sum(end - first for first, end in pending)
        self.pending.drop(count)
        return len(due) + count, [*pending, *((one.index, one.index + 1) for one in due if one.attempt == 1)]

    def drop_attempted(self, now: float) -> int:
        """Remove the retries of rollouts that had an attempt, and return their number.

        These rollouts have a row already, that of their last attempt. Named rollouts and other retries become pending.

        Args:
            now: Workflow time.
        """
        self.requeue_named(now)
        number, never = self.drop(self.retries, [])
        for first, end in never:
            self.pending.prepend(first, end)
        return number - len(never)

    def _drop_retries(self, indices: set[int]) -> None:
        self.retries = [retry for retry in self.retries if retry.index not in indices]
