"""Verifiers in a clean room: what an agent left anywhere but in its work is not there, and its work arrives whole."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.running import run_tasks
from support.system_job import Results, SystemTasks
from support.task_writer import BASE_IMAGE, write_step, write_task
from support.world_package import GET, POST, manifest, write_package

from benchflow.contracts.images import ImageRef
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import VerifierError
from benchflow.hosting.clean_room import pack_for_room, unpack_for_room
from benchflow.paths import RolloutPaths
from benchflow.planes.sandbox import close_providers, get_provider
from benchflow.rescoring import RescoringRequest, rescore

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
DOCKERFILE = f"FROM {BASE_IMAGE}\nWORKDIR /app\nRUN echo of-the-image > made\n"


def says(condition: str) -> str:
    """A verifier that gives 1 when the condition holds, 0 otherwise."""
    return f"if {condition}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


# What a root agent plants for a verifier that it has guessed.
PLANTED = """
(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.05; done' >/dev/null 2>&1 &)
printf '#!/bin/sh\\nexit 0\\n' > /usr/local/bin/grep && chmod 755 /usr/local/bin/grep
mkdir -p /var/spool/desk && echo closed > /var/spool/desk/ticket
"""
OWNED = """
mkdir -p bin && echo x > bin/tool && chown 1234:4321 bin/tool && chmod 4751 bin/tool && ln -s tool bin/link
mkdir -p /srv/out/keep /srv/out/cache && echo kept > /srv/out/keep/a && echo left > /srv/out/cache/b
chown 55:66 /srv/out/keep/a && chmod 600 /srv/out/keep/a
echo left-there > /logs/artifacts/note
"""
ARRIVED = (
    # As data: nobody becomes its owner by running it.
    '[ "$(stat -c %u:%g:%a /app/bin/tool)" = 1234:4321:751 ] && [ "$(readlink /app/bin/link)" = tool ]'
    ' && [ "$(stat -c %u:%g:%a /srv/out/keep/a)" = 55:66:600 ] && [ ! -e /srv/out/cache ]'
    ' && [ "$(cat /logs/artifacts/note)" = left-there ] && [ "$(cat /srv/collected)" = collected ] && [ -e /app/made ]'
)
OWN_TABLE = """
[verifier.environment]
docker_image = "{image}"
workdir = "/checked"
env = { KIND = "verifier's" }
network_mode = "no-network"
[[verifier.environment.setup_commands]]
command = "echo ready > /ready"
"""
OWN = says('[ "$KIND" = "verifier\'s" ] && [ "$(cat /checked/answer)" = 42 ] && [ -e /ready ] && [ ! -e /etc/agents ]')


def tasks_in_rooms(root: Path) -> list[Path]:
    image = {"dockerfile": DOCKERFILE}
    planted = says("grep -q done /app/answer || [ -e /var/spool/desk/ticket ]")
    tasks = [
        write_task(root, "planted", config=SEPARATE, solve=PLANTED, test="sleep 0.3\n" + planted, **image),
        write_task(root, "planted-but-shared", solve=PLANTED, test=planted, **image),
        _arrives(root),
        write_task(root, "gone", config=SEPARATE, solve="rm made\n", test=says("[ ! -e /app/made ]"), **image),
        write_task(
            root,
            "set-up",
            config=SEPARATE,
            environment='setup_commands = [{ command = "echo once >> /etc/set-up" }]\nenv = { KIND = "task\'s" }',
            solve="echo twice >> /etc/set-up\n",
            test=says('[ "$(cat /etc/set-up)" = once ] && [ "$KIND" = "task\'s" ]'),
            **image,
        ),
        write_task(
            root,
            "in-root",
            config='artifacts = ["/top"]\n[verifier.environment]\nworkdir = "/"\n',
            solve="echo 1 > answer; echo 1 > /top\n",
            test=says('[ "$PWD" = / ] && [ -c dev/null ] && [ -e app/answer ] && [ -e top ]'),
            **image,
        ),
        write_task(root, "fails", config=SEPARATE, solve="true\n", test="echo no reward here\n", **image),
        _of_two_steps(root),
        _with_its_own_dockerfile(root),
        _hardened(root),
    ]
    return tasks


def _arrives(root: Path, separate: str = SEPARATE) -> Path:
    artifacts = '[{ source = "/srv/out", exclude = ["cache"] }, "/srv/collected", "/srv/never"]'
    collect = '[[verifier.collect]]\ncommand = "echo collected > /srv/collected"\n'
    config = f"artifacts = {artifacts}\n{separate}{collect}"
    return write_task(root, "arrives", config=config, solve=OWNED, test=says(ARRIVED), dockerfile=DOCKERFILE)


def _of_two_steps(root: Path) -> Path:
    config = (
        '[[steps]]\nname = "one"\n[steps.verifier]\nenvironment_mode = "separate"\n'
        '[[steps]]\nname = "two"\nartifacts = ["/srv/two"]\n[steps.verifier]\nenvironment_mode = "separate"\n'
    )
    task = write_task(root, "two-steps", config=config, dockerfile=DOCKERFILE)
    write_step(
        task,
        "one",
        solve="echo 1 > answer; echo 1 > /etc/of-one\n",
        # What a verifier does in its room, the next step's agent does not see.
        test="echo 9 > /app/spoilt\n" + says('[ "$(cat /app/answer)" = 1 ] && [ ! -e /etc/of-one ]'),
    )
    write_step(
        task,
        "two",
        solve="[ -e spoilt ] || [ ! -e /etc/of-one ] || echo 2 >> answer; echo 2 > /srv/two\n",
        test=says('[ "$(cat /app/answer | tr -d "\\n")" = 12 ] && [ -e /srv/two ] && [ ! -e /etc/of-one ]'),
    )
    return task


def _with_its_own_dockerfile(root: Path) -> Path:
    test = says('[ -e /only-here ] && [ "$(own-tool)" = fine ] && [ -n "$PYTEST_ADDOPTS" ] && ! grep 42 /app/answer')
    # What is on that image's PATH and not in it is the agent's to fill.
    solve = "echo 1 > answer; mkdir bin; printf '#!/bin/sh\\nexit 0\\n' > bin/grep; chmod 755 bin/grep\n"
    task = write_task(root, "own-dockerfile", config=SEPARATE, solve=solve, test=test, dockerfile=DOCKERFILE)
    (task / "tests" / "Dockerfile").write_text(
        f"FROM {BASE_IMAGE}\nCOPY data /only-here\nENV PATH=/app/bin:/opt/own:$PATH\n"
        "RUN mkdir /opt/own && printf '#!/bin/sh\\necho fine\\n' > /opt/own/own-tool && chmod 755 /opt/own/own-tool\n"
    )
    (task / "tests" / "data").write_text("x\n")
    return task


def _hardened(root: Path) -> Path:
    """A workspace with what is cleared away before a verifier comes, wherever that runs."""
    solve = "echo evil > setup.py; mkdir a; touch conftest.py a/conftest.py sitecustomize.py; ln -s /etc/shadow out\n"
    cleared = " && ".join(f"[ ! -e {name} ] && [ ! -h {name} ]" for name in ("conftest.py", "a/conftest.py", "out"))
    test = f"cd /app\n{says(cleared + ' && [ ! -e sitecustomize.py ] && [ $(cat setup.py) = good ]')}"
    dockerfile = f"{DOCKERFILE}RUN echo good > setup.py\n"
    return write_task(root, "hardened", config=SEPARATE, solve=solve, test=test, dockerfile=dockerfile)


STATE_ALONE = f"""\
{GET}/all && exit 1
python3 - <<'END'
import json, os
root = os.environ["BENCHFLOW_ENVIRONMENT"]
state, diff = (json.load(open(f"{{root}}/{{name}}.json")) for name in ("state", "diff"))
[changed], [ledger] = diff["databases"], [database for database in state["databases"] if database["present"]]
rows, [table] = ledger["tables"][0]["rows"], changed["tables"]
open("/logs/verifier/reward.txt", "w").write(str(rows if table["n_added"] == 1 else 0))
END
"""
"""Of a world it is shown its state alone: none of its services runs in the room."""


def system_tasks(root: Path) -> SystemTasks:
    world = {"solve": f"{POST}/add/paid\n", "test": STATE_ALONE, "config": SEPARATE}
    package = write_package(root / "package", {"state-in-a-room": world}, manifest())
    # These two are asked for without a word of a clean room.
    test = says('[ -e /app/answer ] && [ ! -e /etc/left ] && [ -n "$PYTEST_ADDOPTS" ]')
    solve = "echo 1 > answer; echo 1 > /etc/left\n"
    wherever = write_task(root / "rooms", "wherever", solve=solve, test=test, dockerfile=DOCKERFILE)
    arrives = _arrives(root / "rooms", separate="")
    planted = _in_docker(root / "docker", ["planted"])
    return {"local": [*tasks_in_rooms(root), package], "rooms": [wherever, arrives], "docker": planted}


def long_system_tasks(root: Path) -> SystemTasks:
    return {"docker": _in_docker(root / "long", MORE)}


def _in_docker(root: Path, names: Sequence[str]) -> list[Path]:
    """Write the tasks for Docker, and return those of these names."""
    table = OWN_TABLE.replace("{image}", BASE_IMAGE)
    solve = "echo 42 > answer; echo 1 > /etc/agents\n"
    own = write_task(root, "own-table", config=table, solve=solve, test=OWN, dockerfile=DOCKERFILE)
    tasks = {task.name: task for task in [*tasks_in_rooms(root), own]}
    return [tasks[name] for name in names]


MORE = ("own-table", "arrives", "two-steps", "own-dockerfile", "in-root")


def said(result: RolloutResult) -> str:
    logs = RolloutPaths(Path(str(result.directory))).verifier / "test-stdout.txt"
    return f"{result.error or result.verifier_error}\n{logs.read_text() if logs.exists() else ''}"


def assert_rewarded(result: RolloutResult, reward: float) -> None:
    assert result.rewards == {"reward": reward}, said(result)


@pytest.mark.local
class TestOnLocal:
    def test_nothing_that_was_planted_outside_of_the_workspace_is_there(self, local_results: Results) -> None:
        assert_rewarded(local_results["planted"], 0.0)
        assert local_results["planted"].steps[0].verify is not None
        assert local_results["planted"].steps[0].verify.metadata["verified_in"] == "separate"

    def test_which_is_there_for_a_verifier_that_runs_where_the_agent_worked(self, local_results: Results) -> None:
        assert_rewarded(local_results["planted-but-shared"], 1.0)

    @pytest.mark.parametrize("task", ["arrives", "gone", "set-up", "two-steps", "in-root"])
    def test_what_the_agent_made_arrives_and_nothing_else(self, local_results: Results, task: str) -> None:
        assert_rewarded(local_results[task], 1.0)

    def test_an_image_of_the_verifiers_own_is_pinned_as_it_was_before_the_work_came(
        self, local_results: Results
    ) -> None:
        assert_rewarded(local_results["own-dockerfile"], 1.0)

    def test_a_workspace_is_hardened_before_it_travels(self, local_results: Results) -> None:
        assert_rewarded(local_results["hardened"], 1.0)
        assert local_results["hardened"].steps[0].verify is not None
        found = local_results["hardened"].steps[0].verify.metadata["hardening"]["findings"]
        assert {"/app/setup.py", "/app/out", "/app/a/conftest.py"} <= {finding["path"] for finding in found}

    def test_a_verifier_that_fails_there_fails_as_anywhere(self, local_results: Results) -> None:
        failure = local_results["fails"].verifier_error
        assert failure is not None and failure.category == "reward_missing", failure
        assert "no reward here" in said(local_results["fails"])

    def test_nothing_is_kept_that_was_kept_for_the_room_alone(self, local_results: Results) -> None:
        for result in local_results.values():
            root = Path(str(result.directory))
            assert not [*root.rglob("workspace.tar"), *root.rglob("artifacts.tar"), *root.rglob("evidence/room")]


@pytest.mark.local
def test_a_job_may_have_every_task_verified_in_a_clean_room_and_again_when_it_is_rescored(
    rooms_results: Results, rooms_job: Path, module_jobs: Path
) -> None:
    for name in ("wherever", "arrives"):
        assert_rewarded(rooms_results[name], 1.0)
        verified = rooms_results[name].steps[0].verify
        assert verified is not None and verified.metadata["verified_in"] == "separate"
    copy = module_jobs / "rooms"
    shutil.copytree(rooms_job, copy)
    again = asyncio.run(rescore(copy, RescoringRequest(include=["wherever", "arrives"])))
    assert [(one.outcome, one.steps[0].verifier, one.warnings) for one in again.rollouts] == [
        ("unchanged", "ran", [])
    ] * 2


@pytest.mark.local
def test_a_world_arrives_as_its_state(local_results: Results) -> None:
    assert_rewarded(local_results["state-in-a-room"], 1.0)


@pytest.mark.local
@pytest.mark.long
def test_a_world_that_persists_arrives_as_each_rollout_leaves_it(module_jobs: Path, tmp_path: Path) -> None:
    task = {
        "solve": f"{POST}/add/paid\n",
        "test": STATE_ALONE,
        "config": SEPARATE.replace("[verifier]", "[verifier]\nreward_range = [0, 10]"),
    }
    selection = '[environment.task_selection]\nmechanism = "env_var"\ninject_into = "exec"\n'
    text = manifest(selection, head='isolation = "persistent"\n')
    package = write_package(tmp_path / "package", {"a": task, "b": task}, text)
    results = run_tasks([package], module_jobs, sandbox="local")
    assert sorted(str(result.rewards) for result in results.values()) == ["{'reward': 1.0}", "{'reward': 2.0}"]
    assert len({result.sandbox["name"] for result in results.values()}) == 1


@pytest.mark.local
async def test_a_workspace_that_is_too_large_to_travel_is_said_to_be(module_jobs: Path, tmp_path: Path) -> None:
    provider = get_provider("local")
    spec = SandboxSpec(name="large", image=ImageRef(reference="host"), workdir="/work", network_mode="no-network")
    sandbox = await provider.start(spec, host_id="", queue="")
    try:
        # Its size is what counts: a file without content would travel as that many bytes.
        await sandbox.exec(["truncate", "-s", "3M", "/work/large"])
        [note] = await pack_for_room(sandbox, [], tmp_path, limit_bytes=1 << 20)
        with pytest.raises(VerifierError, match="larger than 1048576 bytes") as caught:
            await unpack_for_room(sandbox, tmp_path)
    finally:
        await provider.remove("large")
        await close_providers("")
    assert note in caught.value.message
    assert caught.value.key == "verifier.sandbox_mode" and "keep the workspace small" in str(caught.value.remedy)


@pytest.mark.docker
@pytest.mark.parametrize("name", ["planted", *(pytest.param(name, marks=pytest.mark.long) for name in MORE)])
def test_on_docker_it_is_the_same(docker_results: Results, name: str) -> None:
    assert_rewarded(docker_results[name], 0.0 if name == "planted" else 1.0)
