"""Commands that run exactly once under a key, whichever processes call them or die."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.testing.sandbox_conformance import other_processes
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, asleep, awake, leave, nap, napping
from benchflow.testing.waiting import until

LATE = (1.0, 3.0, 8.0)
"""Delays, in seconds, of a late caller to try: a longer one, if a busy machine did not get far enough in a shorter.
After 10 s without a caller, a provider may take the callers for frozen, and not count that time.
"""


class Once:
    """A command under a new key that appends a line to a file, so that its runs can be counted."""

    def __init__(self, sandbox: Sandbox, room: str) -> None:
        """Make it. room: directory of the file, in the sandbox."""
        self.sandbox = sandbox
        self.key = f"work-{uuid.uuid4().hex}"
        self.file = f"{room}/count-{uuid.uuid4().hex[:8]}"
        self.command = self.of("sleep 0.2; echo out; echo err >&2; exit 7")

    def of(self, script: str) -> list[str]:
        """Return a counted command that runs a shell script."""
        return ["sh", "-c", f"echo ran >>{self.file}; {script}"]

    async def count(self) -> int:
        """Return how often the command was started."""
        try:
            return (await self.sandbox.read_bytes(self.file)).count(b"ran\n")
        except FileNotFoundError:
            return 0

    async def runs(self) -> None:
        """Wait until the command was started."""
        await until(self.count)


class ExactlyOnceTests(SandboxFixtures):
    """Tests of `exec_once`, `was_started` and `kill_once`."""

    @pytest.fixture
    def once(self, sandbox: Sandbox, room: str) -> Once:
        """Return a counted command in the shared sandbox."""
        return Once(sandbox, room)

    @pytest.fixture(params=[None, "nobody"], ids=["as root", "as another user"])
    def user(self, request: pytest.FixtureRequest) -> str | None:
        """Return the user of the commands: None for root, then another one."""
        chosen: str | None = request.param
        return chosen

    async def test_the_second_call_gets_the_first_calls_result(self, sandbox: Sandbox, once: Once) -> None:
        first = await sandbox.exec_once(once.key, once.command)
        second = await sandbox.exec_once(once.key, once.command)
        third = await sandbox.exec_once(once.key, ["something", "else"])
        assert first == second == third
        assert (first.return_code, first.stdout, first.stderr) == (7, "out\n", "err\n")
        assert await once.count() == 1

    async def test_a_command_has_its_environment_place_and_user(self, sandbox: Sandbox, once: Once) -> None:
        script = ["sh", "-c", 'echo "$WORLD $MINE $(pwd) $(id -un)"']
        said = await sandbox.exec_once(once.key, script, env={"MINE": "x"}, cwd="/tmp", user="nobody")
        assert said.stdout == "one two x /tmp nobody\n"

    async def test_what_cannot_start_is_a_result_too_and_the_same_each_time(self, sandbox: Sandbox, once: Once) -> None:
        for command, cwd, code in (("no-such-program", "/", 127), ("true", "/no/such/place", 126)):
            for _ in range(2):
                result = await sandbox.exec_once(once.key + command, [command], cwd=cwd)
                assert result.return_code == code and result.stderr

    async def test_big_output_keeps_its_head_and_its_tail(self, sandbox: Sandbox, once: Once) -> None:
        noise = "echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last"
        first = await sandbox.exec_once(once.key, ["sh", "-c", noise])
        assert first.truncated
        assert first.stdout.startswith("first\n") and first.stdout.endswith("\nlast\n")
        assert first == await sandbox.exec_once(once.key, ["sh", "-c", noise])

    async def test_other_keys_are_other_executions_however_odd(self, sandbox: Sandbox, once: Once) -> None:
        keys = ("a", "a/b", "a b", "ä", "x" * 300, "x" * 301, "../../up", "A", "a.json")
        for key in keys:
            assert (await sandbox.exec_once(once.key + key, once.of(":"))).return_code == 0
        assert await once.count() == len(keys)

    async def test_callers_at_the_same_moment_share_one_execution(self, sandbox: Sandbox, once: Once) -> None:
        results = await asyncio.gather(*(sandbox.exec_once(once.key, once.command) for _ in range(5)))
        assert [(r.return_code, r.stdout, r.stderr) for r in results] == [(7, "out\n", "err\n")] * 5
        assert await once.count() == 1

    async def test_processes_at_the_same_moment_share_one_execution(
        self, sandbox: Sandbox, once: Once, user: str | None
    ) -> None:
        callers = [
            other_processes.call(
                self.provider_path, sandbox.ref, "exec_once", once.key, once.command, user=user, cwd="/"
            )
            for _ in range(3)
        ]
        said = await asyncio.gather(*(caller.answer() for caller in callers))
        assert [(r["return_code"], r["stdout"], r["stderr"]) for r in said] == [(7, "out\n", "err\n")] * 3
        assert await once.count() == 1

    async def test_a_killed_callers_execution_goes_on_and_is_found_again(
        self, sandbox: Sandbox, once: Once, user: str | None
    ) -> None:
        caller = other_processes.call(
            self.provider_path, sandbox.ref, "exec_once", once.key, once.command, user=user, cwd="/"
        )
        await once.runs()
        await caller.kill()
        assert await sandbox.was_started(once.key)
        result = await sandbox.exec_once(once.key, once.command, user=user, cwd="/")
        assert (result.return_code, result.stdout, result.stderr) == (7, "out\n", "err\n")
        assert await once.count() == 1

    @pytest.mark.parametrize("kills", [5, 20])
    async def test_a_caller_may_be_killed_at_any_moment(self, sandbox: Sandbox, room: str, kills: int) -> None:
        # The caller is killed at moments between creation, record and start. Each time, the command must run once.
        probe = Once(sandbox, room)
        caller = other_processes.call(self.provider_path, sandbox.ref, "exec_once", probe.key, probe.of("exit 7"))
        await caller.begun()
        began = time.monotonic()
        await caller.answer()
        whole = time.monotonic() - began
        for step in range(kills):
            once = Once(sandbox, room)
            user = "nobody" if step % 2 else None
            command = once.of("echo out; exit 7")
            caller = other_processes.call(
                self.provider_path, sandbox.ref, "exec_once", once.key, command, user=user, cwd="/"
            )
            await caller.begun()
            await asyncio.sleep(whole * step / kills)
            await caller.kill()
            # Counted first, since the killed caller's command may start between the two calls.
            if await once.count():
                assert await sandbox.was_started(once.key)
            result = await sandbox.exec_once(once.key, command, user=user, cwd="/", timeout=30)
            assert (result.return_code, result.stdout) == (7, "out\n"), f"killed at moment {step}"
            assert await sandbox.exec_once(once.key, command, user=user, cwd="/") == result
            assert await once.count() == 1, f"killed at moment {step}"

    async def test_whether_something_was_started_is_known_here_and_elsewhere(
        self, sandbox: Sandbox, other: SandboxProvider, once: Once
    ) -> None:
        elsewhere = await other.attach(sandbox.ref)
        assert not await sandbox.was_started(once.key)
        assert not await elsewhere.was_started(once.key)
        task = asyncio.create_task(sandbox.exec_once(once.key, once.command))
        await once.runs()
        assert await elsewhere.was_started(once.key)
        await task
        assert await sandbox.was_started(once.key)

    async def test_cancelling_a_caller_leaves_the_execution_running(self, sandbox: Sandbox, once: Once) -> None:
        go = f"{once.file}.go"
        command = once.of(f"until [ -e {go} ]; do sleep 0.05; done; echo out")
        task = asyncio.create_task(sandbox.exec_once(once.key, command))
        await once.runs()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await sandbox.write_file(go, "")
        assert (await sandbox.exec_once(once.key, command)).stdout == "out\n"
        assert await once.count() == 1

    async def test_another_provider_attaches_and_gets_the_same(
        self, sandbox: Sandbox, other: SandboxProvider, once: Once
    ) -> None:
        task = asyncio.create_task(sandbox.exec_once(once.key, once.command))
        await once.runs()
        assert await (await other.attach(sandbox.ref)).exec_once(once.key, once.command) == await task
        assert await once.count() == 1

    async def test_time_counts_from_the_start_also_for_those_who_attach(
        self, sandbox: Sandbox, other: SandboxProvider, room: str
    ) -> None:
        there = await other.attach(sandbox.ref)
        for limit in LATE:
            waited_for, left_alone = Once(sandbox, room), Once(sandbox, room)
            first, second, third = nap(), nap(), nap()
            task = asyncio.create_task(
                sandbox.exec_once(waited_for.key, waited_for.of(f"setsid sleep {first} & sleep {second}"))
            )
            command = left_alone.of(f"sleep {third}")
            caller = other_processes.call(
                self.provider_path, sandbox.ref, "exec_once", left_alone.key, command, timeout=600
            )
            await waited_for.runs()
            await left_alone.runs()
            await caller.kill()
            await asyncio.sleep(limit)
            began = time.monotonic()
            both = (there.exec_once(once.key, ["true"], timeout=limit) for once in (waited_for, left_alone))
            for result in await asyncio.gather(*both):
                assert result.timed_out and result.return_code == 124
            took = time.monotonic() - began
            # The caller without a timeout gets the same result.
            assert (await task).timed_out
            assert (await sandbox.exec_once(waited_for.key, ["true"])).timed_out
            assert await napping(sandbox, first, second, third) == []
            # Counted from the attachment, it would have taken the limit at least.
            if took < limit:
                return
        raise AssertionError(f"who attaches waits for {took:.0f} s, however long it has run by then")

    async def test_what_ended_in_time_is_not_timed_out_for_a_late_caller(self, sandbox: Sandbox, room: str) -> None:
        for late in LATE:
            once = Once(sandbox, room)
            over = f"{once.file}.over"
            command = once.of(f"echo done; echo >{over}")
            caller = other_processes.call(self.provider_path, sandbox.ref, "exec_once", once.key, command)
            await once.runs()
            await caller.kill()

            async def is_over(over: str = over) -> bool:
                return (await sandbox.control('test -e "$1"', over)).return_code == 0

            await until(is_over)
            # Until the command's end is recorded and its timeout has passed.
            await asyncio.sleep(late)
            result = await sandbox.exec_once(once.key, ["true"], timeout=late)
            if not result.timed_out:
                break
        assert not result.timed_out and (result.return_code, result.stdout) == (0, "done\n")

    async def test_killing_a_key_ends_the_execution_and_its_children_for_good(
        self, sandbox: Sandbox, other: SandboxProvider, once: Once
    ) -> None:
        first, second, unrelated = nap(), nap(), nap()
        await leave(sandbox, unrelated)
        command = once.of(f"setsid sleep {first} & sleep {second}")
        task = asyncio.create_task(sandbox.exec_once(once.key, command))
        await asleep(sandbox, first, second)
        await (await other.attach(sandbox.ref)).kill_once(once.key)
        assert (await task).return_code == 137
        assert await napping(sandbox, first, second, unrelated) == [unrelated]
        await sandbox.kill_once(once.key)
        assert (await sandbox.exec_once(once.key, command)).return_code == 137
        assert await once.count() == 1
        await sandbox.kill_processes(keep="nothing")

    async def test_killing_what_never_ran_or_is_over_is_success(self, sandbox: Sandbox, once: Once) -> None:
        await sandbox.kill_once(once.key)
        assert not await sandbox.was_started(once.key)
        first = await sandbox.exec_once(once.key, once.command)
        await sandbox.kill_once(once.key)
        assert await sandbox.exec_once(once.key, once.command) == first
        assert await once.count() == 1

    async def test_an_execution_that_died_with_the_agents_processes_is_not_run_again(
        self, sandbox: Sandbox, once: Once
    ) -> None:
        length = nap()
        over = await sandbox.exec_once(once.key + "over", ["echo", "over"])
        task = asyncio.create_task(sandbox.exec_once(once.key, once.of(f"sleep {length}")))
        await asleep(sandbox, length)
        await sandbox.kill_processes(keep="nothing")
        await awake(sandbox, length)
        assert (await task).return_code == 137
        assert (await sandbox.exec_once(once.key, once.command)).return_code == 137
        assert await sandbox.exec_once(once.key + "over", ["echo", "again"]) == over
        assert await once.count() == 1
