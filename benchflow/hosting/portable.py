"""Take checkpoints from host to host by way of the store: their files, and what the rollout has written until there.

A host that is given a checkpoint has it as one of its own from then on: with a record, so that its reaper finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from benchflow.archive_reader import ArchiveLimits, copy_content, read_archive
from benchflow.confined import MAX_DEPTH, ConfinedDirectory, Entry
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.images import ImageRef
from benchflow.errors import CorruptArtifactError, UnsafePathError
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.kept import Kept, read_kept, remove_layers, write_kept
from benchflow.paths import RolloutPaths
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.records import file_lock
from benchflow.store import PinnedStore, storage_errors
from benchflow.trajectories.growth import chains_above

_NOT_NEEDED = frozenset({"children", "attempts", "rollbacks", "agent", "artifacts", "soft"})
"""Entries of a rollout's results that a host which continues it does not need."""


async def packed(rollout: Hosted, checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with what other hosts need of it in the store."""
    store = PinnedStore(rollout.host.store, checkpoint.id)
    pack = await get_provider(checkpoint.provider).pack_snapshot(checkpoint.files.image, store)
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "record.tar"
        await asyncio.to_thread(_pack_record, record, rollout.root_paths, rollout.spec.chain)
        files = checkpoint.files.model_copy(update={"pack": pack})
        return checkpoint.model_copy(update={"files": files, "record": await store.put_file(record)})


async def image_of(rollout: Hosted, run_id: str, checkpoint: Checkpoint) -> ImageRef:
    """Return the image of a checkpoint on this host, fetched from the store if it is another host's.

    run_id: the rollout's.
    """
    host, branch, pack = rollout.host, rollout.spec.branch, checkpoint.files.pack
    file = host.paths.checkpoints / f"{checkpoint.id}.json"
    if checkpoint.host_id == host.host_id or pack is None:
        return checkpoint.files.image
    async with file_lock(host.paths.root / "locks" / f"{checkpoint.id}.lock"):
        kept = await asyncio.to_thread(read_kept, file)
        if kept is not None and kept.checkpoint is not None:
            return kept.checkpoint.files.image
        kept = kept or Kept(
            workflow=checkpoint.rollout,
            run_id=branch.run_id if branch is not None else run_id,
            provider=checkpoint.provider,
        )
        # Of an attempt that ended before it was complete.
        await remove_layers(checkpoint.id, kept)
        kept = kept.model_copy(update={"tries": kept.tries + 1})
        await asyncio.to_thread(write_kept, file, kept)
        name = f"{checkpoint.id}.{kept.tries}-1"
        image = await get_provider(checkpoint.provider).unpack_snapshot(pack, name, host.store)
        files = checkpoint.files.model_copy(update={"image": image})
        on_host = {"files": files, "host_id": host.host_id, "queue": host.queue}
        if checkpoint.record is not None:
            await lay_out_record(rollout, checkpoint.record)
        mine = kept.model_copy(update={"checkpoint": checkpoint.model_copy(update=on_host)})
        await asyncio.to_thread(write_kept, file, mine)
        return image


def _pack_record(target: Path, root: RolloutPaths, chain: str) -> None:
    """Write an archive of what a branch path, and those above it, have written."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        # Else nothing has been written on this host yet.
        if root.root.is_dir():
            with storage_errors(root.root), ConfinedDirectory(root.root) as directory:
                for name in chains_above(chain):
                    own = root.child(name).root if name else root.root
                    for entry in _written(directory, own.relative_to(root.root).as_posix()):
                        _pack_entry(archive, directory, entry)


def _pack_entry(archive: tarfile.TarFile, directory: ConfinedDirectory, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mode, info.mtime = stat.S_IMODE(entry.status.st_mode), entry.status.st_mtime
    if entry.is_link:
        info.type, info.linkname = tarfile.SYMTYPE, directory.read_link(entry.name)
        archive.addfile(info)
        return
    with directory.open(entry.name) as file:
        info.size = os.fstat(file.fileno()).st_size
        archive.addfile(info, file)


def _written(directory: ConfinedDirectory, own: str) -> list[Entry]:
    """Return the files and links that a rollout has in its results and others need. own: the directory of these."""
    prefix = "" if own == "." else f"{own}/"

    def is_not_needed(name: str) -> bool:
        inner = name.removeprefix(prefix)
        return "/" not in inner and (inner in _NOT_NEEDED or inner.startswith("."))

    if not directory.has(own):
        return []
    return [entry for entry in directory.entries(own, skip=is_not_needed) if entry.is_file or entry.is_link]


async def lay_out_record(rollout: Hosted, record: ArtifactRef) -> None:
    """Write what a rollout, and those above it, had written until a checkpoint, but for files that are there."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "record.tar"
        await rollout.host.store.fetch(record, archive)
        await asyncio.to_thread(_extract, archive, rollout.root_paths.root)


def _extract(archive: Path, root: Path) -> None:
    """Write the files of a record that are not there yet."""
    try:
        with storage_errors(root), archive.open("rb") as file:
            root.mkdir(parents=True, exist_ok=True)
            with ConfinedDirectory(root) as directory:
                # A record has no holes, so that it holds no more than it is long.
                limits = ArchiveLimits(size=os.fstat(file.fileno()).st_size, depth=2 * MAX_DEPTH)
                _extract_members(file, limits, directory)
    except (tarfile.TarError, UnsafePathError) as error:
        raise CorruptArtifactError(f"is no record of a rollout: {error}", file=str(archive)) from error


def _extract_members(file: IO[bytes], limits: ArchiveLimits, directory: ConfinedDirectory) -> None:
    links: list[tuple[str, str]] = []
    for member in read_archive(file, limits):
        info, name = member.info, "/".join(member.parts)
        if member.leads_out or not (info.isreg() or info.issym()):
            raise tarfile.ReadError(f"{info.name!r} is no file below it")
        directory.make_directories("/".join(member.parts[:-1]))
        if directory.has(name):
            continue
        if member.content is None:
            links.append((name, info.linkname))
            continue
        with directory.replacing(name, info.mode & 0o755) as target:
            copy_content(member.content, target)
    # Last, so that no member has to be written through one.
    for name, leads_to in links:
        with contextlib.suppress(FileExistsError):
            directory.link(name, leads_to)
