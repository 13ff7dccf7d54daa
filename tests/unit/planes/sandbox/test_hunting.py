"""Killing in a sandbox: who is slow to die, who multiplies, and who leaves all that its kin are known by."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from support.freezes import FROZEN_SEC, freeze, notice_soon

from benchflow.contracts.driver import ScriptResult
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.hunting import Hunter
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.testing.noop_sandbox import NoopDriver

SHELL = 9


@dataclass
class Row:
    parent: int = 1
    session: int = 0
    marked: bool = False
    dies_after: int = 0
    """How many looks it takes to go once it is killed."""
    killed: bool = False


@dataclass
class Table:
    """A sandbox's processes, and the shell that shows them and sends signals. look: called before each look."""

    rows: dict[int, Row]
    shell: int = SHELL
    sent: list[str] = field(default_factory=list)
    look: Callable[[], None] = lambda: None

    async def renew(self) -> None:
        return None

    async def run(self, script: str) -> ScriptResult:
        first = script.partition("\n")[0].removesuffix(" 2>/dev/null")
        if first:
            self.sent.append(first)
            _, signal, *pids = first.split()
            for pid in map(int, pids):
                self.rows[pid].killed |= signal == "-KILL"
        self.look()
        for pid in [pid for pid, row in self.rows.items() if row.killed and not row.dies_after]:
            del self.rows[pid]
            for row in self.rows.values():
                row.parent = 1 if row.parent == pid else row.parent
        for row in self.rows.values():
            row.dies_after -= row.killed
        listing = b"".join(self._line(pid, row) for pid, row in self.rows.items())
        return ScriptResult(exit_code=0, out=b"%d\0" % self.shell + listing)

    @staticmethod
    def _line(pid: int, row: Row) -> bytes:
        zeros = "0 " * 15
        stat = f"{pid} (it) S {row.parent} 0 {row.session or pid} {zeros}{100 + pid}\n"
        return f"{stat}\0{0}:{0}\0{int(row.marked)}\0{1024}\0it\0?\0".encode()


@pytest.fixture
def table() -> Table:
    return Table({1: Row(parent=0), 2: Row(), SHELL: Row(parent=0), 20: Row()})


@pytest.fixture
def made(table: Table, state: Path) -> Callable[..., Hunter]:
    """Makes what kills them; keyword arguments say for how long."""
    return functools.partial(
        Hunter, NoopDriver(), "handle", cast(EngineScripts, table), SandboxRecords("handle"), "none", nobody
    )


async def nobody(user: str, script: str) -> bytes:
    """Look as another user, of whom there is none here."""
    raise AssertionError(user)


@pytest.fixture
def killing(made: Callable[..., Hunter]) -> Hunter:
    return made()


async def test_who_is_slow_to_die_is_waited_for_and_does_not_count_as_many(table, made):
    killing = made(rounds=2)
    table.rows[20].dies_after = 8
    assert await killing.kill_unknown(keep_services=False) == 2
    assert sorted(table.rows) == [1, SHELL]
    # Once is enough, and later the number could be another's.
    assert table.sent == ["kill -KILL 2 20"]


@pytest.mark.parametrize("kill", ["kill_unknown", "kill_marked"])
async def test_who_does_not_die_is_named(table, made, kill):
    killing = made(dying_sec=0.0)
    table.rows[20] = Row(marked=True, dies_after=10**9)
    with pytest.raises(SandboxError, match=r"does not end \(pids: 20\)"):
        await (killing.kill_unknown(False) if kill == "kill_unknown" else killing.kill_marked("nonce"))


@pytest.mark.parametrize("kill", ["kill_unknown", "kill_marked"])
async def test_who_multiplies_is_given_up_on(table, made, kill):
    killing = made(rounds=5)
    table.look = lambda: table.rows.update({max(table.rows) + 1: Row(marked=True)})
    with pytest.raises(SandboxError, match="multiplies faster"):
        await (killing.kill_unknown(False) if kill == "kill_unknown" else killing.kill_marked("nonce"))
    # None of them is left stopped for ever.
    stopped = {pid for sent in table.sent if "-STOP" in sent for pid in sent.split()[2:]}
    killed = {pid for sent in table.sent if "-KILL" in sent for pid in sent.split()[2:]}
    assert stopped <= killed


@pytest.mark.parametrize("kill", ["kill_unknown", "kill_marked"])
async def test_who_dies_slowly_while_all_are_frozen_is_waited_for(table, made, kill, monkeypatch):
    notice_soon(monkeypatch)
    killing = made(dying_sec=3 * FROZEN_SEC)
    row = table.rows[20] = Row(marked=True, dies_after=3)
    table.look = lambda: freeze(4 * FROZEN_SEC) if row.killed and row.dies_after == 3 else None
    await (killing.kill_unknown(False) if kill == "kill_unknown" else killing.kill_marked("nonce"))
    assert 20 not in table.rows


async def test_a_child_that_drops_all_it_is_known_by_is_known_by_its_stopped_parent(table, killing):
    table.rows[20] = Row(marked=True)

    def fork() -> None:
        # After the first look, before the signal has come to its parent.
        if table.sent == ["kill -STOP 20"]:
            table.rows[21] = Row(parent=20)

    table.look = fork
    await killing.kill_marked("nonce")
    assert table.sent == ["kill -STOP 20", "kill -STOP 20 21", "kill -KILL 20 21"]
    assert sorted(table.rows) == [1, 2, SHELL]


async def test_a_command_is_killed_in_three_looks(table, killing):
    table.rows[20] = Row(marked=True)
    looks = []
    table.look = lambda: looks.append(1)
    await killing.kill_marked("nonce")
    assert table.sent == ["kill -STOP 20", "kill -KILL 20"]
    assert len(looks) == 3


async def test_who_is_in_no_list_is_looked_for_once_more_while_all_stand_still(table, killing):
    appeared: list[str] = []
    run = table.run

    async def hidden_until_all_stand_still(script: str) -> ScriptResult:
        if "kill -STOP -1" in script and not appeared:
            appeared.append(script)
            table.rows[21] = Row()
        return await run(script)

    table.run = hidden_until_all_stand_still
    assert await killing.kill_unknown(keep_services=False) == 3
    assert appeared and sorted(table.rows) == [1, SHELL]


async def test_a_shell_of_the_engine_that_ends_late_is_killed_and_not_counted(table, killing):
    await killing.kill_unknown(keep_services=False)
    # Another one is opened, and the former is not yet gone.
    table.shell = 30
    table.rows |= {30: Row(parent=0), 31: Row()}
    assert await killing.kill_unknown(keep_services=False) == 1
    assert sorted(table.rows) == [1, 30]
