"""Retries of an upstream: the statuses that are retried, and the wait before each attempt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from benchflow.contracts.gateway import RetryPolicy

RETRIED = frozenset({429, 500, 502, 503, 504, 529})
"""Statuses that may be transient."""

FIXABLE = frozenset({401, 402, 403, 404})
"""Statuses that persist until a user fixes the key, the quota, the model's name or the address."""


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait before a retry; None if it has no valid such header."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            return max(0.0, float(text) / unit)
        except ValueError:
            pass
        try:
            until = parsedate_to_datetime(text).timestamp()
        except ValueError:
            continue
        # By the server's clock, if it sends its date: this host's may be wrong, or be set meanwhile.
        now = time.time()
        with contextlib.suppress(KeyError, ValueError):
            now = parsedate_to_datetime(headers["date"]).timestamp()
        return max(0.0, until - now)
    return None


def next_wait(policy: RetryPolicy, retries: int, elapsed: float, retry_after: float | None = None) -> float | None:
    """Return the seconds until the next attempt; None if there is none.

    Args:
        policy: The policy.
        retries: Number of retries so far.
        elapsed: Seconds since the call, or the endpoint's outage, began.
        retry_after: Seconds that the response asks to wait; None: the policy's backoff.
    """
    if retries >= policy.max_retries:
        return None
    wait = policy.first_wait_sec * 2 ** min(retries, 30) if retry_after is None else retry_after
    wait = min(wait, policy.max_wait_sec)
    return wait if elapsed + wait <= policy.total_sec else None
