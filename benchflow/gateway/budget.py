"""What a rollout has used of its model, and whether it may go on."""

from __future__ import annotations

from collections.abc import Iterable

from benchflow.contracts.gateway import CallUsage, LimitName, ModelLimits, UsageTotals

MAX_TOKEN_COUNTS = 1000
"""Token counts of one rollout. The agents that ask for any do so some forty times, when a user wants to see them."""

MAX_REFUSED_BODIES = 100
"""Bodies of one rollout's requests that could not be read in one way, or not at all. Known agents send none."""

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
    more["cached_tokens"] = min(told.cached_tokens, more["input_tokens"])
    more["cache_write_tokens"] = min(told.cache_write_tokens, more["input_tokens"] - more["cached_tokens"])
    more["hour_cache_write_tokens"] = min(told.hour_cache_write_tokens, more["cache_write_tokens"])
    return told.model_copy(update={**more, "is_estimated": True})


def is_plausible(told: CallUsage) -> bool:
    """Return whether an endpoint's numbers can be right.

    No model answers without having read anything, and what is cached is a part of what it has read.
    """
    has_any = bool(told.input_tokens or told.output_tokens)
    return has_any and not told.is_estimated and told.cached_tokens + told.cache_write_tokens <= told.input_tokens


class Meter:
    """Counts one rollout's calls against its limits. A call under way counts as a call, and its tokens when it ends.

    exhausted: the limit for which a call was refused.
    """

    def __init__(self, limits: ModelLimits) -> None:
        self.limits = limits
        self.exhausted: LimitName | None = None
        self._ended = UsageTotals()
        self._expected: dict[str, CallUsage] = {}
        self._refused_bodies = 0

    @property
    def totals(self) -> UsageTotals:
        """Return what the rollout has used, with what is expected of calls that their agent has left."""
        return _sum(self._ended, self._expected.values())

    def admit(self) -> LimitName | None:
        """None when another call may begin, else the limit that is reached."""
        reached = self.reached()
        self.exhausted = reached or self.exhausted
        return reached

    def can_count_tokens(self) -> bool:
        """Return whether there may be another token count, which uses up nothing of what calls may."""
        return self.totals.token_counts < MAX_TOKEN_COUNTS

    def refuse_body(self) -> None:
        """Count a request's body that was received for nothing."""
        self._refused_bodies += 1

    def can_send_bodies(self) -> bool:
        """Return whether another body may be received."""
        return self._refused_bodies < MAX_REFUSED_BODIES

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
        totals = self._ended
        self._ended = totals.model_copy(update={"calls": totals.calls + 1, "side_calls": totals.side_calls + side})

    def count_tokens(self) -> None:
        """A token count goes to the upstream."""
        self._ended = self._ended.model_copy(update={"token_counts": self._ended.token_counts + 1})

    def replay(self) -> None:
        """A call was answered from a record."""
        self._ended = self._ended.model_copy(update={"replayed": self._ended.replayed + 1})

    def expect(self, call: str, usage: CallUsage) -> None:
        """Count what a call has used at least whose agent has left, until it ends. call: its id."""
        self._expected[call] = usage

    def end(self, usage: CallUsage | None, *, answered: bool, call: str = "") -> None:
        """A call that went to the upstream is over. usage: None when nothing is known.

        answered: by a model, to an agent that stayed to the end. call: its id, if something was expected of it.
        """
        self._expected.pop(call, None)
        is_unknown = answered and usage is None
        totals = self._ended.model_copy(update={"unmetered": self._ended.unmetered + is_unknown})
        self._ended = _sum(totals, [usage] if usage is not None else [])


def _sum(totals: UsageTotals, more: Iterable[CallUsage]) -> UsageTotals:
    """Return totals with more calls' usage."""
    for usage in more:
        update: dict[str, float | None] = {name: getattr(totals, name) + getattr(usage, name) for name in _TOKENS}
        if usage.cost_usd is None:
            update["unpriced"] = totals.unpriced + 1
        else:
            update["cost_usd"] = (totals.cost_usd or 0.0) + usage.cost_usd
        update["unmetered"] = totals.unmetered + usage.is_estimated
        totals = totals.model_copy(update=update)
    return totals
