"""Verifiers in a clean room: what an agent left anywhere but in its work is not there, and its work arrives whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from running import run_tasks
from task_writer import BASE_IMAGE, write_step, write_task

from benchflow.contracts.rollout import RolloutResult
from benchflow.paths import RolloutPaths
from benchflow.rescoring import Request, rescore

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
    '[ "$(stat -c %u:%g:%a /app/bin/tool)" = 1234:4321:4751 ] && [ "$(readlink /app/bin/link)" = tool ]'
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


def tasks_of(root: Path) -> list[Path]:
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
        write_task(root, "fails", config=SEPARATE, solve="true\n", test="echo no reward here\n", **image),
        _of_two_steps(root),
        _with_its_own_dockerfile(root),
    ]
    return tasks


def _arrives(root: Path) -> Path:
    artifacts = '[{ source = "/srv/out", exclude = ["cache"] }, "/srv/collected", "/srv/never"]'
    collect = '[[verifier.collect]]\ncommand = "echo collected > /srv/collected"\n'
    config = f"artifacts = {artifacts}\n{SEPARATE}{collect}"
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
    test = says("[ -e /only-here ] && [ -e /app/answer ]")
    task = write_task(
        root, "own-dockerfile", config=SEPARATE, solve="echo 1 > answer\n", test=test, dockerfile=DOCKERFILE
    )
    (task / "tests" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nCOPY data /only-here\n")
    (task / "tests" / "data").write_text("x\n")
    return task


@pytest.fixture(scope="module")
def results(module_jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RolloutResult]:
    tasks = tasks_of(tmp_path_factory.mktemp("tasks"))
    return run_tasks(tasks, module_jobs, job_name="rooms", sandbox="local", concurrency=4)


def said(result: RolloutResult) -> str:
    logs = RolloutPaths(Path(str(result.directory))).verifier / "test-stdout.txt"
    return f"{result.error or result.verifier_error}\n{logs.read_text() if logs.exists() else ''}"


def assert_rewarded(result: RolloutResult, reward: float) -> None:
    assert result.rewards == {"reward": reward}, said(result)


@pytest.mark.local
class TestOnLocal:
    def test_nothing_that_was_planted_outside_of_the_workspace_is_there(
        self, results: dict[str, RolloutResult]
    ) -> None:
        assert_rewarded(results["planted"], 0.0)
        assert results["planted"].steps[0].verify is not None
        assert results["planted"].steps[0].verify.metadata["verified_in"] == "separate"

    def test_which_is_there_for_a_verifier_that_runs_where_the_agent_worked(
        self, results: dict[str, RolloutResult]
    ) -> None:
        assert_rewarded(results["planted-but-shared"], 1.0)

    @pytest.mark.parametrize("task", ["arrives", "gone", "set-up", "two-steps", "own-dockerfile"])
    def test_what_the_agent_made_arrives_and_nothing_else(self, results: dict[str, RolloutResult], task: str) -> None:
        assert_rewarded(results[task], 1.0)

    def test_a_verifier_that_fails_there_fails_as_anywhere(self, results: dict[str, RolloutResult]) -> None:
        failure = results["fails"].verifier_error
        assert failure is not None and failure.category == "reward_missing", failure
        assert "no reward here" in said(results["fails"])

    def test_nothing_is_kept_that_was_kept_for_the_room_alone(self, results: dict[str, RolloutResult]) -> None:
        for result in results.values():
            root = Path(str(result.directory))
            assert not [*root.rglob("workspace.tar"), *root.rglob("artifacts.tar")]


@pytest.mark.local
def test_a_job_may_have_every_task_verified_in_a_clean_room_and_again_when_it_is_rescored(
    module_jobs: Path, tmp_path: Path
) -> None:
    test = says("[ -e /app/answer ] && [ ! -e /etc/left ]")
    solve = "echo 1 > answer; echo 1 > /etc/left\n"
    tasks = [write_task(tmp_path, "wherever", solve=solve, test=test, dockerfile=DOCKERFILE), _arrives(tmp_path)]
    found = run_tasks(tasks, module_jobs, job_name="all-rooms", sandbox="local", verify_in="separate", keep="workspace")
    for result in found.values():
        assert_rewarded(result, 1.0)
    again = asyncio.run(rescore(module_jobs / "all-rooms", Request()))
    assert [(one.outcome, one.steps[0].verifier, one.warnings) for one in again.rollouts] == [
        ("unchanged", "ran", [])
    ] * 2


@pytest.mark.docker
def test_on_docker_it_is_the_same(module_jobs: Path, tmp_path: Path) -> None:
    tasks = [task for task in tasks_of(tmp_path) if task.name in ("planted", "arrives", "two-steps")]
    table = OWN_TABLE.replace("{image}", BASE_IMAGE)
    solve = "echo 42 > answer; echo 1 > /etc/agents\n"
    tasks.append(write_task(tmp_path, "own-table", config=table, solve=solve, test=OWN, dockerfile=DOCKERFILE))
    found = run_tasks(tasks, module_jobs, job_name="rooms-on-docker", sandbox="docker", concurrency=4)
    assert_rewarded(found.pop("planted"), 0.0)
    for result in found.values():
        assert_rewarded(result, 1.0)
