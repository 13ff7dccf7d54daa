"""What a task.toml and its companions mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.complete_tasks import COMPLETE_TOML

from benchflow.contracts.sandbox_config import Healthcheck, McpServer, SandboxConfig, SetupCommand
from benchflow.contracts.task import AgentConfig, ArtifactSpec, Author, OracleConfig, StepConfig, StepFiles, TaskInfo
from benchflow.contracts.verifier import CollectCommand, HardeningConfig, JudgeConfig, MemoryConfig, VerifierConfig
from benchflow.tasks import compose_prompt, load_task, read_task
from benchflow.tasks.support import find_unsupported_features

Builder = Callable[..., Path]


def test_every_field_of_a_complete_task_toml_arrives(split: Builder) -> None:
    task = load_task(split(COMPLETE_TOML))

    assert (task.name, task.layout, task.config_file, task.schema_version) == (
        "split-task",
        "split",
        "task.toml",
        "1.4",
    )
    assert task.info == TaskInfo(
        name="org/complete",
        description="All of it.",
        version="2.1.0",
        authors=[Author(name="Ada", email="ada@example.org"), Author(name="Grace")],
        keywords=["all", "fields"],
    )
    assert task.metadata == {
        "difficulty": "hard",
        "since": "2026-01-31",
        "nested": {"deep": [1, 2.5, True]},
    }
    assert task.agent == AgentConfig(
        timeout_sec=900,
        user="agent",
        network_mode="allowlist",
        allowed_hosts=["example.org"],
        prompt_prefix="Be brief.",
    )
    assert task.verifier == VerifierConfig(
        timeout_sec=120.5,
        env={"TOKEN": "${TOKEN:-none}"},
        reward_range=(-1, 2),
        user=0,
        network_mode="public",
        sandbox_mode="separate",
        sandbox=SandboxConfig(docker_image="grader:1", cpus=2),
        collect=[CollectCommand(command="dump", timeout_sec=5, user="root")],
        pytest_plugins=["pytest_asyncio"],
        hardening=HardeningConfig(cleanup_conftests=False),
        judge=JudgeConfig(model="judge-1", input_dir="/app/out", input_type="text", context="For context."),
        memory=MemoryConfig(expected_skills=["git"]),
    )
    assert task.sandbox == SandboxConfig(
        docker_image="image:1",
        build_timeout_sec=1200,
        os="linux",
        cpus=1.5,
        memory_mb=4096,
        storage_mb=20480,
        gpus=1,
        gpu_types=["H100"],
        env={"PLAIN": "x", "PORT": "8080", "DEBUG": "true", "HOST": "${HOST_NAME}"},
        workdir="/work",
        network_mode="allowlist",
        allowed_hosts=["pypi.example"],
        mcp_servers=[
            McpServer(
                name="tools",
                transport="streamable-http",
                url="http://localhost/mcp",
                headers={"Authorization": "Bearer x"},
            ),
            McpServer(name="local", transport="stdio", command="serve", args=["--stdio"], env={"A": "b"}),
        ],
        skills_dir="/skills",
        healthcheck=Healthcheck(
            command="curl -f localhost",
            interval_sec=1,
            timeout_sec=2,
            start_period_sec=3,
            start_interval_sec=0.5,
            retries=7,
        ),
        setup_commands=[SetupCommand(command="make data", timeout_sec=30, cwd="/work", user="root", env={"SEED": "1"})],
    )
    assert task.oracle == OracleConfig(env={"KEY": "value"}, timeout_sec=60)
    assert task.source == "a-benchmark"
    assert task.artifacts == [
        ArtifactSpec(source="/app/out.txt"),
        ArtifactSpec(source="/app/logs", destination="logs", exclude=["*.tmp"]),
    ]
    assert task.multi_step_reward_strategy == "final"
    assert task.compat_extra == {}


def test_an_empty_task_toml_means_the_documented_defaults(split: Builder) -> None:
    reading = read_task(split(""))
    assert reading.problems == []
    assert reading.task is not None
    task = reading.task
    assert task.sandbox == SandboxConfig()
    assert task.agent.timeout_sec is None
    assert task.verifier.timeout_sec == 600
    assert (task.verifier_dir, task.oracle_dir, task.environment_dir) == ("tests", "solution", "environment")
    assert task.dockerfile == "environment/Dockerfile"
    assert task.compose_file is None
    assert task.instruction == "Do it."


@pytest.mark.parametrize(
    ("toml", "field", "value"),
    [
        ('[environment]\nmemory = "2G"', "memory_mb", 2048),
        ('[environment]\nmemory = "512M"', "memory_mb", 512),
        ('[environment]\nmemory = "1.5GiB"', "memory_mb", 1536),
        ('[environment]\nstorage = "10G"', "storage_mb", 10240),
        ('[environment]\nstorage = "10G"\nstorage_mb = 10240', "storage_mb", 10240),
        ("[environment]\nallow_internet = false", "network_mode", "no-network"),
        ("[environment]\nallow_internet = true", "network_mode", "public"),
        ('[environment]\nallow_internet = true\nnetwork_mode = "public"', "network_mode", "public"),
        ('[environment]\nallow_internet = true\nnetwork_mode = "no-network"', "network_mode", "no-network"),
    ],
)
def test_deprecated_keys_are_converted_with_a_warning(split: Builder, toml: str, field: str, value: Any) -> None:
    reading = read_task(split(toml))
    assert reading.task is not None
    assert getattr(reading.task.sandbox, field) == value
    assert any("deprecated" in problem.message for problem in reading.problems)
    assert {problem.severity for problem in reading.problems} == {"warning"}


@pytest.mark.parametrize(
    ("toml", "attribute"),
    [
        ('version = "1.0"', "schema_version"),
        ("version = 1.0", "schema_version"),
        ('schema_version = "1.0"', "schema_version"),
    ],
)
def test_the_version_may_be_spelled_either_way(split: Builder, toml: str, attribute: str) -> None:
    assert getattr(load_task(split(toml)), attribute) == "1.0"


def test_image_is_another_name_for_docker_image(split: Builder) -> None:
    task = load_task(split('[environment]\nimage = "x:1"', {"environment/Dockerfile": None, "environment/": ""}))
    assert task.sandbox.docker_image == "x:1"
    assert task.dockerfile is None


def test_inline_solution_variables_are_its_environment(split: Builder) -> None:
    task = load_task(split('[solution]\nTOKEN = "${TOKEN}"\ntimeout_sec = 5'))
    assert task.oracle == OracleConfig(env={"TOKEN": "${TOKEN}"}, timeout_sec=5)


def test_a_newer_schema_version_is_a_warning_only(split: Builder) -> None:
    reading = read_task(split('version = "2.0"'))
    assert reading.task is not None
    assert [problem.key for problem in reading.problems] == ["version"]


def test_unknown_keys_are_kept_listed_and_not_used(split: Builder) -> None:
    reading = read_task(split("flavour = 1\n[environment]\ncpu = 2\n[environment.extra]\nday = 2026-01-01"))
    assert reading.task is not None
    assert reading.task.compat_extra == {
        "flavour": 1,
        "sandbox.cpu": 2,
        "sandbox.extra": {"day": "2026-01-01"},
    }
    warnings = {problem.key: problem for problem in reading.problems}
    assert set(warnings) == {"flavour", "environment.cpu", "environment.extra"}
    assert warnings["environment.cpu"].suggestion == "did you mean `cpus`?"
    assert {problem.severity for problem in reading.problems} == {"warning"}


def test_windows_line_ends_and_a_byte_order_mark_are_tolerated(split: Builder) -> None:
    toml = b'\xef\xbb\xbfversion = "1.2"\r\n[agent]\r\ntimeout_sec = 5\r\n'
    task = load_task(split(toml, {"instruction.md": b"\xef\xbb\xbfOne.\r\nTwo.\r\n"}))
    assert task.agent.timeout_sec == 5
    assert task.instruction == "One.\nTwo."


def test_a_prebuilt_image_and_a_dockerfile_may_stand_side_by_side(split: Builder) -> None:
    task = load_task(split('[environment]\ndocker_image = "x:1"'))
    assert (task.sandbox.docker_image, task.dockerfile) == ("x:1", "environment/Dockerfile")


def test_a_context_root_is_resolved_from_the_task_and_the_callers_wins(split: Builder, tmp_path: Path) -> None:
    root = split('context_root = ".."')
    assert load_task(root).context_root == str(tmp_path.resolve())
    other = tmp_path / "other"
    other.mkdir()
    assert load_task(root, context_root=other).context_root == str(other.resolve())


def test_a_task_may_be_given_another_name_than_its_directorys(split: Builder) -> None:
    assert load_task(split(), name="real-name").name == "real-name"


STEPS = """
[agent]
timeout_sec = 100
user = "agent"
prompt_prefix = "Hello."
[verifier]
timeout_sec = 50
env = { A = "1" }
[[steps]]
name = "first"
min_reward = 0.5
artifacts = ["/a"]
[steps.agent]
timeout_sec = 10
[steps.healthcheck]
command = "true"
interval_sec = 0
[[steps]]
name = "second"
min_reward = { speed = 0.1 }
[steps.verifier]
timeout_sec = 5
env = { B = "2" }
"""


def test_steps_take_what_they_leave_unset_from_the_task(split: Builder) -> None:
    root = split(
        STEPS,
        {
            "instruction.md": None,
            "steps/first/instruction.md": "One.",
            "steps/first/tests/test.sh": "#!/bin/sh\n",
            "steps/first/solution/solve.sh": "#!/bin/sh\n",
            "steps/first/workdir/setup.sh": "#!/bin/sh\n",
            "steps/second/instruction.md": "Two.",
        },
    )
    reading = read_task(root)
    assert reading.problems == []
    assert reading.task is not None
    task = reading.task
    agent = AgentConfig(timeout_sec=100, user="agent", prompt_prefix="Hello.")
    assert task.steps == [
        StepConfig(
            name="first",
            agent=agent.model_copy(update={"timeout_sec": 10}),
            verifier=VerifierConfig(timeout_sec=50, env={"A": "1"}),
            min_reward=0.5,
            healthcheck=Healthcheck(command="true", interval_sec=0),
            artifacts=[ArtifactSpec(source="/a")],
        ),
        StepConfig(
            name="second",
            agent=agent,
            verifier=VerifierConfig(timeout_sec=5, env={"A": "1", "B": "2"}),
            min_reward={"speed": 0.1},
        ),
    ]
    assert task.step_files == {
        "first": StepFiles(
            instruction="One.",
            verifier_dir="steps/first/tests",
            oracle_dir="steps/first/solution",
            workdir_dir="steps/first/workdir",
        ),
        "second": StepFiles(instruction="Two."),
    }
    assert compose_prompt(task, "second") == "Hello.\n\nTwo."


@pytest.mark.parametrize("name", ["ünï step", "check (1)", "a'b\"c$", "-x", "第一步", "a" * 200])
def test_a_step_is_called_by_any_text_that_a_directory_can_be_called_by(split: Builder, name: str) -> None:
    steps = f"[[steps]]\nname = {json.dumps(name, ensure_ascii=False)}"
    reading = read_task(split(steps, {f"steps/{name}/instruction.md": "Go."}))
    assert reading.problems == [] and reading.task is not None
    assert reading.task.step_files[name].instruction == "Go."


def test_variables_and_collecting_commands_of_a_step_are_added_to_those_of_the_task(split: Builder) -> None:
    config = """
[verifier]
env = { A = "task", B = "${HOST_B:-}" }
collect = [{ command = "first" }]
[[steps]]
name = "one"
verifier = { env = { A = "step" }, collect = [{ command = "then" }] }
[[steps]]
name = "two"
verifier = { env = {}, collect = [] }
"""
    files = {f"steps/{name}/instruction.md": "Go." for name in ("one", "two")}
    one, two = (step.verifier for step in load_task(split(config, files)).steps)
    assert one.env == {"A": "step", "B": "${HOST_B:-}"}
    assert [command.command for command in one.collect] == ["first", "then"]
    assert two.env == {"A": "task", "B": "${HOST_B:-}"}
    assert [command.command for command in two.collect] == ["first"]


def test_a_step_that_is_verified_beside_the_agent_does_without_the_sandbox_of_the_tasks_verifier(
    split: Builder,
) -> None:
    steps = "[[steps]]\nname = 'one'\nverifier = { environment_mode = 'shared' }\n[[steps]]\nname = 'two'"
    files = {f"steps/{name}/instruction.md": "Go." for name in ("one", "two")}
    task = load_task(split(f"[verifier.environment]\nmemory_mb = 512\n{steps}", files))
    one, two = (step.verifier for step in task.steps)
    assert (one.sandbox_mode, one.sandbox) == ("shared", None)
    assert two.sandbox_mode == "separate" and two.sandbox is not None and two.sandbox.memory_mb == 512
    assert find_unsupported_features(task) == []


def test_a_step_without_an_oracle_of_its_own_has_the_one_of_the_task(split: Builder) -> None:
    steps = "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'"
    files = {f"steps/{name}/instruction.md": "Go." for name in ("one", "two")}
    files["steps/two/solution/solve.sh"] = "#!/bin/sh\n"
    task = load_task(split(steps, files))
    assert [task.oracle_dir_of(name) for name in ("one", "two", None)] == ["solution", "steps/two/solution", "solution"]
    # A directory of its own counts even if it holds no script: its author replaced the other.
    own = load_task(split(steps, files | {"steps/one/solution/": ""}, name="own"))
    assert own.oracle_dir_of("one") == "steps/one/solution"


def test_the_prompt_is_the_instruction_below_the_prefix(split: Builder) -> None:
    assert compose_prompt(load_task(split())) == "Do it."
    assert compose_prompt(load_task(split('[agent]\nprompt_prefix = "First."', name="b"))) == "First.\n\nDo it."


def test_a_task_survives_being_sent_as_json(split: Builder) -> None:
    task = load_task(split(COMPLETE_TOML))
    assert type(task).model_validate_json(task.model_dump_json()) == task
