"""Copy and remove the files that this host has of agents' sessions: journals, notes, copies in the results.

The files of a sandbox's sessions lie in one directory of this host, which is not mounted as a whole.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchflow.archive_reader import CHUNK
from benchflow.confined import ConfinedDirectory
from benchflow.errors import ACPError, UnsafePathError
from benchflow.planes.agent.acp.notes import SessionFiles
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.sandbox import trees
from benchflow.secrets import Redactor
from benchflow.store import storage_errors

MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Bytes of one raw journal that are kept with the results."""

_JOURNALS = {"in": "in.jsonl", "out": "out.jsonl", "err": "err.log", "exit": "exit.json"}


def keep_journals(sessions: Path, episode: str, target: Path, redact: Redactor) -> list[str]:
    """Copy the stdio journals of a rollout's agents to `target`, in place of what is there.

    Args:
        sessions: Directory of the sandbox's sessions.
        episode: The rollout's namespace in the sandbox.
        target: Directory in the results.
        redact: Takes secrets out of the copies.

    Returns:
        What was left out, as warnings.
    """
    files = SessionFiles.below(sessions)
    names = sorted(str(record.parent.relative_to(files.notes)) for record in files.notes.glob(f"{episode}*/**/in"))
    with storage_errors(target):
        # What came out of the sandbox may have a directory of this name.
        trees.remove(target)
        target.mkdir(parents=True)
        with ConfinedDirectory(target) as results:
            warnings = [note for name in names for note in _keep_journals(Wire(files.of(name)), name, results)]
    redact.clean_below(target)
    return warnings


def _keep_journals(wire: Wire, name: str, results: ConfinedDirectory) -> list[str]:
    # Of a session of several processes, each has a directory of its own.
    results.make_directories(name)
    warnings = []
    for journal, kept in _JOURNALS.items():
        try:
            source = wire.open_journal(journal)
            if source is None:
                continue
            with source, results.replacing(f"{name}/{kept}") as copy:
                left = MAX_KEPT_BYTES
                while piece := source.read(min(left, CHUNK)):
                    copy.write(piece)
                    left -= len(piece)
                if source.read(1):
                    warnings.append(f"of {kept} of session {name} the first {MAX_KEPT_BYTES} bytes were kept")
        except ACPError as error:
            warnings.append(f"{kept} of session {name} could not be kept: {error.message}")
    return warnings


def remove_journals(sessions: Path, episode: str) -> None:
    """Remove what an episode's sandbox holds of its agents' stdio, and what its root has put beside it."""
    files = SessionFiles.below(sessions)
    with contextlib.suppress(FileNotFoundError, UnsafePathError), ConfinedDirectory(files.shared) as directory:
        for name in {entry.name.partition("/")[0] for entry in directory.entries()}:
            if name.startswith(episode) or not (files.notes / name).exists():
                directory.remove_tree(name)


def remove_sessions(sessions: Path) -> None:
    """Remove the files of a sandbox's sessions; the results have their copies."""
    with contextlib.suppress(OSError):
        trees.remove(sessions)
