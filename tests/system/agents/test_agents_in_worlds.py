"""Agents that talk, in the world of a manifest: episodes that follow each other in one sandbox, a world that breaks.

The agent is our own `policy`; the model is scripted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agent_world import BASE_IMAGE, LOCAL, Seen, run_tasks
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
SOAK_ON_DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak])
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


def in_world(root: Path, sandbox: str, answer: Any, *names: str, isolation: str) -> dict[str, Seen]:
    tasks = write_world(root / "package", *names, isolation=isolation)
    with ScriptedModel(answer) as model:
        return run_tasks(tasks, root / "jobs", sandbox=sandbox, agents=[policy(model)])


@pytest.mark.parametrize("sandbox", [LOCAL, SOAK_ON_DOCKER])
def test_an_episode_has_a_session_and_a_record_of_its_own_in_the_state_that_the_last_one_left(
    engine: Path, tmp_path: Path, sandbox: str
) -> None:
    def answer(request: ModelRequest) -> dict[str, Any]:
        return runs(POST % "add/TASK") if request.turn == 0 else says()

    found = in_world(tmp_path, sandbox, answer, "one", "two", isolation="persistent")
    first, second = sorted(found.values(), key=lambda seen: seen.result.started_at)
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


@pytest.mark.parametrize("sandbox", [LOCAL, SOAK_ON_DOCKER])
def test_an_agent_is_stopped_when_its_world_breaks(engine: Path, tmp_path: Path, sandbox: str) -> None:
    def answer(request: ModelRequest) -> dict[str, Any]:
        return runs(f"{POST % 'die'}; sleep 3600")

    [seen] = in_world(tmp_path, sandbox, answer, "one", isolation="per_task").values()
    assert seen.result.error is not None
    assert (seen.result.error.category, seen.result.rewards) == ("service", None)
    assert seen.lines[-1]["type"] == "service_died"
    assert len(main_calls(calls_of(seen))) == 1
