"""What a task.md means: frontmatter, body, prompt files, roles and scenes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.complete_tasks import COMPLETE_BODY, COMPLETE_FRONTMATTER

from benchflow.contracts.reward import AggregatePolicy, RewardFuncSpec, RewardTable
from benchflow.contracts.sandbox_config import SandboxConfig, SetupCommand
from benchflow.contracts.task import (
    AgentConfig,
    ArtifactSpec,
    Author,
    OracleConfig,
    RoleSpec,
    SceneSpec,
    TaskInfo,
    TurnSpec,
    UserSpec,
)
from benchflow.contracts.verifier import VerifierConfig
from benchflow.tasks import load_task, read_task

Builder = Callable[..., Path]


def test_every_part_of_a_complete_task_md_arrives(native: Builder) -> None:
    reading = read_task(native(COMPLETE_FRONTMATTER, COMPLETE_BODY))
    assert reading.problems == []
    assert reading.task is not None
    task = reading.task
    assert (task.layout, task.config_file, task.schema_version) == ("native", "task.md", "1.3")
    assert task.info == TaskInfo(
        name="org/complete",
        description="All of it.",
        version="1.10",
        authors=[Author(name="Ada")],
        keywords=["all"],
    )
    assert task.metadata == {"made": "2026-01-31", "level": 3, "note": None}
    assert task.agent == AgentConfig(timeout_sec=30, user=1000, prompt_prefix="Be brief.")
    assert task.verifier == VerifierConfig(
        timeout_sec=10,
        reward_range=(0, 5),
        sandbox_mode="separate",
        sandbox=SandboxConfig(docker_image="grader:1"),
    )
    assert task.sandbox == SandboxConfig(
        docker_image="image:1",
        cpus=2,
        memory_mb=1024,
        network_mode="no-network",
        env={"PORT": "0755", "RATIO": "1.10", "ON": "yes", "NAME": "${NAME:-x}", "DAY": "2026-01-31"},
        setup_commands=[SetupCommand(command="make data")],
    )
    assert task.oracle == OracleConfig(env={"KEY": "value"}, timeout_sec=5)
    assert task.artifacts == [
        ArtifactSpec(source="/app/out.txt"),
        ArtifactSpec(source="/app/logs", destination="logs"),
    ]
    row = RewardFuncSpec(type="forbidden-tools", name="forbidden-tools", weight=2, options={"tools": ["rm"]})
    assert task.reward == RewardTable(funcs=[row], aggregate=AggregatePolicy(weights={"action": 1}))
    assert task.roles == {
        "coder": RoleSpec(
            agent="claude",
            model="a-model",
            reasoning_effort="high",
            env={"A": "1"},
            timeout_sec=60,
            idle_timeout_sec=5,
            skills_dir="skills",
        ),
        "reviewer": RoleSpec(agent="codex"),
    }
    assert task.scenes == [
        SceneSpec(
            name="scene-1",
            roles=["coder", "reviewer"],
            turns=[TurnSpec(role="coder"), TurnSpec(role="reviewer", prompt="Look at it.")],
        ),
        SceneSpec(name="finish", roles=["coder"], turns=[TurnSpec(role="coder")], skills_dir="skills"),
    ]
    assert task.user == UserSpec(
        model="scripted",
        stop_rule="satisfied-or-5-rounds",
        private_facts={"budget": "500"},
        persona="A hurried manager.",
    )
    assert task.instruction == "Build it.\n\n```md\n## role:coder\n```\n\n## Details\n\nMore."
    assert task.role_prompts == {"coder": "You write code."}
    assert task.scene_prompts == {"finish": "Finish it."}
    assert task.extension["environment"] == {"manifest": "../env.toml"}
    assert (task.verifier_dir, task.oracle_dir) == ("verifier", "oracle")


def test_a_body_without_reserved_headings_is_the_instruction(native: Builder) -> None:
    body = "# Title\n\n## Prompting\n\nText.\n"
    assert load_task(native("", body)).instruction == body.strip()


def test_an_empty_frontmatter_is_enough(native: Builder) -> None:
    assert read_task(native("")).problems == []


def test_keys_without_a_value_count_as_not_set(native: Builder) -> None:
    task = load_task(native("agent:\nsandbox:\n  workdir:\n"))
    assert task.agent == AgentConfig()
    assert task.sandbox.workdir is None


def test_shorthands_stand_for_their_long_forms(native: Builder) -> None:
    task = load_task(
        native(
            "name: hello\nimage: x:1\nverifier: checks/\noracle: answers/\nsandbox: {cpus: 2}\n",
            files={"checks/test.sh": "#!/bin/sh\n", "answers/solve.sh": "#!/bin/sh\n"},
        )
    )
    assert task.info.name == "benchflow/hello"
    assert task.sandbox == SandboxConfig(docker_image="x:1", cpus=2)
    assert (task.verifier_dir, task.oracle_dir) == ("checks", "answers")


def test_a_name_with_an_organisation_keeps_it(native: Builder) -> None:
    assert load_task(native("name: org/hello\n")).info.name == "org/hello"


def test_the_long_form_of_the_directory_shorthands_is_understood(native: Builder) -> None:
    root = native("benchflow: {verifier: {path: checks}}\n", files={"checks/test.sh": "#!/bin/sh\n"})
    assert load_task(root).verifier_dir == "checks"


def test_prompt_files_override_sections(native: Builder) -> None:
    root = native(
        "agents: {roles: {coder: {agent: claude}}}\nscenes: [{name: one}]\n",
        "Base.\n\n## role:coder\n\nOld.\n",
        {
            "prompts/role.coder.md": "New.\n",
            "prompts/scene.one.md": "Scene.\n",
            "prompts/user-persona.md": "Someone.\n",
        },
    )
    task = load_task(root)
    assert task.role_prompts == {"coder": "New."}
    assert task.scene_prompts == {"one": "Scene."}
    assert task.user == UserSpec(persona="Someone.")
    assert task.scenes == [SceneSpec(name="one", roles=["coder"], turns=[TurnSpec(role="coder")])]


def test_environment_is_understood_in_task_md_with_a_warning(native: Builder) -> None:
    reading = read_task(native("environment: {cpus: 3}\n"))
    assert reading.task is not None
    assert reading.task.sandbox.cpus == 3
    assert [(problem.severity, problem.key) for problem in reading.problems] == [("warning", "environment")]


def test_native_directories_win_even_when_they_are_empty(native: Builder) -> None:
    root = native(files={"verifier/test.sh": None, "verifier/": "", "tests/test.sh": "#!/bin/sh\n"})
    (root / "verifier" / "test.sh").unlink(missing_ok=True)
    errors = [problem for problem in read_task(root).problems if problem.severity == "error"]
    assert [problem.file for problem in errors] == [str(root / "verifier" / "test.sh")]


def test_each_part_is_chosen_on_its_own(native: Builder) -> None:
    root = native(files={"oracle/solve.sh": None, "solution/solve.sh": "#!/bin/sh\n"})
    task = load_task(root)
    assert (task.verifier_dir, task.oracle_dir) == ("verifier", "solution")


def test_a_task_md_wins_over_a_task_toml_and_says_so(native: Builder) -> None:
    root = native(files={"task.toml": "not toml at all", "instruction.md": "Other."})
    reading = read_task(root)
    assert reading.task is not None
    assert reading.task.instruction == "Do it."
    assert sorted(Path(problem.file).name for problem in reading.problems) == ["instruction.md", "task.toml"]


def test_foreign_keys_of_the_extension_namespace_are_kept_and_listed(native: Builder) -> None:
    reading = read_task(native("benchflow: {document_version: '0.6', theirs: {a: 1}}\n"))
    assert reading.task is not None
    assert reading.task.extension == {"document_version": "0.6", "theirs": {"a": 1}}
    assert [problem.key for problem in reading.problems] == [
        "benchflow.document_version",
        "benchflow.theirs",
    ]


@pytest.mark.parametrize("heading", ["## Prompt", "##  prompt", "## prompt ##"])
def test_headings_are_recognised_as_people_write_them(native: Builder, heading: str) -> None:
    assert load_task(native("", f"{heading}\n\nText.\n")).instruction == "Text."


def test_a_document_with_windows_line_ends_is_read(native: Builder) -> None:
    root = native()
    (root / "task.md").write_bytes(b"\xef\xbb\xbf---\r\nagent: {timeout_sec: 5}\r\n---\r\nDo it.\r\n")
    task = load_task(root)
    assert (task.agent.timeout_sec, task.instruction) == (5, "Do it.")
