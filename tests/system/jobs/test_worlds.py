"""Rollouts in the world of a manifest: started, healthy before the agent, watched, shown to the verifier, kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.running import job_config, run_tasks
from support.system_job import VARIABLES, Results, SystemJobs, SystemTasks
from support.world_package import DOCKERFILE, GET, POST, manifest, write_package

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import ManifestError
from benchflow.jobs import plan_job
from benchflow.paths import StatePaths
from benchflow.planes.sandbox import get_provider
from benchflow.stack import find_running
from benchflow.temporal import connect, make_stack_target, read_stack_id

LOCAL = pytest.param("local", marks=pytest.mark.local)
DOCKER = pytest.param("docker", marks=pytest.mark.docker)
each_sandbox = pytest.mark.parametrize("found", [DOCKER, LOCAL], indirect=True)
seldom_in_docker = pytest.mark.parametrize(
    "found", [pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long]), LOCAL], indirect=True
)

CANARY = VARIABLES["WORLD_KEY"]

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

SEEDED = (
    "RUN python3 -c \"import sqlite3; d = sqlite3.connect('/data/ledger.db'); "
    "d.execute('CREATE TABLE entries (n INTEGER PRIMARY KEY, text TEXT)'); "
    'd.execute(\\"INSERT INTO entries (text) VALUES (\'seeded\')\\"); d.commit()"\n'
)
BY_COMMAND = '[environment.task_selection]\nmechanism = "env_var"\ninject_into = "exec"\n'
COUNT = f"{GET}/all | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))' >/logs/verifier/reward.txt\n"
PERSISTING = {
    "solve": f'[ ! -e /logs/agent/old ] && touch /logs/agent/old && {POST}/add/"$BENCHFLOW_TASK_ID"\n',
    "test": COUNT,
    "config": "[verifier]\nreward_range = [0, 10]\n",
}


def started(root: Path) -> Path:
    # The first request must do: nothing waits here for the service. Its verifier has no rights but to read.
    task = {"dockerfile": DOCKERFILE + SEEDED, "solve": f"{POST}/add/paid\n", "test": SCORES}
    task["config"] = '[verifier]\nuser = "nobody"\n'
    return write_package(root / "started", {"started": task}, manifest())


def others(root: Path) -> list[Path]:
    def package(name: str, text: str, **task: str) -> Path:
        return write_package(root / name, {name: task}, text)

    wins = "echo 1 >/logs/verifier/reward.txt\n"
    gone = f'{GET}/all && r=0 || r=1\n[ -s "$BENCHFLOW_ENVIRONMENT/state.json" ] || r=0\n'
    tells = f'[ -z "$WORLD_KEY" ] && {GET}/environ | grep -q {CANARY[:12]} && touch /root/answer\n{GET}/environ\n'
    never = manifest("[environment.readiness]\ntimeout_sec = 20\n")
    return [
        # It would go on for longer than anybody waits.
        package("dies", manifest(), solve=f"{POST}/die\nsleep 3600\n", test=wins),
        package("never-ready", never, environment='env = { SLOW = "600" }\n'),
        package(
            "ends-early",
            manifest(head="keep_alive = false\n"),
            solve=f"{POST}/add/x\n",
            test=f"{gone}echo $r >/logs/verifier/reward.txt\n",
        ),
        package("told-a-key", manifest('[environment.forward_env]\nkeys = ["WORLD_KEY"]\n'), solve=tells),
    ]


def persisting(root: Path) -> Path:
    text = manifest(BY_COMMAND, head='isolation = "persistent"\n')
    return write_package(root / "persisting", {f"persists-{name}": PERSISTING for name in "abc"}, text)


def system_tasks(root: Path) -> SystemTasks:
    lacks = manifest('[environment.forward_env]\nkeys = ["NOT_SET_ANYWHERE"]\n')
    faulty = [
        write_package(root / "no-world", {"no-world": {}}, '[environment]\nname = "x"\nimage = "nowhere/none:1"\n'),
        write_package(root / "lacks-a-key", {"lacks-a-key": {}}, lacks),
    ]
    return {
        "local": [started(root), *others(root), *faulty],
        "persistent": [persisting(root)],
        "docker": [started(root / "docker")],
    }


def long_system_tasks(root: Path) -> SystemTasks:
    return {"docker": others(root / "docker")}


@pytest.fixture
def found(request: pytest.FixtureRequest, system_jobs: SystemJobs) -> Results:
    """The results of a provider."""
    results: Results = request.getfixturevalue(f"{request.param}_results")
    return results


def kept(result: RolloutResult, *names: str) -> Path:
    assert result.directory is not None
    return Path(result.directory, "environment", *names)


@each_sandbox
def test_a_world_is_healthy_before_the_agent_and_shows_its_state_to_the_verifier(found: Results) -> None:
    result = found["started"]
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
def test_a_service_that_dies_under_the_agent_is_the_rollouts_failure_and_no_reward(found: Results) -> None:
    result = found["dies"]
    assert result.error is not None
    assert (result.status, result.rewards, result.error.category) == ("errored", None, "service")
    assert "ledger" in result.error.message and "7" in result.error.message
    assert "somebody wants me to die" in (result.error.log_tail or "")
    assert "somebody wants me to die" in kept(result, "logs", "ledger.log").read_text()


@seldom_in_docker
def test_a_world_that_does_not_become_healthy_is_never_seen_by_the_agent(found: Results) -> None:
    result = found["never-ready"]
    assert result.error is not None
    assert (result.error.category, result.error.phase, result.steps) == ("readiness", "readiness", [])
    assert "HTTP 503" in (result.error.log_tail or "") and "the ledger is open" in (result.error.log_tail or "")


@seldom_in_docker
def test_a_world_that_is_not_kept_alive_is_gone_when_the_verifier_comes(found: Results) -> None:
    assert found["ends-early"].rewards == {"reward": 1.0}
    assert "the ledger is open" in kept(found["ends-early"], "logs", "ledger.log").read_text()


@pytest.mark.local
def test_a_persistent_world_is_one_sandbox_for_the_job_and_keeps_its_state(
    persistent_results: Results, module_jobs: Path
) -> None:
    assert_kept_its_state(persistent_results)


@pytest.mark.docker
@pytest.mark.long
def test_a_persistent_world_does_so_in_docker(module_jobs: Path, tmp_path: Path) -> None:
    assert_kept_its_state(run_tasks([persisting(tmp_path)], module_jobs, sandbox="docker", concurrency=3))


def assert_kept_its_state(found: Results) -> None:
    results = sorted(found.values(), key=lambda result: result.started_at)
    assert [result.reward for result in results] == [1.0, 2.0, 3.0]
    assert len({result.sandbox["name"] for result in results}) == 1
    final = json.loads(kept(results[-1], "state", "final", "state.json").read_text())
    assert [row[1] for row in final["databases"][1]["tables"][0]["values"]] == [r.task_name for r in results]
    [change] = json.loads(kept(results[-1], "state", "final", "diff.json").read_text())["databases"]
    assert change["tables"][0]["n_added"] == 1
    assert results[0].sandbox["name"] not in asyncio.run(_owned(results[0].sandbox["provider"]))


async def _owned(sandbox: str) -> set[str]:
    """The sandboxes of the run's stack."""
    record = find_running(StatePaths.default())
    assert record is not None
    stack = await read_stack_id(await connect(make_stack_target(record)))
    return {owned.name for owned in await get_provider(sandbox).owned(stack)}


@seldom_in_docker
def test_what_a_world_is_given_by_name_reaches_its_services_and_nothing_else(found: Results) -> None:
    result = found["told-a-key"]
    assert result.rewards == {"reward": 1.0}
    root = Path(str(result.directory)).parent
    leaks = [file for file in root.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
    assert leaks == []


@pytest.mark.local
def test_an_image_that_is_not_to_be_had_is_named_by_its_manifest(local_results: Results) -> None:
    error = local_results["no-world"].error
    assert error is not None
    assert (error.phase, error.key) == ("provision", "environment.image")
    assert str(error.file).endswith("environment.toml") and "image/" in str(error.remedy)


@pytest.mark.local
def test_a_variable_that_the_world_needs_and_nobody_has_set_is_named(local_results: Results) -> None:
    error = local_results["lacks-a-key"].error
    assert error is not None
    assert (error.category, error.phase) == ("secret", "plan")
    assert "NOT_SET_ANYWHERE" in error.message


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
    text = manifest(BY_COMMAND, head='isolation = "persistent"\n')
    package = write_package(tmp_path / "package", {"a": {}, "b": {"dockerfile": DOCKERFILE + "ENV B=1\n"}}, text)
    with pytest.raises(ManifestError, match="images of their own"):
        plan(package, tmp_path)
