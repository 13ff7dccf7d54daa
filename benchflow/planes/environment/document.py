"""A manifest's file as plain data, with the line of each key: TOML or YAML, by the file's name.

The meaning of keys is not known here. Python's TOML parser reports no lines, so the line of a key is found by a binary
search for the shortest beginning of the file that parses and has the key.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchflow.confined import read_regular
from benchflow.errors import ManifestError, UnsafePathError
from benchflow.foreign_text import load_toml, open_yaml

KeyPath = tuple[str | int, ...]

MAX_BYTES = 256 * 1024
"""Maximum size of a manifest's file, in bytes: more than any needs."""
MAX_VALUES = 10_000
"""Maximum number of YAML nodes, counting aliases: a few lines of aliases can stand for billions."""

_YAML = (".yaml", ".yml")


def dotted(at: KeyPath) -> str:
    """Return a key path as text: `("services", 0, "port")` is `services[0].port`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class ManifestDocument:
    """A file's content as JSON-like data, in `data`, with the line of each key."""

    def __init__(self, file: Path) -> None:
        """Read and parse a file. Raise `ManifestError` if it is unreadable, invalid or too large."""
        self.file = file
        self._text = _read(file)
        self._node: yaml.Node | None = None
        self.data = self._parse_yaml() if file.suffix.lower() in _YAML else self._parse_toml()
        try:
            self._check_values(self.data, ())
        except RecursionError as error:
            raise self._unreadable("is nested too deeply") from error

    def error(self, at: KeyPath, message: str, remedy: str) -> ManifestError:
        """Return an error about the value at a key; it names the file as `FILE:LINE`."""
        line = self.line(at)
        where = f"{self.file}:{line}" if line else str(self.file)
        return ManifestError(message, file=where, key=dotted(at) or None, remedy=remedy)

    def table(self, at: KeyPath) -> str:
        """Return the header of a table, as it is written in the file's format."""
        if self.file.suffix.lower() in _YAML:
            return f"`{dotted(at)}`"
        return f"[[{dotted(at[:-1])}]]" if isinstance(at[-1], int) else f"[{dotted(at)}]"

    def line(self, at: KeyPath) -> int | None:
        """Return the line, from 1, of a key, or of the innermost existing table around it; None if there is none."""
        while at and not _holds(self.data, at):
            at = at[:-1]
        if not at:
            return None
        return _yaml_line(self._node, at) if self._node is not None else self._toml_line(at)

    # --- TOML ----------------------------------------------------------------------------------------

    def _parse_toml(self) -> dict[str, Any]:
        try:
            return load_toml(self._text)
        except ValueError as error:
            # Not `TOMLDecodeError` alone: Python refuses integers of more digits than it converts (4,300).
            raise self._unreadable(f"is not valid TOML: {error}") from error

    def _toml_line(self, at: KeyPath) -> int:
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
            if _holds(beginning(middle)[1], at):
                with_it = middle
            else:
                without = middle
        return beginning(without)[0] + 1

    # --- YAML ----------------------------------------------------------------------------------------

    def _parse_yaml(self) -> dict[str, Any]:
        loader = None
        try:
            loader = open_yaml(self._text)
            node = loader.get_single_node()
            if node is None:
                return {}
            if not isinstance(node, yaml.MappingNode):
                raise self._unreadable("must be a mapping of keys to values")
            self._check_node(node, (), iter(range(MAX_VALUES)))
            self._node = node
            return dict(loader.construct_document(node))
        except (yaml.YAMLError, ValueError) as error:
            raise self._unreadable(f"is not valid YAML: {_yaml_words(error)}") from error
        except RecursionError as error:
            raise self._unreadable("is nested too deeply, or contains itself") from error
        finally:
            if loader is not None:
                loader.dispose()

    def _check_node(self, node: yaml.Node, at: KeyPath, budget: Iterator[int]) -> None:
        """Raise `ManifestError` for a duplicate key, of which YAML would take the last, and for too many values.

        Keys become strings. `budget` has an item for each value that is still allowed.
        """
        if next(budget, None) is None:
            raise self._unreadable(f"stands for more than {MAX_VALUES} values, counting aliases")
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._check_node(item, (*at, index), budget)
        if not isinstance(node, yaml.MappingNode):
            return
        seen: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"  # else `on:` would be the key True
                line = key.start_mark.line + 1
                if key.value in seen:
                    raise ManifestError(
                        f"is given twice, in lines {seen[key.value]} and {line}",
                        file=f"{self.file}:{line}",
                        key=dotted((*at, key.value)),
                        remedy="give it once",
                    )
                seen[key.value] = line
            self._check_node(value, (*at, str(key.value)), budget)

    # --- both ----------------------------------------------------------------------------------------

    def _unreadable(self, message: str) -> ManifestError:
        return ManifestError(message, file=str(self.file), remedy="mend the file")

    def _check_values(self, value: Any, at: KeyPath) -> None:
        """Raise `ManifestError` for values that JSON does not have: dates, NaN, infinity, keys that are no string."""
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise self.error(at, f"has a key that is no text: {key!r}", "write it in quotes")
                self._check_values(item, (*at, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._check_values(item, (*at, index))
        elif isinstance(value, float) and not math.isfinite(value):
            raise self.error(at, f"must be a finite number, not {value}", "give a number")
        elif not (value is None or isinstance(value, str | bool | int | float)):
            raise self.error(at, f"must not be a {type(value).__name__}", "write it in quotes, if it is a text")


def _read(file: Path) -> str:
    """Return the text of a manifest's file. Raise `ManifestError` if it is no readable regular UTF-8 file."""
    if file.is_dir():
        raise ManifestError(
            "is a directory, not a manifest", file=str(file), remedy=f"give the file: {file / 'environment.toml'}"
        )
    try:
        data = read_regular(file, MAX_BYTES)
    except FileNotFoundError as error:
        raise ManifestError("does not exist", file=str(file), remedy="give an existing manifest") from error
    except UnsafePathError as error:
        raise ManifestError(
            f"is no manifest: it {error.message}", file=str(file), remedy="give the manifest's own file"
        ) from error
    except (OSError, ValueError) as error:
        raise ManifestError(f"cannot be read: {error}", file=str(file), remedy="make it readable") from error
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError("is not UTF-8", file=f"{file}:{line}", remedy="save it as UTF-8") from error


def _holds(data: Any, at: KeyPath) -> bool:
    """Return whether the data has a value at a key path."""
    for part in at:
        inside = part < len(data) if isinstance(data, list) and isinstance(part, int) else False
        if not inside and not (isinstance(data, dict) and part in data):
            return False
        data = data[part]
    return True


def _yaml_line(node: yaml.Node, at: KeyPath) -> int:
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


def _yaml_words(error: Exception) -> str:
    """Return a YAML error as one line, with its line and column if it has them."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return str(error).replace("\n", " ")
    return f"{problem} (at line {mark.line + 1}, column {mark.column + 1})"
