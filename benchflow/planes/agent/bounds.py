"""How much an agent may make its host keep and parse. Real agents stay far below; one that doesn't is ended.

Bounds of an agent's calls of its model are the gateway's; those of the trajectory are in `trajectories.journal`.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from benchflow.confined import ConfinedDirectory
from benchflow.errors import AgentOutputError, UnsafePathError

MAX_LINE = 16 * 1024 * 1024
"""Bytes of one message: a file of 10 MB in base64, or ten times the longest output that real agents pass on."""

MAX_VALUES = 250_000
"""Values in one message, texts aside: `{}` takes three bytes on the wire, and twenty times as many once parsed."""

MAX_OUTPUT = 1024 * 1024 * 1024
"""Bytes of the journal `out` of one agent process. The stdio proxy (`pump.mjs`) ends the agent beyond as many."""

MAX_SENT = 1024 * 1024 * 1024
"""Bytes of the journal `in`: a request of a hundred bytes can ask for a file of ten megabytes, again and again."""

MAX_REQUESTS = 64
"""Requests of an agent's that are served at the same time; most agents wait for each."""

MAX_SHARED = 2 * 1024 * 1024 * 1024
"""Bytes on disk of the directory that a sandbox mounts for the journals: its root may write there without the proxy."""

MAX_SHARED_FILES = 10_000
"""Files and directories in it. A session has five."""

POLL_INTERVAL = 1.0
"""Seconds between two measurements of that directory."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SIGNS = (b",", b"{", b"[")


def has_too_many_values(line: bytes) -> bool:
    """Tell whether a line of JSON holds more than `MAX_VALUES` values."""
    if len(line) <= MAX_VALUES or _count_signs(line) <= MAX_VALUES:
        return False
    return _count_signs(_TEXT.sub(b"", line)) > MAX_VALUES


def _count_signs(line: bytes) -> int:
    return sum(map(line.count, _SIGNS))


async def outgrown(shared: Path) -> None:
    """Raise `AgentOutputError` as soon as the shared directory of a sandbox is too large; never returns.

    A file that was removed while it is open isn't seen: like the sandbox's own disk it is for the provider to bound.
    """
    while True:
        await asyncio.to_thread(require_small, shared)
        await asyncio.sleep(POLL_INTERVAL)


def require_small(shared: Path) -> None:
    """Raise `AgentOutputError` if the shared directory of a sandbox takes more than `MAX_SHARED` bytes of the disk."""
    try:
        with ConfinedDirectory(shared) as directory:
            # Blocks, not sizes: a file may have holes.
            used = sum(entry.status.st_blocks * 512 for entry in directory.entries(limit=MAX_SHARED_FILES))
    except FileNotFoundError:
        return
    except UnsafePathError as error:
        raise AgentOutputError(f"the sandbox filled the directory of its agents' stdio: {error.message}") from error
    if used > MAX_SHARED:
        raise AgentOutputError(
            f"the sandbox filled the directory of its agents' stdio with more than {MAX_SHARED} bytes"
        )
