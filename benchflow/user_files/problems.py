"""Problems of a user's files as data: collected while they are read, and raised as a typed error where needed.

A problem names the file, the key as the author wrote it, what is wrong and what to write instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

from benchflow.contracts.base import Model
from benchflow.errors import BenchFlowError, TaskError, UnsupportedFeatureError

E = TypeVar("E", bound=BenchFlowError)
Severity = Literal["error", "unsupported", "warning"]
Kind = Literal["not-found", "parse", "unknown-key", "value", "unsupported"]
KeyPath = tuple[str | int, ...]
"""Path of a key from the root of a file: names of keys, and indices in lists."""


class Problem(Model):
    """A problem of a file, or of a task."""

    severity: Severity
    """`error`: the task can't be used. `unsupported`: the task is valid, but can't be run. `warning`: it can be run."""

    kind: Kind
    """Class of the problem; decides the type of its error."""

    file: str
    """Path of the file or directory."""

    key: str | None = None
    """The key as its author wrote it; None for a problem of the whole file."""

    message: str
    """Predicate of a sentence of which the file or the key is the subject."""

    suggestion: str | None = None
    """Advice to the author, as an imperative; None if there is none."""

    def as_error(self) -> TaskError:
        """Return the problem of a task as a typed error."""
        error = UnsupportedFeatureError if self.kind == "unsupported" else TaskError
        return error(self.message, file=self.file, key=self.key, remedy=self.suggestion)

    def __str__(self) -> str:
        """Return the problem as one line."""
        where = ": ".join(part for part in (self.file, self.key) if part)
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{self.severity}: {where}: {self.message}{hint}"


class ProblemError(Exception):
    """Ends the reading of one file with a problem, which the caller collects, or raises as a typed error."""

    def __init__(self, problem: Problem, line: int | None = None) -> None:
        """Make it of the problem, and its line in the file, if that is known."""
        self.problem, self.line = problem, line
        super().__init__(str(problem))

    def as_error(self, kind: type[E]) -> E:
        """Return the problem as an error of this type."""
        problem = self.problem
        remedy = problem.suggestion or "correct the file"
        return kind(problem.message, file=problem.file, key=problem.key, remedy=remedy)


class Problems:
    """The problems of one task, in the order in which they were found, without duplicates."""

    def __init__(self) -> None:
        """Start without problems."""
        self._found: dict[Problem, None] = {}

    def __iter__(self) -> Iterator[Problem]:
        """Iterate over the problems."""
        return iter(self._found)

    @property
    def first_error(self) -> Problem | None:
        """Return the first problem of severity `error`; None if there is none."""
        return next((problem for problem in self if problem.severity == "error"), None)

    def add(
        self,
        severity: Severity,
        kind: Kind,
        file: Path,
        message: str,
        *,
        key: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        """Add a problem; see its fields."""
        self._found[
            Problem(
                severity=severity,
                kind=kind,
                file=str(file),
                key=key,
                message=message,
                suggestion=suggestion,
            )
        ] = None

    def error(
        self, kind: Kind, file: Path, message: str, *, key: str | None = None, suggestion: str | None = None
    ) -> None:
        """Add a problem of severity `error`."""
        self.add("error", kind, file, message, key=key, suggestion=suggestion)

    def warn(
        self, kind: Kind, file: Path, message: str, *, key: str | None = None, suggestion: str | None = None
    ) -> None:
        """Add a problem of severity `warning`."""
        self.add("warning", kind, file, message, key=key, suggestion=suggestion)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add problems."""
        self._found.update(dict.fromkeys(problems))


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like `word`; None if none is like it."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def suggest_known(word: str, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown word: the nearest known one, else the list of all."""
    words = sorted(known)
    close = find_nearest(word, words)
    return f"did you mean `{close}`?" if close else "known here: " + ", ".join(words)


def format_path(path: KeyPath) -> str:
    """Return a path as text: `("steps", 0, "agent")` as `steps[0].agent`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
