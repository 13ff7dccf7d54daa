"""The programs that make the databases of the office world."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.office_services import SERVICES, WORLDS, run, write_worlds


def test_an_unknown_task_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    made = run("office-mail", "--db", str(tmp_path / "mail.db"), "seed", "--world", str(WORLDS), "--task", "fly")
    assert made.returncode == 1
    assert "there is no task 'fly'" in made.stderr and min(path.stem for path in WORLDS.glob("*.toml")) in made.stderr


def test_a_mistake_in_a_world_is_named(tmp_path: Path) -> None:
    worlds = write_worlds(tmp_path / "worlds", "trial", "posts = []")
    made = run("office-seed", "trial", "--world", str(worlds), "--data", str(tmp_path / "data"))
    assert made.returncode == 1
    assert "it may have people, mail" in made.stderr


def test_databases_are_overwritten_only_by_force(tmp_path: Path) -> None:
    worlds = write_worlds(tmp_path / "worlds", "plain")
    one = ("--db", str(tmp_path / "mail.db"), "seed", "--world", str(worlds), "--task", "plain")
    assert run("office-mail", *one).returncode == 0
    again = run("office-mail", *one)
    assert again.returncode == 1 and "--force overwrites it" in again.stderr
    assert run("office-mail", *one, "--force").returncode == 0
    everything = ("plain", "--world", str(worlds), "--data", str(tmp_path))
    refused = run("office-seed", *everything)
    assert refused.returncode == 1 and not (tmp_path / "chat.db").exists()
    assert run("office-seed", *everything, "--force").returncode == 0
    assert {path.stem for path in tmp_path.glob("*.db")} == set(SERVICES)


@pytest.mark.parametrize("arguments", [[], ["one", "two"], ["one", "--data"], ["one", "--colour", "red"]])
def test_office_seed_explains_itself(arguments: list[str]) -> None:
    answer = run("office-seed", *arguments)
    assert answer.returncode == 2
    assert "office-seed" in answer.stdout + answer.stderr
