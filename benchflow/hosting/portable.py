"""Move checkpoints between hosts through the store: their images, and the rollout's results until then.

A host that has fetched a checkpoint owns it like one that was taken there: with a record, so that its reaper finds it.
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
from benchflow.confined import MAX_DEPTH, ConfinedDirectory, DirectoryEntry
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.images import ImageRef
from benchflow.errors import CorruptArtifactError, UnsafePathError
from benchflow.host_files import hold_lock_async, raise_storage_errors
from benchflow.hosting.checkpoint_records import (
    CheckpointRecord,
    read_checkpoint_record,
    remove_layers,
    write_checkpoint_record,
)
from benchflow.hosting.hosted import Hosted
from benchflow.paths import RolloutPaths
from benchflow.planes.sandbox import get_provider
from benchflow.store import PinnedStore
from benchflow.trajectories.growth import list_branch_paths

_NOT_NEEDED = frozenset({"children", "attempts", "rollbacks", "agent", "artifacts", "soft"})
"""Entries of a rollout's results that a host which continues it does not need."""


async def pack_checkpoint(rollout: Hosted, checkpoint: Checkpoint) -> Checkpoint:
    """Pack a checkpoint for other hosts, and return it with the references of the packs.

    Args:
        rollout: The rollout.
        checkpoint: Checkpoint of this host. Its image, and the results of its branch path, are pinned by its id.

    Raises:
        UnsupportedFeatureError: The provider has no portable snapshots.
        StoreError: The store fails.
    """
    store = PinnedStore(rollout.host.store, checkpoint.id)
    pack = await get_provider(checkpoint.provider).pack_snapshot(checkpoint.files.image, store)
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "record.tar"
        await asyncio.to_thread(_pack_record, record, rollout.root_paths, rollout.spec.chain)
        files = checkpoint.files.model_copy(update={"pack": pack})
        return checkpoint.model_copy(update={"files": files, "record": await store.put_file(record)})


async def fetch_image(rollout: Hosted, run_id: str, checkpoint: Checkpoint) -> ImageRef:
    """Return the image of a checkpoint on this host, fetched from the store if it was taken on another host.

    It is fetched once per host, with the results until the checkpoint; a lock and a record serve concurrent calls and
    retries. A checkpoint without a pack is returned with its original image.

    Args:
        rollout: The rollout that starts from the checkpoint.
        run_id: Run id of the first run of the rollout's workflow.
        checkpoint: The checkpoint.

    Raises:
        ForeignSnapshotError: This host can't run the image.
        StoreError: The store fails.
    """
    host, branch, pack = rollout.host, rollout.spec.branch, checkpoint.files.pack
    file = host.paths.checkpoints / f"{checkpoint.id}.json"
    if checkpoint.host_id == host.host_id or pack is None:
        return checkpoint.files.image
    async with hold_lock_async(host.paths.root / "locks" / f"{checkpoint.id}.lock"):
        kept = await asyncio.to_thread(read_checkpoint_record, file)
        if kept is not None and kept.checkpoint is not None:
            return kept.checkpoint.files.image
        kept = kept or CheckpointRecord(
            workflow=checkpoint.rollout,
            run_id=branch.run_id if branch is not None else run_id,
            provider=checkpoint.provider,
        )
        # Incomplete images of an interrupted attempt.
        await remove_layers(checkpoint.id, kept)
        kept = kept.model_copy(update={"tries": kept.tries + 1})
        await asyncio.to_thread(write_checkpoint_record, file, kept)
        name = f"{checkpoint.id}.{kept.tries}-1"
        image = await get_provider(checkpoint.provider).unpack_snapshot(pack, name, host.store)
        files = checkpoint.files.model_copy(update={"image": image})
        on_host = {"files": files, "host_id": host.host_id, "queue": host.queue}
        if checkpoint.record is not None:
            await unpack_record(rollout, checkpoint.record)
        mine = kept.model_copy(update={"checkpoint": checkpoint.model_copy(update=on_host)})
        await asyncio.to_thread(write_checkpoint_record, file, mine)
        return image


def _pack_record(target: Path, root: RolloutPaths, chain: str) -> None:
    """Write an archive of the results of the rollout with a branch path, and of all rollouts above it."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        # Without the directory, nothing has been written on this host yet, and the archive is empty.
        if root.root.is_dir():
            with raise_storage_errors(root.root), ConfinedDirectory(root.root) as directory:
                for name in list_branch_paths(chain):
                    own = root.child(name).root if name else root.root
                    for entry in _list_needed(directory, own.relative_to(root.root).as_posix()):
                        _pack_entry(archive, directory, entry)


def _pack_entry(archive: tarfile.TarFile, directory: ConfinedDirectory, entry: DirectoryEntry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mode, info.mtime = stat.S_IMODE(entry.status.st_mode), entry.status.st_mtime
    if entry.is_link:
        info.type, info.linkname = tarfile.SYMTYPE, directory.read_link(entry.name)
        archive.addfile(info)
        return
    with directory.open(entry.name) as file:
        info.size = os.fstat(file.fileno()).st_size
        archive.addfile(info, file)


def _list_needed(directory: ConfinedDirectory, own: str) -> list[DirectoryEntry]:
    """Return the files and links in the results directory `own` of a rollout that another host needs."""
    prefix = "" if own == "." else f"{own}/"

    def is_not_needed(name: str) -> bool:
        inner = name.removeprefix(prefix)
        return "/" not in inner and (inner in _NOT_NEEDED or inner.startswith("."))

    if not directory.has(own):
        return []
    return [entry for entry in directory.entries(own, skip=is_not_needed) if entry.is_file or entry.is_link]


async def unpack_record(rollout: Hosted, record: ArtifactRef) -> None:
    """Unpack the results that a rollout, and those above it, had written until a checkpoint. Existing files stay.

    Args:
        rollout: The rollout.
        record: Archive in the store, from `pack_checkpoint`.

    Raises:
        CorruptArtifactError: The archive can't be read, or has members that lead out of the results.
        StoreError: The store fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "record.tar"
        await rollout.host.store.fetch(record, archive)
        await asyncio.to_thread(_extract, archive, rollout.root_paths.root)


def _extract(archive: Path, root: Path) -> None:
    """Write those files of an archive of results that do not exist yet."""
    try:
        with raise_storage_errors(root), archive.open("rb") as file:
            root.mkdir(parents=True, exist_ok=True)
            with ConfinedDirectory(root) as directory:
                # The archive has no holes, so that its content is no larger than itself.
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
    # Links come last, so that no member is written through one.
    for name, leads_to in links:
        with contextlib.suppress(FileExistsError):
            directory.link(name, leads_to)
