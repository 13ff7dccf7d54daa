"""The package of attacks is sound, and the docs tell of it what its metadata says."""

from __future__ import annotations

import os
import runpy
import tomllib

import pytest
from support.attack_package import AGENTS, ALL, ATTACKS, ELSEWHERE, HONEST, PACKAGE, ROOT

from benchflow.contracts.verifier import HardeningConfig
from benchflow.tasks import check

SHARED_LAYER = (ROOT / "benchmarks/quickstart/tasks/ttl-cache/environment/Dockerfile").read_text().split("RUN ")[1]
MECHANISMS = {
    *("files", "links", "processes", "tools", "loaders", "git", "node", "make", "language runtimes", "NSS/PAM"),
    *("locale", "databases", "archives", "ACP", "gateway"),
}
ONLY_ROOT = {"tools", "NSS/PAM", "locale"}
"""Of these only root can change what a verifier meets."""

TABLE = runpy.run_path(str(ROOT / "tools" / "attack_matrix.py"))


def test_nothing_in_it_is_worth_a_remark() -> None:
    assert check(PACKAGE, strict=True) == []


def test_there_are_enough_attacks_of_many_families_and_honest_solutions() -> None:
    assert len(ATTACKS) >= 125
    assert len({ALL[name].task.metadata["family"] for name in ATTACKS}) >= 14
    assert len(HONEST) >= 3


def test_every_class_of_mechanism_is_attacked_by_root_and_where_it_can_be_without() -> None:
    attacks = [ALL[name].task.metadata for name in ATTACKS if "mechanism" in ALL[name].task.metadata]
    assert {one["mechanism"] for one in attacks} == MECHANISMS
    assert {one["mechanism"] for one in attacks if not one["needs_root"]} == MECHANISMS - ONLY_ROOT
    assert all(one.get("variants") == (None if one["needs_root"] else ["root", "unprivileged"]) for one in attacks)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_says_what_stops_it_and_who_it_has_to_be(name: str) -> None:
    attack = ALL[name]
    assert set(attack.stopped_by) <= {*HardeningConfig.model_fields, *ELSEWHERE}
    assert attack.task.metadata["undefended"] == 1.0 or attack.stopped_by == ["engine"]
    assert (attack.task.agent.user == "root") == attack.task.metadata["needs_root"]


@pytest.mark.parametrize("name", ALL)
def test_the_attacker_is_in_the_image_and_the_oracle_is_the_attacker(name: str) -> None:
    directory = ALL[name].directory
    build = (directory / "environment" / "Dockerfile").read_text()
    assert build.split("RUN ")[1].startswith(SHARED_LAYER.split("WORKDIR")[0].rstrip())
    assert build.endswith("COPY attack.sh /attack.sh\n")
    assert (directory / "solution" / "solve.sh").read_text() == "#!/bin/sh\nexec sh /attack.sh\n"
    assert all(os.access(directory / script, os.X_OK) for script in ("solution/solve.sh", "tests/test.sh"))


def test_the_agents_differ_in_who_they_are() -> None:
    first, second = (tomllib.loads((AGENTS / f"{name}.toml").read_text()) for name in ("attacker", "attacker-root"))
    assert first["launch"] == second["launch"]
    assert (first["user"], second["user"]) == ("agent", "root")


def test_the_tables_in_the_docs_say_what_the_metadata_says() -> None:
    assert TABLE["main"]("--check") == 0


@pytest.mark.parametrize("mode", TABLE["all_modes"](), ids="-".join)
def test_no_attack_that_has_a_defence_earned_anything_when_the_docs_were_made(mode: tuple[str, str, str]) -> None:
    label, (_, place, agent) = TABLE["label_of"](*mode), mode
    column = TABLE["columns_of"]((ROOT / "docs" / "hardening.md").read_text())[label]
    # The agent that is always root is not needed for what any agent carries out as root.
    names = [name for name in ATTACKS if agent != TABLE["AS_ROOT"] or not ALL[name].task.metadata["needs_root"]]
    wins = [name for name in names if column[f"`{name}`"].partition(" ")[0] not in ("0.0", "error")]
    assert wins == [name for name in names if not ALL[name].is_stopped(place)]
