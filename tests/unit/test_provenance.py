"""Whose a stored job is: what somebody else wrote is not acted on, and what this user submitted is."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Bench, bench
from support.stored_jobs import Past, answer, store_job, write_task

from benchflow.cli.chosen import choose
from benchflow.cli.resume import plan_again, plan_replay
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.config import JobConfig
from benchflow.errors import ConfigError, StackError, UntrustedJobError
from benchflow.jobs.identity import claim, list_differences, record_options
from benchflow.jobs.job_plan import freeze, plan_job
from benchflow.paths import JobPaths, StatePaths
from benchflow.planes.agent.registry import find_agent
from benchflow.provenance import is_own, read_own_spec, write_config
from benchflow.rescoring import RescoringRequest, open_stored_workbench
from benchflow.rescoring.own_rollouts import read_own_rollout
from benchflow.rescoring.rescoring_plan import plan_rescoring
from benchflow.results.summary import read_spec
from benchflow.store import Store

__all__ = ["bench"]

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture
def job(tmp_path: Path, state: Path) -> JobPaths:
    task = write_task(tmp_path / "tasks", "one")
    return JobPaths(asyncio.run(store_job([task], tmp_path / "jobs", sandbox="noop")))


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private file of the user's, and a variable."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OF_THE_USER", "a value of the user's")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "key").write_text("a private key")
    return tmp_path / ".ssh" / "key"


def change(job: JobPaths, **changes: Any) -> None:
    """Change the configuration of a job, as whoever hands it on can."""
    job.config.write_text(json.dumps(json.loads(job.config.read_text()) | changes))


def strange_agent() -> dict[str, Any]:
    record = find_agent("claude-agent-acp").model_dump(mode="json")
    record |= {"credential_files": [".ssh/key"], "launch": ["node", "theirs.js"]}
    for endpoint in record["endpoints"]:
        endpoint |= {"credentials": [], "base_url": "https://their.example"}
    return {"name": record["name"], "model": "anthropic/x", "record": record}


def again(job: JobPaths, *, trust: bool = False) -> Any:
    return plan_again(job.root.name, job.root.parent, concurrency=None, context_root=None, trust=trust)


def replayed(job: JobPaths, *, trust: bool = False) -> Any:
    chosen = choose(job.root.name, job.root.parent)
    chosen.paths.model_calls.write_text("{}\n")
    return plan_replay(chosen, until=None, strict=False, job_name="again", trust=trust)


def rescored(job: JobPaths, *, trust: bool = False) -> Any:
    return asyncio.run(plan_rescoring(job.root, RescoringRequest(name="new", trust=trust)))


ACTS: dict[str, Callable[..., Any]] = {"resume": again, "replay": replayed, "rescore": rescored}


@pytest.mark.parametrize("act", ACTS)
def test_a_job_of_this_users_is_acted_on_and_a_changed_one_only_with_trust(job: JobPaths, act: str) -> None:
    ACTS[act](job)
    change(job, repeats=1)
    with pytest.raises(UntrustedJobError, match="was not submitted with your state directory") as caught:
        ACTS[act](job)
    assert caught.value.file == str(job.config)
    assert "--trust" in str(caught.value.remedy)
    ACTS[act](job, trust=True)


@pytest.mark.parametrize("act", ACTS)
def test_a_job_of_somebody_elses_is_not_acted_on(
    job: JobPaths, act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "mine"))
    with pytest.raises(UntrustedJobError):
        ACTS[act](job)
    assert not (tmp_path / "mine" / "job-key").exists()
    task = write_task(tmp_path / "tasks", "other")
    asyncio.run(store_job([task], tmp_path / "jobs", name="own", sandbox="noop"))
    with pytest.raises(UntrustedJobError):
        ACTS[act](job)


def test_a_refusal_lists_what_would_be_used(job: JobPaths, secret: Path) -> None:
    run = json.loads(job.config.read_text())["run"] | {
        "sandbox": "local",
        "judge": {"base_url": "https://judge.example", "credential": "OF_THE_USER"},
        "branch": {"policy": {"kind": "custom", "policy": "theirs:Policy"}, "aggregate": "theirs:aggregate"},
    }
    change(job, run=run, agents=[strange_agent()])
    with pytest.raises(UntrustedJobError) as caught:
        again(job)
    said = caught.value.message
    source = json.loads(job.config.read_text())["tasks"][0]
    for part in (
        "sandbox: local",
        "variables: OF_THE_USER",
        "credential files: ~/.ssh/key",
        "addresses: https://their.example",
        "https://judge.example",
        "theirs.js",
        "theirs:Policy, theirs:aggregate",
        source["source"],
        source["pack"]["uri"],
    ):
        assert part in said, part
    assert "a value of the user's" not in str(caught.value)


def test_nothing_of_the_user_is_read_for_a_job_of_somebody_elses(job: JobPaths, secret: Path) -> None:
    change(job, agents=[strange_agent()])
    secret.unlink()
    os.mkfifo(secret)
    with pytest.raises(UntrustedJobError):
        again(job)


def test_commands_that_only_look_need_no_trust(bench: Bench, job: JobPaths) -> None:
    job.config_mac.unlink()
    (rollout,) = [path for path in job.root.iterdir() if path.is_dir()]
    name = f"past/{rollout.name}"
    for look in ("job show past", "results past", "job list", f"tree show {name}", f"job watch {name}"):
        assert bench(*look.split(), "--jobs-dir", job.root.parent).status == 0, look


@pytest.mark.parametrize("command", ["job resume past", "rescore past", "rollout replay past"])
def test_the_command_line_refuses_with_the_remedy(bench: Bench, job: JobPaths, command: str) -> None:
    job.config_mac.write_text("0" * 64 + "\n")
    ran = bench(*command.split(), "--jobs-dir", job.root.parent)
    assert ran.status == 2
    assert str(job.config) in ran.err and "--trust" in ran.err and "sandbox: noop" in ran.err


def test_a_rollout_is_scored_by_what_its_job_says(job: JobPaths) -> None:
    (rollout,) = [path for path in job.root.iterdir() if path.is_dir()]
    config = json.loads((rollout / "config.json").read_text())
    strange = config | {"run": config["run"] | {"judge": {"base_url": "https://judge.example", "credential": "X"}}}
    (rollout / "config.json").write_text(json.dumps(strange))
    assert read_own_rollout(rollout).spec.run.judge.base_url is None
    assert read_own_rollout(rollout, trust=True).spec.run.judge.base_url == "https://judge.example"
    strange["task"] |= {"name": "another"}
    (rollout / "config.json").write_text(json.dumps(strange))
    with pytest.raises(UntrustedJobError, match="no rollout of the job"):
        rescored(job)


async def test_a_workbench_runs_nothing_of_somebody_elses(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "one")
    past = {"one": Past(workspace=answer)}
    job = JobPaths(await store_job([task], tmp_path / "jobs", past, sandbox="noop"))
    (rollout,) = [path for path in job.root.iterdir() if path.is_dir()]
    change(job, repeats=1)
    async with open_stored_workbench(rollout) as bench:
        with pytest.raises(UntrustedJobError):
            await bench.tests()
        with pytest.raises(UntrustedJobError):
            await bench.run("key", ["true"])
    alone = tmp_path / "alone"
    rollout.rename(alone)
    async with open_stored_workbench(alone) as bench:
        with pytest.raises(UntrustedJobError, match="no rollout of the job"):
            await bench.tests()


def test_a_pack_is_named_by_its_digest_and_by_no_path() -> None:
    for digest in ("/root", "../" * 21 + "x", "A" * 64):
        with pytest.raises(ValueError, match="sha256"):
            ArtifactRef(uri="file:///x", sha256=digest, size=1)


# --- what is written ---------------------------------------------------------------------------------------


def test_a_configuration_that_is_replaced_has_a_mac_at_any_moment(job: JobPaths) -> None:
    before, spec = job.config.read_bytes(), read_spec(job)
    changed = spec.model_copy(update={"options": spec.options.model_copy(update={"heartbeat_timeout_sec": 77})})
    record_options(job, changed)
    assert is_own(job)
    # A crash between the two files.
    after = job.config.read_bytes()
    job.config.write_bytes(before)
    assert before != after and is_own(job)


def test_attaching_to_a_job_of_somebody_elses_makes_its_configuration_this_users(job: JobPaths) -> None:
    config = json.loads(job.config.read_text())
    tasks = [task | {"source": "/somewhere/of/theirs"} for task in config["tasks"]]
    spec = read_spec(job)
    change(job, tasks=tasks)
    # Where a task lies is no part of what a job is.
    assert list_differences(read_spec(job), spec) == []
    claim(job, spec)
    assert is_own(job) and read_own_spec(job) == spec


def test_the_key_is_made_once_and_is_this_users_alone(tmp_path: Path, job: JobPaths) -> None:
    paths = StatePaths.default()
    assert stat.S_IMODE(paths.job_key.stat().st_mode) == 0o600 and len(paths.job_key.read_bytes()) == 32
    paths.job_key.unlink()
    spec, places = read_spec(job), [JobPaths(tmp_path / "many" / str(number)) for number in range(8)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda place: write_config(place, spec), places))
    assert all(is_own(place) for place in places)
    assert not is_own(job)


def test_a_key_that_others_can_read_is_no_key(job: JobPaths) -> None:
    key = StatePaths.default().job_key
    key.chmod(0o644)
    with pytest.raises(StackError, match="other users can read it"):
        again(job)
    key.chmod(0o600)
    key.write_bytes(b"")
    with pytest.raises(StackError, match="32 bytes"):
        again(job)


def test_with_somebody_elses_state_directory_nothing_is_acted_on(job: JobPaths) -> None:
    root = StatePaths.default().root
    root.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by all users"):
        again(job)


CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "numbers": {
        "repeats": 2,
        "sandbox_setup_timeout": 7.5,
        "deadline_sec": 100.0,
        "agent_timeout_sec": 12.5,
        "agent_idle_timeout_sec": 13.5,
        "keep": "workspace",
        "keep_max_mb": 3,
        "retry": {"max_retries": 1, "categories": ["sandbox"]},
        "permissions": "ask",
        "verify_in": "separate",
        "rebuild": True,
        "reward_key": "style",
        "reward_lenient": True,
        "on_tampering": "null",
    },
    "models": {
        "agents": ["oracle", "nop"],
        "limits": {"calls": 3, "input_tokens": 10, "cost_usd": 0.5},
        "sampling": {"temperature": 0.5, "top_p": 0.9, "max_tokens": 10, "seed": 1},
        "judge": {"model": "openai/x", "base_url": "https://judge.example", "credential": "X", "retries": 1},
    },
    "an agent": {
        "agents": [{"name": "claude-agent-acp", "model": "anthropic/x", "env": {"A": "${B}"}}],
        "base_url": "http://127.0.0.1:1",
        "effort": "high",
    },
    "replay": {"replay": {"record": "/r.jsonl", "until": "n1", "strict": True}},
    **{
        f"branch {number}": {"branch": branch}
        for number, branch in enumerate(
            [
                {"policy": {"kind": "group", "n": 2}},
                {"policy": {"kind": "after_steps", "steps": [0], "n": [3]}, "then": "child:1", "aggregate": "max"},
                {"policy": {"kind": "every_n", "every": 1, "n": 2}, "checkpoint": "every_n", "every": 2},
                {"policy": {"kind": "group", "n": 2}, "children": [{"role": "writer"}, {}], "horizon": 1},
                {"policy": {"kind": "tree_grpo", "m": 1}, "max_children": 9, "max_depth": 2, "concurrency": 3},
                {"policy": {"kind": "none"}, "checkpoint": "per_turn", "portable": True},
            ]
        )
    },
    "grpo": {"mode": {"kind": "grpo", "n": 3}},
    "value": {"mode": {"kind": "value", "depths": [0], "n": 2}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_stored_configuration_reads_back_as_the_same_job(tmp_path: Path, name: str) -> None:
    task = write_task(tmp_path / "tasks", "one", steps=["first", "second"])
    given = {"paths": [task], "jobs_dir": tmp_path / "jobs", "job_name": "j", "sandbox": "docker"} | CONFIGS[name]
    plan = plan_job(JobConfig.model_validate(given))
    spec = asyncio.run(freeze(plan, Store.open()))
    claim(plan.directory, spec)
    planned = again(plan.directory)
    assert asyncio.run(freeze(planned, Store.open())) == spec
    assert planned.variables == plan.variables


def test_replays_without_a_name_are_jobs_of_their_own(job: JobPaths) -> None:
    chosen = choose(job.root.name, job.root.parent)
    chosen.paths.model_calls.write_text("{}\n")
    names = [plan_replay(chosen, until=None, strict=False, job_name=None).name for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.startswith(f"{job.root.name}-replay-") for name in names)
