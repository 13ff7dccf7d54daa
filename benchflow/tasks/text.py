"""Parse the files of a task: UTF-8 text, TOML, YAML, and Markdown with YAML frontmatter.

The results are plain JSON-like data (dates as ISO text), so that a task can be sent anywhere. The meaning of keys is
not known here, with one exception: YAML turns an unquoted `0755` or `1.10` into a number that has lost its spelling,
so environment values and versions are read as text.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchflow.confined import MAX_TEXT, read_regular
from benchflow.errors import UnsafePathError
from benchflow.foreign_text import load_toml, open_yaml
from benchflow.tasks.problems import KeyPath, Kind, Problem, ProblemError, dotted

MAX_VALUES = 100_000
"""Maximum number of values in a YAML text: more than any task needs. A few lines of aliases can stand for billions."""

_TEXT_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_SPELLED_MAPS = frozenset({"env", "headers", "private_facts"})
_SPELLED_VALUES = frozenset({"version", "schema_version", "document_version"})
"""Tables all of whose scalars, and keys whose scalar, are read as text."""

_FREE_TABLES = frozenset({"metadata", "benchflow"})
"""Tables of the author's own data, of which nothing is read so."""


def _failure(
    kind: Kind, file: Path, message: str, *, key: str | None = None, suggestion: str | None = None
) -> ProblemError:
    return ProblemError(
        Problem(severity="error", kind=kind, file=str(file), key=key, message=message, suggestion=suggestion)
    )


def read_text(path: Path) -> str:
    """Return the text of a regular file, as `decode_text` does.

    Raises:
        ProblemError: It is no regular file, larger than `MAX_TEXT` bytes, unreadable, or not UTF-8.
    """
    try:
        data = read_regular(path, MAX_TEXT)
    except UnsafePathError as error:
        raise _failure("value", path, error.message) from error
    except OSError as error:
        raise _failure("parse", path, f"cannot be read: {error.strerror or error}") from error
    return decode_text(data, path)


def decode_text(data: bytes, path: Path) -> str:
    """Decode UTF-8, without byte order mark, with Unix line ends. Raise `ProblemError` with the line of a bad byte."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _failure(
            "parse",
            path,
            f"is not UTF-8: byte 0x{data[error.start]:02x} in line {line}",
            suggestion="save the file as UTF-8",
        ) from error
    return text.replace("\r\n", "\n")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain data. Raise `ProblemError`, with the line of a syntax error."""
    return parse_toml(read_text(path), path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse TOML into plain data. Raise `ProblemError`, with the line of a syntax error; `path` is for the message."""
    try:
        plain: dict[str, Any] = _plain(load_toml(text), path, ())
    except RecursionError as error:
        raise _failure("parse", path, "is nested too deeply") from error
    except ValueError as error:
        # Beside the TOML parser's errors, Python's for an integer of more digits than it converts.
        raise _failure("parse", path, f"is not valid TOML: {error}") from error
    return plain


def read_document(path: Path) -> tuple[dict[str, Any], str]:
    """Return the frontmatter, parsed, and the body of a Markdown document. Raise `ProblemError` if it has none."""
    text = read_text(path)
    match = re.match(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)\Z", text, re.DOTALL | re.MULTILINE)
    if match is None:
        raise _failure(
            "parse",
            path,
            "has no frontmatter",
            suggestion="start the file with a line `---`, YAML, and a second line `---`",
        )
    # The line break stands for the opening `---`, so that the line numbers in YAML's messages are those of the file.
    return parse_yaml_mapping("\n" + match.group(1), path), match.group(2)


def parse_yaml_mapping(text: str, file: Path) -> dict[str, Any]:
    """Parse YAML that must be a mapping (empty text is one). Raise `ProblemError`, with the line of a syntax error."""
    loader = None
    try:
        loader = open_yaml(text)
        node = loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise _failure("parse", file, "must be a mapping of keys to values")
        _check_node(node, file, (), iter(range(MAX_VALUES)))
        plain: dict[str, Any] = _plain(loader.construct_document(node), file, ())
    except (yaml.YAMLError, ValueError) as error:
        raise _failure("parse", file, f"is not valid YAML: {_yaml_message(error)}") from error
    except RecursionError as error:
        raise _failure("parse", file, "is nested too deeply, or contains itself") from error
    finally:
        if loader is not None:
            loader.dispose()
    return plain


def _yaml_message(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return str(error).replace("\n", " ")
    return f"{problem} (at line {mark.line + 1}, column {mark.column + 1})"


def _check_node(node: yaml.Node, file: Path, at: KeyPath, budget: Iterator[int]) -> None:
    """Raise `ProblemError` for duplicate keys or too many values, and tag values that must keep their spelling as text.

    Args:
        node: Root of the (sub)tree.
        file: For the errors.
        at: Path of the node.
        budget: Yields one item for each further value that is allowed.
    """
    if next(budget, None) is None:
        raise _failure("parse", file, f"stands for more than {MAX_VALUES} values, counting aliases")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _check_node(item, file, (*at, index), budget)
        return
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    free = bool(at) and at[0] in _FREE_TABLES
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
            _check_node(value, file, at, budget)
            continue
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise _failure("parse", file, f"is given twice, in lines {seen[name]} and {line}", key=dotted((*at, name)))
        seen[name] = line
        key.tag = _TEXT_TAG  # else `on:` would be the key True
        spelled = name in _SPELLED_VALUES or (bool(at) and at[-1] in _SPELLED_MAPS)
        if spelled and not free and isinstance(value, yaml.ScalarNode) and value.tag != _NULL_TAG:
            value.tag = _TEXT_TAG
        _check_node(value, file, (*at, name), budget)


def _plain(value: Any, file: Path, at: KeyPath) -> Any:
    """Return parsed data as JSON-like data. Raise `ProblemError` for NaN, infinity and types that JSON doesn't have."""
    if isinstance(value, dict):
        return {str(key): _plain(item, file, (*at, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, file, (*at, index)) for index, item in enumerate(value)]
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise _failure(
            "value", file, f"must be a finite number, not {value}", key=dotted(at), suggestion="give a number"
        )
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise _failure("value", file, f"{type(value).__name__} values are not allowed", key=dotted(at))
