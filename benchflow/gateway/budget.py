"""Metering of a rollout's model usage, and the check of its limits."""

from __future__ import annotations

from collections.abc import Iterable

from benchflow.contracts.gateway import CallUsage, LimitName, ModelLimits, UsageTotals

MAX_TOKEN_COUNTS = 1000
"""Maximum of token counts of one rollout. Agents that send any send some forty, when a user wants to see them."""

MAX_REFUSED_BODIES = 100
"""Maximum of one rollout's request bodies that could not be read, or were ambiguous. Known agents send none."""

_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")


_BYTES_OF_TOKEN = 4
"""Approximate bytes of a token of text, in most languages."""


def estimate_usage(reported: CallUsage | None, request_bytes: int, output_chars: int) -> CallUsage:
    """Return the reported usage of a call, raised to an estimate where its report is missing or incomplete.

    Without it an agent could read every response except its last event, or send requests whose responses report no
    usage, and use up nothing.

    Args:
        reported: Usage that the endpoint has reported so far; None for none.
        request_bytes: Bytes of the request.
        output_chars: Characters of model output.
    """
    reported = reported or CallUsage()
    guess = {"input_tokens": request_bytes // _BYTES_OF_TOKEN, "output_tokens": output_chars // _BYTES_OF_TOKEN}
    more = {name: max(getattr(reported, name), number) for name, number in guess.items()}
    more["cached_tokens"] = min(reported.cached_tokens, more["input_tokens"])
    more["cache_write_tokens"] = min(reported.cache_write_tokens, more["input_tokens"] - more["cached_tokens"])
    more["hour_cache_write_tokens"] = min(reported.hour_cache_write_tokens, more["cache_write_tokens"])
    return reported.model_copy(update={**more, "is_estimated": True})


def is_plausible(reported: CallUsage) -> bool:
    """Return whether the reported usage can be true.

    No model answers without input, and cached tokens are a part of the input.
    """
    has_any = bool(reported.input_tokens or reported.output_tokens)
    return (
        has_any
        and not reported.is_estimated
        and reported.cached_tokens + reported.cache_write_tokens <= reported.input_tokens
    )


class Meter:
    """Counts one rollout's calls against its limits: a call counts when it begins, its tokens when it ends.

    Attributes:
        limits: The limits.
        exhausted: Limit for which a call was refused; None if none was.
    """

    def __init__(self, limits: ModelLimits) -> None:
        """Make it with nothing used."""
        self.limits = limits
        self.exhausted: LimitName | None = None
        self._ended = UsageTotals()
        self._expected: dict[str, CallUsage] = {}
        self._refused_bodies = 0

    @property
    def totals(self) -> UsageTotals:
        """Return the rollout's usage, including estimates for calls whose agent has left."""
        return _sum(self._ended, self._expected.values())

    def admit(self) -> LimitName | None:
        """Return the limit that forbids another call, and note it as exhausted; None if none does."""
        reached = self.find_reached_limit()
        self.exhausted = reached or self.exhausted
        return reached

    def can_count_tokens(self) -> bool:
        """Return whether another token count is allowed. These have a limit of their own, apart from calls."""
        return self.totals.token_counts < MAX_TOKEN_COUNTS

    def refuse_body(self) -> None:
        """Count a request's body that was received but refused."""
        self._refused_bodies += 1

    def can_send_bodies(self) -> bool:
        """Return whether the rollout may send another body, after those that were refused."""
        return self._refused_bodies < MAX_REFUSED_BODIES

    def find_reached_limit(self) -> LimitName | None:
        """Return the limit that is reached, without noting it as exhausted; None if none is."""
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
        """Count a call that is sent to the upstream."""
        totals = self._ended
        self._ended = totals.model_copy(update={"calls": totals.calls + 1, "side_calls": totals.side_calls + side})

    def count_tokens(self) -> None:
        """Count a token count that is sent to the upstream."""
        self._ended = self._ended.model_copy(update={"token_counts": self._ended.token_counts + 1})

    def replay(self) -> None:
        """Count a call that was answered from a record."""
        self._ended = self._ended.model_copy(update={"replayed": self._ended.replayed + 1})

    def expect(self, call: str, usage: CallUsage) -> None:
        """Count an estimated usage of a call whose agent has left, until the call ends. `call` is its id."""
        self._expected[call] = usage

    def end(self, usage: CallUsage | None, *, answered: bool, call: str = "") -> None:
        """Count the usage of a call that was sent to the upstream and has ended.

        Args:
            usage: Its usage; None if unknown.
            answered: Whether a model has answered it, to an agent that stayed to the end.
            call: Its id, if a usage was expected for it.
        """
        self._expected.pop(call, None)
        is_unknown = answered and usage is None
        totals = self._ended.model_copy(update={"unmetered": self._ended.unmetered + is_unknown})
        self._ended = _sum(totals, [usage] if usage is not None else [])


def _sum(totals: UsageTotals, more: Iterable[CallUsage]) -> UsageTotals:
    """Return totals with the usage of more calls added."""
    for usage in more:
        update: dict[str, float | None] = {name: getattr(totals, name) + getattr(usage, name) for name in _TOKENS}
        if usage.cost_usd is None:
            update["unpriced"] = totals.unpriced + 1
        else:
            update["cost_usd"] = (totals.cost_usd or 0.0) + usage.cost_usd
        update["unmetered"] = totals.unmetered + usage.is_estimated
        totals = totals.model_copy(update=update)
    return totals
