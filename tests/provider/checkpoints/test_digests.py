"""Telling whether two worlds are the same that were reached in different ways."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_worlds import DATABASE, MakeWorld, OnLocal, Worlds, notes

from benchflow.checkpoints import describe_difference, digest_world
from benchflow.contracts.environment import StateTable
from benchflow.contracts.sandbox import Sandbox

STATE = StateTable(paths=(DATABASE,))

WRITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])"
MAKE = "mkdir -p sub && echo one >sub/file && : >empty && ln -s sub/file link && chmod 640 sub/file"
SAME = "touch -d 2001-01-01 sub/file empty && mkdir -p sub/__pycache__ && date +%N >sub/__pycache__/file.pyc"
OTHER = [
    "echo two >sub/file",
    "chmod 600 sub/file",
    "ln -sfn empty link",
    "rm empty",
    "mkdir more",
    "mv sub/file sub/b",
]


async def do(sandbox: Sandbox, command: str) -> None:
    done = await sandbox.control(f'cd "$1" && {command}', sandbox.ref.workdir)
    assert done.return_code == 0, done.stderr


@pytest.mark.local
class TestDigests(OnLocal, Worlds):
    async def test_equal_files_are_the_same_whenever_they_were_written_and_others_are_not(self, fresh: Any) -> None:
        first, second = await fresh(), await fresh()
        for sandbox in (first, second):
            await do(sandbox, MAKE)
        await do(second, SAME)
        known = await digest_world(first, None)
        assert describe_difference(known, await digest_world(second, None)) is None
        for change in OTHER:
            await do(second, change)
            assert (
                describe_difference(known, await digest_world(second, None)) == "the files of the workspace are others"
            )
            await do(second, f"rm -rf sub empty link more && {MAKE}")
        assert describe_difference(known, await digest_world(second, None)) is None

    async def test_equal_rows_are_the_same_and_others_are_not(self, fresh: Any, world: MakeWorld) -> None:
        digests = []
        for written in ("('a'), ('b')", "('a'), ('b')", "('a')"):
            sandbox = await fresh()
            script = f"create table notes (text); insert into notes values {written}"
            command = ["python3", "-I", "-S", "-c", WRITE, DATABASE, script]
            assert (await sandbox.exec(command, cwd="/")).return_code == 0
            digests.append(await digest_world(sandbox, world(notes(), sandbox=sandbox, state=STATE)))
        first, second, third = digests
        assert describe_difference(first, second) is None
        assert describe_difference(first, third) == "the rows of the databases are others"
