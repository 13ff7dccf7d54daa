"""The text of a user's file as plain data, with the line of each key: TOML, YAML or JSON.

Input that would take a parser too long, or crash the process, is refused first. The data is JSON-like, so that it can
be sent anywhere. The meaning of keys is not known here.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import yaml

from benchflow.confined import MAX_TEXT, read_regular
from benchflow.errors import UnsafePathError
from benchflow.user_files.problems import KeyPath, Kind, Problem, ProblemError, format_path

MAX_DEPTH = 100
"""Maximum nesting of collections. libyaml overflows the stack at some 10,000, which ends the process without an
exception; and its time grows with the square of the depth.
"""

MAX_VALUES = 100_000
"""Maximum number of values in a YAML text: more than any file needs. A few lines of aliases can stand for billions."""

_PART = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_\-])(?:{_PART}[ \t]*+\.[ \t]*+){{100}}")
"""Key of a hundred parts. tomllib's time grows with the square of their number: 20 KB took it a second."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"
_MERGE_TAG = "tag:yaml.org,2002:merge"

Form = Literal["toml", "yaml", "json"]


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """Return the text of a regular file, as `decode_text` does.

    Raises:
        ProblemError: It is no regular file, larger than `limit` bytes, unreadable, or not UTF-8.
    """
    try:
        data = read_regular(path, limit)
    except UnsafePathError as error:
        raise _make_error(path, error.message, kind="value") from error
    except FileNotFoundError as error:
        raise _make_error(path, "does not exist") from error
    except (OSError, ValueError) as error:
        raise _make_error(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return decode_text(data, path)


def decode_text(data: bytes, path: Path) -> str:
    """Decode UTF-8, without byte order mark, with Unix line ends. Raise `ProblemError` with the line of a bad byte."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8: byte 0x{data[error.start]:02x} in line {line}"
        raise _make_error(path, message, suggestion="save the file as UTF-8", line=line) from error
    return text.replace("\r\n", "\n")


class UserDocument:
    """The content of a file, in `data`, with the line of each key."""

    def __init__(
        self,
        file: Path | str,
        text: str,
        form: Form,
        *,
        is_text: Callable[[KeyPath], bool] = lambda _: False,
        has_dates: bool = True,
    ) -> None:
        """Parse a text.

        Args:
            file: Name of the file, for errors.
            text: Its content.
            form: Its format.
            is_text: Whether the YAML scalar at a key keeps its spelling: YAML turns an unquoted `0755` or `1.10` into
                a number.
            has_dates: Read dates as ISO text. Otherwise they are refused.

        Raises:
            ProblemError: It is not valid, or has duplicate keys, or values that JSON doesn't have.
        """
        self.file, self.form = file, form
        self._text, self._is_text, self._has_dates = text, is_text, has_dates
        self._node: yaml.Node | None = None
        parse = {"toml": self._parse_toml, "yaml": self._parse_yaml, "json": self._parse_json}[form]
        try:
            self.data: Any = parse()
            self.data = self._plain(self.data, ())
        except RecursionError as error:
            raise self._make_error("is nested too deeply, or contains itself") from error
        except (yaml.YAMLError, ValueError) as error:
            # Beside the parsers' errors, Python's for an integer of more digits than it converts (4,300).
            raise self._make_error(f"is not valid {form.upper()}: {_format_parser_error(error)}") from error

    @property
    def table(self) -> dict[str, Any]:
        """Return the data, which must be a mapping; empty YAML is one. Raise `ProblemError` if it is none."""
        if self.data is None and self.form == "yaml":
            return {}
        if not isinstance(self.data, dict):
            raise self._make_error("must be a mapping of keys to values")
        return self.data

    def header(self, at: KeyPath) -> str:
        """Return the header of a table, as it is written in the file's format."""
        if self.form != "toml":
            return f"`{format_path(at)}`"
        return f"[[{format_path(at[:-1])}]]" if isinstance(at[-1], int) else f"[{format_path(at)}]"

    def line(self, at: KeyPath) -> int | None:
        """Return the line, from 1, of a key, or of the innermost existing table around it; None if there is none."""
        while at and not _has_value(self.data, at):
            at = at[:-1]
        if not at or self.form == "json":
            return None
        return _find_yaml_line(self._node, at) if self._node is not None else self._toml_line(at)

    def _make_error(
        self, message: str, at: KeyPath = (), suggestion: str | None = None, kind: Kind = "parse"
    ) -> ProblemError:
        key = format_path(at) or None
        return _make_error(self.file, message, kind=kind, key=key, suggestion=suggestion, line=self.line(at))

    # --- TOML and JSON -------------------------------------------------------------------------------

    def _parse_toml(self) -> dict[str, Any]:
        if _LONG_KEY.search(self._text):
            raise ValueError("a key has a hundred parts or more")
        return tomllib.loads(self._text)

    def _toml_line(self, at: KeyPath) -> int:
        """Return the line of a key, of which Python's parser reports none.

        It is found by a binary search for the shortest beginning of the file that parses and has the key.
        """
        lines = self._text.split("\n")

        def beginning(count: int) -> tuple[int, dict[str, Any]]:
            """Return the longest beginning of at most `count` lines that parses: values may span several lines."""
            while True:
                try:
                    return count, tomllib.loads("\n".join(lines[:count]))
                except tomllib.TOMLDecodeError:
                    count -= 1

        without, with_it = 0, len(lines)
        while with_it - without > 1:
            middle = (without + with_it) // 2
            if _has_value(beginning(middle)[1], at):
                with_it = middle
            else:
                without = middle
        return beginning(without)[0] + 1

    def _parse_json(self) -> Any:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            table = dict(pairs)
            if len(table) < len(pairs):
                keys = [key for key, _ in pairs]
                twice = next(key for key in keys if keys.count(key) > 1)
                raise _make_error(self.file, "is given twice", key=twice, suggestion="give it once")
            return table

        return json.loads(self._text, object_pairs_hook=unique)

    # --- YAML ----------------------------------------------------------------------------------------

    def _parse_yaml(self) -> Any:
        depth = 0
        for event in yaml.parse(self._text, Loader=_Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEPTH:
                raise RecursionError
        loader = _Loader(self._text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            self._check_node(node, (), iter(range(MAX_VALUES)))
            self._node = node
            return loader.construct_document(node)
        finally:
            loader.dispose()

    def _check_node(self, node: yaml.Node, at: KeyPath, budget: Iterator[int]) -> None:
        """Raise `ProblemError` for a duplicate key, of which YAML would take the last, and for too many values.

        Tag as text the keys, and the values that must keep their spelling. `budget` has an item for each value that is
        still allowed.
        """
        if next(budget, None) is None:
            raise self._make_error(f"stands for more than {MAX_VALUES} values, counting aliases")
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._check_node(item, (*at, index), budget)
        if not isinstance(node, yaml.MappingNode):
            return
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
                self._check_node(value, at, budget)
                continue
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                message = f"is given twice, in lines {seen[name]} and {line}"
                key = format_path((*at, name))
                raise _make_error(self.file, message, key=key, suggestion="give it once", line=line)
            seen[name] = line
            key.tag = _TEXT_TAG  # else `on:` would be the key True
            if isinstance(value, yaml.ScalarNode) and value.tag != _NULL_TAG and self._is_text((*at, name)):
                value.tag = _TEXT_TAG
            self._check_node(value, (*at, name), budget)

    # --- all -----------------------------------------------------------------------------------------

    def _plain(self, value: Any, at: KeyPath) -> Any:
        """Return parsed data as JSON-like data. Raise `ProblemError` for NaN, infinity and types that JSON hasn't."""
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise self._make_error(f"has a key that is no text: {key!r}", at, "write it in quotes", "value")
            return {key: self._plain(item, (*at, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._plain(item, (*at, index)) for index, item in enumerate(value)]
        if isinstance(value, dt.datetime | dt.date | dt.time) and self._has_dates:
            return value.isoformat()
        if isinstance(value, float) and not math.isfinite(value):
            raise self._make_error(f"must be a finite number, not {value}", at, "give a number", "value")
        if value is None or isinstance(value, str | bool | int | float):
            return value
        suggestion = "write it in quotes, if it is a text"
        raise self._make_error(f"must not be a {type(value).__name__}", at, suggestion, "value")


def _make_error(
    file: Path | str,
    message: str,
    *,
    kind: Kind = "parse",
    key: str | None = None,
    suggestion: str | None = None,
    line: int | None = None,
) -> ProblemError:
    problem = Problem(severity="error", kind=kind, file=str(file), key=key, message=message, suggestion=suggestion)
    return ProblemError(problem, line)


def _has_value(data: Any, at: KeyPath) -> bool:
    """Return whether the data has a value at a key path."""
    for part in at:
        inside = part < len(data) if isinstance(data, list) and isinstance(part, int) else False
        if not inside and not (isinstance(data, dict) and part in data):
            return False
        data = data[part]
    return True


def _find_yaml_line(node: yaml.Node, at: KeyPath) -> int:
    line = node.start_mark.line + 1
    for part in at:
        if isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
            continue
        # A YAML merge (`<<`) may yield the same key several times; the last one counts.
        key, node = next(pair for pair in reversed(node.value) if pair[0].value == part)
        line = key.start_mark.line + 1
    return line


def _format_parser_error(error: Exception) -> str:
    """Return a parser's error as one line, with its line and column if it has them."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return str(error).replace("\n", " ")
    return f"{problem} (at line {mark.line + 1}, column {mark.column + 1})"
