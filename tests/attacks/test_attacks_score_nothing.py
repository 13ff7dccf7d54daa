"""Every attack of the package, carried out by an agent that is not trusted, in one job through the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attack_package import ALL, ATTACKS, HONEST, PACKAGE, QUICK, run

from benchflow.contracts.rollout import RolloutResult

Results = dict[str, RolloutResult]
SLOW = sorted(set(ATTACKS) - set(QUICK))

pytestmark = pytest.mark.docker


def wrong(results: Results, names: list[str], verify_in: str | None = None) -> dict[str, Any]:
    """The rewards that are not what the metadata says: a stopped attack earns nothing, or cannot be scored."""
    rewards = {name: results[name].reward for name in names}
    return {name: reward for name, reward in rewards.items() if bool(reward) == ALL[name].is_stopped(verify_in)}


@pytest.fixture(scope="module")
def results(module_jobs: Path) -> Results:
    return run([PACKAGE], module_jobs, exclude=SLOW)


@pytest.mark.parametrize("name", [name for name in QUICK if ALL[name].is_stopped(None)])
def test_an_attack_earns_nothing(results: Results, name: str) -> None:
    result = results[name]
    assert result.error is None
    assert not result.reward, result.rewards
    assert result.reward == 0.0 or result.verifier_error is not None


@pytest.mark.parametrize("name", [name for name in QUICK if not ALL[name].is_stopped(None)])
def test_what_the_table_calls_open_is_open(results: Results, name: str) -> None:
    assert results[name].reward == 1.0


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_solution_earns_the_whole_reward(results: Results, name: str) -> None:
    result = results[name]
    assert (result.error, result.verifier_error) == (None, None)
    assert result.reward == 1.0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("sandbox", "agent", "verify_in"),
    [
        pytest.param("docker", "attacker-root", None),
        pytest.param("docker", "attacker", "separate"),
        pytest.param("docker", "attacker-root", "separate"),
        pytest.param("local", "attacker", None, marks=pytest.mark.local),
        pytest.param("local", "attacker-root", "separate", marks=pytest.mark.local),
    ],
)
def test_nor_does_any_as_root_or_elsewhere(module_jobs: Path, sandbox: str, agent: str, verify_in: str | None) -> None:
    results = run([PACKAGE], module_jobs, sandbox=sandbox, agents=[agent], verify_in=verify_in)
    assert {name: result.error for name, result in results.items() if result.error} == {}
    assert wrong(results, ATTACKS, verify_in) == {}
    assert {name: results[name].reward for name in HONEST} == dict.fromkeys(HONEST, 1.0)
