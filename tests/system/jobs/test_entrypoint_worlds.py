"""Rollouts in a world whose image starts its services: built from the manifest's `image/`, told its task, watched."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import docker
import pytest
from support.running import job_config, run_tasks
from support.task_writer import BASE_IMAGE, write_task
from support.world_package import GET, LEDGER, POST

from benchflow.contracts.rollout import RolloutResult
from benchflow.jobs import plan_job, submit
from benchflow.testing.waiting import until

LOCAL = pytest.param("local", marks=pytest.mark.local)
each_sandbox = pytest.mark.parametrize("sandbox", [pytest.param("docker", marks=pytest.mark.docker), LOCAL])
seldom_in_docker = pytest.mark.parametrize(
    "sandbox", [pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak]), LOCAL]
)

IMAGE = f"""\
FROM {BASE_IMAGE}
COPY ledger /usr/local/bin/ledger
RUN chmod 755 /usr/local/bin/ledger && mkdir -p /data
WORKDIR /root
ENTRYPOINT ["ledger"]
CMD ["/data/ledger.db", "9000"]
"""

MANIFEST = """\
[environment]
name = "ledger"
image = "test/ledger-world"
ports = [9000]
{head}
[environment.task_selection]
key = "WHICH_TASK"
{selection}
[environment.readiness]
http = ["http://localhost:9000/health"]
tcp = [9000]
timeout_sec = 60

[environment.forward_env]
keys = {keys}

[environment.state]
paths = ["/data/ledger.db"]
"""


def write_world(root: Path, *, head: str = "", selection: str = "", keys: str = "[]", **task: str) -> Path:
    """A package of one task that brings no image. task: keyword arguments of `write_task`."""
    written = write_task(root / "tasks", "task", dockerfile="", **task)
    (written / "environment" / "Dockerfile").unlink()
    (root / "image").mkdir()
    (root / "image" / "Dockerfile").write_text(IMAGE)
    (root / "image" / "ledger").write_bytes(LEDGER.read_bytes())
    (root / "environment.toml").write_text(MANIFEST.format(head=head, selection=selection, keys=keys))
    return root


def one(package: Path, jobs: Path, sandbox: str) -> RolloutResult:
    return run_tasks([package], jobs, sandbox=sandbox)["task"]


@each_sandbox
def test_the_entrypoint_owns_the_world_and_knows_its_task(engine: Path, tmp_path: Path, sandbox: str) -> None:
    # On Docker the entrypoint is the very first process; a local sandbox has one of its own before it.
    first = "tr '\\0' ' ' </proc/1/cmdline | grep -q 'ledger /data/ledger.db 9000'" if sandbox == "docker" else ":"
    package = write_world(
        tmp_path / "package",
        solve=f"set -e\ntr '\\0' '\\n' </proc/1/environ | grep -qx WHICH_TASK=task\n{first}\n"
        f'{GET}/environ | grep -q \'"WHICH_TASK": "task"\'\n{POST}/add/paid\ntouch /root/answer\n',
    )
    result = one(package, tmp_path / "jobs", sandbox)
    assert (result.error, result.rewards) == (None, {"reward": 1.0})
    root = Path(str(result.directory), "environment")
    [database] = json.loads((root / "state" / "final" / "diff.json").read_text())["databases"]
    assert database["tables"][0]["added"] == [{"n": 1, "text": "paid"}]
    assert "the ledger is open" in "".join(log.read_text() for log in (root / "logs").iterdir())
    assert {probe["target"] for probe in result.environment["world"]["probes"]} == {
        "http://localhost:9000/health",
        "tcp://localhost:9000",
    }
    assert "9000" in result.environment["world"]["ports"]


@seldom_in_docker
def test_what_is_injected_into_commands_does_not_reach_the_first_process(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    package = write_world(
        tmp_path / "package",
        selection='inject_into = "exec"\n',
        solve='[ "$WHICH_TASK" = task ] || exit 1\ntr "\\0" "\\n" </proc/1/environ | grep -q WHICH_TASK && exit 1\n'
        f"{GET}/environ | grep -q WHICH_TASK || touch /root/answer\n",
    )
    assert one(package, tmp_path / "jobs", sandbox).rewards == {"reward": 1.0}


@seldom_in_docker
def test_an_entrypoint_that_ends_is_the_rollouts_failure(engine: Path, tmp_path: Path, sandbox: str) -> None:
    package = write_world(
        tmp_path / "package", solve=f"{POST}/die\nsleep 3600\n", test="echo 1 >/logs/verifier/reward.txt"
    )
    result = one(package, tmp_path / "jobs", sandbox)
    assert result.error is not None
    assert (result.rewards, result.error.category) == (None, "service")
    assert "exit status 7" in result.error.message and "wants me to die" in (result.error.log_tail or "")


@seldom_in_docker
def test_an_entrypoint_world_that_is_not_kept_alive_ends_before_the_verifier(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    package = write_world(
        tmp_path / "package",
        head="keep_alive = false\n",
        solve=f"{POST}/add/x && touch /root/answer\n",
        test=f"{GET}/all && r=0 || r=1\n[ -e /root/answer ] || r=0\necho $r >/logs/verifier/reward.txt\n",
    )
    assert one(package, tmp_path / "jobs", sandbox).rewards == {"reward": 1.0}


@pytest.mark.docker
def test_what_an_entrypoint_is_given_by_name_is_in_no_configuration(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "entryp0int-c4n4ry-77d1"
    monkeypatch.setenv("WORLD_KEY", canary)
    package = write_world(
        tmp_path / "package",
        keys='["WORLD_KEY"]',
        solve=f'[ -z "$WORLD_KEY" ] && {GET}/environ | grep -q {canary} && touch /root/answer\n'
        "while [ ! -e /root/go ]; do sleep 0.05; done\n",
    )

    async def work() -> tuple[RolloutResult, str]:
        job = await submit(plan_job(job_config([package], tmp_path / "jobs", sandbox="docker")))
        client = docker.from_env()

        async def waiting() -> object:
            found = client.containers.list(filters={"label": f"benchflow.job={job.name}"})
            return found[0] if found and found[0].exec_run(["test", "-e", "/root/answer"]).exit_code == 0 else None

        container = await until(waiting)
        inspected = json.dumps(client.api.inspect_container(container.id))  # type: ignore[attr-defined]
        changed = "".join(str(change) for change in client.api.diff(container.id))  # type: ignore[attr-defined]
        container.exec_run(["touch", "/root/go"])  # type: ignore[attr-defined]
        await job.wait()
        return job.results()[0], inspected + changed

    result, seen = asyncio.run(work())
    assert result.rewards == {"reward": 1.0}
    assert canary not in seen and "ledger-world" not in result.model_dump_json().replace("test/ledger-world", "")
    leaks = [f for f in Path(str(result.directory)).rglob("*") if f.is_file() and canary.encode() in f.read_bytes()]
    assert leaks == []
