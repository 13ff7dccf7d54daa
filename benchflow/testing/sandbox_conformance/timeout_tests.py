"""Timeouts and cancellations of commands, and the processes that they kill."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxError
from benchflow.testing.sandbox_conformance.sandbox_fixtures import (
    PATIENCE,
    SandboxFixtures,
    Start,
    asleep,
    awake,
    leave,
    nap,
    napping,
)
from benchflow.testing.waiting import until

LIMITS = (1.0, 10.0, 60.0)
"""Timeouts in seconds to try: a longer one, if a busy machine did not let the command get far enough in a shorter."""

STOPPER = ["sh", "-c", "while :; do kill -s STOP -- -1; done"]
"""Stops (SIGSTOP) all other processes, present and future, also those of the engine that enter the sandbox."""

HELD_UP_SEC = 20.0
"""Far more than any end takes, and less than any timeout of an engine for a daemon that doesn't answer."""


def daemons(*naps: str) -> str:
    """Return a script that starts up to three `sleep` daemons, with these durations, that are hard to find or kill.

    They leave the session, fork twice, clear the environment or ignore signals.
    """
    ways = (
        "setsid sh -c '(sleep {} &)' &",
        "(setsid setsid sleep {} &) ;",
        "env -i /usr/bin/setsid sh -c 'trap \"\" TERM HUP INT; sleep {}' &",
    )
    return " ".join(way.format(length) for way, length in zip(ways, naps, strict=False))


async def stop_what_enters(provider: SandboxProvider, sandbox: Sandbox) -> None:
    """Start a process that stops all others of a sandbox, and leave it running. Skip without lockdown."""
    if provider.capabilities().lockdown == "none":
        pytest.skip("a provider without lockdown asks the sandbox's own programs how its commands fare")
    running = asyncio.create_task(sandbox.exec_once("stopper", STOPPER, cwd="/"))
    await until(lambda: sandbox.was_started("stopper"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def run_out(
    sandbox: Sandbox, script: Callable[..., str], count: int, user: str | None = None
) -> tuple[SandboxExecResult, list[str]]:
    """Let a shell command reach its timeout after all `sleep` processes that it starts have come up.

    Args:
        sandbox: The sandbox.
        script: Returns the command for the durations of its sleeps.
        count: Number of sleeps.
        user: User of the command; None for root.

    Returns:
        Its result, and the durations.
    """
    clock = asyncio.get_running_loop().time
    for limit in LIMITS:
        naps, taken = [nap() for _ in range(count)], False
        over = clock() + limit
        command = sandbox.exec(["sh", "-c", script(*naps)], user=user, cwd="/", timeout=limit)
        task = asyncio.create_task(command)
        while not taken and clock() < over:
            # If the command is killed before all of them run, the test could not tell which are left.
            taken = len(await napping(sandbox, *naps)) == count and clock() < over
        result = await asyncio.wait_for(task, limit + PATIENCE)
        assert result.timed_out and result.return_code == 124
        if taken:
            return result, naps
    raise AssertionError(f"in {LIMITS[-1]} s the command did not come so far")


class TimeoutTests(SandboxFixtures):
    """Tests of `exec` with a timeout, and cancelled."""

    @pytest.mark.parametrize("user", [None, "nobody"])
    async def test_a_timeout_kills_the_command_and_all_it_started(self, sandbox: Sandbox, user: str | None) -> None:
        def script(*naps: str) -> str:
            return f"{daemons(*naps[:3])} echo begun; echo err >&2; sleep {naps[3]}"

        result, naps = await run_out(sandbox, script, 4, user)
        assert (result.stdout, result.stderr) == ("begun\n", "err\n")
        assert await napping(sandbox, *naps) == []

    async def test_a_timeout_kills_what_root_started_as_another_user(self, sandbox: Sandbox) -> None:
        def script(first: str, second: str) -> str:
            switch = f"setsid setpriv --reuid 4321 --regid 4321 --clear-groups sh -c '(sleep {first} &)'"
            return f"{switch} & sleep {second}"

        _, naps = await run_out(sandbox, script, 2)
        assert await napping(sandbox, *naps) == []

    async def test_a_timeout_kills_what_multiplies(self, sandbox: Sandbox) -> None:
        length = nap()
        script = f"f() {{ setsid sleep {length} & sleep 0.05; f & }}; f; sleep {length}"
        assert (await sandbox.exec(["sh", "-c", script], timeout=0.6)).timed_out
        assert await napping(sandbox, length) == []

    async def test_a_timeout_leaves_everything_else_alone(self, sandbox: Sandbox) -> None:
        service, length = nap(), nap()
        await leave(sandbox, service)
        other = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 1; echo survived"]))
        assert (await sandbox.exec(["sleep", length], timeout=0.5)).timed_out
        assert (await other).stdout == "survived\n"
        assert await napping(sandbox, service, length) == [service]
        await sandbox.kill_processes(keep="nothing")

    async def test_a_command_that_ends_in_time_keeps_what_it_left(self, sandbox: Sandbox) -> None:
        for limit in LIMITS:
            length = nap()
            result = await sandbox.exec(["sh", "-c", f"setsid sleep {length} & echo done"], timeout=limit)
            if not result.timed_out:
                break
            assert await napping(sandbox, length) == []
        assert not result.timed_out and result.stdout == "done\n"
        await asleep(sandbox, length)
        # Past the timeout, at which a command that had not ended would be killed with these processes.
        await asyncio.sleep(limit + 0.1)
        assert await napping(sandbox, length) == [length]
        await sandbox.kill_processes(keep="nothing")

    async def test_cancelling_a_command_kills_it_and_all_it_started(self, sandbox: Sandbox) -> None:
        naps = [nap() for _ in range(4)]
        script = f"{daemons(*naps[:3])} sleep {naps[3]}"
        task = asyncio.create_task(sandbox.exec(["sh", "-c", script]))
        await asleep(sandbox, *naps)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await awake(sandbox, *naps)

    @pytest.mark.parametrize("moment", [0, 0.005, 0.02, 0.05])
    async def test_a_command_that_is_ended_while_it_comes_up_is_gone_too(self, sandbox: Sandbox, moment: float) -> None:
        timed, cancelled = nap(), nap()
        assert (await sandbox.exec(["sleep", timed], timeout=moment)).timed_out
        task = asyncio.create_task(sandbox.exec(["sleep", cancelled]))
        await asyncio.sleep(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await napping(sandbox, timed) == []
        # A command that was being started when its caller was cancelled may start late; it must be killed then.
        await asyncio.sleep(0.3)
        await awake(sandbox, timed, cancelled)

    async def test_commands_that_were_stopped_as_they_entered_can_be_cancelled_and_their_sandbox_be_removed(
        self, own: Sandbox, other: SandboxProvider, stack: str
    ) -> None:
        await stop_what_enters(other, own)
        sandbox = await other.attach(own.ref)
        entering = [asyncio.create_task(sandbox.exec(["sleep", nap()])) for _ in range(4)]
        # Long enough to be in, and to be stopped there.
        assert not (await asyncio.wait(entering, timeout=0.5))[0]
        for each in entering:
            each.cancel()
        assert not (await asyncio.wait(entering, timeout=HELD_UP_SEC))[1]
        async with asyncio.timeout(HELD_UP_SEC):
            await sandbox.stop()
        assert await other.owned(stack) == []

    async def test_a_command_that_was_stopped_as_it_entered_ends_by_its_timeout_or_with_its_sandbox(
        self, own: Sandbox, other: SandboxProvider, start: Start
    ) -> None:
        sandbox = await other.attach(own.ref)
        await stop_what_enters(other, own)
        async with asyncio.timeout(HELD_UP_SEC):
            with contextlib.suppress(SandboxError):
                assert (await sandbox.exec(["sleep", nap()], timeout=1)).timed_out
            # Resources that the engine shares among sandboxes must not be blocked.
            assert (await (await start()).exec(["echo", "alive"])).stdout == "alive\n"
            await own.stop()
