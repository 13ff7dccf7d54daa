"""Limits of the stored output of commands, and exit codes with a meaning of their own, for all providers."""

from __future__ import annotations

OUTPUT_CAP = 10 * 1024 * 1024
"""Maximum number of bytes of stdout, and of stderr, in a result: the first and the last half."""

OUTPUT_ON_DISK = 8 * OUTPUT_CAP
"""Number of bytes from which an output loses its middle while the command runs, so that it can't fill the disk."""

LEFT_OUT = "\n[... output left out here ...]\n"
"""Text in place of the middle of an output."""

OUTPUT_POLL_SEC = 5.0
"""Poll interval in seconds for the size of a running command's output."""

TIMED_OUT = 124
"""Exit code of a command that ran out of time."""

NOT_STARTED = 126
"""Exit code of a command that could not be started."""

KILLED = 137
"""Exit code of a command that was killed (128 + SIGKILL)."""
