"""Agents that talk, in the world of a manifest: episodes that follow each other in one sandbox, a world that breaks.

The agent is our own `policy`; the model is scripted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.agent_world import BASE_IMAGE, LOCAL, LONG_IN_DOCKER, Seen, finished, submit_tasks
from support.made_once import made_once
from support.model_world import calls_of, main_calls, policy, runs, says, write_model_task
from support.paths import SUPPORT

from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

LEDGER = SUPPORT / "ledger.py"
MANIFEST = f"""\
[environment]
name = "ledger"
base_image = "{BASE_IMAGE}"
owns_lifecycle = false
isolation = "{{isolation}}"

[environment.task_selection]
mechanism = "env_var"
inject_into = "exec"

[[environment.services]]
name = "ledger"
command = "ledger /data/ledger.db 9000"
port = 9000

[environment.state]
paths = ["/data/ledger.db"]
"""
URL = "http://localhost:9000"
POST = (
    "python3 -c 'import os, urllib.request as u; "
    f'u.urlopen(u.Request("{URL}/%s".replace("TASK", os.environ["BENCHFLOW_TASK_ID"]), method="POST"))\''
)
COUNTS = f"""\
python3 -c 'import json, urllib.request as u; print(len(json.load(u.urlopen("{URL}/all"))))' >/logs/verifier/reward.txt
"""


def write_world(root: Path, *names: str, isolation: str) -> list[Path]:
    tasks = []
    for name in names:
        task = write_model_task(root / "tasks", name, test=COUNTS, config="[verifier]\nreward_range = [0, 10]\n")
        (task / "environment" / "ledger").write_bytes(LEDGER.read_bytes())
        with (task / "environment" / "Dockerfile").open("a") as dockerfile:
            dockerfile.write(
                "COPY ledger /usr/local/bin/ledger\nRUN chmod 755 /usr/local/bin/ledger && mkdir -p /data\n"
            )
        tasks.append(task)
    (root / "environment.toml").write_text(MANIFEST.format(isolation=isolation))
    return tasks


def act(request: ModelRequest) -> dict[str, Any]:
    return runs(POST % "add/TASK") if request.turn == 0 else says()


def break_world(request: ModelRequest) -> dict[str, Any]:
    return runs(f"{POST % 'die'}; sleep 3600")


@made_once(params=[LOCAL, LONG_IN_DOCKER])
async def in_worlds(root: Path, sandbox: str) -> dict[str, Seen]:
    """Two tasks in one world, and one in a world that breaks."""
    async with ScriptedModel(act) as acting, ScriptedModel(break_world) as breaking:
        jobs = []
        for model, isolation, names in (
            (acting, "persistent", ("one", "two")),
            (breaking, "per_task", ("broken",)),
        ):
            tasks = write_world(root / isolation, *names, isolation=isolation)
            options = {"sandbox": sandbox, "agents": [policy(model)], "job_name": isolation}
            jobs.append(await submit_tasks(tasks, root / "jobs", **options))
        return {name: seen for job in jobs for name, seen in (await finished(job)).items()}


def test_an_episode_has_a_session_and_a_record_of_its_own_in_the_state_that_the_last_one_left(
    in_worlds: dict[str, Seen],
) -> None:
    found = [in_worlds["one"], in_worlds["two"]]
    first, second = sorted(found, key=lambda seen: seen.result.started_at)
    assert [first.result.error, second.result.error] == [None, None]
    assert [first.result.reward, second.result.reward] == [1.0, 2.0]
    assert first.result.sandbox["name"] == second.result.sandbox["name"]
    for seen in (first, second):
        assert len(main_calls(calls_of(seen))) == 2
        assert seen.session.model_access == "gateway"
        [session] = [path for path in seen.paths.sessions.iterdir() if path.is_dir()]
        assert session.name == seen.session.directory
    assert first.session.directory != second.session.directory
    assert first.session.id != second.session.id


def test_an_agent_is_stopped_when_its_world_breaks(in_worlds: dict[str, Seen]) -> None:
    seen = in_worlds["broken"]
    assert seen.result.error is not None
    assert (seen.result.error.category, seen.result.rewards) == ("service", None)
    assert seen.lines[-1]["type"] == "service_died"
    assert len(main_calls(calls_of(seen))) == 1
