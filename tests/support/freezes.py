"""This process frozen for a moment, as by SIGSTOP or in a suspended machine, and taken for so soon."""

from __future__ import annotations

import time

import pytest

from benchflow.planes.sandbox import timeouts

FROZEN_SEC = 0.5


def notice_soon(patch: pytest.MonkeyPatch) -> None:
    """Have this process know after `FROZEN_SEC` that it was frozen."""
    patch.setattr(timeouts, "FROZEN_SEC", FROZEN_SEC)
    patch.setattr(timeouts, "POLL_INTERVAL_SEC", FROZEN_SEC / 5)


def freeze(seconds: float) -> None:
    """Have nothing in this process's event loop run for so long: its length is what a test is about."""
    time.sleep(seconds)
