"""Copy the journals of agents' sessions into the results, and remove session files from this host.

The session files of a sandbox, journals and notes, lie in one directory of this host, which is not mounted as a whole.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchflow.confined import ConfinedDirectory
from benchflow.errors import UnsafePathError
from benchflow.host_files import raise_storage_errors
from benchflow.planes.agent.journals import copy_journals
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.sandbox import directory_trees
from benchflow.secrets import Redactor


def store_journals(sessions: Path, episode: str, target: Path, redact: Redactor) -> list[str]:
    """Copy the journals of a rollout's agents into the results, in place of earlier copies, and redact them.

    Args:
        sessions: Session directory of the sandbox.
        episode: Namespace of the rollout in the sandbox; empty in a sandbox of its own.
        target: Directory in the results, which is removed first.
        redact: Redactor of the copies.

    Returns:
        Warnings about journals that were truncated or could not be copied.
    """
    with raise_storage_errors(target):
        # Files collected from the sandbox may include a directory of this name.
        directory_trees.remove_tree(target)
        target.mkdir(parents=True)
        with ConfinedDirectory(target) as results:
            warnings = copy_journals(SessionFiles.from_directory(sessions), episode, results)
    redact.clean_below(target)
    return warnings


def remove_journals(sessions: Path, episode: str) -> None:
    """Remove the journals of one rollout from the directory that a shared sandbox mounts. Missing is success.

    Files that a root process of the sandbox has added there, which are of no known session, are removed, too.

    Args:
        sessions: Session directory of the sandbox.
        episode: Namespace of the rollout in the sandbox.
    """
    files = SessionFiles.from_directory(sessions)
    with contextlib.suppress(FileNotFoundError, UnsafePathError), ConfinedDirectory(files.shared) as directory:
        for name in {entry.name.partition("/")[0] for entry in directory.entries()}:
            if name.startswith(episode) or not (files.notes / name).exists():
                directory.remove_tree(name)


def remove_sessions(sessions: Path) -> None:
    """Remove the session directory of a sandbox, once its journals are copied to the results. Errors are suppressed."""
    with contextlib.suppress(OSError):
        directory_trees.remove_tree(sessions)
