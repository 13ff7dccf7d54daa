"""Processes of a world and of an agent between the agent and the verifier, in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.verified_sandboxes import AGENT, InDocker, InLocal, sh, verifier, written

from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import HardeningConfig
from benchflow.errors import VerifierMemoryError
from benchflow.planes.reward.hardening import harden, take_baseline
from benchflow.planes.reward.hardening.strangers import refuse_memory_kills
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Start, asleep, leave, nap, napping
from benchflow.testing.waiting import until

# Starts the job again as soon as it is gone, as one that was due meanwhile.
CRON = """
cp "$(readlink -f /bin/sh)" /usr/local/bin/cron
cat >/daemon <<'end'
while :; do
  [ ! -e /due ] || pgrep -xf "sleep {job}" >/dev/null || {{ setsid sleep {job} & echo >/began; }}
  sleep 0.01
done
end
setsid /usr/local/bin/cron /daemon >/dev/null 2>&1 &
"""


class HardeningOfProcesses:
    @pytest.mark.parametrize("is_planted", [True, False])
    async def test_no_job_that_is_due_meanwhile_outlives_the_last_kill(self, own: Sandbox, is_planted: bool) -> None:
        await sh(own, CRON.format(job=(job := nap())))

        async def state() -> str:
            return (await sh(own, "for p in $(pgrep -x cron); do cut -d' ' -f3 /proc/$p/stat; done")).strip()

        await until(state)
        await own.mark_baseline()
        baseline = await take_baseline(own)
        assert baseline.has_schedulers
        await sh(own, "echo >/due; " + ("mkdir -p /etc/cron.d; echo job >/etc/cron.d/job" if is_planted else ""))
        await written(own, "/began")
        report = await harden(own, baseline, HardeningConfig())
        assert "killed" in {finding.action for finding in report.findings if finding.item == "kill_processes"}
        if is_planted:
            assert await state() == "T"
            assert await napping(own, job) == []
        else:
            # They are the world's own jobs.
            assert await state() != "T"
            await asleep(own, job)

    async def test_what_a_service_starts_after_each_kill_is_reported(self, own: Sandbox) -> None:
        worker, later = nap(), nap()
        await own.exec(["sh", "-c", f"(sleep {worker}; while :; do sleep {later}; done) >/dev/null 2>&1 &"])
        await asleep(own, worker)
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        await sh(own, f"pkill -xf 'sleep {worker}'")
        await asleep(own, later)
        report = await harden(own, baseline, HardeningConfig())
        said = [finding.detail for finding in report.findings if finding.action == "found"]
        assert said == [f"runs beside the verifier: sleep {later}"]

    async def test_what_a_task_lets_run_is_reported(self, own: Sandbox) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        await leave(own, first := nap())
        await leave(own, second := nap())
        known = [process.command for process in await own.strangers() if first in process.command]
        report = await harden(own, baseline, HardeningConfig(kill_processes=False), left=known)
        said = {finding.detail for finding in report.findings if finding.item == "kill_processes"}
        assert said == {*known, f"runs beside the verifier: sleep {second}"}

    async def test_what_a_verifier_has_left_running_is_reported(self, own: Sandbox, tmp_path: Path) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        said: list[HardeningFinding] = []
        script = f"#!/bin/sh\nsetsid sleep {(length := nap())} >/dev/null 2>&1 &\necho 1 >/logs/verifier/reward.txt\n"
        one = verifier(tmp_path / "v", {"test.sh": script}, baseline=baseline, report=said.extend)
        assert (await one.run(own, tmp_path / "logs")).reward == 1.0
        assert [finding.detail for finding in said] == [f"runs after the verifier: sleep {length}"]

    async def test_a_kill_for_want_of_memory_meanwhile_is_an_error(self, start: Start) -> None:
        sandbox = await start(memory_mb=128)
        if any("memory_mb" in warning for warning in sandbox.ref.warnings):
            pytest.skip(f"cannot be enforced on this host: {sandbox.ref.warnings}")
        # Kills of before don't count.
        hog = ["python3", "-c", "x = b'x' * 200_000_000"]
        assert (await sandbox.exec(hog)).return_code == 137
        async with refuse_memory_kills(sandbox):
            await sandbox.exec(["true"])
        with pytest.raises(VerifierMemoryError, match="made ready for the verifier"):
            async with refuse_memory_kills(sandbox):
                await sandbox.exec(hog)


@pytest.mark.docker
class TestHardeningOfProcessesInDocker(HardeningOfProcesses, InDocker):
    pass


@pytest.mark.local
class TestHardeningOfProcesses(HardeningOfProcesses, InLocal):
    pass
