"""Configurations in YAML files, as the Python API reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow._utils.yaml_loader import rollout_config_from_yaml
from benchflow.config_file import read_job_file
from benchflow.errors import ConfigError, UnsupportedFeatureError


def config_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "rollout.yaml"
    file.write_text(text)
    return file


def test_an_agent_and_a_model_make_a_scene(tmp_path: Path) -> None:
    config = rollout_config_from_yaml(config_file(tmp_path, "task_path: t\nagent: claude\nmodel: haiku\n"))
    (role,) = config.scenes[0].roles
    assert (role.agent, role.model) == ("claude", "haiku")


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = rollout_config_from_yaml(config_file(tmp_path, "task_path: t\njobs_dir: /abs\ncontext_root: ..\n"))
    assert config.task_path == tmp_path / "t"
    assert config.jobs_dir == Path("/abs")
    assert config.context_root == tmp_path / ".."
    values = read_job_file(config_file(tmp_path, "paths: [a, /b]\n"))
    assert values["paths"] == [tmp_path / "a", Path("/b")]


def test_scenes_are_read_with_their_turns_as_names_or_tables(tmp_path: Path) -> None:
    text = "task_path: t\nscenes: [{roles: [{name: a, agent: nop}], turns: [a, {role: a, prompt: again}]}]\n"
    turns = rollout_config_from_yaml(config_file(tmp_path, text)).scenes[0].turns
    assert [(turn.role, turn.prompt) for turn in turns] == [("a", None), ("a", "again")]


def test_the_sandbox_has_two_names(tmp_path: Path) -> None:
    assert rollout_config_from_yaml(config_file(tmp_path, "task_path: t\nsandbox: noop\n")).environment == "noop"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("agent: nop", "task_path", "is missing"),
        ("task_path: t\ntaskpath: u", "taskpath", "is not a known key"),
        ("task_path: t\nmodel: m", "model", "belongs to no agent"),
        ("task_path: t\nagent: nop\nscenes: []", "agent", "says the same as `scenes`"),
        ("task_path: t\nscenes: [{rolls: []}]", "scenes[0].rolls", "is not a known key"),
        ("task_path: t\ndeadline_sec: -1", "deadline_sec", "greater than 0"),
    ],
)
def test_what_is_wrong_names_file_and_key(tmp_path: Path, text: str, key: str, message: str) -> None:
    file = config_file(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        rollout_config_from_yaml(file)
    assert (caught.value.file, caught.value.key) == (str(file), key)
    assert caught.value.remedy


def test_what_is_valid_but_not_carried_out_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        rollout_config_from_yaml(config_file(tmp_path, "task_path: t\nmax_user_rounds: 3\n"))
    assert caught.value.key == "max_user_rounds"


def test_a_list_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        rollout_config_from_yaml(config_file(tmp_path, "- a\n"))
