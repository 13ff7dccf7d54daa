"""A verifier whose own process is killed has not said what its files say."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.verified_sandboxes import InDocker, InLocal, verifier

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import VerifierError

WRITE = "#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n"
ALL_ABOVE = """
pids=; pid=$$
while [ "$pid" -gt 1 ]; do pids="$pid $pids"; read -r stat </proc/$pid/stat; set -- ${stat##*) }; pid=$2; done
kill -9 $pids
"""


class Killed:
    @pytest.mark.parametrize(
        ("script", "code"),
        [("kill -9 $$", 137), ("kill -15 $$", 143), ("kill -9 $PPID", 137), (ALL_ABOVE, 137)],
        ids=["killed", "terminated", "with-what-waits-for-it", "with-all-above"],
    )
    async def test_what_it_wrote_does_not_count(self, sandbox: Sandbox, tmp_path: Path, script: str, code: int) -> None:
        own = verifier(tmp_path / "v", {"test.sh": WRITE + script}, key=f"killed-{tmp_path.name}")
        with pytest.raises(VerifierError, match=rf"the verifier was killed \(exit status {code}\)"):
            await own.run(sandbox, tmp_path / "logs")

    async def test_a_look_at_it_says_so_each_time(self, sandbox: Sandbox, tmp_path: Path) -> None:
        own = verifier(tmp_path / "v", {"test.sh": f"{WRITE}kill -9 $$"}, key="soft-killed", target="/verifier")
        for _ in range(2):
            with pytest.raises(VerifierError, match="the verifier was killed"):
                await own.run_soft(sandbox, tmp_path / "logs")

    @pytest.mark.parametrize(
        ("script", "warned"),
        [("exit 137", 137), ("sh -c 'kill -9 $$'", 137), ("sh -c 'kill -9 $$'\nexit 0", None), ("exit 141", 141)],
        ids=["its-own-exit", "its-last-child", "a-child", "a-broken-pipe"],
    )
    async def test_its_own_exit_and_the_end_of_its_children_are_no_kill(
        self, sandbox: Sandbox, tmp_path: Path, script: str, warned: int | None
    ) -> None:
        own = verifier(tmp_path / "v", {"test.sh": f"{WRITE}{script}\nexit $?\n"}, key=f"alive-{tmp_path.name}")
        result = await own.run(sandbox, tmp_path / "logs")
        assert result.reward == 1.0
        said = f"the verifier ended with exit status {warned}; the reward it wrote counts"
        assert result.warnings == ([said] if warned else [])


@pytest.mark.docker
@pytest.mark.long
class TestKilledInDocker(Killed, InDocker):
    pass


@pytest.mark.local
class TestKilled(Killed, InLocal):
    pass
