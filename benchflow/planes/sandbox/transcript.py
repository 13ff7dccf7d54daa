"""What a build or a pull says: to its log as it comes, and its last lines for an error."""

from __future__ import annotations

from collections import deque
from pathlib import Path

TAIL = 30
"""Lines kept for an error."""
MAX_LINE_CHARACTERS = 4096
"""The end of a line that is kept for an error. A task's build may print without ever ending a line."""
MAX_LOG_CHARACTERS = 50_000_000
"""The beginning of a build's output that is kept in its log."""
CUT = "\n(the rest of this log is not kept)\n"


class Transcript:
    """The transcript of one build; without a log only the tail is kept."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._last: deque[str] = deque(maxlen=TAIL)
        self._rest = ""
        self._left = MAX_LOG_CHARACTERS
        self._is_cut = False
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)

    @property
    def tail(self) -> str:
        lines = [*self._last, *([self._rest] if self._rest else [])]
        return "\n".join(lines[-TAIL:])

    def write(self, text: str) -> None:
        if self._log is not None and not self._is_cut:
            self._is_cut = len(text) > self._left
            with self._log.open("a", encoding="utf-8") as file:
                file.write(text[: self._left] + CUT if self._is_cut else text)
            self._left -= len(text)
        *lines, rest = (self._rest + text).split("\n")
        self._last.extend(line[-MAX_LINE_CHARACTERS:] for line in lines if line.strip())
        self._rest = rest[-MAX_LINE_CHARACTERS:]
