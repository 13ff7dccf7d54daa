"""One job, several processes and several stacks: who starts it, who only finds it, what is run again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container
from support.running import job_config, run_job
from support.task_writer import write_task

from benchflow import stack
from benchflow.jobs import Job, plan_job, submit
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until

SUBMIT = """
import asyncio, json, sys
from pathlib import Path
from benchflow.contracts.config import JobConfig
from benchflow.jobs import plan_job, submit

async def main():
    paths, jobs = [Path(sys.argv[1])], Path(sys.argv[2])
    config = JobConfig(paths=paths, jobs_dir=jobs, job_name="twins", sandbox="noop", repeats=6)
    plan = plan_job(config)
    print("ready", flush=True)
    sys.stdin.readline()
    job = await submit(plan)
    await job.wait()
    print(json.dumps({"started": job.started, "attached": job.attached, "runs": [r.run_id for r in job.results()]}))

asyncio.run(main())
"""


def test_two_submits_of_one_name_at_the_same_time_run_everything_once(engine: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path, "small")
    command = [sys.executable, "-c", SUBMIT, str(task), str(engine)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    twins = [subprocess.Popen(command, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for twin in twins:
        assert twin.stdout.readline() == "ready\n"
    for twin in twins:
        twin.stdin.write("go\n")
        twin.stdin.flush()
    answers = [json.loads(twin.communicate(timeout=300)[0]) for twin in twins]
    assert sorted(answer["started"] for answer in answers) == [0, 0, 6]
    assert len(answers[0]["runs"]) == 6
    assert all(answer["runs"] == answers[0]["runs"] for answer in answers)
    rows = (engine / "twins" / "results.jsonl").read_text().splitlines()
    assert len({json.loads(row)["workflow_id"] for row in rows}) == len(rows) == 6
    assert not list(engine.rglob("attempts"))


def test_what_a_server_has_forgotten_is_known_from_the_results(engine: Path, state: Path, tmp_path: Path) -> None:
    """A new state directory is a new server, which has never heard of the job."""
    task = write_task(tmp_path, "small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(state))
        before = asyncio.run(run_job([task], engine, job_name="kept", sandbox="noop", repeats=3)).results()
        stack.stop(StatePaths(state))
    other = state.with_name("other-state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(other))
        try:
            again = asyncio.run(run_job([task], engine, job_name="kept", sandbox="noop", repeats=3))
        finally:
            stack.stop(StatePaths(other))
    assert (again.started, again.attached) == (0, False)
    assert again.results() == before


@pytest.mark.docker
async def test_a_container_removed_behind_the_engines_back_is_a_second_attempt(engine: Path, tmp_path: Path) -> None:
    task = write_task(
        tmp_path,
        "removed",
        solve="echo working; while [ ! -e /root/go ]; do sleep 0.05; done; touch /root/answer\n",
    )
    client = docker.from_env()
    config = job_config([task], engine, job_name="removed", retry={"min_wait_sec": 0.05})
    job: Job = await submit(plan_job(config))

    async def at_work() -> list[Container]:
        found = await asyncio.to_thread(client.containers.list, filters={"label": "benchflow.job=removed"})
        return [container for container in found if container.exec_run("pgrep -f solve.sh").exit_code == 0]

    (first,) = await until(at_work)
    first.remove(force=True)

    async def at_work_again() -> list[Container]:
        return [container for container in await at_work() if container.id != first.id]

    (second,) = await until(at_work_again)
    second.exec_run("touch /root/go")
    await job.wait()
    (result,) = job.results()
    assert (result.status, result.attempt, result.rewards) == ("passed", 2, {"reward": 1.0})
    kept = json.loads((Path(str(result.directory)) / "attempts" / "1" / "result.json").read_text())
    assert (kept["error"]["type"], kept["error"]["phase"], kept["rewards"]) == ("SandboxLostError", "execute", None)
    assert client.containers.list(all=True, filters={"label": "benchflow.job=removed"}) == []
    client.close()


async def test_the_stack_is_found_by_everybody_and_stopped_once(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    paths = StatePaths(state)
    found = await asyncio.gather(*(asyncio.to_thread(stack.ensure, paths) for _ in range(4)))
    assert len({record.supervisor.pid for record in found}) == 1
    assert stack.running(paths) is not None
    assert await asyncio.to_thread(stack.stop, paths)
    assert stack.running(paths) is None
    assert not await asyncio.to_thread(stack.stop, paths)
    # One that was started beside the first, and is slow, comes only now.
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(state))
    late = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchflow.supervisor")
    try:
        assert await asyncio.wait_for(late.wait(), 60) == 0
    finally:
        if late.returncode is None:
            late.terminate()
            await late.wait()
    assert stack.running(paths) is None
