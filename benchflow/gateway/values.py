"""How many values a JSON text has, about: each takes up to a hundred times the bytes in memory that it has as a text.

They are counted before a text is parsed, by the signs that begin or divide values. Those within strings count, too:
texts have few of them.
"""

from __future__ import annotations

import re

MAX_VALUES = 4_000_000
"""Values of a document: a request, an answer, or an event of a streamed one."""

MAX_STREAM_VALUES = 8 * MAX_VALUES
"""Values, and lines, of all events of a stream, of which one at a time is in memory."""

_EVENT_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")


def count_values(text: bytes) -> int:
    """Return how many values a text has as a JSON document, about."""
    return sum(map(text.count, (b",", b"[", b"{")))


class AnswerValues:
    """Counts the values of an answer as it comes: of the whole, or of each event of a stream."""

    def __init__(self, content_type: str) -> None:
        self._is_stream = is_stream(content_type)
        self._total = self._of_document = 0
        self._line_ends = b""

    def add(self, data: bytes) -> bool:
        """Count what has come. Return whether it may be read, with all that came before."""
        if not self._is_stream:
            self._of_document += count_values(data)
            return self._of_document <= MAX_VALUES
        self._total += count_values(data) + data.count(b"\n") + data.count(b"\r")
        # The end of an event may come in two pieces.
        text = self._line_ends + data
        self._line_ends = text[len(text.rstrip(b"\r\n")) :][-3:]
        first, *later = _EVENT_END.split(text)
        counts = [self._of_document + count_values(first), *map(count_values, later)]
        self._of_document = counts[-1]
        return max(counts) <= MAX_VALUES and self._total <= MAX_STREAM_VALUES


def is_stream(content_type: str) -> bool:
    """Return whether an answer is a stream of events."""
    return "event-stream" in content_type.lower()
