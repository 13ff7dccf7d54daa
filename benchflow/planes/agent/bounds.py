"""Limits of the data that an agent can make its host store and parse. Real agents stay far below; others are ended.

The limits of model calls are the gateway's; those of the trajectory are in `trajectories.journal`.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from benchflow.confined import ConfinedDirectory
from benchflow.errors import AgentOutputError, UnsafePathError

MAX_LINE = 16 * 1024 * 1024
"""Maximum bytes of one message: a file of 10 MB in base64, or ten times the longest output that real agents pass on."""

MAX_VALUES = 250_000
"""Maximum values in one message, texts aside: `{}` takes three bytes on the wire, and twenty times as many once parsed.
"""

MAX_OUTPUT = 1024 * 1024 * 1024
"""Maximum bytes of the journal `out` of one agent process. The stdio proxy (`pump.mjs`) ends the agent beyond it."""

MAX_SENT = 1024 * 1024 * 1024
"""Maximum bytes of the journal `in`: a request of a hundred bytes can ask for a file of ten megabytes, repeatedly."""

MAX_REQUESTS = 64
"""Maximum requests of an agent that are served at a time; most agents wait for each."""

MAX_SHARED = 2 * 1024 * 1024 * 1024
"""Maximum bytes on disk of the directory that a sandbox mounts for the journals, where its root may write anything."""

MAX_SHARED_FILES = 10_000
"""Maximum files and directories in it. A session has five."""

POLL_INTERVAL = 1.0
"""Seconds between two measurements of that directory."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SIGNS = (b",", b"{", b"[")


def has_too_many_values(line: bytes) -> bool:
    """Return whether a line of JSON holds more than `MAX_VALUES` values."""
    if len(line) <= MAX_VALUES or _count_signs(line) <= MAX_VALUES:
        return False
    return _count_signs(_TEXT.sub(b"", line)) > MAX_VALUES


def _count_signs(line: bytes) -> int:
    return sum(map(line.count, _SIGNS))


async def watch_shared_size(shared: Path) -> None:
    """Poll the shared directory of a sandbox, forever; raise `AgentOutputError` once it is too large.

    A file that was removed while it is open isn't seen: like the sandbox's own disk, the provider must limit it.
    """
    while True:
        await asyncio.to_thread(require_small, shared)
        await asyncio.sleep(POLL_INTERVAL)


def require_small(shared: Path) -> None:
    """Raise `AgentOutputError` if the shared directory of a sandbox exceeds `MAX_SHARED` or `MAX_SHARED_FILES`."""
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
