"""When an upstream is asked again, and how long to wait before."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from benchflow.contracts.gateway import RetryPolicy

RETRIED = frozenset({429, 500, 502, 503, 504, 529})
"""Statuses that may be others in a while."""

FIXABLE = frozenset({401, 402, 403, 404})
"""Statuses that persist until a user fixes the key, the quota, the model's name or the address."""


def wanted_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to be waited for; None when it asks for nothing that can be read."""
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
        # By the clock of who answers, where it tells: this host's may be wrong, or be set meanwhile.
        now = time.time()
        with contextlib.suppress(KeyError, ValueError):
            now = parsedate_to_datetime(headers["date"]).timestamp()
        return max(0.0, until - now)
    return None


def next_wait(policy: RetryPolicy, retries: int, elapsed: float, wanted: float | None = None) -> float | None:
    """Seconds until the next attempt, after so many retries and so many seconds; None when there is none."""
    if retries >= policy.max_retries:
        return None
    wait = policy.first_wait_sec * 2 ** min(retries, 30) if wanted is None else wanted
    wait = min(wait, policy.max_wait_sec)
    return wait if elapsed + wait <= policy.total_sec else None
