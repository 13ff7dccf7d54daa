"""Parsers for untrusted TOML and YAML: input that would take them too long, or crash the process, is refused first."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

MAX_DEPTH = 100
"""Maximum nesting of collections. libyaml overflows the stack at some 10,000, which ends the process without an
exception; and its time grows with the square of the depth.
"""

_PART = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_\-])(?:{_PART}[ \t]*+\.[ \t]*+){{100}}")
"""Key of a hundred parts. tomllib's time grows with the square of their number: 20 KB took it a second."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_toml(text: str) -> dict[str, Any]:
    """Return the table in a TOML text. Raise `ValueError` if it is invalid or nested too deeply."""
    if _LONG_KEY.search(text):
        raise ValueError("a key has a hundred parts or more")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def open_yaml(text: str) -> Any:
    """Return PyYAML's safe loader on a text, after checking its depth. The caller disposes of the loader.

    Raises:
        yaml.YAMLError: The text is not YAML.
        ValueError: It is nested too deeply.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
    return _Loader(text)
