"""Compare two captures of an agent's memory: files that were added, removed or changed, with line diffs."""

from __future__ import annotations

import difflib
from typing import Literal

from benchflow.contracts.base import Model
from benchflow.planes.reward.memory.memory_capture import MemoryCapture, MemoryFile

MAX_LINES = 2000
"""Maximum number of lines of a text that is compared by lines, so that an agent's text can't keep a worker busy."""

MAX_DIFF = 8000
"""Maximum number of characters of a diff."""

_UNENDED = "\\ No newline at end of file"


class MemoryChange(Model):
    """A file that was added, removed or changed."""

    path: str
    """Absolute path, escaped as in `MemoryCapture.files`."""

    kind: Literal["added", "removed", "changed"]
    diff: str | None = None
    """Unified diff; None if the text of a side is not known, or has more than `MAX_LINES` lines."""


def diff_memory(before: MemoryCapture, after: MemoryCapture) -> list[MemoryChange]:
    """Return all files that were added, removed or changed between two captures, by path."""
    changes = []
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        if old is None:
            changes.append(MemoryChange(path=path, kind="added", diff=_make_diff(path, old, new)))
        elif new is None:
            changes.append(MemoryChange(path=path, kind="removed", diff=_make_diff(path, old, new)))
        elif (old.sha256, old.size, old.link) != (new.sha256, new.size, new.link):
            changes.append(MemoryChange(path=path, kind="changed", diff=_make_diff(path, old, new)))
    return changes


def _make_diff(path: str, old: MemoryFile | None, new: MemoryFile | None) -> str | None:
    before, after = _split_lines(old), _split_lines(new)
    if before is None or after is None or max(len(before), len(after)) > MAX_LINES:
        return None
    text = "\n".join(difflib.unified_diff(before, after, fromfile=path, tofile=path, lineterm=""))
    left_out = len(text) - MAX_DIFF
    return text if left_out <= 0 else f"{text[:MAX_DIFF]}\n[{left_out} more characters]"


def _split_lines(file: MemoryFile | None) -> list[str] | None:
    """Return the lines of a file's text; empty for no file, None if the text is not known."""
    text = "" if file is None else file.text
    if not text:
        return None if text is None else []
    # Not splitlines(), which also splits at characters that no editor shows as the end of a line.
    *lines, last = text.split("\n")
    return [*lines, f"{last}\n{_UNENDED}"] if last else lines
