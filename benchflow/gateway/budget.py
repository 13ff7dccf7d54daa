"""What a rollout has used of its model, and whether it may go on."""

from __future__ import annotations

from benchflow.contracts.gateway import CallUsage, LimitName, ModelLimits, UsageTotals

_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")


class Meter:
    """Counts one rollout's calls against its limits. A call under way counts as a call, and its tokens when it ends.

    exhausted: the limit for which a call was refused.
    """

    def __init__(self, limits: ModelLimits) -> None:
        self.limits = limits
        self.totals = UsageTotals()
        self.exhausted: LimitName | None = None

    def admit(self) -> LimitName | None:
        """None when another call may begin, else the limit that is reached."""
        reached = self._reached()
        self.exhausted = reached or self.exhausted
        return reached

    def _reached(self) -> LimitName | None:
        totals, limits = self.totals, self.limits
        used: dict[LimitName, float] = {
            "calls": totals.calls,
            "input_tokens": totals.input_tokens,
            "output_tokens": totals.output_tokens,
            "total_tokens": totals.total_tokens,
            "cost_usd": totals.cost_usd or 0.0,
        }
        for name, amount in used.items():
            limit = getattr(limits, name)
            if limit is not None and amount >= limit:
                return name
        return None

    def begin(self, *, side: bool) -> None:
        """A call goes to the upstream."""
        totals = self.totals
        self.totals = totals.model_copy(update={"calls": totals.calls + 1, "side_calls": totals.side_calls + side})

    def replay(self) -> None:
        """A call was answered from a record."""
        self.totals = self.totals.model_copy(update={"replayed": self.totals.replayed + 1})

    def end(self, usage: CallUsage | None, *, answered: bool) -> None:
        """A call that went to the upstream is over. usage: None when nothing is known. answered: by a model."""
        totals = self.totals
        if usage is None:
            self.totals = totals.model_copy(update={"unmetered": totals.unmetered + answered})
            return
        update: dict[str, float | None] = {name: getattr(totals, name) + getattr(usage, name) for name in _TOKENS}
        if usage.cost_usd is None:
            update["unpriced"] = totals.unpriced + 1
        else:
            update["cost_usd"] = (totals.cost_usd or 0.0) + usage.cost_usd
        self.totals = totals.model_copy(update=update)
