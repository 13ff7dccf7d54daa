"""TOML and YAML that nobody vouches for: texts that would keep a reader busy, or end the process, are refused first."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

MAX_DEPTH = 100
"""Collections within collections. libyaml overflows the stack at some 10,000: no exception, but the end of the
process. And its time grows with the square of the depth.
"""

_PART = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_\-])(?:{_PART}[ \t]*+\.[ \t]*+){{100}}")
"""A key of a hundred parts. The reader's time grows with the square of their number: 20 KB took it a second."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text. Raises `ValueError` for any other text."""
    if _LONG_KEY.search(text):
        raise ValueError("a key has a hundred parts or more")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def open_yaml(text: str) -> Any:
    """Return PyYAML's safe loader on a text. Raises `yaml.YAMLError`, and `ValueError` for one nested too deeply.

    The caller disposes of it.
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
