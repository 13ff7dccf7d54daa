"""The life of sandboxes: started, found again, frozen and removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxRef, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxLostError, SandboxStartError
from benchflow.testing.sandbox_conformance import other_processes
from benchflow.testing.sandbox_conformance.sandbox_fixtures import (
    PATIENCE,
    STACK_LABEL,
    SandboxFixtures,
    Start,
    asleep,
    elsewhere,
    leave,
    make_provider,
    nap,
    napping,
)
from benchflow.testing.waiting import until

KILLS = pytest.mark.parametrize("kills", [3, 10])
"""Number of processes that are killed while they start a sandbox, each a little later than the one before."""


class StartTests(SandboxFixtures):
    """Tests of `check`, `capabilities`, `build` and `start`."""

    async def test_the_provider_keeps_the_protocol_and_can_start_sandboxes_here(
        self, provider: SandboxProvider, sandbox: Sandbox
    ) -> None:
        assert isinstance(provider, SandboxProvider) and isinstance(sandbox, Sandbox)
        await provider.check()
        assert provider.capabilities().provider == provider.name == sandbox.ref.provider

    async def test_the_same_image_is_found_again(
        self, provider: SandboxProvider, image: ImageRef, image_config: ImageConfig
    ) -> None:
        again = await provider.build(image_config)
        assert (again.reference, again.workdir) == (image.reference, image.workdir)

    async def test_starting_twice_finds_the_first_and_its_ref_says_what_was_asked_for(
        self, own: Sandbox, other: SandboxProvider, spec: SandboxSpec
    ) -> None:
        await own.write_file("/mark", "x")
        asked = spec.model_copy(update={"name": own.ref.name})
        again = await other.start(asked, host_id="this-host", queue="its-queue", generation=3)
        ref = SandboxRef.model_validate_json(again.ref.model_dump_json())
        assert (ref.name, ref.host_id, ref.queue, ref.generation) == (own.ref.name, "this-host", "its-queue", 3)
        assert ref.handle == own.ref.handle
        assert await again.read_bytes("/mark") == b"x"

    async def test_starts_at_the_same_moment_make_one(
        self, provider: SandboxProvider, other: SandboxProvider, spec: SandboxSpec, stack: str
    ) -> None:
        here = [one.start(spec, host_id="h", queue="q") for one in (provider, other) * 3]
        there = [other_processes.start(self.provider_path, spec) for _ in range(3)]
        handles = {sandbox.ref.handle for sandbox in await asyncio.gather(*here)}
        handles |= {said["handle"] for said in await asyncio.gather(*(caller.answer() for caller in there))}
        assert len(handles) == 1
        assert len(await provider.owned(stack)) == 1
        await provider.remove(spec.name)

    @KILLS
    async def test_a_process_that_starts_one_may_be_killed_at_any_moment(
        self, provider: SandboxProvider, spec: SandboxSpec, stack: str, kills: int
    ) -> None:
        probe = other_processes.start(self.provider_path, spec)
        await probe.begun()
        began = time.monotonic()
        await probe.answer()
        whole = time.monotonic() - began
        await provider.remove(spec.name)
        for step in range(kills):
            wanted = spec.model_copy(update={"name": f"{spec.name}-{step}"})
            caller = other_processes.start(self.provider_path, wanted)
            await caller.begun()
            await asyncio.sleep(whole * step / kills)
            await caller.kill()
            sandbox = await provider.start(wanted, host_id="h", queue="q")
            assert (await sandbox.exec(["echo", "here"])).stdout == "here\n", f"killed at moment {step}"
            assert [owned.name for owned in await provider.owned(stack)] == [wanted.name]
            await provider.remove(wanted.name)
        assert await provider.owned(stack) == []

    async def test_a_sandbox_outlives_the_process_that_started_it(
        self, provider: SandboxProvider, spec: SandboxSpec
    ) -> None:
        length = nap()
        caller = other_processes.start(self.provider_path, spec, then=["sh", "-c", f"setsid sleep {length} &"])
        ref = SandboxRef.model_validate(await caller.answer())
        await caller.kill()
        sandbox = await provider.attach(ref)
        await asleep(sandbox, length)
        assert (await provider.start(spec, host_id="h", queue="q")).ref.handle == ref.handle
        await provider.remove(spec.name)

    async def test_a_name_of_another_stack_is_not_taken_over(self, start: Start, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxStartError, match="does not belong to this stack") as caught:
            await start(name=sandbox.ref.name, labels={STACK_LABEL: "other"})
        assert caught.value.remedy

    async def test_an_image_that_is_not_here_is_named(
        self, start: Start, provider: SandboxProvider, stack: str
    ) -> None:
        with pytest.raises(SandboxStartError, match="no-such-image:1"):
            await start(image=ImageRef(reference="no-such-image:1"))
        assert await provider.owned(stack) == []

    async def test_the_workspace_is_the_one_asked_for_or_the_images_or_root(
        self, start: Start, image: ImageRef
    ) -> None:
        other = image.model_copy(update={"workdir": "/image"})
        plain = image.model_copy(update={"workdir": None})
        asks = {"workdir": "/asked", "image": other, "image_user": "somebody"}
        wanted: tuple[dict[str, Any], ...] = (asks, {"image": other}, {"image": plain})
        asked, images, none = await asyncio.gather(*(start(**fields) for fields in wanted))
        assert (asked.ref.workdir, images.ref.workdir) == ("/asked", "/image")
        assert none.ref.workdir in ("/root", "/app")
        assert [one.ref.has_workdir for one in (asked, images, none)] == [True, True, False]
        assert [one.ref.image_user for one in (asked, images, none)] == ["somebody", None, None]

    async def test_the_log_directories_are_there_with_their_modes(self, sandbox: Sandbox) -> None:
        directories = ("/logs", "/logs/agent", "/logs/verifier", "/logs/artifacts")
        said = await sandbox.exec(["stat", "-c", "%n %a %U", *directories])
        assert said.stdout.splitlines() == [
            "/logs 755 root",
            "/logs/agent 777 root",
            "/logs/verifier 755 root",
            "/logs/artifacts 777 root",
        ]

    async def test_each_sandbox_has_files_processes_and_executions_of_its_own(
        self, still: Sandbox, room: str, own: Sandbox
    ) -> None:
        length = nap()
        await still.write_file(f"{room}/mine", "x")
        await leave(still, length)
        assert (await own.exec(["test", "-e", f"{room}/mine"])).return_code == 1
        assert await napping(own, length) == []
        assert (await still.exec_once(room, ["echo", "one"])).stdout == "one\n"
        assert not await own.was_started(room)
        assert (await own.exec_once(room, ["echo", "two"])).stdout == "two\n"

    async def test_many_start_and_go_at_the_same_time(
        self, start: Start, provider: SandboxProvider, stack: str
    ) -> None:
        sandboxes = await asyncio.gather(*(start() for _ in range(6)))
        results = await asyncio.gather(*(sandbox.exec(["echo", sandbox.ref.name]) for sandbox in sandboxes))
        assert [result.stdout.strip() for result in results] == [sandbox.ref.name for sandbox in sandboxes]
        await asyncio.gather(*(provider.remove(sandbox.ref.name) for sandbox in sandboxes))
        assert await provider.owned(stack) == []

    async def test_package_managers_and_user_changes_work(self, sandbox: Sandbox, room: str) -> None:
        for command in (
            ["su", "-s", "/bin/sh", "nobody", "-c", "id -un"],
            ["chown", "-R", "nobody", room],
            ["useradd", "-m", f"agent{nap()}"],
            ["dpkg", "--configure", "-a"],
        ):
            result = await sandbox.exec(command)
            assert result.return_code == 0, (command, result.stderr)


class AttachTests(SandboxFixtures):
    """Tests of `attach`, `owned`, and providers in several processes and event loops."""

    async def test_attaching_finds_it_from_elsewhere_until_it_is_gone_and_every_method_says_so_then(
        self, own: Sandbox, provider: SandboxProvider, other: SandboxProvider, stack: str, tmp_path: Path
    ) -> None:
        again = await other.attach(own.ref)
        assert again.ref == own.ref
        assert (await again.exec(["true"])).return_code == 0
        await other.remove(own.ref.name)
        for one in (provider, other):
            with pytest.raises(SandboxLostError):
                await one.attach(own.ref)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "exec": lambda: own.exec(["true"]),
            "exec_once": lambda: own.exec_once("key", ["true"]),
            "exec_stream": lambda: anext(own.exec_stream(["true"])),
            "control": lambda: own.control("true"),
            "read_bytes": lambda: own.read_bytes("/etc/passwd"),
            "write_file": lambda: own.write_file("/file", "x"),
            "upload": lambda: own.upload(tmp_path, "/directory"),
            "download": lambda: own.download("/etc", tmp_path / "etc"),
            "kill_processes": lambda: own.kill_processes(),
            "mark_baseline": lambda: own.mark_baseline(),
            "expose_port": lambda: own.expose_port(80),
        }
        if provider.capabilities().snapshot:
            calls["snapshot"] = lambda: own.snapshot(f"benchflow-test-{nap()}")
        if provider.capabilities().fork:
            calls["fork"] = lambda: own.fork([f"benchflow-test-{nap()}"])
        raised: dict[str, type[BaseException] | None] = {}
        for name, call in calls.items():
            try:
                await call()
                raised[name] = None
            except Exception as error:
                raised[name] = type(error)
        assert raised == dict.fromkeys(calls, SandboxLostError)
        assert await provider.owned(stack) == []

    async def test_a_sandbox_removed_under_commands_is_lost(self, own: Sandbox, other: SandboxProvider) -> None:
        lengths = [nap() for _ in range(3)]

        async def streamed() -> None:
            async for _ in own.exec_stream(["sleep", lengths[2]]):
                pass

        tasks = [
            asyncio.ensure_future(own.exec(["sleep", lengths[0]])),
            asyncio.ensure_future(own.exec_once("work", ["sleep", lengths[1]])),
            asyncio.ensure_future(streamed()),
        ]
        await asleep(own, *lengths)
        await other.remove(own.ref.name)
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        assert [type(end) for end in ends] == [SandboxLostError] * 3, ends

    async def test_each_stack_sees_its_own_sandboxes_only(
        self, provider: SandboxProvider, sandbox: Sandbox, class_stack: str, start: Start, stack: str
    ) -> None:
        theirs = await start(labels={STACK_LABEL: stack, "benchflow.workflow": "w/1"})
        assert [owned.name for owned in await provider.owned(class_stack)] == [sandbox.ref.name]
        found = await provider.owned(stack)
        assert [(owned.name, owned.handle) for owned in found] == [(theirs.ref.name, theirs.ref.handle)]
        assert found[0].labels == {STACK_LABEL: stack, "benchflow.workflow": "w/1"}
        await provider.remove(theirs.ref.name)
        assert await provider.owned(stack) == []

    async def test_one_provider_serves_one_event_loop_after_another(
        self, spec: SandboxSpec, state_directory: Path
    ) -> None:
        provider = make_provider(self.provider_path)

        async def use() -> str:
            sandbox = await provider.start(spec, host_id="h", queue="q")
            await sandbox.exec(["true"])
            return sandbox.ref.handle

        async def end() -> None:
            await provider.remove(spec.name)
            await provider.close()

        assert await asyncio.to_thread(elsewhere, use) == await asyncio.to_thread(elsewhere, use)
        await asyncio.to_thread(elsewhere, end)

    async def test_closing_a_provider_ends_no_sandbox(
        self, provider: SandboxProvider, other: SandboxProvider, spec: SandboxSpec
    ) -> None:
        length = nap()
        sandbox = await other.start(spec, host_id="h", queue="q")
        await leave(sandbox, length)
        await other.close()
        assert await napping(await provider.attach(sandbox.ref), length) == [length]
        await provider.remove(spec.name)


class RemovalTests(SandboxFixtures):
    """Tests of `stop`, `remove` and `sweep`."""

    async def test_removing_at_the_same_moment_or_again_or_what_never_was_is_success(
        self, provider: SandboxProvider, other: SandboxProvider, own: Sandbox, stack: str
    ) -> None:
        await asyncio.gather(*(one.remove(own.ref.name) for one in (provider, other) * 3))
        assert await provider.owned(stack) == []
        await own.stop()
        await provider.remove(own.ref.name)
        await provider.remove("benchflow-test-never-was")

    async def test_stopping_leaves_no_process_on_this_host(self, own: Sandbox) -> None:
        lengths = [nap() for _ in range(4)]
        await leave(own, lengths[0])
        await leave(own, lengths[1], user="nobody")
        script = f"trap '' TERM HUP INT; setsid sleep {lengths[2]} & sleep {lengths[3]}"
        task = asyncio.create_task(own.exec(["sh", "-c", script]))
        await asleep(own, *lengths)
        seen = on_this_host(lengths)
        await own.stop()
        with pytest.raises(SandboxLostError):
            await task
        assert on_this_host(lengths) == []
        if not seen:
            pytest.skip("this host does not see the sandbox's processes at all")

    async def test_a_sandbox_that_is_full_of_processes_goes_all_the_same(self, own: Sandbox) -> None:
        length = nap()
        await own.exec(["sh", "-c", f"for i in $(seq 200); do setsid sleep {length} & done; kill -STOP $!"])
        await asleep(own, length)
        await own.stop()
        assert on_this_host([length]) == []

    async def test_a_sandbox_of_the_same_name_starts_afresh_and_is_not_the_one_that_was(
        self, start: Start, provider: SandboxProvider, other: SandboxProvider
    ) -> None:
        first = await start()
        await first.write_file("/mark", "x")
        await first.exec_once("key", ["echo", "one"])
        await first.mark_baseline()
        await provider.remove(first.ref.name)
        second = await start(name=first.ref.name)
        with pytest.raises(FileNotFoundError):
            await second.read_bytes("/mark")
        assert not await second.was_started("key")
        assert (await second.exec_once("key", ["echo", "two"])).stdout == "two\n"
        assert second.ref.handle != first.ref.handle
        with pytest.raises(SandboxLostError):
            await other.attach(first.ref)

    async def test_sweeping_leaves_living_sandboxes_alone(
        self, provider: SandboxProvider, start: Start, stack: str
    ) -> None:
        mode = provider.capabilities().network_modes[0]
        sandboxes = await asyncio.gather(*(start(network_mode=mode) for _ in range(2)))
        await provider.remove(sandboxes[0].ref.name)
        await provider.sweep(stack)
        assert (await sandboxes[1].exec(["echo", "alive"])).stdout == "alive\n"
        await provider.remove(sandboxes[1].ref.name)
        await provider.sweep(stack)
        await provider.sweep(stack)

    async def test_starting_and_sweeping_at_the_same_time_does_no_harm(
        self, provider: SandboxProvider, other: SandboxProvider, start: Start, stack: str
    ) -> None:
        mode = provider.capabilities().network_modes[0]
        over = asyncio.Event()

        async def cycle() -> None:
            sandbox = await start(network_mode=mode)
            assert (await sandbox.exec(["true"])).return_code == 0
            await provider.remove(sandbox.ref.name)

        async def sweep() -> None:
            while not over.is_set():
                await other.sweep(stack)
                await asyncio.sleep(0.01)

        sweeping = asyncio.create_task(sweep())
        await asyncio.gather(*(cycle() for _ in range(5)))
        over.set()
        await sweeping


class FreezeTests(SandboxFixtures):
    """Tests of `freeze`, `thaw` and `is_frozen`, for providers that can freeze."""

    async def test_a_frozen_sandbox_stands_still_until_it_is_thawed(
        self, provider: SandboxProvider, other: SandboxProvider, start: Start, stack: str
    ) -> None:
        # The sandbox stays frozen while other processes find it, attach to it and clean up.
        if not provider.capabilities().freeze:
            pytest.skip("its sandboxes can't be frozen")
        sandbox = await start()
        await sandbox.exec(["sh", "-c", "(while sleep 0.02; do date +%s%N >>/beats; done &) >/dev/null 2>&1"], cwd="/")

        async def beats(seen: Sandbox) -> list[int]:
            try:
                return [int(line) for line in (await seen.read_bytes("/beats")).decode().splitlines() if len(line) > 18]
            except FileNotFoundError:
                return []

        await until(lambda: beats(sandbox))
        assert not await sandbox.is_frozen()
        await sandbox.freeze()
        began = time.time_ns()
        await sandbox.freeze()
        assert sandbox.ref.name in [owned.name for owned in await other.owned(stack)]
        again = await other.attach(sandbox.ref)
        assert await again.is_frozen() and await sandbox.is_frozen()
        await asyncio.sleep(1)
        ended = time.time_ns()
        await again.thaw()
        await again.thaw()
        assert not await sandbox.is_frozen()

        async def has_gone_on() -> bool:
            return (await beats(sandbox))[-1] > ended

        await until(has_gone_on)
        assert [beat for beat in await beats(sandbox) if began < beat < ended] == []

    async def test_a_frozen_sandbox_is_removed_and_goes_on_where_it_is_started_again(
        self, provider: SandboxProvider, other: SandboxProvider, start: Start, stack: str
    ) -> None:
        if not provider.capabilities().freeze:
            pytest.skip("its sandboxes can't be frozen")
        first = await start()
        await first.freeze()
        again = await start(name=first.ref.name)
        assert not await first.is_frozen()
        assert (await again.exec(["echo", "alive"])).stdout == "alive\n"
        await again.freeze()
        await provider.remove(first.ref.name)
        assert await other.owned(stack) == []


def on_this_host(lengths: list[str]) -> list[str]:
    """Return those durations with which a process that this host sees runs `sleep`."""
    lines = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.add(file.read_bytes().replace(b"\0", b" ").strip().decode(errors="replace"))
        except OSError:
            continue
    return [length for length in lengths if f"sleep {length}" in lines]
