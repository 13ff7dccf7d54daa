"""A world that does not come up is a typed error in the result, with what its author needs to mend it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import docker
import pytest
from support.system_job import Results, SystemTasks
from support.task_writer import BASE_IMAGE, write_task

pytestmark = pytest.mark.docker

ON_BASE = f'[environment]\ndocker_image = "{BASE_IMAGE}"\n'


def setup(command: str, more: str = "") -> str:
    return f'{ON_BASE}[[environment.setup_commands]]\ncommand = "{command}"\n{more}'


def system_tasks(root: Path) -> SystemTasks:
    sick = '[environment.healthcheck]\ncommand = "echo port closed; exit 1"\ninterval_sec = 0.05\nretries = 2\n'
    tasks = [
        write_task(root, "sick", config=ON_BASE + sick),
        write_task(root, "setup-fails", config=setup("echo cannot do it >&2; exit 3")),
        write_task(root, "build-fails", dockerfile=f"FROM {BASE_IMAGE}\nRUN echo about to break && exit 9\n"),
        write_task(root, "no-image", config='[environment]\ndocker_image = "benchflow.invalid/absent:1"\n'),
        write_task(root, "no-user", config='[verifier]\nuser = "stranger"\n'),
        write_task(
            root, "ends-at-once", dockerfile=f'FROM {BASE_IMAGE}\nENTRYPOINT ["/bin/sh", "-c", "echo dying; exit 5"]\n'
        ),
    ]
    slow_account = dedent(f"""\
        FROM {BASE_IMAGE}
        RUN mkdir /app && printf '#!/bin/sh\\nsleep 600\\n' > /usr/local/bin/find && chmod +x /usr/local/bin/find
        """)
    return {"docker": tasks, "late": [write_task(root, "slow-account", dockerfile=slow_account)]}


def long_system_tasks(root: Path) -> SystemTasks:
    """Write worlds that take too long: when that is, is the same for all providers."""
    slow = '[environment.healthcheck]\ncommand = "sleep 60"\ninterval_sec = 0.05\ntimeout_sec = 0.3\nretries = 1\n'
    hangs = f"FROM {BASE_IMAGE}\nRUN sleep 60\n"
    return {
        "docker": [
            write_task(root, "slow", config=ON_BASE + slow),
            write_task(root, "setup-hangs", config=setup("sleep 60", "timeout_sec = 0.5\n")),
            write_task(root, "build-hangs", dockerfile=hangs, environment="build_timeout_sec = 1"),
        ]
    }


@pytest.mark.parametrize(
    ("name", "error", "category", "phase", "key", "says"),
    [
        ("sick", "ReadinessError", "readiness", "readiness", "healthcheck", "exit status 1 after 2 retries"),
        pytest.param(
            *("slow", "ReadinessError", "readiness", "readiness", "healthcheck", "timed out"), marks=pytest.mark.long
        ),
        ("setup-fails", "SandboxSetupError", "sandbox_setup", "provision", "setup_commands[0]", "exit status 3"),
        pytest.param(
            *("setup-hangs", "SandboxSetupError", "sandbox_setup", "provision", "setup_commands[0]"),
            "longer than 0.5 s",
            marks=pytest.mark.long,
        ),
        ("build-fails", "ImageBuildError", "image_build", "provision", None, "9"),
        pytest.param(
            *("build-hangs", "ImageBuildError", "image_build", "provision", None, "1 s"), marks=pytest.mark.long
        ),
        ("no-image", "ImagePullError", "image_pull", "provision", None, "benchflow.invalid/absent:1"),
        ("ends-at-once", "SandboxStartError", "sandbox", "provision", None, "exit status 5"),
    ],
)  # fmt: skip
def test_a_world_that_does_not_come_up_says_why(
    docker_results: Results,
    name: str,
    error: str,
    category: str,
    phase: str,
    key: str | None,
    says: str,
) -> None:
    result = docker_results[name]
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.category, result.error.phase) == (error, category, phase)
    assert says in result.error.message
    assert result.error.remedy
    if key:
        assert result.error.key == key


def test_the_verifiers_user_must_exist(docker_results: Results) -> None:
    result = docker_results["no-user"]
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
def test_the_end_of_the_log_is_in_the_error(docker_results: Results, name: str, line: str) -> None:
    error = docker_results[name].error
    assert error is not None and line in str(error.log_tail)


def test_the_whole_build_log_is_among_the_results(docker_results: Results) -> None:
    log = Path(str(docker_results["build-fails"].directory)) / "build.log"
    assert "about to break" in log.read_text()


def test_nothing_is_left_of_a_world_that_failed(docker_results: Results) -> None:
    failed = [result for result in docker_results.values() if result.error is not None]
    assert {"sick", "setup-fails", "build-fails", "no-image", "ends-at-once"} <= {one.task_name for one in failed}
    client = docker.from_env()
    for result in failed:
        assert client.api.containers(all=True, filters={"label": f"benchflow.workflow={result.workflow_id}"}) == []
    client.close()


def test_an_account_that_takes_too_long_to_prepare_is_an_error(late_results: Results) -> None:
    result = late_results["slow-account"]
    assert result.error is not None and result.rewards is None
    error = result.error
    assert (error.type, error.phase, error.key) == ("SandboxSetupError", "connect", "sandbox_setup_timeout")
