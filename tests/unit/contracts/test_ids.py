"""Ids read as paths, are short enough, and are equal exactly when what they name is."""

from __future__ import annotations

import re

import pytest

from benchflow.contracts import ids
from benchflow.errors import ConfigError

LONG = "x" * 300


@pytest.mark.parametrize("task", ["t", LONG, "täsk/with spaces", "..", "a" * 79])
@pytest.mark.parametrize("agent", ["oracle", f"agent:{LONG}", "agent:org/model@2024"])
@pytest.mark.parametrize("repeat", [0, 9999])
def test_a_rollout_id_is_a_path_of_at_most_200_characters(task: str, agent: str, repeat: int) -> None:
    job = ids.job_id("j" * 80, "/some/jobs")
    rollout = ids.rollout_id(job, task, agent, repeat)
    assert len(rollout) <= ids.MAX_ID
    parts = rollout.removeprefix(f"{job}/r/").split("/")
    assert len(parts) == 3 and parts[2] == str(repeat)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", part) for part in parts)


def test_a_plain_rollout_id_says_what_it_names() -> None:
    job = ids.job_id("nightly", "/srv/jobs")
    assert re.fullmatch(r"job/nightly-[0-9a-f]{8}", job)
    assert ids.rollout_id(job, "fix-it", "oracle", 3) == f"{job}/r/fix-it/oracle/3"


def test_the_same_name_in_another_directory_is_another_job() -> None:
    assert ids.job_id("nightly", "/srv/a") != ids.job_id("nightly", "/srv/b")
    assert ids.job_id("nightly", "/srv/a") == ids.job_id("nightly", "/srv/a")


ALIKE = ["a b", "a-b", "a/b", "a:b", "a  b", "ä", "ö", "-a-b", "a-b-", LONG, LONG + "y", LONG + "z"]


def test_what_differs_only_in_odd_characters_or_at_the_end_keeps_apart() -> None:
    assert len({ids.rollout_id("job/x", task, "oracle", 0) for task in ALIKE}) == len(ALIKE)
    assert len({ids.rollout_id("job/x", "t", agent, 0) for agent in ALIKE}) == len(ALIKE)
    assert len({ids.rollout_name(task, "same") for task in ALIKE}) == len(ALIKE)
    assert len({ids.sandbox_name("s", task, "t", 0) for task in ALIKE}) == len(ALIKE)


def test_the_directories_of_a_large_job_are_all_different() -> None:
    rollouts = [ids.rollout_id("job/x-12345678", "task", "oracle", repeat) for repeat in range(10_000)]
    assert len({ids.rollout_name("task", rollout) for rollout in rollouts}) == 10_000


def test_a_sandbox_name_is_one_that_docker_takes() -> None:
    for task in ALIKE:
        assert re.fullmatch(r"bf-[a-z0-9][a-z0-9_.-]{0,60}", ids.sandbox_name("stack", "run", task, 12))
    assert ids.sandbox_name("a", "run", "t", 0) != ids.sandbox_name("b", "run", "t", 0)


@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "a/b", ".x", "-x", "x" * 81, "ä", "a\n"])
def test_a_job_name_that_is_no_file_name_is_refused_with_one_that_is(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ids.check_job_name(name)
    proposal = str(caught.value.remedy).rpartition(": ")[2].strip("'")
    assert ids.check_job_name(proposal) == proposal
