"""Every attack of the package wins where nothing stops it, and what is said to stop it does so by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attack_package import ALL, ATTACKS, QUICK, run, undefended, with_hardening
from support.bare_engine import reward_of

from benchflow.contracts.verifier import HardeningConfig

pytestmark = [pytest.mark.docker, pytest.mark.long]

HARDENED = [name for name in QUICK if ALL[name].items and "engine" not in ALL[name].stopped_by]
"""Names of attacks that nothing stops but items of hardening, and perhaps the clean room."""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_wins_where_there_is_no_defence(name: str, packages_layer: None) -> None:
    assert reward_of(ALL[name]) == ALL[name].task.metadata["undefended"]


def test_each_wins_where_its_task_opts_out_of_what_stops_it(module_jobs: Path, tmp_path: Path) -> None:
    results = run([undefended(name, tmp_path) for name in HARDENED], module_jobs)
    assert {name: result.reward for name, result in results.items()} == dict.fromkeys(results, 1.0)


def test_each_item_that_is_said_to_stop_it_does_so_alone(module_jobs: Path, tmp_path: Path) -> None:
    tasks = []
    for name in HARDENED:
        for item in ALL[name].items:
            only = {one: one == item for one in HardeningConfig.model_fields}
            tasks.append(with_hardening(ALL[name], tmp_path, f"{name}--{item}", **only))
    results = run(tasks, module_jobs)
    withheld = {name for name in results if ALL[name.partition("--")[0]].is_withheld}
    rewards = {name: None if name in withheld else 0.0 for name in results}
    assert {name: result.reward for name, result in results.items()} == rewards
    assert {name for name, result in results.items() if result.verifier_error} == withheld
