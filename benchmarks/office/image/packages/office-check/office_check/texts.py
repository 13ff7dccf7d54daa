"""Comparing what people wrote: texts by their words, times by their instants."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Any

SAME = str.maketrans({**dict.fromkeys("‘’‚′`", "'"), **dict.fromkeys("“”„″", '"'), **dict.fromkeys("‐‑‒–—−", "-")})
"""Typographic quotes and dashes, and what is typed for them."""


def plain(text: str) -> str:
    """A text without differences that don't matter: case, white space, typography."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(SAME).casefold().split())


def says(text: Any, *alternatives: str) -> bool:
    """Whether one of them occurs in a text."""
    return isinstance(text, str) and any(plain(one) in plain(text) for one in alternatives)


def same_time(one: Any, other: Any) -> bool:
    """Whether two RFC 3339 times are the same instant. What is no such time is the same as nothing."""
    try:
        first, second = (datetime.fromisoformat(str(time).upper().replace("Z", "+00:00")) for time in (one, other))
    except ValueError:
        return False
    return (first.tzinfo is None) == (second.tzinfo is None) and first == second
