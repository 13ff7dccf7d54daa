"""How the end of a command is told, whatever provider ran it."""

from __future__ import annotations

OUTPUT_CAP = 10 * 1024 * 1024
"""Bytes kept of each output: the first and the last half."""

OUTPUT_ON_DISK = 8 * OUTPUT_CAP
"""An output larger than this loses its middle while the command runs, so that none fills the disk."""

LEFT_OUT = "\n[... output left out here ...]\n"

WATCH_EVERY = 5.0
"""Seconds between two looks at the size of a running command's output."""

TIMED_OUT = 124
NOT_STARTED = 126
KILLED = 137
