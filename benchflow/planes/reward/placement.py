"""Transfer of an agent's retained work into another sandbox: its workspace, and the artifacts beside it."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from benchflow.archive_reader import read_archive
from benchflow.confined import MAX_ENTRIES
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import VerifierError
from benchflow.planes.reward.evidence import ARTIFACTS, get_archive_limits, read_declared, read_record
from benchflow.planes.sandbox.archives import is_excluded
from benchflow.stored_files import open_stored

PUT_SEC = 600.0
"""Seconds to unpack a workspace in a sandbox."""

_STAGED = "/var/lib/benchflow/workspace.tar"
# $1 the archive, which is gone if the script has completed before; $2 the workspace, which is emptied by patterns since
# not every image has `find`.
_PUT = r"""
[ -e "$1" ] || exit 0
set -e
tar=$1
shift
mkdir -p -- "$1"
cd -- "$1"
for each in * .[!.]* ..?*; do
  if [ -e "$each" ] || [ -h "$each" ]; then rm -rf -- "./$each"; fi
done
tar -xpf "$tar"
"""
# $1 as above, then the artifacts to replace, relative to /.
_PUT_EACH = r"""
[ -e "$1" ] || exit 0
set -e
tar=$1
shift
cd /
for each; do rm -rf -- "./$each"; mkdir -p -- "$(dirname -- "./$each")"; done
tar -xpf "$tar"
"""


async def put_work(sandbox: Sandbox, workspace: Path, evidence: Path) -> None:
    """Put the agent's retained work into a fresh sandbox: workspace and artifacts.

    If this sandbox's workspace is another directory than the agent's, an artifact may lie in it. The artifact then
    takes precedence over the workspace's own content at that path.

    Args:
        sandbox: The fresh sandbox.
        workspace: Archive of the workspace.
        evidence: Evidence directory in which `store_artifacts` has stored the artifacts.

    Raises:
        VerifierError: An archive cannot be read, or the sandbox cannot take it.
    """
    own = posixpath.normpath(sandbox.ref.workdir).lstrip("/")
    declared = read_declared(evidence)
    around = {path: without for path, without in declared.items() if own != path and _is_in(own, path)}
    beside = {path: without for path, without in declared.items() if path not in around}
    await put_artifacts(sandbox, evidence, around)
    inside = [posixpath.relpath(path, own or ".") for path in beside if _is_in(path, own)]
    await put_workspace(sandbox, workspace, without=inside, is_data=True)
    await put_artifacts(sandbox, evidence, beside)


def _is_in(path: str, directory: str) -> bool:
    """Return whether a path is that directory or below it; both relative to `/`."""
    return not directory or f"{path}/".startswith(f"{directory}/")


async def put_workspace(sandbox: Sandbox, tar: Path, *, without: Collection[str] = (), is_data: bool = False) -> None:
    """Replace the content of a sandbox's workspace by that of an archive, with owners, modes, times and links.

    Args:
        sandbox: The fresh sandbox.
        tar: Archive of the workspace.
        without: Paths in it to leave out with their parent directories, since their content comes from elsewhere: no
            member of the archive (a link) may decide where these paths lead.
        is_data: Drop set-user-id and set-group-id bits of files, by which tested code could become another user.

    Raises:
        VerifierError: The archive cannot be read, or the sandbox cannot take it.
    """
    above = {str(parent) for path in without for parent in PurePosixPath(path).parents} - {"."}

    def is_wanted(name: str) -> bool:
        return name not in above and not any(_is_in(name, "" if path == "." else path) for path in without)

    await _put(sandbox, tar, is_wanted, is_data, _PUT, sandbox.ref.workdir)


async def put_artifacts(sandbox: Sandbox, evidence: Path, declared: Mapping[str, Sequence[str]]) -> None:
    """Put artifacts that `store_artifacts` has stored at their paths, and nothing else that the archive may hold.

    Args:
        sandbox: The fresh sandbox.
        evidence: Evidence directory with the archive.
        declared: Artifacts to put, by path relative to `/`, with the exclusions of each.

    Raises:
        VerifierError: The artifacts could not be stored, the archive cannot be read, or the sandbox cannot take it.
    """
    tar = evidence / ARTIFACTS
    record = read_record(tar.with_suffix(".json"))
    if record is None or not declared:
        return
    if not record["kept"]:
        reasons = "; ".join(record["warnings"])
        raise VerifierError(f"the verifier's own sandbox cannot be given the artifacts: {reasons}", key="artifacts")

    def is_wanted(name: str) -> bool:
        above = {name, *map(str, PurePosixPath(name).parents)}
        roots = [path for path in declared if path in above]
        return any(not is_excluded(posixpath.relpath(name, root), declared[root]) for root in roots)

    await _put(sandbox, tar, is_wanted, True, _PUT_EACH, *declared)


async def _put(
    sandbox: Sandbox, tar: Path, is_wanted: Callable[[str], bool], is_data: bool, script: str, *args: str
) -> None:
    """Upload the wanted members of an archive, and unpack them in the sandbox by a script with its arguments."""
    with tempfile.NamedTemporaryFile(prefix="benchflow-workspace-") as file:
        try:
            finish = await asyncio.to_thread(_rewrite_archive, tar, file, is_wanted, is_data)
        except (OSError, tarfile.TarError, ValueError, OverflowError) as error:
            # ValueError and OverflowError: times and owners that no archive can hold.
            raise VerifierError(f"what was kept cannot be read: {error}", file=str(tar)) from error
        await sandbox.upload(Path(file.name), _STAGED)
    result = await sandbox.control(f'{script}{finish}rm -f -- "$tar"', _STAGED, *args, timeout=PUT_SEC)
    if result.return_code != 0:
        raise VerifierError(
            "what was kept could not be put into the sandbox",
            file=str(tar),
            remedy="see that the image has `tar`, and room for it",
            log_tail=result.stderr[-2000:],
        )


def _rewrite_archive(tar: Path, sink: IO[bytes], is_wanted: Callable[[str], bool], is_data: bool) -> str:
    """Rewrite an untrusted archive: only wanted members, no paths outside of it, unpacked alike by every `tar`.

    The agent may have been root in the sandbox that made the archive. Owners are written as numbers only, since names
    may mean other users in another image. Directories come last, the deepest first: a file written into a directory
    changes its time.

    Args:
        tar: The archive.
        sink: File for the new one.
        is_wanted: Returns whether a member is wanted, by its name.
        is_data: Drop set-user-id and set-group-id bits of files.

    Returns:
        A script to run in the sandbox after the unpacking, in the same directory.
    """
    directories: list[tuple[int, tarfile.TarInfo]] = []
    links: list[tarfile.TarInfo] = []
    seen: dict[str, bool] = {}
    parents: set[str] = set()
    with (
        open_stored(tar) as packed,
        tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for member in read_archive(packed, get_archive_limits(packed)):
            name = "/".join(member.parts) or "."
            above = {str(parent) for parent in PurePosixPath(name).parents}
            covered = any(seen.get(parent) is False for parent in above)
            if member.leads_out or not is_wanted(name) or name in seen or covered:
                continue
            is_directory = member.info.isdir()
            if not is_directory and name in parents:
                continue
            info = _make_header(member.info, name, is_data)
            if info is None or (info.islnk() and (info.linkname not in seen or seen[info.linkname])):
                continue
            seen[name] = is_directory
            parents |= above
            if len(parents) > MAX_ENTRIES:
                raise tarfile.ReadError(f"it has more than {MAX_ENTRIES} directories")
            if is_directory:
                directories.append((0 if name == "." else len(above), info))
            else:
                archive.addfile(info, member.content)
                if info.issym() or info.islnk():
                    links.append(info)
        for _, info in sorted(directories, key=lambda found: found[0], reverse=True):
            archive.addfile(info)
    sink.flush()
    return _format_finish_script(links, [info for _, info in directories])


def _format_finish_script(links: Sequence[tarfile.TarInfo], directories: Sequence[tarfile.TarInfo]) -> str:
    """Return a script that sets owners of links and times of directories.

    Some `tar` leave them wrong: they make links last of all, and make them root's.
    """
    changed = {posixpath.dirname(link.name) or "." for link in links} | {"."}
    lines = [
        f"chown -h {link.uid}:{link.gid} {shlex.quote(f'./{link.name}')}"
        for link in links
        if link.issym() and (link.uid, link.gid) != (0, 0)
    ]
    lines += [f"touch -d @{int(d.mtime)} {shlex.quote(f'./{d.name}')}" for d in directories if d.name in changed]
    return "\n".join([*lines, ""])


def _make_header(member: tarfile.TarInfo, name: str, is_data: bool) -> tarfile.TarInfo | None:
    """Return a new header for a file, directory, link or pipe; None for anything else. `is_data`: drop set-id bits."""
    info = tarfile.TarInfo(name)
    # A set-id program runs as its owner or group: tested code in that sandbox could become that user by it.
    mode = member.mode & (0o1777 if is_data and not member.isdir() else 0o7777)
    info.mode, info.uid, info.gid, info.mtime = mode, member.uid, member.gid, member.mtime
    if member.isreg():
        info.size = member.size
    elif member.issym():
        info.type, info.linkname = tarfile.SYMTYPE, member.linkname
    elif member.islnk():
        info.type, info.linkname = tarfile.LNKTYPE, posixpath.normpath(member.linkname)
    elif member.isdir() or member.isfifo():
        info.type = member.type
    else:
        return None
    return info
