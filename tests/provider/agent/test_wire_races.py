"""The files of an agent's stdio, while the sandbox's root swaps them for links, pipes and directories."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.link_swaps import Outside, swapping, try_often

from benchflow.errors import ACPError, UnsafePathError
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.sandbox.archives import unpack

TRIES = [200, pytest.param(10_000, marks=pytest.mark.long)]


async def _first(wire: Wire) -> object:
    async for heard in wire.follow(0):
        return heard
    return None


def _send(wire: Wire) -> object:
    return wire.send({"jsonrpc": "2.0", "method": "hello"})


USES: dict[str, Callable[[Wire], object]] = {
    "make": lambda wire: wire.make(),
    "send": _send,
    "follow": lambda wire: asyncio.run(_first(wire)),
    "ended": lambda wire: wire.describe_end(),
    "could not start": lambda wire: wire.could_not_start,
    "log tail": lambda wire: wire.read_log_tail(),
    "size": lambda wire: wire.output_size,
    "append": lambda wire: wire.append("out", 0, b"more"),
    "empty": lambda wire: wire.empty("err"),
    "put exit": lambda wire: wire.write_exit(b'{"code": 0}'),
    "keep": lambda wire: [_read(wire, name) for name in ("in", "out", "err", "exit")],
}


def _read(wire: Wire, name: str) -> bytes | None:
    journal = wire.open_journal(name)
    if journal is None:
        return None
    with journal:
        return journal.read(1 << 20)


@pytest.mark.parametrize("swapped", [["0.0"], ["0.0/in", "0.0/out", "0.0/err", "0.0/exit"]], ids=["directory", "files"])
@pytest.mark.parametrize("times", TRIES)
def test_no_use_of_the_journals_leaves_their_directory(swapped: list[str], times: int, tmp_path: Path) -> None:
    outside = Outside(tmp_path)
    wire = Wire(SessionFiles.from_directory(tmp_path / "session").join("0.0"))
    wire.make()
    wire.write_exit(b'{"code": 0}')
    results: dict[str, list[object]] = {name: [] for name in USES}
    with swapping(outside, *(wire.files.shared / name for name in swapped)):
        # In turns: each use then meets all that is put there, however seldom the swapping process runs.
        for _ in range(times):
            for name, use in USES.items():
                with contextlib.suppress(ACPError):
                    results[name].append(use(wire))
    assert outside.secret not in repr(results)
    # Else nothing was raced.
    assert sum(map(bool, results.values())) > len(USES) / 2 and any(len(found) < times for found in results.values())
    outside.assert_untouched()


@pytest.mark.parametrize("times", TRIES)
def test_nothing_is_unpacked_elsewhere(times: int, tmp_path: Path) -> None:
    outside = Outside(tmp_path)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind in (("a", tarfile.DIRTYPE), ("a/new", tarfile.REGTYPE), ("b", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type = kind
            archive.addfile(info)
        linked = tarfile.TarInfo("c")
        linked.type, linked.linkname = tarfile.LNKTYPE, "a/new"
        archive.addfile(linked)

    def unpack_again() -> None:
        packed.seek(0)
        unpack(packed, target, (), False, threading.Event())

    target = tmp_path / "target"
    unpack_again()
    with swapping(outside, target / "a", target / "b", target / "c"):
        try_often(unpack_again, times, UnsafePathError, FileNotFoundError)
    outside.assert_untouched()
    found = [path for path in target.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in found if outside.secret in path.read_text()]
