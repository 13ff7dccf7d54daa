"""Rollouts in the world of a manifest: started, healthy before the agent, watched, shown to the verifier, kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.running import job_config, run_job, run_tasks
from support.world_package import DOCKERFILE, GET, POST, manifest, write_package

from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import ManifestError
from benchflow.jobs import plan_job
from benchflow.planes.sandbox import get_provider

LOCAL = pytest.param("local", marks=pytest.mark.local)
each_sandbox = pytest.mark.parametrize("sandbox", [pytest.param("docker", marks=pytest.mark.docker), LOCAL])
seldom_in_docker = pytest.mark.parametrize(
    "sandbox", [pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak]), LOCAL]
)

SCORES = """\
python3 - <<'END'
import json, os
root = os.environ["BENCHFLOW_ENVIRONMENT"]
state, diff = (json.load(open(f"{root}/{name}.json")) for name in ("state", "diff"))
absent, ledger = state["databases"]
[entries] = ledger["tables"]
[changed] = diff["databases"]
[table] = changed["tables"]
good = [
    entries["values"] == [[1, "seeded"], [2, "paid"]], entries["rows"] == 2, not absent["present"],
    changed["path"] == "/data/ledger.db", table["added"] == [{"n": 2, "text": "paid"}], table["n_removed"] == 0,
]
print(state, diff)
open("/logs/verifier/reward.txt", "w").write(str(sum(good) / len(good)))
END
"""


def one(root: Path, jobs: Path, text: str, sandbox: str, **options: Any) -> RolloutResult:
    """The result of a package of one task. options: of the task."""
    package = write_package(root, {"task": options}, text)
    return run_tasks([package], jobs, sandbox=sandbox)["task"]


def kept(result: RolloutResult, *names: str) -> Path:
    assert result.directory is not None
    return Path(result.directory, "environment", *names)


@each_sandbox
def test_a_world_is_healthy_before_the_agent_and_shows_its_state_to_the_verifier(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    dockerfile_seed = "RUN python3 -c \"import sqlite3; d = sqlite3.connect('/data/ledger.db'); " + (
        "d.execute('CREATE TABLE entries (n INTEGER PRIMARY KEY, text TEXT)'); "
        'd.execute(\\"INSERT INTO entries (text) VALUES (\'seeded\')\\"); d.commit()"\n'
    )
    result = one(
        tmp_path / "package",
        tmp_path / "jobs",
        manifest(),
        sandbox,
        dockerfile=DOCKERFILE + dockerfile_seed,
        # The first request must do: nothing waits here for the service.
        solve=f"{POST}/add/paid\n",
        test=SCORES,
    )
    assert (result.error, result.verifier_error, result.rewards) == (None, None, {"reward": 1.0})
    about = result.environment
    assert about["name"] == "ledger" and len(about["digest"]) == 64
    states = {service["name"]: service["state"] for service in about["world"]["services"]}
    assert states == {"ledger": "running", "absent": "left_out"}
    [probe] = about["world"]["probes"]
    assert (probe["target"], probe["healthy"]) == ("http://localhost:9000/health", True)
    assert "the ledger is open" in kept(result, "logs", "ledger.log").read_text()
    assert json.loads(kept(result, "state", "final", "diff.json").read_text())["databases"]
    assert kept(result, "snapshots", "baseline", "snapshot.json").is_file()
    assert list(result.timing)[:3] == ["plan", "provision", "readiness"]


@seldom_in_docker
def test_a_service_that_dies_under_the_agent_is_the_rollouts_failure_and_no_reward(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    result = one(
        tmp_path / "package",
        tmp_path / "jobs",
        manifest(),
        sandbox,
        # It would go on for longer than anybody waits.
        solve=f"{POST}/die\nsleep 3600\n",
        test="echo 1 >/logs/verifier/reward.txt\n",
    )
    assert result.error is not None
    assert (result.status, result.rewards, result.error.category) == ("errored", None, "service")
    assert "ledger" in result.error.message and "7" in result.error.message
    assert "somebody wants me to die" in (result.error.log_tail or "")
    assert "somebody wants me to die" in kept(result, "logs", "ledger.log").read_text()


@seldom_in_docker
def test_a_world_that_does_not_become_healthy_is_never_seen_by_the_agent(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    # Time enough for the service to say that it is not ready, if need be on a busy machine.
    for limit in (4, 30):
        text = manifest(f"[environment.readiness]\ntimeout_sec = {limit}\n")
        root = tmp_path / f"{limit}"
        result = one(root / "package", root / "jobs", text, sandbox, environment='env = { SLOW = "600" }\n')
        assert result.error is not None
        if "HTTP 503" in (result.error.log_tail or ""):
            break
    assert (result.error.category, result.error.phase, result.steps) == ("readiness", "readiness", [])
    assert "HTTP 503" in (result.error.log_tail or "") and "the ledger is open" in (result.error.log_tail or "")


@seldom_in_docker
def test_a_world_that_is_not_kept_alive_is_gone_when_the_verifier_comes(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    result = one(
        tmp_path / "package",
        tmp_path / "jobs",
        manifest(head="keep_alive = false\n"),
        sandbox,
        solve=f"{POST}/add/x\n",
        test=f'{GET}/all && r=0 || r=1\n[ -s "$BENCHFLOW_ENVIRONMENT/state.json" ] || r=0\n'
        "echo $r >/logs/verifier/reward.txt\n",
    )
    assert result.rewards == {"reward": 1.0}
    assert "the ledger is open" in kept(result, "logs", "ledger.log").read_text()


@seldom_in_docker
def test_a_persistent_world_is_one_sandbox_for_the_job_and_keeps_its_state(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    text = manifest(
        '[environment.task_selection]\nmechanism = "env_var"\ninject_into = "exec"\n', head='isolation = "persistent"\n'
    )
    count = f"{GET}/all | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))' >/logs/verifier/reward.txt\n"
    same = {
        "solve": f'[ ! -e /logs/agent/old ] && touch /logs/agent/old && {POST}/add/"$BENCHFLOW_TASK_ID"\n',
        "test": count,
        "config": "[verifier]\nreward_range = [0, 10]\n",
    }
    package = write_package(tmp_path / "package", {"a": same, "b": same}, text)
    job = asyncio.run(run_job([package], tmp_path / "jobs", sandbox=sandbox, repeats=2, concurrency=3))
    results = sorted(job.results(), key=lambda result: result.started_at)
    assert [result.reward for result in results] == [1.0, 2.0, 3.0, 4.0]
    assert len({result.sandbox["name"] for result in results}) == 1
    final = json.loads(kept(results[-1], "state", "final", "state.json").read_text())
    assert [row[1] for row in final["databases"][1]["tables"][0]["values"]] == [r.task_name for r in results]
    [change] = json.loads(kept(results[-1], "state", "final", "diff.json").read_text())["databases"]
    assert change["tables"][0]["n_added"] == 1
    names = {owned.name for owned in asyncio.run(_owned(sandbox, results[0]))}
    assert results[0].sandbox["name"] not in names


async def _owned(sandbox: str, result: RolloutResult) -> list[Any]:
    from benchflow.paths import StatePaths
    from benchflow.stack import running
    from benchflow.temporal import Target, connect, stack_id

    record = running(StatePaths.default())
    assert record is not None
    client = await connect(Target(record.address, record.namespace))
    return await get_provider(sandbox).owned(await stack_id(client))


@seldom_in_docker
def test_what_a_world_is_given_by_name_reaches_its_services_and_nothing_else(
    engine: Path, tmp_path: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_KEY", "w0rld-c4n4ry-6f1d0a52e7")
    text = manifest('[environment.forward_env]\nkeys = ["WORLD_KEY"]\n')
    result = one(
        tmp_path / "package",
        tmp_path / "jobs",
        text,
        sandbox,
        solve=f'[ -z "$WORLD_KEY" ] && {GET}/environ | grep -q w0rld-c4n4ry && touch /root/answer\n{GET}/environ\n',
    )
    assert result.rewards == {"reward": 1.0}
    root = Path(str(result.directory)).parent
    leaks = [file for file in root.rglob("*") if file.is_file() and b"w0rld-c4n4ry" in file.read_bytes()]
    assert leaks == []


@pytest.mark.local
def test_an_image_that_is_not_to_be_had_is_named_by_its_manifest(tmp_path: Path, engine: Path) -> None:
    package = write_package(tmp_path / "package", {"task": {}}, '[environment]\nname = "x"\nimage = "nowhere/none:1"\n')
    result = run_tasks([package], tmp_path / "jobs", sandbox="local")["task"]
    assert result.error is not None
    assert (result.error.phase, result.error.key) == ("provision", "environment.image")
    assert str(result.error.file).endswith("environment.toml") and "image/" in str(result.error.remedy)


def test_a_variable_that_the_world_needs_and_nobody_has_set_is_named(tmp_path: Path, engine: Path) -> None:
    package = write_package(
        tmp_path / "package", {"task": {}}, manifest('[environment.forward_env]\nkeys = ["NOT_SET_ANYWHERE"]\n')
    )
    result = run_tasks([package], tmp_path / "jobs", sandbox="local")["task"]
    assert result.error is not None
    assert (result.error.category, result.error.phase) == ("secret", "plan")
    assert "NOT_SET_ANYWHERE" in result.error.message


# --- what is refused before anything starts --------------------------------------------------------------


def plan(package: Path, tmp_path: Path, **options: Any) -> Any:
    return plan_job(job_config([package], tmp_path / "jobs", sandbox="local", **options))


def test_the_manifest_given_wins_over_the_packages(tmp_path: Path) -> None:
    package = write_package(tmp_path / "package", {"task": {}}, manifest())
    other = tmp_path / "other.toml"
    other.write_text(manifest().replace('name = "ledger"', 'name = "other"', 1))
    assert plan(package, tmp_path).worlds["task"].manifest.name == "ledger"
    assert plan(package / "tasks" / "task", tmp_path).worlds["task"].manifest.name == "ledger"
    assert plan(package, tmp_path, environment_manifest=other).worlds["task"].manifest.name == "other"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agents": ["oracle", "nop"]}, "2 agents would act in it"),
        ({}, "learn of the first task only"),
    ],
)
def test_a_persistent_world_that_cannot_be_shared_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    text = manifest('[environment.task_selection]\nmechanism = "env_var"\n', head='isolation = "persistent"\n')
    package = write_package(tmp_path / "package", {"a": {}, "b": {}}, text)
    with pytest.raises(ManifestError, match=words) as caught:
        plan(package, tmp_path, **options)
    assert caught.value.key == "environment.isolation" and caught.value.remedy


def test_a_persistent_world_of_several_images_is_refused(tmp_path: Path) -> None:
    text = manifest(
        '[environment.task_selection]\nmechanism = "env_var"\ninject_into = "exec"\n', head='isolation = "persistent"\n'
    )
    package = write_package(tmp_path / "package", {"a": {}, "b": {"dockerfile": DOCKERFILE + "ENV B=1\n"}}, text)
    with pytest.raises(ManifestError, match="images of their own"):
        plan(package, tmp_path)
