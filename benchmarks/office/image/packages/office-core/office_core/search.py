"""What people type into a search box: words, "phrases", and `operator:value` pairs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from office_core.arguments import parse_time
from office_core.errors import Invalid
from office_core.store import Store

PIECE = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')
SNIPPET = 140


class Query:
    """words: all must occur. filters: (operator, value) in the order given; only operators that the service has."""

    def __init__(self, text: str, operators: Collection[str]) -> None:
        self.words: list[str] = []
        self.filters: list[tuple[str, str]] = []
        for operator, phrase, word in PIECE.findall(text):
            value = phrase or word
            if operator.lower() in operators:
                self.filters.append((operator.lower(), value))
            else:
                self.words.append(f"{operator}:{value}" if operator else value)
        if not self.words and not self.filters:
            raise Invalid("q: must have a word to search for")

    def conditions(self, columns: Sequence[str]) -> tuple[list[str], list[str]]:
        """SQL that each word occurs in one of the columns, and its parameters."""
        searched = " || char(10) || ".join(f'"{column}"' for column in columns)
        return [f"({searched}) like ? escape '\\'"] * len(self.words), [like(word) for word in self.words]


def like(text: str) -> str:
    """A pattern of LIKE that finds a text anywhere."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def instant(column: str) -> str:
    """SQL of the seconds since the epoch of a column or parameter, whatever its offset."""
    return f"cast(strftime('%s', {column}) as integer)"


def moment(store: Store, name: str, text: str) -> str:
    """A time out of a search, as the database has times."""
    try:
        return localized(store, parse_time(text))
    except Invalid as problem:
        raise Invalid(f"{name}: {problem.message}") from None


def localized(store: Store, time: object) -> str:
    """RFC 3339 of a datetime; without a zone, it is meant in the company's."""
    from datetime import datetime
    from zoneinfo import ZoneInfo

    assert isinstance(time, datetime)
    return (time if time.tzinfo else time.replace(tzinfo=ZoneInfo(store.meta("timezone")))).isoformat(
        timespec="seconds"
    )


def snippet(text: str, words: Sequence[str] = ()) -> str:
    """A short piece of a text, around the first of the words."""
    flat = " ".join(text.split())
    places = [flat.casefold().find(word.casefold()) for word in words]
    start = max(0, min([place for place in places if place >= 0], default=0) - SNIPPET // 3)
    return ("…" if start else "") + flat[start : start + SNIPPET] + ("…" if start + SNIPPET < len(flat) else "")
