"""What a build or a pull says: to its log as it comes, and its last lines for an error."""

from __future__ import annotations

from collections import deque
from pathlib import Path

TAIL = 30
"""Lines kept for an error."""


class Transcript:
    """The transcript of one build; without a log only the tail is kept."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._last: deque[str] = deque(maxlen=TAIL)
        self._rest = ""
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)

    @property
    def tail(self) -> str:
        lines = [*self._last, *([self._rest] if self._rest else [])]
        return "\n".join(lines[-TAIL:])

    def write(self, text: str) -> None:
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(text)
        *lines, self._rest = (self._rest + text).split("\n")
        self._last.extend(line for line in lines if line.strip())
