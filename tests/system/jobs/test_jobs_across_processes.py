"""One job and several processes: who starts it, who only finds it, and what is run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container
from support.docker_world import solving
from support.running import job_config
from support.task_writer import write_task

from benchflow.jobs import Job, plan_job, submit
from benchflow.testing.waiting import until

SUBMIT = """
import asyncio, json, sys
from pathlib import Path
from benchflow.contracts.config import JobConfig
from benchflow.jobs import plan_job, submit

async def main():
    paths, jobs = [Path(sys.argv[1])], Path(sys.argv[2])
    config = JobConfig(paths=paths, jobs_dir=jobs, job_name="twins", sandbox="noop", repeats=3)
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
    twins = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for twin in twins:
        assert twin.stdout.readline() == "ready\n"
    for twin in twins:
        twin.stdin.write("go\n")
        twin.stdin.flush()
    answers = [json.loads(twin.communicate(timeout=300)[0]) for twin in twins]
    assert sorted(answer["started"] for answer in answers) == [0, 3]
    assert len(answers[0]["runs"]) == 3
    assert all(answer["runs"] == answers[0]["runs"] for answer in answers)
    rows = (engine / "twins" / "results.jsonl").read_text().splitlines()
    assert len({json.loads(row)["workflow_id"] for row in rows}) == len(rows) == 3
    assert not list(engine.rglob("attempts"))


@pytest.mark.docker
@pytest.mark.long
async def test_a_container_removed_behind_the_engines_back_is_a_second_attempt(engine: Path, tmp_path: Path) -> None:
    task = write_task(
        tmp_path,
        "removed",
        solve="echo working; while [ ! -e /root/go ]; do sleep 0.05; done; touch /root/answer\n",
    )
    client = docker.from_env()
    config = job_config([task], engine, job_name="removed", retry={"min_wait_sec": 0.05})
    job: Job = await submit(plan_job(config))
    (first,) = await until(lambda: solving(client, "removed"))
    first.remove(force=True)

    async def at_work_again() -> list[Container]:
        return [container for container in await solving(client, "removed") if container.id != first.id]

    (second,) = await until(at_work_again)
    second.exec_run("touch /root/go")
    await job.wait()
    (result,) = job.results()
    assert (result.status, result.attempt, result.rewards) == ("passed", 2, {"reward": 1.0})
    kept = json.loads((Path(str(result.directory)) / "attempts" / "1" / "result.json").read_text())
    assert (kept["error"]["type"], kept["error"]["phase"], kept["rewards"]) == ("SandboxLostError", "execute", None)
    assert client.containers.list(all=True, filters={"label": "benchflow.job=removed"}) == []
    client.close()
