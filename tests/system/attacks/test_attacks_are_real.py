"""The attacks win where nothing stops them, and what is said to stop them does so by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attack_package import ALL, ATTACKS, QUICK, run, with_hardening
from support.bare_engine import reward_of

from benchflow.contracts.task import HardeningConfig

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("packages_layer")]

A_FEW = ("conftest-in-the-workspace", "linked-key", "squatted-port")
HARDENED = [name for name in QUICK if ALL[name].items and "engine" not in ALL[name].stopped_by]
"""What nothing stops but items of hardening, and perhaps the clean room."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in A_FEW else [pytest.mark.soak]) for name in ATTACKS]
)
def test_an_attack_wins_where_there_is_no_defence(name: str) -> None:
    assert reward_of(ALL[name]) == ALL[name].task.metadata["undefended"]


@pytest.mark.parametrize("names", [A_FEW, pytest.param(HARDENED, marks=pytest.mark.soak)], ids=["a-few", "all"])
def test_it_wins_where_the_task_opts_out_of_what_stops_it(module_jobs: Path, tmp_path: Path, names: list[str]) -> None:
    tasks = [with_hardening(ALL[name], tmp_path, name, **dict.fromkeys(ALL[name].items, False)) for name in names]
    results = run(tasks, module_jobs)
    assert {name: result.reward for name, result in results.items()} == dict.fromkeys(names, 1.0)


@pytest.mark.soak
def test_each_item_that_is_said_to_stop_it_does_so_alone(module_jobs: Path, tmp_path: Path) -> None:
    tasks = []
    for name in HARDENED:
        for item in ALL[name].items:
            only = {one: one == item for one in HardeningConfig.model_fields}
            tasks.append(with_hardening(ALL[name], tmp_path, f"{name}--{item}", **only))
    results = run(tasks, module_jobs)
    assert {name: result.reward for name, result in results.items()} == dict.fromkeys(results, 0.0)
