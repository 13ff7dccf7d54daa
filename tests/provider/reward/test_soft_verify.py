"""A look at what the verifier would say while the agent is still there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.verified_sandboxes import AGENT, InDocker, InLocal, sh, verifier, written

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import RewardMissingError, VerifierTimeoutError
from benchflow.planes.reward.verify import ScriptVerifier
from benchflow.testing.sandbox_conformance.sandbox_fixtures import leave, nap, napping

COUNT = """#!/bin/sh
echo run >>/var/tmp/runs
echo "said $(ls /verifier) $PYTHONDONTWRITEBYTECODE"
[ -e /srv/done ] && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt
"""
WAIT = """#!/bin/sh
echo 0.5 >/logs/verifier/reward.txt
echo here >/var/tmp/started
until [ -e /var/tmp/go ]; do sleep 0.02; done
"""


def soft(root: Path, number: int = 1, script: str = COUNT, **options: Any) -> ScriptVerifier:
    return verifier(root, {"test.sh": script}, key=f"soft-{number}", target="/verifier", **options)


async def runs(sandbox: Sandbox) -> int:
    return (await sandbox.read_bytes("/var/tmp/runs")).count(b"run\n")


class SoftVerifying:
    async def test_it_says_what_the_verifier_says_and_leaves_nothing(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, "mkdir -p /srv")
        first = await soft(tmp_path / "v").run_soft(own, tmp_path / "soft" / "1")
        await sh(own, "touch /srv/done")
        second = await soft(tmp_path / "v", 2).run_soft(own, tmp_path / "soft" / "2")
        assert (first.reward, second.reward) == (0.0, 1.0)
        assert (tmp_path / "soft/1/test-stdout.txt").read_text() == "said test.sh 1\n"
        look = "ls -d /verifier* /tests* 2>/dev/null || ls -A /logs /logs/verifier; stat -c %a:%u /logs/verifier"
        assert await sh(own, look) == "/logs:\nagent\nartifacts\nverifier\n\n/logs/verifier:\n755:0\n"

    async def test_an_agent_that_is_not_root_sees_nothing_of_it(self, own: Sandbox, tmp_path: Path) -> None:
        looking = asyncio.create_task(soft(tmp_path / "v", script=WAIT).run_soft(own, tmp_path / "soft"))
        await written(own, "/var/tmp/started")
        try:
            tries = "for f in /verifier /verifier/test.sh /tests/test.sh /logs/verifier /logs/verifier/reward.txt; do "
            tries += 'ls "$f/" 2>/dev/null || cat "$f" 2>/dev/null || true; done'
            assert await sh(own, tries, user=AGENT) == ""
            assert await sh(own, "stat -c %a:%u /verifier /logs/verifier") == "700:0\n700:0\n"
        finally:
            await sh(own, "touch /var/tmp/go")
        assert (await looking).reward == 0.5


@pytest.mark.docker
@pytest.mark.long
class TestSoftVerifyingInDocker(SoftVerifying, InDocker):
    pass


@pytest.mark.local
class TestSoftVerifying(SoftVerifying, InLocal):
    async def test_the_agent_lives_and_its_workspace_is_as_it_was(self, own: Sandbox, tmp_path: Path) -> None:
        await own.mark_baseline()
        await leave(own, length := nap())
        workspace = own.ref.workdir
        look = f"find {workspace} -printf '%p %m %u %g %T@ %C@ %i\\n' | sort"
        before = await sh(own, f"mkdir -p {workspace}/x && echo 1 >{workspace}/x/a && {look}")
        await soft(tmp_path / "v").run_soft(own, tmp_path / "soft")
        assert await napping(own, length) == [length]
        assert await sh(own, look) == before

    async def test_what_lies_where_the_verifier_belongs_is_there_again_afterwards(
        self, own: Sandbox, tmp_path: Path
    ) -> None:
        lay = "mkdir /verifier && echo mine >/verifier/test.sh && ln -s /verifier /tests && echo 1 >/logs/verifier/mine"
        await sh(own, f"{lay}; chown -R {AGENT} /verifier")
        assert (await soft(tmp_path / "v").run_soft(own, tmp_path / "soft")).reward == 0.0
        look = (
            "cat /tests/test.sh /logs/verifier/mine; stat -c %u /verifier /verifier/test.sh; ls -d /*kept* /logs/*kept*"
        )
        assert await sh(own, f"{look} 2>/dev/null || true") == f"mine\n1\n{AGENT}\n{AGENT}\n"

    async def test_the_same_call_again_runs_nothing_and_says_the_same(self, own: Sandbox, tmp_path: Path) -> None:
        for _ in range(2):
            assert (await soft(tmp_path / "v").run_soft(own, tmp_path / "soft")).reward == 0.0
            await sh(own, "mkdir -p /srv && touch /srv/done")
        assert await runs(own) == 1

    async def test_a_call_that_was_given_up_in_the_middle_is_found_again(self, own: Sandbox, tmp_path: Path) -> None:
        made = soft(tmp_path / "v", script=WAIT + "echo run >>/var/tmp/runs\n")
        await sh(own, "mkdir /tests && echo mine >/tests/a")
        looking = asyncio.create_task(made.run_soft(own, tmp_path / "soft"))
        await written(own, "/var/tmp/started")
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await sh(own, "touch /var/tmp/go")
        assert (await made.run_soft(own, tmp_path / "soft")).reward == 0.5
        assert await runs(own) == 1
        assert await sh(own, "cat /tests/a; ls -d /verifier* /*kept* 2>/dev/null || true") == "mine\n"

    async def test_what_another_call_left_is_cleared_away_first(self, own: Sandbox, tmp_path: Path) -> None:
        for file in ("/verifier", "/logs/verifier"):
            await sh(own, f"mkdir -p {file}.benchflow-kept {file} && echo secret >{file}/secret")
        await sh(own, "mkdir /tests.benchflow-kept && ln -s /verifier /tests && mkdir /verifier.benchflow-kept/was")
        assert (await soft(tmp_path / "v").run_soft(own, tmp_path / "soft")).reward == 0.0
        assert (tmp_path / "soft/test-stdout.txt").read_text() == "said test.sh 1\n"
        look = "ls -A /verifier; ls -d /tests /*kept* /logs/verifier/* 2>/dev/null"
        assert await sh(own, f"{look} || true") == ""

    @pytest.mark.parametrize("error", [pytest.param(RewardMissingError, marks=pytest.mark.long), VerifierTimeoutError])
    async def test_a_verifier_that_fails_leaves_nothing_either(
        self, own: Sandbox, tmp_path: Path, error: type[Exception]
    ) -> None:
        is_slow = error is VerifierTimeoutError
        script = "#!/bin/sh\nsleep 600\n" if is_slow else "#!/bin/sh\nexit 3\n"
        made = soft(tmp_path / "v", script=script, config={"timeout_sec": 0.5} if is_slow else {})
        for _ in range(2):
            with pytest.raises(error):
                await made.run_soft(own, tmp_path / "soft")
        assert await sh(own, "ls -A /logs/verifier; ls -d /verifier /tests 2>/dev/null || true") == ""

    @pytest.mark.long
    async def test_a_verifier_of_another_user_can_read_and_write_its_own(self, own: Sandbox, tmp_path: Path) -> None:
        config = {"user": AGENT + 1}
        script = "#!/bin/sh\ncat $0 >/dev/null && id -u && echo 1 >/logs/verifier/reward.txt\n"
        made = soft(tmp_path / "v", script=script, config=config)
        assert (await made.run_soft(own, tmp_path / "soft")).reward == 1.0

    async def test_the_verification_at_the_end_is_not_disturbed_by_it(self, own: Sandbox, tmp_path: Path) -> None:
        made = soft(tmp_path / "v")
        await made.run_soft(own, tmp_path / "soft")
        await sh(own, "mkdir -p /srv /tests.benchflow-kept/was && touch /srv/done")
        assert (await replace(made, key="verify-0").run(own, tmp_path / "logs")).reward == 1.0
        assert await runs(own) == 2
        assert await sh(own, "ls -d /*kept* 2>/dev/null || true") == ""
