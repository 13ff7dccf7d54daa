"""Strict reading of untrusted files: regular files of bounded size, strict JSON, finite numbers in their range.

Files of verifiers and agents were written by untrusted code: they may be links or devices, of any size, and hold NaN or
duplicate keys. Their meaning is not known here.
"""

from __future__ import annotations

import json
import os
import re
from math import isfinite
from typing import Any, NoReturn

from benchflow.confined import ConfinedPath
from benchflow.errors import RewardFileError, UnsafePathError

MAX_BYTES = 1024 * 1024
AGREEMENT = 1e-9
"""Tolerance for two statements of one reward, and for a reward that rounding carries past its range."""

_BLANK = re.compile(r"[ \t\n\r]*")


def refuse(file: str, message: str, remedy: str, *, key: str | None = None) -> NoReturn:
    """Raise a `RewardFileError`."""
    raise RewardFileError(message, file=file, key=key, remedy=remedy)


def quote(value: object) -> str:
    """Return a value as JSON-like text for an error, cut to 80 characters."""
    shown = f'"{value}"' if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


# --- files ---------------------------------------------------------------------------------------------


def read_text(path: ConfinedPath, shown: str, *, limit: int = MAX_BYTES) -> str | None:
    """Return the text of a regular UTF-8 file of at most `limit` bytes; None if it does not exist.

    Args:
        path: The file.
        shown: Its name in errors.
        limit: Maximum size in bytes.

    Raises:
        RewardFileError: It is no regular file, larger, or not UTF-8.
    """
    try:
        with path.open() as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except UnsafePathError as error:
        refuse(shown, error.message, "write a regular file")
    except OSError as error:
        refuse(shown, f"cannot be read: {error.strerror}", "write a regular file")
    if len(content) > limit:
        refuse(shown, f"is larger than {limit} bytes", "keep details in files of their own beside it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse(shown, f"is not UTF-8: {content[error.start : error.end]!r}", "write plain UTF-8 text")


def read_tail(path: ConfinedPath, limit: int) -> str | None:
    """Return the last `limit` bytes of a regular file as text; None if it does not exist or cannot be read."""
    try:
        with path.open() as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except (OSError, UnsafePathError):
        return None


# --- JSON ----------------------------------------------------------------------------------------------


def load_json(text: str, file: str) -> Any:
    """Parse a text of one JSON value, more strictly than the json module: see `decode_json`.

    Args:
        text: The text.
        file: Name of the file in errors.

    Raises:
        RewardFileError: The text is not exactly one valid value.
    """
    value, end = decode_json(text, file, 0)
    if skip_blank(text, end) < len(text):
        refuse(file, f"is not JSON: {quote(text[end:].strip())} follows its end", "write one value")
    return value


def decode_json(text: str, file: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value at or after `start`; return it and the index of its end.

    Args:
        text: The text.
        file: Name of the file in errors.
        start: Index at which the value, or blank space before it, begins.

    Raises:
        RewardFileError: It is no JSON, or has duplicate keys, NaN, infinity, lone surrogates or too deep nesting.
    """

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                both = f"the key is there twice, as {quote(seen[key])} and {quote(value)}"
                refuse(file, both, "keep one", key=key)
            seen[key] = value
        return seen

    def reject_constant(literal: str) -> NoReturn:
        refuse(file, f"{literal} is not a number in JSON", "write finite numbers only")

    def parse_finite(literal: str) -> float:
        value = float(literal)
        if not isfinite(value):
            refuse(file, f"{quote(literal)} is too large", "write finite numbers only")
        return value

    decoder = json.JSONDecoder(
        object_pairs_hook=reject_duplicates, parse_constant=reject_constant, parse_float=parse_finite
    )
    try:
        value, end = decoder.raw_decode(text, skip_blank(text, start))
        # JSON can escape a lone surrogate, which could not be written as UTF-8 afterwards.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        refuse(file, "has a text that is not valid Unicode", "write no lone surrogates")
    except RecursionError:
        refuse(file, "is nested too deeply", "keep details in files of their own beside it")
    except ValueError as error:
        refuse(file, f"is not JSON: {error}", "write JSON by a program, not by hand")
    return value, end


def skip_blank(text: str, start: int) -> int:
    """Return the index of the first character, from `start` on, that is no JSON white space."""
    found = _BLANK.match(text, start)
    return found.end() if found else start


# --- values --------------------------------------------------------------------------------------------


def require_number(value: object, *, file: str, key: str, remedy: str = "write a finite number") -> float:
    """Return a value as a float. Raise `RewardFileError` if it is no finite number, or a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(file, f"{quote(value)} is not a number", remedy, key=key)
    try:
        found = float(value)
    except OverflowError:
        refuse(file, f"{quote(str(value))} is too large", "write a finite number", key=key)
    if not isfinite(found):
        refuse(file, f"{found!r} is not finite", "write a finite number", key=key)
    return found


def clamp_to_range(value: float, allowed: tuple[float, float], *, file: str, key: str | None) -> float:
    """Return a value clamped to the range. Raise `RewardFileError` if it is outside by more than `AGREEMENT`."""
    low, high = allowed
    if not low - AGREEMENT <= value <= high + AGREEMENT:
        refuse(
            file,
            f"{value!r} is outside the reward range [{low:g}, {high:g}]",
            "scale the reward, or widen verifier.reward_range in the task's configuration",
            key=key,
        )
    return min(max(value, low), high)


def require_choice(value: object, allowed: tuple[str, ...], *, file: str, key: str) -> Any:
    """Return the value unchanged. Raise `RewardFileError` if it is not one of the allowed strings."""
    if not isinstance(value, str) or value not in allowed:
        refuse(file, f"{quote(value)} is not known", f"use one of {', '.join(allowed)}", key=key)
    return value


def require_mapping(value: object, *, file: str, key: str) -> dict[str, Any]:
    """Return the value unchanged. Raise `RewardFileError` if it is no object."""
    if not isinstance(value, dict):
        refuse(file, f"{quote(value)} is not an object", "write an object", key=key)
    return value


def require_text(value: object, *, file: str, key: str) -> str:
    """Return the value unchanged. Raise `RewardFileError` if it is no string."""
    if not isinstance(value, str):
        refuse(file, f"{quote(value)} is not a text", "write a string", key=key)
    return value
