"""Copies of the package that differ in a line: another digest, so another worker than the one that runs."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import benchflow
from benchflow.stack import WorkerWanted


def changed_package(root: Path, file: str, *edits: tuple[str, str]) -> WorkerWanted:
    """The worker of a copy of this package. edits: (old, new) in one of its files."""
    source = Path(benchflow.__file__).parent
    # What was compiled is good for the copy, but for the file that is changed, and for what is being written just now.
    shutil.copytree(source, root / "benchflow", ignore=shutil.ignore_patterns("*.pyc.*"))
    # Where the package was never installed, its providers are declared there.
    shutil.copy(source.parent / "pyproject.toml", root)
    changed = root / "benchflow" / file
    text = changed.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    changed.write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return WorkerWanted(python=sys.executable, digest=digest, pythonpath=str(root))
