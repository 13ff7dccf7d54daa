"""Normalise the spellings of a task file: aliases, shorthands, deprecated keys.

Works on plain mappings, before they are validated. Each rewrite is recorded, so that a problem found later names the
key as it stands in the file. Two spellings of one thing in one file are an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchflow.references import escape_references, is_reference
from benchflow.user_files.problems import KeyPath, Problems, format_path

Table = dict[str, Any]


class Spelling:
    """The keys of one file as they are written there, by their normal names. Also adds to the problems of the file."""

    def __init__(self, file: Path, problems: Problems) -> None:
        """Start without renamed keys."""
        self.file = file
        self.problems = problems
        self._written: dict[KeyPath, KeyPath] = {}

    def key(self, path: KeyPath) -> str:
        """Return the key at a normal path as its author wrote it."""
        for length in range(len(path), 0, -1):
            written = self._written.get(path[:length])
            if written is not None:
                return format_path((*written, *path[length:]))
        return format_path(path)

    def record(self, normal: KeyPath, written: KeyPath) -> None:
        """Record that the key at path `normal` is written as `written`."""
        self._written[normal] = written

    def _written_path(self, at: KeyPath, key: str) -> KeyPath:
        return (*self._written.get(at, at), key)

    def rename(self, table: Table, old: str, new: str, at: KeyPath = ()) -> bool:
        """Rename the key `old` of a table to `new`, and report an error if both are given.

        Args:
            table: Changed in place.
            old: Key as written.
            new: Normal key.
            at: Normal path of the table.

        Returns:
            Whether the key was renamed.
        """
        if old not in table:
            return False
        if new in table:
            self.problems.error(
                "value",
                self.file,
                f"`{old}` and `{new}` mean the same and are both given",
                key=format_path(self._written_path(at, old)),
                suggestion=f"keep one of them: `{new}` in task.md, `{old}` in task.toml"
                if (old, new) in _TWO_NAMES
                else f"keep `{new}`",
            )
            del table[old]
            return False
        self.record((*at, new), self._written_path(at, old))
        table[new] = table.pop(old)
        return True

    def deprecated(self, table: Table, old: str, new: str, at: KeyPath = ()) -> bool:
        """Rename a key as `rename` does, and warn that it is deprecated if it was there."""
        renamed = self.rename(table, old, new, at)
        if renamed:
            self.warn_deprecated(at, old, f"write `{new}`")
        return renamed

    def warn_deprecated(self, at: KeyPath, old: str, suggestion: str) -> None:
        """Warn that the key `old` of the table at path `at` is deprecated."""
        key = format_path(self._written_path(at, old))
        self.problems.warn("value", self.file, "is deprecated", key=key, suggestion=suggestion)

    def error(self, at: KeyPath, key: str, message: str, suggestion: str | None = None) -> None:
        """Report an error in the value of `key` in the table at path `at`."""
        path = format_path(self._written_path(at, key))
        self.problems.error("value", self.file, message, key=path, suggestion=suggestion)


_TWO_NAMES = {("environment", "sandbox"), ("solution", "oracle")}
"""Tables with one name in task.toml and another one in task.md."""


def normalise_tables(raw: Table, spelling: Spelling, *, native: bool) -> Table:
    """Bring every key of a task file to its normal name.

    Args:
        raw: Root mapping of the file; changed in place, and returned.
        spelling: Receives the renamed keys, and the problems.
        native: Whether the file is a task.md, in which the table names of task.toml are deprecated. In a task.toml
            variables are references only where Harbor takes them for such.
    """
    _drop_empty(raw)
    if spelling.rename(raw, "version", "schema_version"):
        spelling.record(("schema_version",), ("version",))
    for old, new in (("environment", "sandbox"), ("solution", "oracle")):
        if native:
            spelling.deprecated(raw, old, new)
        else:
            spelling.rename(raw, old, new)
    _convert_to_text(raw, "schema_version")
    _convert_to_text(_find_table(raw, "task"), "version")
    _normalise_authors(_find_table(raw, "task"))
    _normalise_sandbox(_find_table(raw, "sandbox"), ("sandbox",), spelling)
    _normalise_verifier(_find_table(raw, "verifier"), ("verifier",), spelling)
    _inline_env(_find_table(raw, "oracle"), ("oracle",), spelling)
    _normalise_env(_find_table(raw, "oracle"))
    _normalise_artifacts(raw, (), spelling)
    for index, step in enumerate(_find_tables(raw, "steps")):
        at: KeyPath = ("steps", index)
        _normalise_verifier(_find_table(step, "verifier"), (*at, "verifier"), spelling)
        _normalise_artifacts(step, at, spelling)
    if not native:
        for at, env in _list_env_tables(raw):
            _escape_literals(env, at, spelling)
    return raw


def _list_env_tables(raw: Table) -> Iterator[tuple[KeyPath, Table]]:
    """Yield the tables of variables in a task.toml, which Harbor reads as well, with their normal paths."""
    tables: list[tuple[KeyPath, Table]] = [((key,), _find_table(raw, key)) for key in ("oracle", "sandbox", "verifier")]
    for index, step in enumerate(_find_tables(raw, "steps")):
        tables.append((("steps", index, "verifier"), _find_table(step, "verifier")))
    tables += [((*at, "sandbox"), _find_table(table, "sandbox")) for at, table in tables if at[-1] == "verifier"]
    yield from (((*at, "env"), _find_table(table, "env")) for at, table in tables)


_WHOLE = re.compile(r"\$\{[^}:]+(:-.*)?\}")
"""A reference as Harbor knows it: `${NAME}` or `${NAME:-default}` as the whole value."""


def _escape_literals(env: Table, at: KeyPath, spelling: Spelling) -> None:
    """Escape references in the values of a task.toml that are not a reference as a whole: Harbor takes them literally.

    Warn of each, and report an error for a whole value with a name that can't be looked up.
    """
    for name, value in env.items():
        if not isinstance(value, str):
            continue
        if _WHOLE.fullmatch(value) is None:
            if (literal := escape_references(value)) != value:
                message = f"{value!r} is taken as it stands: in this layout only a whole value is a reference"
                spelling.problems.warn("value", spelling.file, message, key=spelling.key((*at, name)))
            env[name] = literal
        elif not is_reference(value):
            hint = "name it by letters, digits and '_', with a default that has no '}'"
            message = f"{value!r} names no variable that can be looked up"
            spelling.problems.error("value", spelling.file, message, key=spelling.key((*at, name)), suggestion=hint)


def _find_table(parent: Table, key: str) -> Table:
    """Return the table under a key; a new empty one if there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _find_tables(parent: Table, key: str) -> list[Table]:
    """Return the tables in the list under a key; no others."""
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_FREE = frozenset({"metadata", "benchflow", "reward", "env", "headers", "private_facts"})
"""Keys whose values are the author's own data, or, as `reward`, are normalised elsewhere."""


def _drop_empty(table: Table) -> None:
    """Remove keys without a value, in all tables but those of `_FREE`: an empty YAML value means unset."""
    for key in [key for key, value in table.items() if value is None]:
        del table[key]
    for key, value in table.items():
        if key in _FREE:
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                _drop_empty(part)


def _convert_to_text(table: Table, key: str) -> None:
    value = table.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        table[key] = str(value)


def _normalise_authors(task: Table) -> None:
    authors = task.get("authors")
    if isinstance(authors, list):
        task["authors"] = [{"name": item} if isinstance(item, str) else item for item in authors]


def _normalise_env(table: Table, key: str = "env") -> None:
    """Turn numbers and booleans of a table of variables into the text of TOML; those of YAML are text already."""
    env = _find_table(table, key)
    for name, value in env.items():
        if isinstance(value, bool):
            env[name] = "true" if value else "false"
        elif isinstance(value, int | float):
            env[name] = str(value)


def _inline_env(table: Table, at: KeyPath, spelling: Spelling) -> None:
    """Move variables beside `env` into it: published files have `[solution] TOKEN = "${TOKEN}"`."""
    for name in [name for name in table if re.fullmatch(r"[A-Z][A-Z0-9_]*", name)]:
        value = table.pop(name)
        env = table.setdefault("env", {})
        if not isinstance(env, dict) or env.setdefault(name, value) != value:
            spelling.error(at, name, f"contradicts `env.{name}`", "keep the one under `env`")


def _normalise_artifacts(table: Table, at: KeyPath, spelling: Spelling) -> None:
    artifacts = table.get("artifacts")
    if isinstance(artifacts, list):
        table["artifacts"] = [{"source": item} if isinstance(item, str) else item for item in artifacts]
    for index, artifact in enumerate(_find_tables(table, "artifacts")):
        spelling.rename(artifact, "path", "source", (*at, "artifacts", index))


def _normalise_verifier(verifier: Table, at: KeyPath, spelling: Spelling) -> None:
    _normalise_env(verifier)
    spelling.rename(verifier, "environment", "sandbox", at)
    spelling.rename(verifier, "environment_mode", "sandbox_mode", at)
    if "sandbox" in verifier:
        # A declared sandbox is meant to be used.
        verifier.setdefault("sandbox_mode", "separate")
        _normalise_sandbox(_find_table(verifier, "sandbox"), (*at, "sandbox"), spelling)


def _normalise_sandbox(sandbox: Table, at: KeyPath, spelling: Spelling) -> None:
    _normalise_env(sandbox)
    spelling.rename(sandbox, "image", "docker_image", at)
    if isinstance(sandbox.get("os"), str):
        sandbox["os"] = sandbox["os"].lower()
    for command in _find_tables(sandbox, "setup_commands"):
        _normalise_env(command)
    for server in _find_tables(sandbox, "mcp_servers"):
        _normalise_env(server)
        _normalise_env(server, "headers")
        if server.get("transport") == "http":
            server["transport"] = "streamable-http"
    _normalise_internet(sandbox, at, spelling)
    _normalise_size(sandbox, "memory", at, spelling)
    _normalise_size(sandbox, "storage", at, spelling)


def _normalise_internet(sandbox: Table, at: KeyPath, spelling: Spelling) -> None:
    """Replace the deprecated `allow_internet` by `network_mode`, which counts where the two contradict each other."""
    if "allow_internet" not in sandbox:
        return
    allowed = sandbox.pop("allow_internet")
    if not isinstance(allowed, bool):
        spelling.error(at, "allow_internet", f"must be true or false, not {allowed!r}")
        return
    mode = "public" if allowed else "no-network"
    spelling.warn_deprecated(at, "allow_internet", f'write `network_mode = "{mode}"`')
    given = sandbox.setdefault("network_mode", mode)
    # An allowlist is a kind of internet, so both may be given when they don't contradict each other.
    if (given == "no-network") == allowed:
        spelling.problems.warn(
            "value",
            spelling.file,
            f"contradicts network_mode {given!r}, which counts",
            key=spelling.key((*at, "allow_internet")),
            suggestion="remove `allow_internet`",
        )


_UNITS = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def _normalise_size(sandbox: Table, old: str, at: KeyPath, spelling: Spelling) -> None:
    """Replace a deprecated size, such as `memory = "2G"`, by `memory_mb = 2048`. Report one that contradicts it."""
    if old not in sandbox:
        return
    new = f"{old}_mb"
    size = sandbox.pop(old)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(size), re.IGNORECASE)
    if match is None or not isinstance(size, str) or not match[2]:
        spelling.error(at, old, f"must be a size like '2G', not {size!r}", f"write `{new}` in MiB")
        return
    megabytes = round(float(match[1]) * _UNITS[match[2].upper()])
    spelling.warn_deprecated(at, old, f"write `{new} = {megabytes}`")
    if new not in sandbox:
        spelling.record((*at, new), (*spelling._written_path(at, old),))
    if sandbox.setdefault(new, megabytes) != megabytes:
        spelling.error(at, old, f"contradicts {new} = {sandbox[new]!r}", f"keep `{new}` and remove `{old}`")
