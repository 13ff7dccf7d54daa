"""Sandboxes that belong to one process alone, and to no workflow."""

from __future__ import annotations

import os

from benchflow.planes.sandbox.local.helper.process import start_time

OWNER_LABEL = "benchflow.owner"
"""Label of a sandbox that is for one process alone: its pid and start time."""

OF_A_PROCESS = "process"
"""Stack that the labels of such a sandbox name."""


def owned_by_this_process() -> dict[str, str]:
    """Return the label of a sandbox that is removed once this process has ended."""
    return {OWNER_LABEL: f"{os.getpid()}:{start_time(os.getpid())}"}


def is_abandoned(owner: str | None) -> bool:
    """Return whether the process that a sandbox was started for is gone."""
    pid, _, started = (owner or "").partition(":")
    return owner is not None and not (pid.isdecimal() and str(start_time(int(pid))) == started)
