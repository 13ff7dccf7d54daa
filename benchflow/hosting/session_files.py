"""Copy and remove the files that this host has of agents' sessions: journals, notes, copies in the results.

The files of a sandbox's sessions lie in one directory of this host, which is not mounted as a whole.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchflow.confined import ConfinedDirectory
from benchflow.errors import UnsafePathError
from benchflow.planes.agent.journals import copy_journals
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.sandbox import trees
from benchflow.secrets import Redactor
from benchflow.store import storage_errors


def keep_journals(sessions: Path, episode: str, target: Path, redact: Redactor) -> list[str]:
    """Copy the journals of a rollout's agents to `target`, in place of what is there.

    Args:
        sessions: Directory of the sandbox's sessions.
        episode: The rollout's namespace in the sandbox.
        target: Directory in the results.
        redact: Takes secrets out of the copies.

    Returns:
        What was left out, as warnings.
    """
    with storage_errors(target):
        # What came out of the sandbox may have a directory of this name.
        trees.remove(target)
        target.mkdir(parents=True)
        with ConfinedDirectory(target) as results:
            warnings = copy_journals(SessionFiles.below(sessions), episode, results)
    redact.clean_below(target)
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
