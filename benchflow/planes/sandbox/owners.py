"""Sandboxes that belong to one process and to no workflow."""

from __future__ import annotations

import os

from benchflow.process_identity import read_start_time

OWNER_LABEL = "benchflow.owner"
"""Label of a sandbox that belongs to one process: its pid and start time."""

OF_A_PROCESS = "process"
"""Stack id in the labels of such a sandbox."""


def make_owner_labels() -> dict[str, str]:
    """Return the labels of a sandbox that is to be removed once this process has ended."""
    return {OWNER_LABEL: f"{os.getpid()}:{read_start_time(os.getpid())}"}


def is_abandoned(owner: str | None) -> bool:
    """Return whether the process in an owner label has ended; False without a label."""
    pid, _, started = (owner or "").partition(":")
    return owner is not None and not (pid.isdecimal() and str(read_start_time(int(pid))) == started)
