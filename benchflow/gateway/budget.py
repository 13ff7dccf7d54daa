"""What a rollout has used of its model, and whether it may go on."""

from __future__ import annotations

from benchflow.contracts.gateway import CallUsage, LimitName, ModelLimits, UsageTotals

MAX_TOKEN_COUNTS = 1000
"""Token counts of one rollout. The agents that ask for any do so some forty times, when a user wants to see them."""

_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")


_BYTES_OF_TOKEN = 4
"""Of a text in most languages, about."""


def estimate_usage(told: CallUsage | None, asked: int, answered: int) -> CallUsage:
    """Return the usage of a call whose endpoint has not told all: what it told, or more by a guess.

    Without it an agent could read every answer but its last event, or ask in a way that is answered without usage, and
    use up nothing.

    Args:
        told: What the endpoint had told so far; None for nothing.
        asked: The bytes of the request.
        answered: The characters of the answer's texts.
    """
    told = told or CallUsage()
    guess = {"input_tokens": asked // _BYTES_OF_TOKEN, "output_tokens": answered // _BYTES_OF_TOKEN}
    more = {name: max(getattr(told, name), number) for name, number in guess.items()}
    return told.model_copy(update={**more, "is_estimated": True})


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
        reached = self.reached()
        self.exhausted = reached or self.exhausted
        return reached

    def can_count_tokens(self) -> bool:
        """Return whether there may be another token count, which uses up nothing of what calls may."""
        return self.totals.token_counts < MAX_TOKEN_COUNTS

    def reached(self) -> LimitName | None:
        """Return the limit that is reached; None while another call may begin. Nothing was refused by asking this."""
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

    def count_tokens(self) -> None:
        """A token count goes to the upstream."""
        self.totals = self.totals.model_copy(update={"token_counts": self.totals.token_counts + 1})

    def replay(self) -> None:
        """A call was answered from a record."""
        self.totals = self.totals.model_copy(update={"replayed": self.totals.replayed + 1})

    def end(self, usage: CallUsage | None, *, answered: bool) -> None:
        """A call that went to the upstream is over. usage: None when nothing is known.

        answered: by a model, to an agent that stayed to the end.
        """
        is_unmetered = answered and (usage is None or usage.is_estimated)
        totals = self.totals = self.totals.model_copy(update={"unmetered": self.totals.unmetered + is_unmetered})
        if usage is None:
            return
        update: dict[str, float | None] = {name: getattr(totals, name) + getattr(usage, name) for name in _TOKENS}
        if usage.cost_usd is None:
            update["unpriced"] = totals.unpriced + 1
        else:
            update["cost_usd"] = (totals.cost_usd or 0.0) + usage.cost_usd
        self.totals = totals.model_copy(update=update)
