"""What a job has still to start: indices that wait, rollouts that are named, and retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from benchflow.contracts.job import Retry, RolloutSpec

Range = tuple[int, int]
"""Half-open, of indices of rollouts."""


class Spans:
    """Indices as ranges, taken from the front: a job may have 10^5 of them."""

    def __init__(self, spans: Iterable[Range]) -> None:
        self._spans = [(first, end) for first, end in spans if first < end]

    def __len__(self) -> int:
        return sum(end - first for first, end in self._spans)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._spans)

    def first(self, count: int) -> list[Range]:
        """Return the ranges of the first `count` indices, or of all there are."""
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

    def put_back(self, first: int, end: int) -> None:
        """Add a range to the front."""
        self._spans.insert(0, (first, end))


class Backlog:
    """The rollouts of a job that are to be started, now or later."""

    def __init__(self, pending: Iterable[Range], retries: Iterable[Retry]) -> None:
        self.pending = Spans(pending)
        self.named: deque[RolloutSpec] = deque()
        self.retries = list(retries)

    def __len__(self) -> int:
        return self.n_unstarted + len(self.retries)

    @property
    def n_unstarted(self) -> int:
        """Rollouts that had no attempt yet, and those that are named."""
        return len(self.named) + len(self.pending)

    def has(self, index: int) -> bool:
        """Tell whether a rollout is still to be started."""
        indices = [*(spec.index for spec in self.named), *(retry.index for retry in self.retries)]
        return index in indices or any(first <= index < end for first, end in self.pending)

    def next(self, now: float, count: int, batch: int) -> tuple[list[Retry], list[Range]]:
        """Return what to name next: at most `count` retries that are due, else `batch` pending ones; and its ranges."""
        due = [retry for retry in self.retries if retry.not_before <= now][:count]
        return due, [(retry.index, retry.index + 1) for retry in due] or self.pending.first(batch)

    def add_named(self, due: Sequence[Retry], specs: Sequence[RolloutSpec]) -> None:
        """Take what `next` returned as named, as far as there are specifications."""
        attempts = {retry.index: retry.attempt for retry in due}
        self.named.extend(spec.model_copy(update={"attempt": attempts.get(spec.index, 1)}) for spec in specs)
        if due:
            self._drop_retries({spec.index for spec in specs})
        else:
            self.pending.drop(len(specs))

    def add_retry(self, index: int, attempt: int, not_before: float) -> Retry:
        """Have a rollout run again from a time on."""
        retry = Retry(index=index, attempt=attempt, not_before=not_before)
        self.retries.append(retry)
        return retry

    def unname(self, now: float) -> None:
        """Return what is named and not started to the pending ones and the retries."""
        for spec in reversed(self.named):
            if spec.attempt > 1:
                self.add_retry(spec.index, spec.attempt, now)
            else:
                self.pending.put_back(spec.index, spec.index + 1)
        self.named.clear()

    def drop(self, due: Sequence[Retry], pending: Sequence[Range]) -> tuple[int, list[Range]]:
        """Remove retries, and ranges at the front. Returns how many rollouts these are, and which had no attempt."""
        self._drop_retries({retry.index for retry in due})
        count = sum(end - first for first, end in pending)
        self.pending.drop(count)
        return len(due) + count, [*pending, *((one.index, one.index + 1) for one in due if one.attempt == 1)]

    def drop_attempted(self, now: float) -> int:
        """Remove the retries of rollouts that had an attempt, and return how many: that attempt's row is theirs."""
        self.unname(now)
        number, never = self.drop(self.retries, [])
        for first, end in never:
            self.pending.put_back(first, end)
        return number - len(never)

    def _drop_retries(self, indices: set[int]) -> None:
        self.retries = [retry for retry in self.retries if retry.index not in indices]
