"""The output of a build or a pull, written to its log as it comes, with the last lines for an error."""

from __future__ import annotations

from collections import deque
from pathlib import Path

TAIL = 30
"""Maximum number of lines in an error."""
MAX_LINE_CHARACTERS = 4096
"""Maximum length of such a line, of which the end is retained. A build may print without ever ending a line."""
MAX_LOG_CHARACTERS = 50_000_000
"""Maximum length of the log, of which the start is retained."""
CUT = "\n(the rest of this log is not kept)\n"
"""Last line of a log that was truncated."""


class Transcript:
    """The transcript of one build."""

    def __init__(self, log: Path | None) -> None:
        """Make it, with the file to append to; None to retain only the tail."""
        self._log = log
        self._last: deque[str] = deque(maxlen=TAIL)
        self._rest = ""
        self._left = MAX_LOG_CHARACTERS
        self._is_cut = False
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)

    @property
    def tail(self) -> str:
        """Return the last lines of the output."""
        lines = [*self._last, *([self._rest] if self._rest else [])]
        return "\n".join(lines[-TAIL:])

    def write(self, text: str) -> None:
        """Add a piece of output, which may end within a line."""
        if self._log is not None and not self._is_cut:
            self._is_cut = len(text) > self._left
            with self._log.open("a", encoding="utf-8") as file:
                file.write(text[: self._left] + CUT if self._is_cut else text)
            self._left -= len(text)
        *lines, rest = (self._rest + text).split("\n")
        self._last.extend(line[-MAX_LINE_CHARACTERS:] for line in lines if line.strip())
        self._rest = rest[-MAX_LINE_CHARACTERS:]
