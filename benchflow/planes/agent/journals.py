"""Copies of the records of agents' sessions for the results: stdio journals, or the steps of Python agents."""

from __future__ import annotations

import json

from benchflow.archive_reader import CHUNK
from benchflow.confined import ConfinedDirectory
from benchflow.errors import ACPError
from benchflow.planes.agent.acp.sent import FILE
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.function.recorded_steps import MEMORY, read_recorded_steps
from benchflow.planes.agent.notes import Notes, SessionFiles

MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Maximum bytes of one journal that are copied to the results."""

_JOURNALS = {"in": "in.jsonl", "out": "out.jsonl", "err": "err.log", "exit": "exit.json"}


def copy_journals(files: SessionFiles, episode: str, results: ConfinedDirectory) -> list[str]:
    """Copy the journals of a rollout's sessions, each to a directory of its own.

    Args:
        files: Files on this host of all sessions of the sandbox.
        episode: Namespace of the rollout in the sandbox.
        results: Directory for the copies.

    Returns:
        Warnings about journals that were truncated or could not be copied.
    """
    warnings: list[str] = []
    found = {path.parent for name in (FILE, f"{MEMORY}.json") for path in files.notes.glob(f"{episode}*/**/{name}")}
    for name in sorted(str(directory.relative_to(files.notes)) for directory in found):
        own = files.join(name)
        results.make_directories(name)
        if (own.own_notes / FILE).exists():
            warnings += _copy_stdio(Wire(own), name, results)
        else:
            warnings += _copy_steps(Notes(own.own_notes), name, results)
    return warnings


def _copy_steps(notes: Notes, name: str, results: ConfinedDirectory) -> list[str]:
    left = MAX_KEPT_BYTES
    with results.replacing(f"{name}/steps.jsonl") as copy:
        for step in read_recorded_steps(notes):
            line = json.dumps(step).encode() + b"\n"
            left -= len(line)
            if left < 0:
                return [f"of steps.jsonl of session {name} the first {MAX_KEPT_BYTES} bytes were kept"]
            copy.write(line)
    return []


def _copy_stdio(wire: Wire, name: str, results: ConfinedDirectory) -> list[str]:
    # A session of several processes has a directory for each.
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
