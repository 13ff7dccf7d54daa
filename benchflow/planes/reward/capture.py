"""What scoring needs of a sandbox, brought out of it before a verifier runs.

Everything lies below a rollout's evidence directory: `inputs/<path>` for files that scorers read, `workspace.tar` for
the whole workspace, `artifacts.tar` for what lies elsewhere and is declared to be the agent's work, too. What could not
be kept is a warning; that is written down, too, so that whoever asks again after a crash is told the same and changes
nothing.
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
from benchflow.paths import WORKSPACE
from benchflow.planes.reward.functions import make_function
from benchflow.planes.reward.inputs import judged_directory, strategy_of
from benchflow.store import storage_errors, write_atomic
from benchflow.stored_files import read_stored

INPUTS = "inputs"
ARTIFACTS = "artifacts.tar"
LEFT = "/logs/artifacts"
"""A directory of every sandbox whose content is an artifact, whether or not a task declares it."""

_DECLARED = "declared.json"
_END = bytes(1024)
"""What an archive ends with."""

_MOST_HOLES = 1024 * 1024 * 1024
"""Bytes. No `tar` of a usual image packs files with holes as such, unless it is told to."""

_NOT_THERE = 44
# Bytes, as near as the image's `du` can tell: not every one knows -b.
_MEASURE = r"""
[ -e "$1" ] || exit 44
size=$(du -sHb -- "$1" 2>/dev/null) && [ -n "$size" ] && { echo "${size%%[!0-9]*}"; exit; }
size=$(du -sHk -- "$1") && echo "$((${size%%[!0-9]*} * 1024))"
"""
# $1: a directory, then what is packed of it.
_PACK = r"""
cd -- "$1" || exit 2
shift
exec tar -cf - -- "$@"
"""
# $1: a directory that counts only with something in it. The numbers of those arguments that are there.
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
    """More is being packed than may be kept."""


# --- what scorers read -----------------------------------------------------------------------------------


def inputs_of(
    task: Task, config: VerifierConfig, step: str | None, *, workspace: str = "/", allowed: Collection[str] = ()
) -> list[str]:
    """The absolute paths in the sandbox that scorers of a step read, each once.

    config: of the step's verifier; step: its name. workspace: where relative paths of reward functions begin.
    allowed: the modules that the user lets tasks name. A function says what it reads by a method
    `sandbox_inputs(workspace)`.
    """
    strategy = strategy_of(task, config)
    found = [judged_directory(strategy)] if strategy.type == "llm-judge" else []
    found += strategy.inputs
    for index, spec in enumerate(task.reward.funcs if task.reward else []):
        function = make_function(spec, file=f"{task.name}/{task.config_file}", index=index, allowed=allowed)
        reads: Callable[[str], Sequence[str]] = getattr(function, "sandbox_inputs", lambda workspace: ())
        found += reads(workspace)
    return list(dict.fromkeys(path for path in found if path.startswith("/")))


async def keep_inputs(sandbox: Sandbox, paths: Sequence[str], evidence: Path, *, limit_bytes: int) -> list[str]:
    """Bring files and directories of the sandbox to `evidence/inputs/<path>`; warnings of what is missing or too large.

    paths: absolute. limit_bytes: of all of them together. Each is brought once, also when this is called again.
    """
    record = evidence / f"{INPUTS}.json"
    told: dict[str, str | None] = read_record(record) or {}
    # What lies in another comes after it.
    for path in sorted({posixpath.normpath(path) for path in paths}):
        if path in told:
            continue
        name = path.lstrip("/")
        if any(parent in told and told[parent] is None for parent in map(str, PurePosixPath(path).parents)):
            there = ConfinedPath(evidence / INPUTS, name).status() is not None
            told[path] = None if there else f"{path} is not there: it cannot be scored by"
        else:
            left = limit_bytes - _size(ConfinedPath(evidence / INPUTS))
            told[path] = await _bring(sandbox, path, ConfinedPath(evidence / INPUTS, name), left)
        _write(record, told)
    return [note for path in paths if (note := told[posixpath.normpath(path)])]


async def _bring(sandbox: Sandbox, path: str, place: ConfinedPath, limit: int) -> str | None:
    """Bring one path; why it could not be."""
    if path == "/":
        return "/ is the whole file system: it is not kept"
    too_large = f"{path} is larger than the {limit} bytes that may still be kept: it is not"
    try:
        measured = await sandbox.control(_MEASURE, path)
        if measured.return_code == _NOT_THERE:
            return f"{path} is not there: it cannot be scored by"
        if measured.return_code == 0 and int(measured.stdout) > limit:
            return too_large
        with storage_errors(place.root), ExitStack() as opened:
            place.root.mkdir(parents=True, exist_ok=True)
            evidence = opened.enter_context(ConfinedDirectory(place.root.parent))
            # Beside the directory: of a worker that dies nothing is left in it that a scorer reads.
            part = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=place.root.parent, prefix=".part-")))
            await sandbox.download(path, part / "part")
            if ConfinedPath(part, "part").status() is None:
                return f"{path} is neither a file nor a directory: it is not kept"
            if _size(ConfinedPath(part, "part")) > limit:
                return too_large
            name = f"{place.root.name}/{place.name}"
            evidence.make_directories(posixpath.dirname(name))
            evidence.remove_tree(name)
            evidence.rename(f"{part.name}/part", name)
    except SandboxLostError:
        raise
    except SandboxError as error:
        if error.retryable:
            # A scorer would take for missing what nobody could read just now.
            raise
        return f"{path} could not be kept: {error.message}"
    return None


def _size(place: ConfinedPath) -> int:
    """Return the bytes of the files that a place holds. Raises `UnsafePathError`."""
    status = place.status()
    if status is None or not stat.S_ISDIR(status.st_mode):
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else 0
    with ConfinedDirectory(place.root) as directory:
        return sum(entry.status.st_size for entry in directory.entries(place.name) if entry.is_file)


def limits_of(packed: IO[bytes]) -> ArchiveLimits:
    """Return how much an archive that a sandbox has made may unpack to: what it is long, and some holes."""
    return ArchiveLimits(size=os.fstat(packed.fileno()).st_size + _MOST_HOLES)


# --- the workspace ---------------------------------------------------------------------------------------


async def keep_workspace(sandbox: Sandbox, evidence: Path, *, limit_bytes: int) -> list[str]:
    """Keep the workspace as `evidence/workspace.tar`, with owners, modes, times and links; warnings.

    Sockets are left out. limit_bytes: of the archive; a larger one is given up while it is made, and nothing is kept.
    Nothing is written in the sandbox. A workspace that was kept before is not kept again.
    """
    return await _keep(sandbox, evidence / WORKSPACE, "the workspace", sandbox.ref.workdir, ["."], limit_bytes)


async def _keep(sandbox: Sandbox, target: Path, what: str, base: str, members: Sequence[str], limit: int) -> list[str]:
    """Pack what lies below a directory of the sandbox into `target`, unless that was done before; warnings."""
    record = target.with_suffix(".json")
    told = read_record(record)
    if told is None:
        with storage_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.stem}-", delete=False) as packed:
            part = Path(packed.name)
            try:
                kept, notes = await _pack(sandbox, packed, what, base, members, limit)
                packed.flush()
                if kept:
                    part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        told = {"kept": kept, "warnings": notes}
        _write(record, told)
    return list(told["warnings"])


async def _pack(
    sandbox: Sandbox, sink: IO[bytes], what: str, base: str, members: Sequence[str], limit: int
) -> tuple[bool, list[str]]:
    """Pack what lies below a directory; whether that is whole, and warnings."""
    if posixpath.normpath(base) == "/" and "." in members:
        return False, [f"{what} is the whole file system: it is not kept"]
    size, end = 0, b""

    def take(data: bytes) -> None:
        nonlocal size, end
        size += len(data)
        if size > limit:
            raise _TooLargeError
        with storage_errors(sink.name):
            sink.write(data)
        end = (end + data)[-len(_END) :]

    try:
        result = await sandbox.control(_PACK, base, *members, sink=take, timeout=None)
    except _TooLargeError:
        return False, [f"{what} is larger than {limit} bytes: it is not kept"]
    code, said = result.return_code, result.stderr.strip()[-2000:]
    # 1 is tar's word for a file that changed or vanished while it was read: what was read counts.
    if code > 1 or end != _END:
        return False, [f"{what} could not be packed, and is not kept: {said or f'exit status {code}'}"]
    return True, [f"{what} changed while it was packed: {said}"] if code else []


def kept_workspace(evidence: Path) -> Path:
    """The workspace that `keep_workspace` kept. Raises `VerifierError` with what kept it from being kept."""
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


async def keep_artifacts(
    sandbox: Sandbox, artifacts: Sequence[ArtifactSpec], evidence: Path, *, limit_bytes: int
) -> list[str]:
    """Keep declared artifacts outside of the workspace as `evidence/artifacts.tar`, as the workspace is; warnings.

    Those that are not there are told by whoever collects them.
    """
    workspace = posixpath.normpath(sandbox.ref.workdir)
    declared: dict[str, list[str]] = {}
    for artifact in [ArtifactSpec(source=LEFT), *artifacts]:
        path = posixpath.normpath(posixpath.join(workspace, artifact.source)).lstrip("/")
        if path and not f"/{path}/".startswith(f"{workspace}/"):
            declared.setdefault(path, artifact.exclude)
    _write(evidence / _DECLARED, declared)
    there = await sandbox.control(_WHICH, LEFT, *(f"/{path}" for path in declared))
    names = [list(declared)[int(number)] for number in there.stdout.split()]
    return await _keep(sandbox, evidence / ARTIFACTS, "the artifacts", "/", names, limit_bytes) if names else []


# --- records ---------------------------------------------------------------------------------------------


def read_declared(evidence: Path) -> dict[str, list[str]]:
    """Return the artifacts that `keep_artifacts` looked for, relative to `/`, with what is left out of each."""
    return read_record(evidence / _DECLARED) or {}


def read_record(file: Path) -> dict[str, Any] | None:
    """Return what was written down; None when nothing was."""
    try:
        told: dict[str, Any] = json.loads(read_stored(file))
    except FileNotFoundError:
        return None
    return told


def _write(file: Path, told: dict[str, Any]) -> None:
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(told, indent=2).encode() + b"\n", durable=False)
