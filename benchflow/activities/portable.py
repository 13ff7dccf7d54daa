"""What other hosts need of a checkpoint: its files, and what the rollout has written until there, by way of the store.

A host that is given one has it as one of its own from then on: with a note, so that its reaper finds it.
"""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchflow.activities.context import WorkerContext
from benchflow.activities.kept import Kept, read_kept, remove_layers, write_kept
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.sandbox import ImageRef
from benchflow.errors import CorruptArtifactError
from benchflow.paths import RolloutPaths
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.records import file_lock
from benchflow.store import PinnedStore, storage_errors
from benchflow.trajectories.growth import chains_above

_NOT_NEEDED = frozenset({"children", "attempts", "rollbacks", "agent", "artifacts", "soft"})
"""What a rollout has in its results that nobody needs who goes on."""


async def packed(context: WorkerContext, spec: RolloutSpec, checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint, with what other hosts need of it in the store."""
    store = PinnedStore(context.store, checkpoint.id)
    pack = await get_provider(checkpoint.provider).pack_snapshot(checkpoint.files.image, store)
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "record.tar"
        await asyncio.to_thread(_pack_record, record, _root_of(context, spec), spec.chain)
        files = checkpoint.files.model_copy(update={"pack": pack})
        return checkpoint.model_copy(update={"files": files, "record": await store.put_file(record)})


async def at_hand(context: WorkerContext, spec: RolloutSpec, run_id: str, checkpoint: Checkpoint) -> ImageRef:
    """The image of a checkpoint on this host, which has it from the store if it is another's. run_id: the rollout's."""
    file = context.paths.checkpoints / f"{checkpoint.id}.json"
    own, pack = spec.branch, checkpoint.files.pack
    if checkpoint.host_id == context.host_id or pack is None:
        return checkpoint.files.image
    async with file_lock(context.paths.root / "locks" / f"{checkpoint.id}.lock"):
        kept = await asyncio.to_thread(read_kept, file)
        if kept is not None and kept.checkpoint is not None:
            return kept.checkpoint.files.image
        kept = kept or Kept(
            workflow=checkpoint.rollout,
            run_id=own.run_id if own is not None else run_id,
            provider=checkpoint.provider,
        )
        # Of a try that ended before it was whole.
        await remove_layers(checkpoint.id, kept)
        kept = kept.model_copy(update={"tries": kept.tries + 1})
        await asyncio.to_thread(write_kept, file, kept)
        name = f"{checkpoint.id}.{kept.tries}-1"
        image = await get_provider(checkpoint.provider).unpack_snapshot(pack, name, context.store)
        files = checkpoint.files.model_copy(update={"image": image})
        here = {"files": files, "host_id": context.host_id, "queue": context.queue}
        if checkpoint.record is not None:
            await lay_out_record(context, spec, checkpoint.record)
        mine = kept.model_copy(update={"checkpoint": checkpoint.model_copy(update=here)})
        await asyncio.to_thread(write_kept, file, mine)
        return image


def _root_of(context: WorkerContext, spec: RolloutSpec) -> RolloutPaths:
    """The results of the root of a rollout's tree, on this host."""
    return context.results(spec.model_copy(update={"branch": None}))


def _pack_record(target: Path, root: RolloutPaths, chain: str) -> None:
    """Write an archive of what a chain, and those above it, have written."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in chains_above(chain):
            for file in _written(root.child(name).root if name else root.root):
                archive.add(file, arcname=str(file.relative_to(root.root)), recursive=False)


def _written(directory: Path) -> Iterator[Path]:
    for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
        if entry.name in _NOT_NEEDED or entry.name.startswith("."):
            continue
        yield from sorted(file for file in entry.rglob("*") if file.is_file()) if entry.is_dir() else [entry]


async def lay_out_record(context: WorkerContext, spec: RolloutSpec, record: ArtifactRef) -> None:
    """Have what a rollout, and those above it, had written until a checkpoint here, but for what is there already."""
    root = _root_of(context, spec).root
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "record.tar"
        await context.store.fetch(record, archive)
        await asyncio.to_thread(_extract, archive, root)


def _extract(archive: Path, root: Path) -> None:
    try:
        with tarfile.open(archive, "r:") as packed_, storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            for member in packed_:
                _extract_file(packed_, member, root)
    except tarfile.TarError as error:
        raise CorruptArtifactError(f"is no record of a rollout: {error}", file=str(archive)) from error


def _extract_file(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Write one file of a record, unless it is there. `TarFile.extract` has no filter before Python 3.11.4."""
    file = root / member.name
    if not (member.isreg() or member.issym()) or not file.parent.resolve().is_relative_to(root.resolve()):
        raise tarfile.ReadError(f"{member.name!r} is no file below it")
    if file.exists() or file.is_symlink():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        file.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    assert content is not None
    with content, file.open("xb") as target:
        shutil.copyfileobj(content, target)
    file.chmod(member.mode & 0o755)
