"""Parse the files of a task: TOML, YAML, and Markdown with YAML frontmatter.

Environment values and versions are read as text: YAML turns an unquoted `0755` or `1.10` into a number that has lost
its spelling.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchflow.user_files.problems import KeyPath, Problem, ProblemError
from benchflow.user_files.user_document import UserDocument, read_text

_SPELLED_MAPS = frozenset({"env", "headers", "private_facts"})
_SPELLED_VALUES = frozenset({"version", "schema_version", "document_version"})
"""Tables all of whose scalars, and keys whose scalar, are read as text."""

_FREE_TABLES = frozenset({"metadata", "benchflow"})
"""Tables of the author's own data, of which nothing is read so."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain data. Raise `ProblemError`, with the line of a syntax error."""
    return UserDocument(path, read_text(path), "toml").table


def read_document(path: Path) -> tuple[dict[str, Any], str]:
    """Return the frontmatter, parsed, and the body of a Markdown document. Raise `ProblemError` if it has none."""
    text = read_text(path)
    match = re.match(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)\Z", text, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ProblemError(
            Problem(
                severity="error",
                kind="parse",
                file=str(path),
                message="has no frontmatter",
                suggestion="start the file with a line `---`, YAML, and a second line `---`",
            )
        )
    # The line break stands for the opening `---`, so that the line numbers in YAML's messages are those of the file.
    return parse_yaml("\n" + match.group(1), path), match.group(2)


def parse_yaml(text: str, file: Path) -> dict[str, Any]:
    """Parse YAML that must be a mapping (empty text is one). Raise `ProblemError`, with the line of a syntax error."""
    return UserDocument(file, text, "yaml", is_text=_is_spelled).table


def _is_spelled(at: KeyPath) -> bool:
    if len(at) > 1 and at[0] in _FREE_TABLES:
        return False
    return at[-1] in _SPELLED_VALUES or (len(at) > 1 and at[-2] in _SPELLED_MAPS)
