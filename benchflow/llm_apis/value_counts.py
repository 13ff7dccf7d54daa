"""The approximate number of values in a JSON text: each takes up to a hundred times its bytes as text in memory.

They are counted before a text is parsed, by the characters that begin or separate values. Those within strings count,
too: texts have few of them.
"""

from __future__ import annotations

import re

MAX_VALUES = 4_000_000
"""Maximum of values of a document: a request, a response, or an event of a streamed one."""

MAX_STREAM_VALUES = 8 * MAX_VALUES
"""Maximum of values and lines of all events of a stream, of which one at a time is in memory."""

_EVENT_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")


def count_values(text: bytes) -> int:
    """Return the approximate number of values of a JSON text."""
    return sum(map(text.count, (b",", b"[", b"{")))


class AnswerValues:
    """Counts the JSON values of a response as it arrives, to tell when there are too many to parse."""

    def __init__(self, content_type: str) -> None:
        """Make it. The content type decides whether the response is a stream."""
        self._is_stream = is_stream(content_type)
        self._total = self._of_document = 0
        self._line_ends = b""

    def add(self, data: bytes) -> bool:
        """Count a further piece. Return whether the response so far is within the limits for parsing."""
        if not self._is_stream:
            self._of_document += count_values(data)
            return self._of_document <= MAX_VALUES
        self._total += count_values(data) + data.count(b"\n") + data.count(b"\r")
        # The end of an event may be split between two pieces.
        text = self._line_ends + data
        self._line_ends = text[len(text.rstrip(b"\r\n")) :][-3:]
        first, *later = _EVENT_END.split(text)
        counts = [self._of_document + count_values(first), *map(count_values, later)]
        self._of_document = counts[-1]
        return max(counts) <= MAX_VALUES and self._total <= MAX_STREAM_VALUES


def is_stream(content_type: str) -> bool:
    """Return whether a content type is that of a stream of events."""
    return "event-stream" in content_type.lower()
