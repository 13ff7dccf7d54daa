"""Reading how a sandbox fares with its memory, from its control group in either version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxLostError, SandboxMemoryError
from benchflow.planes.sandbox.records import write_record

V2_FILES = ("memory.events", "memory.max", "memory.peak")
"""Kills, limit and peak in version 2. `memory.peak` is there since Linux 5.19."""

V1_FILES = ("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes")
"""The same in version 1. `oom_kill` is in the first one since Linux 4.13."""

_UNLIMITED = 1 << 60
"""Bytes. Version 1 says the largest number of pages that it can count where there is no limit."""


def parse_memory(files: Mapping[str, str]) -> MemoryUse | None:
    """Return what the files of a control group say, by their names. None where kills are not counted."""
    for events, limit, peak in (V2_FILES, V1_FILES):
        # Not `oom`, which counts also what ended without a kill, nor `oom_group_kill`, whose kills are in it, too.
        counted = re.search(r"^oom_kill (\d+)$", files.get(events, ""), re.MULTILINE)
        if counted is not None:
            kills = int(counted.group(1))
            return MemoryUse(kills=kills, limit_mb=_mebibytes(files.get(limit)), peak_mb=_mebibytes(files.get(peak)))
    return None


def _mebibytes(text: str | None) -> int | None:
    """Return a file's number of bytes in MiB. None for no file, and for no limit, which version 2 calls `max`."""
    text = (text or "").strip()
    return int(text) >> 20 if text.isdigit() and int(text) < _UNLIMITED else None


def loss_for_memory(name: str, use: MemoryUse | None) -> SandboxLostError | None:
    """Return the error for a sandbox that has ended, if the kernel has killed in it. use: its last counters."""
    if use is None or not use.kills:
        return None
    return SandboxMemoryError(
        f"the sandbox {name} no longer runs: {use.explanation(use.kills)}",
        key="memory_mb",
        remedy=use.remedy("memory_mb"),
    )


class _Started(Model):
    kills: int
    """Counted when it was noted."""


class KillNote:
    """Counts the kills from a moment on, in whichever process. file: where the count of that moment is noted."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def is_begun(self) -> bool:
        """Whether a count was noted."""
        return self._file.exists()

    async def begin(self, sandbox: Sandbox) -> None:
        """Count from now on. Once whoever is watched has started, that would miss kills."""
        use = await sandbox.memory_use()
        if use is None:
            return
        write_record(self._file, _Started(kills=use.kills).model_dump())

    def kills(self, use: MemoryUse) -> int:
        """Return the kills since then, or since the sandbox's start where that was not noted."""
        try:
            earlier = _Started.model_validate_json(self._file.read_bytes()).kills
        except FileNotFoundError:
            earlier = 0
        return use.kills_since(earlier)
