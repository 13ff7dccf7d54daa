"""Name, copy and remove the files that this host has of agents' sessions: journals, notes, copies in the results."""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchflow.activities.context import WorkerContext
from benchflow.archive_reader import CHUNK
from benchflow.confined import ConfinedDirectory
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.errors import ACPError, UnsafePathError
from benchflow.planes.agent.acp.notes import SessionFiles
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.sandbox import trees
from benchflow.secrets import Redactor
from benchflow.store import storage_errors

MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Bytes of one raw journal that are kept with the results."""

_FROM_CHECKPOINT = "from-checkpoint"
_JOURNALS = {"in": "in.jsonl", "out": "out.jsonl", "err": "err.log", "exit": "exit.json"}


def sessions_of(context: WorkerContext, sandbox: Sandbox) -> Path:
    """Return the directory in which this host has the files of a sandbox's sessions. It is not mounted as a whole."""
    return context.paths.sessions / sandbox.ref.name


def note_checkpoint(context: WorkerContext, sandbox: Sandbox) -> None:
    """Note that a sandbox began with the files of a checkpoint, where an agent may have acted."""
    note = sessions_of(context, sandbox) / _FROM_CHECKPOINT
    with storage_errors(note):
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note.touch()


def is_from_checkpoint(context: WorkerContext, sandbox: Sandbox) -> bool:
    """Return whether a sandbox began with the files of a checkpoint."""
    return (sessions_of(context, sandbox) / _FROM_CHECKPOINT).exists()


def session_files(context: WorkerContext, sandbox: Sandbox) -> SessionFiles:
    """Return the files of the processes of a sandbox's agents."""
    return SessionFiles.below(sessions_of(context, sandbox))


def keep_journals(context: WorkerContext, ref: SandboxRef, target: Path, redact: Redactor) -> list[str]:
    """Copy what a rollout's agents were sent and said to `target`, in place of what is there.

    Returns what was left out, as warnings.
    """
    files = SessionFiles.below(context.paths.sessions / ref.name)
    names = sorted(str(record.parent.relative_to(files.notes)) for record in files.notes.glob(f"{ref.episode}*/**/in"))
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


def remove_journals(context: WorkerContext, ref: SandboxRef) -> None:
    """Remove what an episode's sandbox holds of its agents' stdio, and what its root has put beside it."""
    files = SessionFiles.below(context.paths.sessions / ref.name)
    with contextlib.suppress(FileNotFoundError, UnsafePathError), ConfinedDirectory(files.shared) as directory:
        for name in {entry.name.partition("/")[0] for entry in directory.entries()}:
            if name.startswith(ref.episode) or not (files.notes / name).exists():
                directory.remove_tree(name)


def remove_sessions(context: WorkerContext, name: str) -> None:
    """Remove the files of a sandbox's sessions; the results have their copies."""
    with contextlib.suppress(OSError):
        trees.remove(context.paths.sessions / name)
