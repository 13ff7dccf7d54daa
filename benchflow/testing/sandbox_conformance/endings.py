"""How commands end before their time: timeouts and cancellations, and what they take along."""

from __future__ import annotations

import asyncio

import pytest

from benchflow.contracts.sandbox import Sandbox
from benchflow.testing.sandbox_conformance.fixtures import Fixtures, asleep, awake, leave, nap, napping


def daemons(*naps: str) -> str:
    """Leaves the session, forks twice, drops the environment and turns a deaf ear, in as many ways as naps."""
    ways = (
        "setsid sh -c '(sleep {} &)' &",
        "(setsid setsid sleep {} &) ;",
        "env -i /usr/bin/setsid sh -c 'trap \"\" TERM HUP INT; sleep {}' &",
    )
    return " ".join(way.format(length) for way, length in zip(ways, naps, strict=False))


class Endings(Fixtures):
    """`exec` with `timeout`, and cancelled."""

    @pytest.mark.parametrize("user", [None, "nobody"])
    async def test_a_timeout_kills_the_command_and_all_it_started(self, sandbox: Sandbox, user: str | None) -> None:
        naps = [nap() for _ in range(4)]
        script = f"{daemons(*naps[:3])} echo begun; echo err >&2; sleep {naps[3]}"
        began = asyncio.get_running_loop().time()
        result = await sandbox.exec(["sh", "-c", script], user=user, cwd="/", timeout=0.6)
        assert asyncio.get_running_loop().time() - began < 6
        assert result.timed_out and result.return_code == 124
        assert (result.stdout, result.stderr) == ("begun\n", "err\n")
        assert await napping(sandbox, *naps) == []

    async def test_a_timeout_kills_what_root_started_as_another_user(self, sandbox: Sandbox) -> None:
        first, second = nap(), nap()
        switch = f"setsid setpriv --reuid 4321 --regid 4321 --clear-groups sh -c '(sleep {first} &)'"
        result = await sandbox.exec(["sh", "-c", f"{switch} & sleep {second}"], timeout=0.6)
        assert result.timed_out
        assert await napping(sandbox, first, second) == []

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
        length = nap()
        result = await sandbox.exec(["sh", "-c", f"setsid sleep {length} & echo done"], timeout=2.5)
        assert not result.timed_out and result.stdout == "done\n"
        # Past its time, when one that had not ended would be killed with all of this.
        await asyncio.sleep(2.6)
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
        # What was on its way when its caller went may come up yet, and is ended then.
        await asyncio.sleep(0.3)
        await awake(sandbox, timed, cancelled)
