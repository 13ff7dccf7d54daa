"""Capture of evidence from a sandbox before a verifier runs: scorers' inputs, workspace, artifacts.

Everything lies below a rollout's evidence directory: `inputs/<path>` for files that scorers read, `workspace.tar` for
the whole workspace, `artifacts.tar` for declared work of the agent that lies elsewhere. A file that cannot be captured
becomes a warning. Warnings are recorded, too, so that a call after a crash returns the same ones and changes nothing.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, Any

from benchflow.archive_reader import ArchiveLimits
from benchflow.confined import ConfinedDirectory, ConfinedPath
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import ArtifactSpec, Task
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import SandboxError, SandboxLostError, VerifierError
from benchflow.host_files import create_atomic, raise_storage_errors, write_atomic
from benchflow.paths import WORKSPACE
from benchflow.planes.reward.functions import make_function
from benchflow.planes.reward.inputs import ARTIFACTS_DIRECTORY, get_judged_directory, resolve_strategy
from benchflow.stored_files import read_stored

INPUTS = "inputs"
ARTIFACTS = "artifacts.tar"
_DECLARED = "declared.json"
_END = bytes(1024)
"""End of a complete tar archive: two empty blocks."""

_MAX_HOLES = 1024 * 1024 * 1024
"""Maximum bytes of holes in sparse files of an archive. The `tar` of a usual image stores none unless it is told to."""

_MISSING = 44
# $1: a path. Prints its size in bytes; not every `du` knows -b, so that it may be rounded to KiB.
_MEASURE = r"""
[ -e "$1" ] || exit 44
size=$(du -sHb -- "$1" 2>/dev/null) && [ -n "$size" ] && { echo "${size%%[!0-9]*}"; exit; }
size=$(du -sHk -- "$1") && echo "$((${size%%[!0-9]*} * 1024))"
"""
# $1: a directory, then its members to pack.
_PACK = r"""
cd -- "$1" || exit 2
shift
exec tar -cf - -- "$@"
"""
# $1: a directory that counts only if it is not empty; then paths. Prints the indices of the paths that exist.
_WHICH = r"""
n=0 left=$1
holds() { for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do if [ -e "$f" ] || [ -h "$f" ]; then return 0; fi; done; return 1; }
shift
for each; do
  if [ "$each" = "$left" ] && [ -d "$each" ] && [ ! -h "$each" ] && ! holds "$each"; then :
  elif [ -e "$each" ] || [ -h "$each" ]; then echo "$n"; fi
  n=$((n + 1))
done
"""


class _TooLargeError(Exception):
    """An archive exceeds its limit while it is packed."""


# --- inputs of scorers -----------------------------------------------------------------------------------


def list_inputs(
    task: Task, config: VerifierConfig, step: str | None, *, workspace: str = "/", allowed: Collection[str] = ()
) -> list[str]:
    """Return the absolute paths in the sandbox that the scorers of a step read, each once.

    A reward function declares its paths by a method `sandbox_inputs(workspace)`.

    Args:
        task: The task.
        config: Configuration of the step's verifier.
        step: Not used.
        workspace: Directory to which relative paths of reward functions refer.
        allowed: Modules that the user allows tasks to name.
    """
    strategy = resolve_strategy(task, config)
    found = [get_judged_directory(strategy)] if strategy.type == "llm-judge" else []
    found += strategy.inputs
    for index, spec in enumerate(task.reward.funcs if task.reward else []):
        function = make_function(spec, file=f"{task.name}/{task.config_file}", index=index, allowed=allowed)
        reads: Callable[[str], Sequence[str]] = getattr(function, "sandbox_inputs", lambda workspace: ())
        found += reads(workspace)
    return list(dict.fromkeys(path for path in found if path.startswith("/")))


async def store_inputs(sandbox: Sandbox, paths: Sequence[str], evidence: Path, *, limit_bytes: int) -> list[str]:
    """Download files and directories to `evidence/inputs/<path>`; return a warning for each missing or too large one.

    Each path is downloaded once, also if this is called again.

    Args:
        sandbox: The sandbox.
        paths: Absolute paths.
        evidence: Evidence directory of the rollout.
        limit_bytes: Limit for all of them together.
    """
    file = evidence / f"{INPUTS}.json"
    notes: dict[str, str | None] = read_record(file) or {}
    # In this order a directory comes before the paths below it, which are then there already.
    for path in sorted({posixpath.normpath(path) for path in paths}):
        if path in notes:
            continue
        name = path.lstrip("/")
        if any(parent in notes and notes[parent] is None for parent in map(str, PurePosixPath(path).parents)):
            is_there = ConfinedPath(evidence / INPUTS, name).status() is not None
            notes[path] = None if is_there else f"{path} is not there: it cannot be scored by"
        else:
            left = limit_bytes - _measure_size(ConfinedPath(evidence / INPUTS))
            notes[path] = await _download(sandbox, path, ConfinedPath(evidence / INPUTS, name), left)
        _write_record(file, notes)
    return [note for path in paths if (note := notes[posixpath.normpath(path)])]


async def _download(sandbox: Sandbox, path: str, place: ConfinedPath, limit: int) -> str | None:
    """Download one path; return why it was not, or None."""
    if path == "/":
        return "/ is the whole file system: it is not kept"
    too_large = f"{path} is larger than the {limit} bytes that may still be kept: it is not"
    try:
        measured = await sandbox.control(_MEASURE, path)
        if measured.return_code == _MISSING:
            return f"{path} is not there: it cannot be scored by"
        if measured.return_code == 0 and int(measured.stdout) > limit:
            return too_large
        with raise_storage_errors(place.root), ExitStack() as opened:
            place.root.mkdir(parents=True, exist_ok=True)
            evidence = opened.enter_context(ConfinedDirectory(place.root.parent))
            # Downloaded beside the directory: a worker that dies must leave no partial file in it for a scorer.
            part = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=place.root.parent, prefix=".part-")))
            await sandbox.download(path, part / "part")
            if ConfinedPath(part, "part").status() is None:
                return f"{path} is neither a file nor a directory: it is not kept"
            if _measure_size(ConfinedPath(part, "part")) > limit:
                return too_large
            name = f"{place.root.name}/{place.name}"
            evidence.make_directories(posixpath.dirname(name))
            evidence.remove_tree(name)
            evidence.rename(f"{part.name}/part", name)
    except SandboxLostError:
        raise
    except SandboxError as error:
        if error.retryable:
            # A recorded warning would be final: a scorer would take the file for missing.
            raise
        return f"{path} could not be kept: {error.message}"
    return None


def _measure_size(place: ConfinedPath) -> int:
    """Return the total size of a file, or of a directory's files. Raise `UnsafePathError` for an unsafe path."""
    status = place.status()
    if status is None or not stat.S_ISDIR(status.st_mode):
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else 0
    with ConfinedDirectory(place.root) as directory:
        return sum(entry.status.st_size for entry in directory.entries(place.name) if entry.is_file)


def get_archive_limits(packed: IO[bytes]) -> ArchiveLimits:
    """Return the limits for reading an archive that a sandbox has made: its own length, plus `_MAX_HOLES`."""
    return ArchiveLimits(size=os.fstat(packed.fileno()).st_size + _MAX_HOLES)


# --- the workspace ---------------------------------------------------------------------------------------


async def store_workspace(sandbox: Sandbox, evidence: Path, *, limit_bytes: int) -> list[str]:
    """Store the workspace as `evidence/workspace.tar`, with owners, modes, times and links; return warnings.

    Sockets are left out. Nothing is written in the sandbox. A workspace that was stored before is not packed again.

    Args:
        sandbox: The sandbox.
        evidence: Evidence directory of the rollout.
        limit_bytes: Limit of the archive. Packing a larger one is aborted, and nothing is stored.
    """
    return await _store(sandbox, evidence / WORKSPACE, "the workspace", sandbox.ref.workdir, ["."], limit_bytes)


async def _store(sandbox: Sandbox, target: Path, what: str, base: str, members: Sequence[str], limit: int) -> list[str]:
    """Pack members of the directory `base` into `target`, unless that was done before; return the warnings.

    `what` names them in the warnings.
    """
    file = target.with_suffix(".json")
    record = read_record(file)
    if record is None:
        with raise_storage_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        with create_atomic(target) as packed:
            kept, notes = await _pack(sandbox, packed, what, base, members, limit)
            if not kept:
                packed.close()
        record = {"kept": kept, "warnings": notes}
        _write_record(file, record)
    return list(record["warnings"])


async def _pack(
    sandbox: Sandbox, sink: IO[bytes], what: str, base: str, members: Sequence[str], limit: int
) -> tuple[bool, list[str]]:
    """Pack members of the directory `base` into `sink`; return whether the archive is complete, and warnings."""
    if posixpath.normpath(base) == "/" and "." in members:
        return False, [f"{what} is the whole file system: it is not kept"]
    size, end = 0, b""

    def write_chunk(data: bytes) -> None:
        nonlocal size, end
        size += len(data)
        if size > limit:
            raise _TooLargeError
        with raise_storage_errors(sink.name):
            sink.write(data)
        end = (end + data)[-len(_END) :]

    try:
        result = await sandbox.control(_PACK, base, *members, sink=write_chunk, timeout=None)
    except _TooLargeError:
        return False, [f"{what} is larger than {limit} bytes: it is not kept"]
    code, stderr = result.return_code, result.stderr.strip()[-2000:]
    # tar exits with 1 if a file changed or vanished while it was read: what was read counts.
    if code > 1 or end != _END:
        return False, [f"{what} could not be packed, and is not kept: {stderr or f'exit status {code}'}"]
    return True, [f"{what} changed while it was packed: {stderr}"] if code else []


def require_workspace(evidence: Path) -> Path:
    """Return the archive that `store_workspace` stored. Raise `VerifierError`, with its warnings, if there is none."""
    kept = evidence / WORKSPACE
    if not kept.is_file():
        notes = (read_record(kept.with_suffix(".json")) or {}).get("warnings", [])
        raise VerifierError(
            f"the verifier's own sandbox cannot be given the workspace: {'; '.join(notes) or 'it was not kept'}",
            key="verifier.sandbox_mode",
            remedy='keep the workspace small, or verify where the agent worked: sandbox_mode "shared"',
        )
    return kept


# --- artifacts -------------------------------------------------------------------------------------------


async def store_artifacts(
    sandbox: Sandbox, artifacts: Sequence[ArtifactSpec], evidence: Path, *, limit_bytes: int
) -> list[str]:
    """Store declared artifacts outside of the workspace as `evidence/artifacts.tar`; return warnings.

    Missing artifacts cause no warning here: their collection into the results reports them.

    Args:
        sandbox: The sandbox.
        artifacts: Artifacts that the task declares, besides `ARTIFACTS_DIRECTORY`.
        evidence: Evidence directory of the rollout.
        limit_bytes: Limit of the archive, as in `store_workspace`.
    """
    workspace = posixpath.normpath(sandbox.ref.workdir)
    declared: dict[str, list[str]] = {}
    for artifact in [ArtifactSpec(source=ARTIFACTS_DIRECTORY), *artifacts]:
        path = posixpath.normpath(posixpath.join(workspace, artifact.source)).lstrip("/")
        if path and not f"/{path}/".startswith(f"{workspace}/"):
            declared.setdefault(path, artifact.exclude)
    _write_record(evidence / _DECLARED, declared)
    found = await sandbox.control(_WHICH, ARTIFACTS_DIRECTORY, *(f"/{path}" for path in declared))
    names = [list(declared)[int(number)] for number in found.stdout.split()]
    return await _store(sandbox, evidence / ARTIFACTS, "the artifacts", "/", names, limit_bytes) if names else []


# --- records ---------------------------------------------------------------------------------------------


def read_declared(evidence: Path) -> dict[str, list[str]]:
    """Return the artifacts that `store_artifacts` looked for: paths relative to `/`, with the exclusions of each."""
    return read_record(evidence / _DECLARED) or {}


def read_record(file: Path) -> dict[str, Any] | None:
    """Return the content of a JSON record; None if it does not exist."""
    try:
        record: dict[str, Any] = json.loads(read_stored(file))
    except FileNotFoundError:
        return None
    return record


def _write_record(file: Path, record: dict[str, Any]) -> None:
    with raise_storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(record, indent=2).encode() + b"\n", durable=False)
