"""A world that does not come up is a typed error in the result, with what its author needs to mend it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import docker
import pytest
from support.running import run_tasks
from support.task_writer import BASE_IMAGE, write_task

from benchflow.contracts.rollout import RolloutResult

pytestmark = pytest.mark.docker

ON_BASE = f'[environment]\ndocker_image = "{BASE_IMAGE}"\n'


@pytest.fixture(scope="module")
def results(module_jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RolloutResult]:
    root = tmp_path_factory.mktemp("tasks")
    sick = '[environment.healthcheck]\ncommand = "echo port closed; exit 1"\ninterval_sec = 0.05\nretries = 2\n'
    slow = '[environment.healthcheck]\ncommand = "sleep 60"\ninterval_sec = 0.05\ntimeout_sec = 0.3\nretries = 1\n'

    def setup(command: str, more: str = "") -> str:
        return f'{ON_BASE}[[environment.setup_commands]]\ncommand = "{command}"\n{more}'

    tasks = [
        write_task(root, "sick", config=ON_BASE + sick),
        write_task(root, "slow", config=ON_BASE + slow),
        write_task(root, "setup-fails", config=setup("echo cannot do it >&2; exit 3")),
        write_task(root, "setup-hangs", config=setup("sleep 60", "timeout_sec = 0.5\n")),
        write_task(root, "build-fails", dockerfile=f"FROM {BASE_IMAGE}\nRUN echo about to break && exit 9\n"),
        write_task(
            root, "build-hangs", dockerfile=f"FROM {BASE_IMAGE}\nRUN sleep 60\n", environment="build_timeout_sec = 1"
        ),
        write_task(root, "no-image", config='[environment]\ndocker_image = "benchflow.invalid/absent:1"\n'),
        write_task(root, "no-user", config='[verifier]\nuser = "stranger"\n'),
        write_task(
            root, "ends-at-once", dockerfile=f'FROM {BASE_IMAGE}\nENTRYPOINT ["/bin/sh", "-c", "echo dying; exit 5"]\n'
        ),
    ]
    return run_tasks(tasks, module_jobs, job_name="failing", concurrency=5, retry={"max_retries": 0})


@pytest.mark.parametrize(
    ("name", "error", "category", "phase", "key", "says"),
    [
        ("sick", "ReadinessError", "readiness", "readiness", "healthcheck", "exit status 1 after 2 retries"),
        ("slow", "ReadinessError", "readiness", "readiness", "healthcheck", "timed out"),
        ("setup-fails", "SetupCommandError", "sandbox_setup", "provision", "setup_commands[0]", "exit status 3"),
        ("setup-hangs", "SetupCommandError", "sandbox_setup", "provision", "setup_commands[0]", "longer than 0.5 s"),
        ("build-fails", "ImageBuildError", "image_build", "provision", None, "9"),
        ("build-hangs", "ImageBuildError", "image_build", "provision", None, "1 s"),
        ("no-image", "ImagePullError", "image_pull", "provision", None, "benchflow.invalid/absent:1"),
        ("ends-at-once", "SandboxStartError", "sandbox", "provision", None, "exit status 5"),
    ],
)  # fmt: skip
def test_a_world_that_does_not_come_up_says_why(
    results: dict[str, RolloutResult], name: str, error: str, category: str, phase: str, key: str | None, says: str
) -> None:
    result = results[name]
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.category, result.error.phase) == (error, category, phase)
    assert says in result.error.message
    assert result.error.remedy
    if key:
        assert result.error.key == key


def test_the_verifiers_user_must_exist(results: dict[str, RolloutResult]) -> None:
    result = results["no-user"]
    assert (result.status, result.rewards) == ("errored", None)
    failure = result.verifier_error or result.error
    assert failure is not None and "stranger" in failure.message + str(failure.log_tail)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("sick", "port closed"),
        ("setup-fails", "cannot do it"),
        ("build-fails", "about to break"),
        ("ends-at-once", "dying"),
    ],
)
def test_the_end_of_the_log_is_in_the_error(results: dict[str, RolloutResult], name: str, line: str) -> None:
    error = results[name].error
    assert error is not None and line in str(error.log_tail)


def test_the_whole_build_log_is_among_the_results(results: dict[str, RolloutResult]) -> None:
    log = Path(str(results["build-fails"].directory)) / "build.log"
    assert "about to break" in log.read_text()


def test_nothing_is_left_of_a_world_that_failed(results: dict[str, RolloutResult]) -> None:
    client = docker.from_env()
    left = client.containers.list(all=True, filters={"label": "benchflow.job=failing"})
    client.close()
    assert left == []
    assert len(results) == 9


def test_an_account_that_takes_too_long_to_prepare_is_an_error(module_jobs: Path, tmp_path: Path) -> None:
    dockerfile = dedent(f"""\
        FROM {BASE_IMAGE}
        RUN mkdir /app && printf '#!/bin/sh\\nsleep 600\\n' > /usr/local/bin/find && chmod +x /usr/local/bin/find
        """)
    task = write_task(tmp_path, "slow-account", dockerfile=dockerfile)
    # The same holds for the sandbox's start before, which a busy machine must manage.
    for limit in (8, 60):
        name = f"slow-account-{limit}"
        options = {"agents": ["nop"], "sandbox_setup_timeout": limit, "retry": {"max_retries": 0}}
        result = run_tasks([task], module_jobs, job_name=name, **options)["slow-account"]
        assert result.error is not None
        if result.error.phase == "connect":
            break
    error = result.error
    assert (error.type, error.phase, error.key) == ("SandboxSetupTimeoutError", "connect", "sandbox_setup_timeout")
    assert result.rewards is None
