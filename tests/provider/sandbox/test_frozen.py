"""Commands whose caller is frozen: that time counts towards no limit, whoever waits for the command afterwards."""

from __future__ import annotations

import asyncio

import pytest
from support.freezes import FROZEN_SEC, freeze, notice_soon
from support.verified_sandboxes import InDocker, InLocal

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.planes.sandbox.driven.driven_sandbox import DrivenSandbox
from benchflow.testing.sandbox_conformance.exactly_once_tests import Once
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures

LIMIT_SEC = 2.0
LONG_SEC = LIMIT_SEC + FROZEN_SEC


@pytest.fixture(autouse=True)
def noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    notice_soon(monkeypatch)


class Frozen(SandboxFixtures):
    async def test_who_attaches_after_a_freeze_does_not_count_it(
        self, sandbox: Sandbox, other: SandboxProvider, room: str
    ) -> None:
        """As the next attempt of a verifier does, in the same worker or in another one."""
        once = Once(sandbox, room)
        go = f"{once.file}.go"
        command = once.of(f"until [ -e {go} ]; do sleep 0.05; done; echo out")
        first = asyncio.create_task(sandbox.exec_once(once.key, command, timeout=LIMIT_SEC))
        await once.runs()
        freeze(LONG_SEC)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        for each in (sandbox, await other.attach(sandbox.ref)):
            waiting = asyncio.create_task(each.exec_once(once.key, command, timeout=LIMIT_SEC))
            done, _ = await asyncio.wait([waiting], timeout=FROZEN_SEC / 2)
            assert not done, waiting.result()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await sandbox.write_file(go, "")
        result = await sandbox.exec_once(once.key, command, timeout=LIMIT_SEC)
        assert (result.return_code, result.stdout, result.timed_out) == (0, "out\n", False)
        assert await once.count() == 1


@pytest.mark.local
class TestLocal(InLocal, Frozen):
    pass


@pytest.mark.docker
class TestDocker(InDocker, Frozen):
    async def test_a_script_of_the_engine_is_not_over_for_a_freeze(self, sandbox: DrivenSandbox) -> None:
        await sandbox.control(":")
        working = asyncio.create_task(sandbox.control("sleep 0.6; echo out", timeout=1.0))
        await asyncio.sleep(0.1)
        freeze(1.5)
        assert (await working).stdout == "out\n"
