"""The world as the agent left it, as scorers use it, and what is done in it before the first of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.verified_sandboxes import AGENT, InDocker, InLocal, sh, verifier, written

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import RewardMissingError, SandboxStartError, VerifierError
from benchflow.planes.reward.sandbox_workbench import SandboxWorkbench
from benchflow.testing.sandbox_conformance.sandbox_fixtures import leave, nap, napping

COUNT = "#!/bin/sh\necho run >>/var/tmp/runs\nsleep 0.2\necho 1 >/logs/verifier/reward.txt\n"
FAIL = "#!/bin/sh\necho run >>/var/tmp/runs\nexit 2\n"


def bench(sandbox: Sandbox, root: Path, script: str = COUNT, opened: list[int] | None = None, **options: Any) -> Any:
    async def open() -> Sandbox:
        if opened is not None:
            opened.append(1)
        await asyncio.sleep(0)
        return sandbox

    return SandboxWorkbench(open, verifier(root / "tests", {"test.sh": script}, **options), root / "logs")


class Working:
    async def test_tests_run_once_however_often_and_from_wherever_they_are_asked_for(
        self, own: Sandbox, tmp_path: Path
    ) -> None:
        opened: list[int] = []
        world = bench(own, tmp_path, opened=opened)
        assert not opened
        results = await asyncio.gather(*(world.tests() for _ in range(3)), world.run("look", ["true"]))
        assert [result.reward for result in results[:3]] == [1.0] * 3
        assert (await sh(own, "cat /var/tmp/runs"), len(opened)) == ("run\n", 1)

    async def test_a_command_runs_once_for_its_key_in_the_workspace_with_its_files(
        self, own: Sandbox, tmp_path: Path
    ) -> None:
        await sh(own, f"mkdir -p {own.ref.workdir} && chmod 1777 {own.ref.workdir}")
        world = bench(own, tmp_path, config={"user": AGENT})
        command = ["sh", "-c", "cat /srv/given/text; echo $NAME; pwd; id -u; echo run >>/var/tmp/commands; exit 3"]
        given = {"files": {"/srv/given/text": b"given\n"}, "env": {"NAME": "named"}}
        results = await asyncio.gather(*(world.run("a", command, **given) for _ in range(2)))
        for result in [*results, await world.run("a", ["false"])]:
            assert (result.return_code, result.stdout) == (3, f"given\nnamed\n{own.ref.workdir}\n{AGENT}\n")
        assert (await world.run("b", ["echo", "other"])).stdout == "other\n"
        assert await sh(own, "cat /var/tmp/commands") == "run\n"


@pytest.mark.docker
@pytest.mark.long
class TestWorkingInDocker(Working, InDocker):
    pass


@pytest.mark.local
class TestWorking(Working, InLocal):
    async def test_tests_that_failed_are_not_run_again(self, own: Sandbox, tmp_path: Path) -> None:
        world = bench(own, tmp_path, FAIL)
        for _ in range(2):
            with pytest.raises(RewardMissingError, match="exit status 2"):
                await world.tests()
        assert await sh(own, "cat /var/tmp/runs") == "run\n"

    async def test_files_are_read_from_the_workspace_within_a_limit(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, f"cd {own.ref.workdir} && printf four >a && mkdir b")
        world = bench(own, tmp_path)
        assert await world.read("a", limit=4) == b"four"
        assert await world.read(f"{own.ref.workdir}/a", limit=4) == b"four"
        assert await world.read("none/of/it", limit=4) is None
        with pytest.raises(VerifierError, match="is larger than 3 bytes"):
            await world.read("a", limit=3)
        with pytest.raises(VerifierError) as caught:
            await world.read("b", limit=3)
        assert caught.value.file == f"{own.ref.workdir}/b" and caught.value.remedy

    @pytest.mark.parametrize(
        "first", ["tests", pytest.param("run", marks=pytest.mark.long), pytest.param("read", marks=pytest.mark.long)]
    )
    async def test_what_the_agent_left_running_ends_before_anything_else(
        self, own: Sandbox, tmp_path: Path, first: str
    ) -> None:
        await own.mark_baseline()
        await leave(own, length := nap())
        world = bench(own, tmp_path)
        await {"tests": world.tests, "run": lambda: world.run("a", ["true"]), "read": lambda: world.read("a", limit=1)}[
            first
        ]()
        assert await napping(own, length) == []

    async def test_a_command_that_was_under_way_in_a_crash_is_waited_for(self, own: Sandbox, tmp_path: Path) -> None:
        command = ["sh", "-c", "echo here >/var/tmp/started; until [ -e /var/tmp/go ]; do sleep 0.02; done; echo done"]
        running = asyncio.create_task(bench(own, tmp_path).run("a", command))
        await written(own, "/var/tmp/started")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await sh(own, "touch /var/tmp/go")
        assert (await bench(own, tmp_path).run("a", command)).stdout == "done\n"
        assert (await bench(own, tmp_path).tests()).reward == 1.0

    async def test_between_turns_nothing_ends(self, own: Sandbox, tmp_path: Path) -> None:
        await own.mark_baseline()
        await leave(own, length := nap())
        made = verifier(tmp_path / "tests", {"test.sh": COUNT}, key="soft-1")

        async def open() -> Sandbox:
            return own

        world = SandboxWorkbench(open, made, tmp_path / "logs", soft=True)
        await world.run("a", ["true"])
        assert (await world.tests()).reward == 1.0
        assert await napping(own, length) == [length]

    async def test_collecting_commands_run_in_order_before_the_verifier_is_there(
        self, own: Sandbox, tmp_path: Path
    ) -> None:
        collect = [
            {"command": "ls /tests 2>&1; echo $NAME | tee /srv/dump", "user": "root"},
            {"command": "id -u; false", "user": AGENT},
            {"command": "sleep 60", "timeout_sec": 0.3},
        ]
        script = "#!/bin/sh\ncat /srv/dump && echo 1 >/logs/verifier/reward.txt\n"
        await sh(own, "mkdir -p /srv")
        made = verifier(tmp_path / "tests", {"test.sh": script}, config={"collect": collect}, env={"NAME": "dumped"})
        result = await made.run(own, tmp_path / "logs")
        assert result.reward == 1.0
        assert result.warnings == [
            "verifier.collect[1] ended with exit status 1",
            "verifier.collect[2] did not finish in 0.3 s",
        ]
        first, second = ((tmp_path / "logs" / f"collect-{n}.txt").read_text() for n in (0, 1))
        assert first.endswith("dumped\n") and "No such file" in first
        assert second == f"{AGENT}\n"
        # Whoever comes after a crash is told the same, and runs nothing.
        await sh(own, "rm /srv/dump")
        again = await made.run(own, tmp_path / "logs")
        assert (again.reward, again.warnings) == (1.0, result.warnings)
        assert await sh(own, "ls /srv") == ""


async def test_a_sandbox_that_does_not_open_is_asked_for_once(tmp_path: Path) -> None:
    asked = []

    async def open() -> Sandbox:
        asked.append(1)
        raise SandboxStartError("no room")

    world = SandboxWorkbench(open, verifier(tmp_path / "tests", {"test.sh": COUNT}), tmp_path / "logs")
    for ask in (world.tests, world.tests, lambda: world.run("a", ["true"]), lambda: world.read("a", limit=1)):
        with pytest.raises(SandboxStartError, match="no room"):
            await ask()
    assert len(asked) == 1
