"""A packed task is unpacked once on a host, however many rollouts ask for it at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from benchflow.hosting.worker_host import Host
from benchflow.paths import StatePaths
from benchflow.store import Store
from benchflow.tasks import write_pack


async def test_rollouts_that_begin_together_share_one_directory(state: Path, tmp_path: Path) -> None:
    source = tmp_path / "task"
    source.mkdir()
    (source / "big").write_bytes(bytes(1_000_000))
    write_pack(source, tmp_path / "pack.tar")
    store = Store.open()
    ref = await store.put_file(tmp_path / "pack.tar")
    nothing: Any = None
    host = Host(
        paths=StatePaths(state),
        store=store,
        host_id="host",
        queue="queue",
        stack="stack",
        slots=nothing,
        options=nothing,
    )
    directories = await asyncio.gather(*(host.fetch_directory(ref) for _ in range(16)))
    assert len(set(directories)) == 1
    assert (directories[0] / "big").stat().st_size == 1_000_000
    assert [path.name for path in directories[0].parent.glob(".*.tar*")] == []
