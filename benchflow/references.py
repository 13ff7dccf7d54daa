"""References to host variables in values: `${NAME}` and `${NAME:-default}`. `$${NAME}` is the text `${NAME}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_REFERENCE_OR_ESCAPED = re.compile(rf"(?P<escape>\$?){_REFERENCE.pattern}")


def find_references(value: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the default of each reference in a value; None where it has no default."""
    for match in _REFERENCE_OR_ESCAPED.finditer(value):
        if not match["escape"]:
            yield match["name"], match["default"]


def replace_references(value: str, replace: Callable[[str, str | None], str]) -> str:
    """Return a value with each reference replaced by what the function returns for its name and default."""

    def replaced(match: re.Match[str]) -> str:
        return match[0][1:] if match["escape"] else replace(match["name"], match["default"])

    return _REFERENCE_OR_ESCAPED.sub(replaced, value)


def is_plain(value: str) -> bool:
    """Return whether a value has neither references nor escaped ones: it is its own text."""
    return _REFERENCE_OR_ESCAPED.search(value) is None


def is_reference(value: str) -> bool:
    """Return whether a value is one reference and nothing else."""
    return _REFERENCE.fullmatch(value) is not None


def escape_references(value: str) -> str:
    """Return a value that stands for this text, whatever looks like a reference in it."""
    return _REFERENCE.sub(r"$\g<0>", value)
