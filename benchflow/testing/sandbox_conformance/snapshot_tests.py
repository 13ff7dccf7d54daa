"""Snapshots, restores and forks of a sandbox while a process writes in it.

The writer keeps the same count three times: in a SQLite database in WAL mode (two tables, one transaction), in a log
that it appends to, and in mapped memory. It writes them in this order, so that at any one moment each is equal to the
one before it or one behind. It sleeps briefly in between, because it would else occupy one of few cores.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

import pytest
import pytest_asyncio

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxStartError, UnsupportedFeatureError
from benchflow.testing.sandbox_conformance.border_tests import HOG
from benchflow.testing.sandbox_conformance.sandbox_fixtures import (
    STACK_LABEL,
    Keep,
    SandboxFixtures,
    Start,
    leave,
    nap,
    napping,
)
from benchflow.testing.waiting import until

CHILDREN = 3
"""Number of children of a fork."""

GENERATIONS = 30
"""Number of forks in a row, each from the child before."""

WRITER = """
import mmap, os, sqlite3, struct, time
os.makedirs('/world', exist_ok=True)
os.chdir('/world')
db = sqlite3.connect('world.db', isolation_level=None)
db.execute('PRAGMA journal_mode=WAL')
db.execute('PRAGMA synchronous=OFF')
for table in 'ab':
    db.execute(f'CREATE TABLE IF NOT EXISTS {table} (n INTEGER)')
log = open('log', 'ab', buffering=0)
file = open('counter', 'w+b')
file.truncate(4096)
counter = mmap.mmap(file.fileno(), 4096)
n = 0
while True:
    n += 1
    db.execute('BEGIN')
    for table in 'ab':
        db.execute(f'INSERT INTO {table} VALUES (?)', (n,))
    db.execute('COMMIT')
    time.sleep(0.0003)
    log.write(b'%08d\\n' % n)
    counter[0:8] = struct.pack('<Q', n)
"""
"""The writer of the module's docstring."""

READ = """
import json, os, shutil, sqlite3, struct
os.makedirs('/read', exist_ok=True)
for name in ('world.db', 'world.db-wal'):
    if os.path.exists('/world/' + name):
        shutil.copy('/world/' + name, '/read/' + name)
db = sqlite3.connect('/read/world.db')
lines = open('/world/log', 'rb').read().split()
print(json.dumps({
    'check': db.execute('PRAGMA integrity_check').fetchone()[0],
    'tables': [db.execute(f'SELECT count(*), max(n) FROM {table}').fetchone() for table in 'ab'],
    'log': len(lines),
    'last': int(lines[-1]),
    'counter': struct.unpack('<Q', open('/world/counter', 'rb').read(8))[0],
}))
"""
"""Prints the writer's three records as JSON, read from copies of the database's files."""


async def logged(sandbox: Sandbox) -> int:
    """Return the writer's count, by its log."""
    said = await sandbox.control("stat -c %s /world/log 2>/dev/null || echo 0")
    return int(said.stdout) // 9


async def is_whole(sandbox: Sandbox) -> dict[str, Any]:
    """Assert that the writer's three records are of one moment, and return them."""
    said = await sandbox.exec(["python3", "-c", READ])
    assert said.return_code == 0, said.stderr
    world: dict[str, Any] = json.loads(said.stdout)
    assert world["check"] == "ok"
    (rows, top), second = world["tables"]
    assert second == [rows, top] and rows == top
    assert world["log"] == world["last"]
    assert 0 <= rows - world["log"] <= 1, world
    assert 0 <= world["log"] - world["counter"] <= 1, world
    return world


class RefusalTests(SandboxFixtures):
    """Tests that unsupported snapshots, restores and forks are refused without any effect."""

    async def test_what_is_not_offered_is_refused_by_name(self, sandbox: Sandbox, provider: SandboxProvider) -> None:
        can = provider.capabilities()
        if not can.snapshot:
            with pytest.raises(UnsupportedFeatureError, match="snapshot"):
                await sandbox.snapshot("x")
            with pytest.raises(UnsupportedFeatureError):
                await sandbox.restore(ImageRef(reference="x"))
        if not can.fork:
            with pytest.raises(UnsupportedFeatureError):
                await sandbox.fork(["x"])
        assert (await sandbox.exec(["echo", "alive"])).stdout == "alive\n"


class SnapshotTests(SandboxFixtures):
    """Tests of `snapshot` and `restore`."""

    @pytest_asyncio.fixture
    async def keeper(self, provider: SandboxProvider, start: Start) -> Sandbox:
        """Return a sandbox; skip the test if the provider takes no snapshots."""
        if not provider.capabilities().snapshot:
            pytest.skip("this provider keeps no snapshots")
        return await start(env={"TASK": "t 1"})

    async def test_a_snapshot_is_an_image_to_start_from_and_so_is_one_of_what_began_from_it(
        self, start: Start, keeper: Sandbox, keep: Keep
    ) -> None:
        await keeper.exec(["sh", "-c", "mkdir /kept && echo x >/kept/file && chown -R nobody /kept && rm /etc/issue"])
        await keeper.write_file("/root/binary", bytes(range(256)), mode=0o750)
        image = await keep(keeper)
        await keeper.exec(["sh", "-c", "echo later >/kept/file"])
        copy = await start(image=image)
        assert await keeper.read_bytes("/kept/file") == b"later\n"
        # A snapshot outlives its sandbox.
        await keeper.stop()
        await copy.exec(["sh", "-c", "rm /root/binary; echo y >/second"])
        above = await start(image=await keep(copy))
        again = await start(image=image)
        assert await above.read_bytes("/second") == b"y\n"
        assert (await above.exec(["test", "-e", "/root/binary"])).return_code == 1
        assert await again.read_bytes("/root/binary") == bytes(range(256))
        for sandbox, more in ((above, []), (again, ["/root/binary"])):
            assert await sandbox.read_bytes("/kept/file") == b"x\n"
            said = await sandbox.exec(["stat", "-c", "%U %a", "/kept", "/kept/file", *more])
            assert said.stdout.split() == ["nobody", "755", "nobody", "644", *(["root", "750"] if more else [])]
            assert (await sandbox.exec(["test", "-e", "/etc/issue"])).return_code == 1

    async def test_a_snapshot_has_nothing_of_the_environment_and_the_labels_of_its_sandbox(
        self, provider: SandboxProvider, start: Start, spec: SandboxSpec, keep: Keep
    ) -> None:
        if not provider.capabilities().snapshot:
            pytest.skip("this provider keeps no snapshots")
        given = secrets.token_hex(16)
        keeper = await start(env={"GIVEN": given}, labels=spec.labels | {"benchflow.test": given})
        copy = await start(image=await keep(keeper))
        for sandbox, is_given in ((keeper, True), (copy, False)):
            assert (given in (await sandbox.exec(["env"])).stdout) == is_given
        assert given not in (await copy.control("cat /proc/1/environ")).stdout
        found = {owned.name: owned.labels for owned in await provider.owned(spec.labels[STACK_LABEL])}
        assert found[keeper.ref.name].get("benchflow.test") == given
        assert "benchflow.test" not in found[copy.ref.name]

    async def test_a_snapshot_may_be_taken_while_the_world_goes_on(
        self, start: Start, keeper: Sandbox, keep: Keep
    ) -> None:
        world = await begin(keeper)
        before = await logged(world)
        image = await keep(world)
        after = await logged(world)
        copy = await start(image=image)
        await copy.kill_processes(keep="nothing")
        kept = await is_whole(copy)
        assert before <= kept["log"] <= after
        assert await progress(world)

    async def test_a_snapshot_of_a_name_that_has_one_is_that_one_until_it_is_removed(
        self, start: Start, provider: SandboxProvider, keeper: Sandbox, other: SandboxProvider, discard: list[ImageRef]
    ) -> None:
        await keeper.write_file("/kept", "first")
        image = await keeper.snapshot(name := f"benchflow-test-{nap()}")
        discard.append(image)
        await keeper.write_file("/kept", "second")
        assert await (await other.attach(keeper.ref)).snapshot(name) == image
        copy = await start(image=image)
        assert await copy.read_bytes("/kept") == b"first"
        await copy.stop()
        for _ in range(2):
            await provider.remove_image(image)
        with pytest.raises(SandboxStartError):
            await start(image=image)

    async def test_restoring_goes_back_to_the_state_and_the_sandbox_stays_itself(
        self, keeper: Sandbox, other: SandboxProvider, keep: Keep
    ) -> None:
        await keeper.exec(["sh", "-c", "echo old >/file && echo x >/doomed && mkdir /d && echo 1 >/d/1"])
        image = await keep(keeper)
        await keeper.exec_once("step", ["echo", "once"])
        await keeper.exec(["sh", "-c", "echo new >/file; rm -r /doomed /d; mkdir /d; echo 2 >/d/2; echo x >/added"])
        await leave(keeper, length := nap())
        await keeper.restore(image)
        for sandbox in (keeper, await other.attach(keeper.ref)):
            assert await sandbox.read_bytes("/file") == b"old\n"
            assert await sandbox.read_bytes("/doomed") == b"x\n"
            assert (await sandbox.control("ls /d; test -e /added || echo gone")).stdout == "1\ngone\n"
        assert await napping(keeper, length) == []
        assert (await keeper.exec(["sh", "-c", 'echo "$TASK"'])).stdout == "t 1\n"
        assert (await other.attach(keeper.ref)).ref == keeper.ref
        # An execution under a key counts as done, though its effects were reverted.
        assert (await keeper.exec_once("step", ["echo", "twice"])).stdout == "once\n"
        assert (await keeper.exec_once("next", ["echo", "next"])).stdout == "next\n"

    async def test_restoring_what_is_not_there_is_an_error_and_harms_nothing(
        self, sandbox: Sandbox, room: str, provider: SandboxProvider
    ) -> None:
        if not provider.capabilities().snapshot:
            pytest.skip("this provider keeps no snapshots")
        with pytest.raises(SandboxStartError, match="no-such-image:1"):
            await sandbox.restore(ImageRef(reference="no-such-image:1"))
        assert (await sandbox.exec(["test", "-d", room])).return_code == 0


class ForkTests(SandboxFixtures):
    """Tests of `fork`."""

    @pytest_asyncio.fixture
    async def parent(self, provider: SandboxProvider, start: Start) -> Sandbox:
        """Return a sandbox; skip the test if the provider does not fork."""
        if not provider.capabilities().fork:
            pytest.skip("this provider forks no sandboxes")
        return await start(env={"TASK": "t 1"}, memory_mb=128)

    @pytest_asyncio.fixture
    async def world(self, parent: Sandbox) -> Sandbox:
        """Return `parent` with the writer running in it."""
        return await begin(parent)

    async def test_each_child_of_a_running_world_is_one_moment_of_it(
        self, provider: SandboxProvider, stack: str, world: Sandbox
    ) -> None:
        service = (await world.control("pgrep -f '[w]orld.db'")).stdout
        before = await logged(world)
        refs = await world.fork(names(CHILDREN))
        after = await logged(world)
        children = [await provider.attach(ref) for ref in refs]
        states = []
        for child in children:
            await child.kill_processes(keep="nothing")
            states.append(await is_whole(child))
        assert all(state == states[0] for state in states)
        assert before <= states[0]["log"] <= after
        # The parent was not changed: the same writer runs on.
        assert (await world.control("pgrep -f '[w]orld.db'")).stdout == service
        assert await progress(world)
        assert {owned.name for owned in await provider.owned(stack)} == {world.ref.name, *(ref.name for ref in refs)}

    async def test_worlds_forked_again_and_again_are_whole_each_time(
        self, provider: SandboxProvider, world: Sandbox
    ) -> None:
        last = 0
        for _ in range(4):
            (ref,) = await world.fork(names(1))
            child = await provider.attach(ref)
            await child.kill_processes(keep="nothing")
            state = await is_whole(child)
            assert state["log"] > last
            last = state["log"]
            await provider.remove(ref.name)
        assert await progress(world)

    async def test_children_have_what_their_parent_was_given(self, provider: SandboxProvider, world: Sandbox) -> None:
        await world.exec(["sh", "-c", "useradd -m agent && echo x >/home/agent/file && chown agent /home/agent/file"])
        await world.exec(HOG)
        wanted = names(2)
        refs = await world.fork(wanted)
        assert [ref.name for ref in refs] == wanted
        for ref in refs:
            assert (ref.provider, ref.host_id, ref.queue, ref.workdir, ref.warnings) == (
                *(world.ref.provider, world.ref.host_id, world.ref.queue, world.ref.workdir, world.ref.warnings),
            )
            child = await provider.attach(ref)
            assert (await child.exec(["sh", "-c", 'echo "$TASK $(id -un)"'], user="agent", cwd="/")).stdout == (
                "t 1 agent\n"
            )
            assert (await child.exec(["stat", "-c", "%U", "/home/agent/file"])).stdout == "agent\n"
            interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
            assert set((await child.exec(["sh", "-c", interfaces])).stdout.split()) <= {
                *("lo", "tunl0", "sit0", "ip6tnl0")
            }
            if not any("memory_mb" in warning for warning in ref.warnings):
                # A child inherits neither its parent's memory use nor its count of out-of-memory kills.
                before = await child.memory_use()
                assert before is None or before.kills == 0
                assert (await child.exec(HOG)).return_code == 137
            assert (await child.exec(["echo", "alive"])).stdout == "alive\n"

    async def test_children_are_apart_from_each_other_and_from_their_parent(
        self, provider: SandboxProvider, parent: Sandbox
    ) -> None:
        await parent.exec(["sh", "-c", "mkdir /d && echo parent >/d/file && echo x >/d/doomed"])
        await parent.exec_once("step", ["echo", "parent"])
        one, two = [await provider.attach(ref) for ref in await parent.fork(names(2))]
        await one.exec(["sh", "-c", "echo one >/d/file; rm /d/doomed; echo x >/d/added; rm -rf /etc/apt"])
        length = nap()
        await leave(one, length)
        for sandbox in (parent, two):
            assert await sandbox.read_bytes("/d/file") == b"parent\n"
            assert (await sandbox.exec(["ls", "/d"])).stdout.split() == ["doomed", "file"]
            assert (await sandbox.exec(["test", "-d", "/etc/apt"])).return_code == 0
            assert await napping(sandbox, length) == []
        await parent.exec(["sh", "-c", "echo later >/d/file"])
        assert await two.read_bytes("/d/file") == b"parent\n"
        assert await one.read_bytes("/d/file") == b"one\n"
        # A child starts with no executions, and its parent keeps its own.
        assert not await one.was_started("step")
        assert (await one.exec_once("step", ["echo", "child"])).stdout == "child\n"
        assert (await parent.exec_once("step", ["true"])).stdout == "parent\n"

    async def test_commands_of_the_parent_run_on_through_a_fork(self, parent: Sandbox) -> None:
        work = ["sh", "-c", 'echo begun; touch "/begun-$1"; until [ -e /go ]; do sleep 0.05; done; echo done', "sh"]
        tasks = [
            asyncio.create_task(parent.exec([*work, "1"])),
            asyncio.create_task(parent.exec_once("work", [*work, "2"])),
        ]

        async def begun() -> bool:
            return (await parent.control("test -e /begun-1 && test -e /begun-2")).return_code == 0

        await until(begun)
        await parent.fork(names(1))
        await parent.write_file("/go", "")
        assert [(await task).stdout for task in tasks] == ["begun\ndone\n"] * 2

    async def test_children_that_are_there_already_are_the_ones_meant_and_outlive_their_parent(
        self, provider: SandboxProvider, other: SandboxProvider, parent: Sandbox
    ) -> None:
        await parent.write_file("/kept", "x")
        refs = await parent.fork(wanted := names(1))
        await parent.write_file("/later", "x")
        assert await (await other.attach(parent.ref)).fork(wanted) == refs
        await parent.stop()
        child = await provider.attach(refs[0])
        assert await child.read_bytes("/kept") == b"x"
        assert (await child.exec(["test", "-e", "/later"])).return_code == 1
        (grandchild,) = await child.fork(names(1))
        assert await (await provider.attach(grandchild)).read_bytes("/kept") == b"x"

    async def test_thirty_generations_are_as_good_as_one(self, provider: SandboxProvider, parent: Sandbox) -> None:
        sandbox = parent
        await sandbox.exec(["sh", "-c", "mkdir /tree && echo 0 >/lines && echo x >/tree/0"])
        for generation in range(1, GENERATIONS + 1):
            (ref,) = await sandbox.fork(names(1))
            await provider.remove(sandbox.ref.name)
            sandbox = await provider.attach(ref)
            step = f"echo {generation} >>/lines; rm -r /tree; mkdir /tree; echo x >/tree/{generation}"
            assert (await sandbox.exec(["sh", "-c", step])).return_code == 0
        assert (await sandbox.read_bytes("/lines")).split() == [b"%d" % n for n in range(GENERATIONS + 1)]
        assert (await sandbox.exec(["ls", "/tree"])).stdout == f"{GENERATIONS}\n"
        assert (await sandbox.exec(["useradd", "-m", "late"])).return_code == 0

    async def test_a_sandbox_may_be_forked_by_two_at_the_same_time(
        self, provider: SandboxProvider, other: SandboxProvider, world: Sandbox
    ) -> None:
        there = await other.attach(world.ref)
        both = await asyncio.gather(world.fork(names(2)), there.fork(names(2)))
        for ref in [*both[0], *both[1]]:
            child = await provider.attach(ref)
            await child.kill_processes(keep="nothing")
            await is_whole(child)
        assert await progress(world)


def names(count: int) -> list[str]:
    """Return new names of sandboxes."""
    return [f"benchflow-test-{nap()}" for _ in range(count)]


async def begin(sandbox: Sandbox) -> Sandbox:
    """Start the writer in a sandbox, as a service of its baseline, and return the sandbox."""
    await sandbox.exec(["sh", "-c", 'python3 -c "$1" >/dev/null 2>&1 &', "sh", WRITER])

    async def has_begun() -> bool:
        return await logged(sandbox) > 100

    await until(has_begun)
    await sandbox.mark_baseline()
    return sandbox


async def progress(sandbox: Sandbox) -> bool:
    """Wait until the writer has increased its count, and return True."""
    before = await logged(sandbox)

    async def has_moved() -> bool:
        return await logged(sandbox) > before

    return await until(has_moved)
