"""A compose file with nothing but the main container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.contracts.sandbox import Capabilities
from benchflow.errors import UnsupportedFeatureError
from benchflow.tasks import check, load_task, require_supported
from benchflow.tasks.migrate import migrate_task

Builder = Callable[..., Path]

EVERYTHING = Capabilities(
    provider="able", cpu_limit=True, memory_limit=True, storage_limit=True, lockdown="clean_room", dockerfile=True
)

FILE = "environment/docker-compose.yaml"

TEMPLATE = """
version: "3.8"
services:
  main:
    build:
      context: ${CONTEXT_DIR}
      dockerfile: Dockerfile
    image: ${MAIN_IMAGE_NAME}
    pull_policy: build
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - A=of compose
      - B=1=2
    working_dir: /srv
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - ${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}
    deploy:
      resources:
        limits:
          cpus: ${CPUS}
          memory: ${MEMORY}
"""


def test_what_says_again_what_is_done_anyway_is_taken_with_its_variables_and_its_workspace(split: Builder) -> None:
    root = split("[environment]\nenv = { B = 'of the task' }\n", {FILE: TEMPLATE})
    for _ in range(2):
        task = load_task(root)
        assert require_supported(task, EVERYTHING) == []
        assert (task.sandbox.env, task.sandbox.workdir) == ({"A": "of compose", "B": "of the task"}, "/srv")
        if task.layout == "split":
            migrate_task(root)


def test_the_workspace_of_the_task_wins(split: Builder) -> None:
    root = split("[environment]\nworkdir = '/own'\n", {FILE: "services: {main: {working_dir: /srv}}\n"})
    assert load_task(root).sandbox.workdir == "/own"


@pytest.mark.parametrize("text", ["", "services: {}\n", "services: {main: {}}\n", "services:\n  main:\n"])
def test_a_file_that_says_nothing_changes_nothing(split: Builder, text: str) -> None:
    task = load_task(split(files={FILE: text}))
    assert require_supported(task, EVERYTHING) == []
    assert task.sandbox == load_task(split(name="other")).sandbox


@pytest.mark.parametrize(
    ("main", "key"),
    [
        ("privileged: true", "privileged"),
        ("user: nobody", "user"),
        ("entrypoint: /start", "entrypoint"),
        ("command: /start", "command"),
        ("command: ['sh', '-c', 'serve & sleep infinity']", "command"),
        ("build: ../elsewhere", "build"),
        ("build: {context: ., target: stage}", "build"),
        ("environment: {A: $HOME}", "environment"),
        ("environment: {A: 0755}", "environment"),
        ("environment: [A]", "environment"),
        ("environment: {A: }", "environment"),
        ("working_dir: relative", "working_dir"),
        ("volumes: ['/:/host']", "volumes"),
        ("deploy: {resources: {limits: {cpus: '1'}}}", "deploy"),
        ("deploy: {replicas: 2}", "deploy"),
    ],
)
def test_any_other_key_is_refused_by_its_name(split: Builder, main: str, key: str) -> None:
    root = split(files={FILE: f"services:\n  main:\n    {main}\n"})
    with pytest.raises(UnsupportedFeatureError, match="a key of the compose file") as caught:
        require_supported(load_task(root), EVERYTHING)
    assert (caught.value.file, caught.value.key) == (f"split-task/{FILE}", f"services.main.{key}")
    assert [(problem.file, problem.key) for problem in check(root)] == [(str(root / FILE), f"services.main.{key}")]


@pytest.mark.parametrize(
    "text",
    ["services: {main: {}, other: {}}\n", "volumes: {}\n", "services: [main]\n", "services: {main: [1]}\n", "a: [\n"],
)
def test_other_containers_and_what_cannot_be_read_are_refused(split: Builder, text: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="containers beside the main one") as caught:
        require_supported(load_task(split(files={FILE: text})), EVERYTHING)
    assert caught.value.file == f"split-task/{FILE}"


@pytest.mark.parametrize("value", ["$HOME", "x${A}", "a$$b"])
def test_a_value_of_the_task_that_compose_would_interpolate_is_refused(split: Builder, value: str) -> None:
    root = split(f"[environment]\nenv = {{ A = '${{A:-1}}', B = '{value}' }}\n", {FILE: "services: {}\n"})
    with pytest.raises(UnsupportedFeatureError, match="interpolate") as caught:
        require_supported(load_task(root), EVERYTHING)
    assert (caught.value.file, caught.value.key) == ("split-task/task.toml", "environment.env.B")


def test_a_clean_room_does_not_have_what_the_file_adds(split: Builder) -> None:
    root = split("[verifier]\nenvironment_mode = 'separate'\n", {FILE: "services: {main: {environment: {A: b}}}\n"})
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(load_task(root), EVERYTHING)
    assert caught.value.key == "services.main.environment"


@pytest.mark.parametrize("main", ["image: other", "build: ."])
def test_beside_a_ready_image_no_other_may_be_meant(split: Builder, main: str) -> None:
    root = split("[environment]\ndocker_image = 'a'\n", {FILE: f"services: {{main: {{{main}}}}}\n"})
    with pytest.raises(UnsupportedFeatureError, match="a key of the compose file"):
        require_supported(load_task(root), EVERYTHING)
