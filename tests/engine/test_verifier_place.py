"""Where verifiers run by default: in a clean room where that is known to cost honest work nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attack_package import AGENTS, copy_for_local
from support.in_process_worker import InProcessWorker

from benchflow.contracts.rollout_records import RolloutResult

pytestmark = pytest.mark.local

SOLVES = "#!/bin/sh\necho 100 >/app/answer.txt\n"


@pytest.fixture(autouse=True)
def agents(worker: InProcessWorker) -> None:
    """Have the attackers of the package as agents."""
    worker.patch.setenv("BENCHFLOW_AGENTS_DIR", str(AGENTS))


def make(tmp_path: Path, *, works: str, expects: str = "", oracle: str = "") -> Path:
    """Return a task whose agent runs `works`, and whose verifier wants the answer and `expects`."""
    task = copy_for_local("replaced-diff", tmp_path / "package" / "task")
    (task / "environment" / "attack.sh").write_text(f"{SOLVES}{works}\n")
    (task / "solution" / "solve.sh").write_text(f"{SOLVES}{oracle or works}\n")
    test = task / "tests" / "test.sh"
    if expects:
        test.write_text(
            f"#!/bin/sh\necho 0 >/logs/verifier/reward.txt\n{expects} && echo 1 >/logs/verifier/reward.txt\n"
        )
    return task


async def run(
    worker: InProcessWorker, task: Path, name: str, agent: str, **options: object
) -> tuple[RolloutResult, dict[str, object]]:
    asked = {"sandbox": "local", "agents": [agent], "job_name": name} | options
    [result] = await worker.results(await worker.submit(task, **asked))
    verify = result.steps[0].verify
    assert verify is not None, result
    return result, verify.metadata


async def test_a_clean_room_is_taken_once_an_oracle_has_shown_that_it_tells_the_same(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    task = make(tmp_path, works=":")
    before, said = await run(worker, task, "before", "attacker-root")
    assert (before.reward, said["verified_in"], said["weaker"]) == (1.0, "shared", True)
    assert "no oracle has shown" in str(said["verified_in_why"])
    oracle, said = await run(worker, task, "oracle", "oracle")
    assert (oracle.reward, said["verified_in"], said["weaker"]) == (1.0, "shared", True)
    same, said = await run(worker, task, "oracle-there", "oracle", verify_in="separate")
    assert (same.reward, said["verified_in"], said["weaker"]) == (1.0, "separate", False)
    after, said = await run(worker, task, "after", "attacker-root")
    assert (after.reward, said["verified_in"], said["weaker"]) == (1.0, "separate", False)
    shared, said = await run(worker, task, "asked", "attacker-root", verify_in="shared")
    assert (shared.reward, said["verified_in"], said["weaker"]) == (1.0, "shared", False)


async def test_work_that_a_clean_room_would_not_have_is_verified_where_it_is(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    task = make(tmp_path, works="echo more >/var/lib/more", oracle=":")
    await run(worker, task, "oracle", "oracle", try_clean_room=True)
    left, said = await run(worker, task, "left", "attacker-root")
    assert (left.reward, said["verified_in"], said["weaker"]) == (1.0, "shared", True)
    assert said["verified_in_why"] == "/var/lib/more was changed, which a clean room would not have"


async def test_a_verifier_that_reads_more_than_travels_stays_where_the_agent_worked(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    task = make(tmp_path, works="echo 1 >/root/one", expects="[ -e /root/one ]")
    oracle, said = await run(worker, task, "oracle", "oracle", try_clean_room=True)
    assert oracle.reward == 1.0
    assert said["clean_room"] == {
        "shared": {"reward": 1.0},
        "separate": {"reward": 0.0},
        "error": "",
        "is_faithful": False,
    }
    result, said = await run(worker, task, "one", "attacker-root")
    assert (result.reward, said["verified_in"], said["weaker"]) == (1.0, "shared", True)
    assert said["verified_in_why"] == "the oracle's work is worth 1, and in a clean room 0"


async def test_a_room_begins_with_what_the_setup_commands_have_left_once(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    task = make(tmp_path, works="cat /opt/setup >/app/setup", expects="diff /app/setup /opt/setup")
    config = task / "task.toml"
    setup = "cat /proc/sys/kernel/random/uuid >>/opt/setup"
    config.write_text(f'{config.read_text()}\n[[environment.setup_commands]]\ncommand = "{setup}"\n')
    _, said = await run(worker, task, "oracle", "oracle", try_clean_room=True)
    assert said["clean_room"] == {
        "shared": {"reward": 1.0},
        "separate": {"reward": 1.0},
        "error": "",
        "is_faithful": True,
    }
    result, said = await run(worker, task, "there", "attacker-root")
    assert (result.reward, said["verified_in"]) == (1.0, "separate")
    assert not list(worker.context.paths.checkpoints.glob("bf-room-*"))


async def test_setup_commands_that_leave_something_running_run_in_the_room_too(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    task = make(tmp_path, works="cat /opt/setup >/app/setup", expects="pgrep -f 'sleep 4321'")
    config = task / "task.toml"
    setup = "sleep 4321 & echo >/opt/setup"
    config.write_text(f'{config.read_text()}\n[[environment.setup_commands]]\ncommand = "{setup}"\n')
    result, said = await run(worker, task, "there", "attacker-root", verify_in="separate")
    assert (result.reward, said["verified_in"]) == (1.0, "separate")


async def test_what_was_changed_outside_of_the_workspace_is_noted_where_a_verifier_may_meet_it(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    task = copy_for_local("spooled-job", tmp_path / "package" / "task")
    # Directories, because the service of the task starts files there.
    works = "mkdir /var/spool/reports/new /var/spool/reports/b; echo >/var/spool/reports/new/a; echo >/tmp/c"
    for script in (task / "environment" / "attack.sh", task / "solution" / "solve.sh"):
        script.write_text(f"{SOLVES}{works}\n")
    for agent, place in (("attacker-root", "shared"), ("attacker", None)):
        result, said = await run(worker, task, f"{agent}-{place}", agent, verify_in=place)
        assert (result.reward, said["verified_in"]) == (1.0, "shared")
        # What the service starts may be ended as well.
        [found] = [finding for finding in result.findings if finding.item == "verify_tools"]
        assert (found.action, found.weight, found.path) == ("found", "note", "/var/spool/reports/b")
        assert found.detail == "was changed outside of the workspace; 1 more: /var/spool/reports/new"
    for agent, place in (("attacker", "separate"), ("oracle", "shared")):
        result, _ = await run(worker, task, f"{agent}-{place}", agent, verify_in=place)
        assert "verify_tools" not in {finding.item for finding in result.findings}
