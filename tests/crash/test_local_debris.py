"""What dying processes leave of local sandboxes, and that whoever comes next finds and removes it. No engine here."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
import pytest_asyncio
from support.embedded import chance_of_this_run
from support.local_churn import KEPT, STACK, churn, live, spec_of, stop_in_a_capture
from support.local_world import LocalWorld, free_subnet

from benchflow.contracts.images import ImageRef
from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.cgroups import END_SEC
from benchflow.planes.sandbox.local.local_driver import LocalDriver
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
from benchflow.testing.waiting import until

pytestmark = [pytest.mark.local, pytest.mark.long]

NAMES = ("first", "second")


@pytest_asyncio.fixture
async def world(state_root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalWorld]:
    monkeypatch.setenv(SUBNET_VARIABLE, free_subnet())
    made = LocalWorld(state_root)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def children() -> ForkServerContext:
    """Starts processes that have imported all they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.local_churn"])
    return context


@pytest.mark.parametrize("kills", [20, pytest.param(400, marks=pytest.mark.soak)])
async def test_kills_at_any_moment_leave_nothing(world: LocalWorld, children: ForkServerContext, kills: int) -> None:
    chance = chance_of_this_run()
    provider = DrivenProvider(LocalDriver())
    # Undisturbed, it goes well.
    await live(provider, NAMES[0])
    await provider.close()
    while kills > 0:
        # Most find what their predecessor left, some a clean place.
        for _ in range(8):
            child = children.Process(target=churn, args=(_environment(), NAMES), daemon=True)
            child.start()
            kills -= await _kill_around(world, child, chance)
            assert child.exitcode is None, "the child ended by itself"
            child.kill()
            child.join()
            kills -= 1
        await _reap()
        await _nothing_is_left(world)


async def _kill_around(world: LocalWorld, child: ForkServerProcess, chance: random.Random) -> int:
    """Let a child work, while some of its helper processes are killed; how many were."""
    killed = 0
    for _ in range(chance.randrange(3)):
        # Not a wait for anything: the moments are what is random.
        await asyncio.sleep(chance.uniform(0.0, 0.4))
        # The helper, or one of its forks: some start a sandbox or enter one, most wait for a command to end.
        if victims := world.helpers() if chance.random() < 0.3 else world.processes():
            with suppress(ProcessLookupError):
                os.kill(chance.choice(victims), signal.SIGKILL)
                killed += 1
    await asyncio.sleep(chance.uniform(0.0, 0.4))
    return killed


async def test_what_no_record_explains_is_removed(world: LocalWorld) -> None:
    """As crashes leave it between two steps: a record without its content, and what has no record any more."""
    provider = DrivenProvider(LocalDriver())
    for name in ("unnamed", "unknown"):
        await provider.start(spec_of(name), host_id="host", queue="queue")
    await provider.close()
    (world.home / "sandboxes" / "unnamed" / "spec.json").unlink()
    shutil.rmtree(world.home / "sandboxes" / "unknown")
    store = VolumeStore(world.home)
    store.make("sandboxes/volume")
    store.clone("sandboxes/unknown", "masters/unknown-0123")
    store.release()
    await _reap()
    await _nothing_is_left(world)


@pytest.mark.parametrize("found_by", ["attach", "owned", "start", "remove"])
async def test_a_sandbox_left_frozen_goes_on(world: LocalWorld, children: ForkServerContext, found_by: str) -> None:
    provider = DrivenProvider(LocalDriver())
    sandbox = await provider.start(spec_of("frozen"), host_id="host", queue="queue")
    await sandbox.exec(["sh", "-c", "(while :; do echo x >> /root/lines; sleep 0.01; done) >/dev/null 2>&1 &"])
    hearing, saying = children.Pipe()
    child = children.Process(target=stop_in_a_capture, args=(_environment(), sandbox.ref, saying), daemon=True)
    child.start()
    assert await asyncio.to_thread(hearing.recv) == "sandboxes/frozen"
    assert world.is_frozen("frozen")
    # It is not taken for forgotten while somebody is at work.
    await provider.owned(STACK)
    assert world.is_frozen("frozen")
    child.kill()
    child.join()
    assert world.is_frozen("frozen")
    fresh = DrivenProvider(LocalDriver())
    if found_by == "attach":
        await fresh.attach(sandbox.ref)
    elif found_by == "owned":
        await fresh.owned(STACK)
    elif found_by == "start":
        await fresh.start(spec_of("frozen"), host_id="host", queue="queue")
    else:
        await fresh.remove("frozen")
    await fresh.close()
    assert not world.is_frozen("frozen")
    if found_by != "remove":
        before = len(await sandbox.read_bytes("/root/lines"))

        async def more() -> bool:
            return len(await sandbox.read_bytes("/root/lines")) > before

        await until(more)
    await provider.close()
    await _reap()
    await _nothing_is_left(world)


async def test_processes_are_killed_at_once_while_others_tidy_up(world: LocalWorld) -> None:
    """Who tidies up thaws what was forgotten; had it thawed what is about to be killed, that would wait in vain."""
    provider, other = DrivenProvider(LocalDriver()), DrivenProvider(LocalDriver())
    sandbox = await provider.start(spec_of("busy"), host_id="host", queue="queue")

    async def tidy() -> None:
        while True:
            await other.owned(STACK)

    tidying = asyncio.ensure_future(tidy())
    for _ in range(12):
        await sandbox.exec(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"])
        async with asyncio.timeout(END_SEC / 2):
            assert await sandbox.kill_processes() == 1
    tidying.cancel()
    await asyncio.gather(tidying, return_exceptions=True)
    for each in (provider, other):
        await each.close()
    await _reap()
    await _nothing_is_left(world)


async def test_a_reboot_leaves_only_what_is_reaped(world: LocalWorld) -> None:
    provider = DrivenProvider(LocalDriver())
    sandboxes = [await provider.start(spec_of(name), host_id="host", queue="queue") for name in NAMES]
    kept = await sandboxes[0].snapshot(KEPT.format(NAMES[0]))
    turn = asyncio.create_task(sandboxes[0].exec_once("turn", ["sleep", "600"]))
    await until(lambda: sandboxes[0].was_started("turn"))
    await sandboxes[1].exec(["sh", "-c", "(setsid sleep 600 &)"])
    turn.cancel()
    await asyncio.wait([turn])
    await provider.close()
    await world.reboot()
    fresh = DrivenProvider(LocalDriver())
    for sandbox in sandboxes:
        with pytest.raises(SandboxLostError):
            await fresh.attach(sandbox.ref)
    # A name is free for another one, and what was kept is still there.
    again = await fresh.start(spec_of(NAMES[0]).model_copy(update={"image": kept}), host_id="host", queue="queue")
    assert not await again.was_started("turn")
    assert {owned.name for owned in await fresh.owned(STACK)} == set(NAMES)
    await fresh.close()
    await _reap()
    await _nothing_is_left(world)


@pytest.mark.parametrize("number", [24, pytest.param(1000, marks=pytest.mark.soak)])
async def test_many_sandboxes_leak_nothing(world: LocalWorld, number: int) -> None:
    provider = DrivenProvider(LocalDriver())

    async def live_on(count: int, modes: tuple[str, ...] = ("public", "no-network")) -> None:
        for turn in range(count):
            name = f"{asyncio.current_task().get_name()}-{turn}"  # type: ignore[union-attr]
            spec = spec_of(name).model_copy(update={"network_mode": modes[turn % len(modes)]})
            sandbox = await provider.start(spec, host_id="host", queue="queue")
            assert (await sandbox.exec(["echo", "here"])).stdout == "here\n"
            await sandbox.exec_once("turn", ["sh", "-c", "(setsid sleep 600 &)"])
            await sandbox.stop()

    async def live_side_by_side(count: int) -> None:
        await asyncio.gather(*(live_on(count // 4) for _ in range(4)))

    # One stays, so that the helper and the store do.
    await provider.start(spec_of("stays"), host_id="host", queue="queue")
    await live_side_by_side(16)
    before = await _settled(world)
    await live_side_by_side(number)
    await _no_more_than(world, before)
    memory = world.memory_of_helpers()
    print(f"\nmemory of the helper after {number} sandboxes: {memory >> 10} KiB")
    assert memory < 32 << 20
    await provider.close()
    await _reap()
    await _nothing_is_left(world)


async def _settled(world: LocalWorld) -> dict[str, int]:
    """How much of everything there is, once what goes by itself has gone."""
    seen: list[dict[str, int]] = []

    async def settled() -> bool:
        seen.append(world.counts())
        return len(seen) > 10 and all(counts == seen[-1] for counts in seen[-10:])

    await until(settled)
    return seen[-1]


async def _no_more_than(world: LocalWorld, before: dict[str, int]) -> None:
    """Until there is no more of anything than before."""
    now: dict[str, int] = {}

    async def is_gone() -> bool:
        now.update(world.counts())
        return all(count <= before[what] for what, count in now.items())

    try:
        await until(is_gone)
    except AssertionError:
        pytest.fail(f"{now} is more than {before}")


async def _reap() -> None:
    """As a worker does when it begins, with nothing in memory, and when it ends."""
    provider = DrivenProvider(LocalDriver())
    for owned in await provider.owned(STACK):
        await provider.remove(owned.name)
    for name in NAMES:
        await provider.remove_image(ImageRef(reference=f"local/{KEPT.format(name)}"))
    await provider.sweep(STACK)
    await provider.close()


async def _nothing_is_left(world: LocalWorld) -> None:
    left: list[str] = []

    async def nothing() -> bool:
        left[:] = await world.leftovers()
        return not left

    for _ in range(4):
        try:
            # The kernel takes some things away in its own time.
            await until(nothing, seconds=20)
            return
        except AssertionError:
            # Too late for who has reaped: then the next one lets go of what was still in use, as a later worker does.
            await _reap()
    pytest.fail(f"left behind: {left}")


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("BENCHFLOW_STATE_DIR", SUBNET_VARIABLE)}
