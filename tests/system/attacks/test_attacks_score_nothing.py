"""The package of attacks through the engine, in one job: what has a defence earns nothing by default, on Docker.

Every run takes an attack for each defence and of each family; all of them, also as root and on local sandboxes, are for
the soak.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attack_package import ALL, ATTACKS, CLEAN_ROOM_ONLY, HONEST, OF_EACH_KIND, PACKAGE, QUICK, run

from benchflow.contracts.rollout import RolloutResult

Results = dict[str, RolloutResult]

pytestmark = pytest.mark.docker


def earned(results: Results, names: list[str]) -> dict[str, float]:
    """The rewards that are not nothing. What could not be scored has earned nothing; what could not be run fails."""
    assert {name: results[name].error for name in names if results[name].error} == {}
    assert {name for name in names if results[name].reward is None and not results[name].verifier_error} == set()
    return {name: reward for name in names if (reward := results[name].reward)}


def expected(names: list[str], verify_in: str | None = None) -> dict[str, float]:
    """What the metadata says that attacks earn."""
    return {name: 1.0 for name in names if not ALL[name].is_stopped(verify_in)}


@pytest.fixture(scope="module")
def results(module_jobs: Path) -> Results:
    return run([PACKAGE], module_jobs, include=[*OF_EACH_KIND, *HONEST])


def test_an_attack_that_has_a_defence_earns_nothing_by_default(results: Results) -> None:
    defended = [name for name in OF_EACH_KIND if ALL[name].is_stopped(None)]
    assert earned(results, defended) == {}


def test_what_the_docs_call_open_is_open(results: Results) -> None:
    undefended = [name for name in OF_EACH_KIND if not ALL[name].is_stopped(None)]
    assert earned(results, undefended) == dict.fromkeys(undefended, 1.0)


def test_an_honest_solution_loses_nothing(results: Results) -> None:
    assert {name: results[name].reward for name in HONEST} == dict.fromkeys(HONEST, 1.0)
    assert {name: results[name].verifier_error for name in HONEST} == dict.fromkeys(HONEST)


def test_what_only_the_clean_room_stops_earns_nothing_there(module_jobs: Path) -> None:
    room = run([PACKAGE], module_jobs, include=CLEAN_ROOM_ONLY, verify_in="separate")
    assert sorted(room) == CLEAN_ROOM_ONLY
    assert earned(room, CLEAN_ROOM_ONLY) == {}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("sandbox", "agent", "verify_in"),
    [
        pytest.param("docker", "attacker", None),
        pytest.param("docker", "attacker-root", None),
        pytest.param("docker", "attacker", "separate"),
        pytest.param("docker", "attacker-root", "separate"),
        pytest.param("local", "attacker", None, marks=pytest.mark.local),
        pytest.param("local", "attacker-root", "separate", marks=pytest.mark.local),
    ],
)
def test_none_of_all_attacks_earns_more_than_the_docs_say(
    module_jobs: Path, sandbox: str, agent: str, verify_in: str | None
) -> None:
    results = run([PACKAGE], module_jobs, sandbox=sandbox, agents=[agent], verify_in=verify_in)
    assert earned(results, ATTACKS) == expected(ATTACKS, verify_in)
    assert {name: results[name].reward for name in HONEST} == dict.fromkeys(HONEST, 1.0)


def test_the_kinds_leave_out_no_defence_and_no_family() -> None:
    def kinds(names: list[str]) -> set[str]:
        return {kind for name in names for kind in (ALL[name].family, *ALL[name].defences)}

    assert kinds(OF_EACH_KIND) == kinds(QUICK)
