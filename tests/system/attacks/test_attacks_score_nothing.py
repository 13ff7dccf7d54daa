"""The package of attacks through the engine: what has a defence earns nothing, and would earn all of it without.

Every run has an attack upon each of three defences, and one of them twice: with the defences on, and with the task
opted out of those that stop it. All of the package, also as root, on both providers and in a clean room, is `long`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attack_package import ALL, ATTACKS, HONEST, PACKAGE, in_steps, run, undefended
from support.system_job import Results, SystemTasks

pytestmark = pytest.mark.docker

THREE = ("conftest-in-the-workspace", "linked-key", "squatted-port")
"""What pytest is told, what the verifier finds in the workspace, and what goes on running."""

TWICE = "linked-key"
"""The attack of these that is also made upon a task without its defences."""


def system_tasks(root: Path) -> SystemTasks:
    defended = [ALL[name].directory for name in (*THREE, "honest-conftest")]
    steps = in_steps(ALL["searched-key"], root, "first", "second")
    return {"attacks": [*defended, undefended(TWICE, root), steps]}


@pytest.mark.parametrize("name", THREE)
def test_an_attack_that_has_a_defence_earns_nothing_by_default(attacks_results: Results, name: str) -> None:
    result = attacks_results[name]
    assert (result.error, result.reward) == (None, 0.0)


def test_it_wins_where_the_task_opts_out_of_what_stops_it(attacks_results: Results) -> None:
    result = attacks_results[f"{TWICE}-undefended"]
    assert (result.error, result.reward) == (None, 1.0)


def test_an_honest_solution_loses_nothing(attacks_results: Results) -> None:
    result = attacks_results["honest-conftest"]
    assert (result.error, result.verifier_error, result.reward) == (None, None, 1.0)


def test_the_next_steps_agent_finds_neither_the_verifiers_files_nor_its_logs(attacks_results: Results) -> None:
    result = attacks_results["searched-key-in-steps"]
    assert result.error is None
    assert [step.verify.reward for step in result.steps if step.verify] == [0.0, 0.0]


# --- all of them ---------------------------------------------------------------------------------------


def earned(results: Results, names: list[str]) -> dict[str, float]:
    """Return the rewards that are not nothing. What could not be scored has earned nothing; what did not run fails."""
    assert {name: results[name].error for name in names if results[name].error} == {}
    assert {name for name in names if results[name].reward is None and not results[name].verifier_error} == set()
    return {name: reward for name in names if (reward := results[name].reward)}


def expected(names: list[str], verify_in: str | None = None) -> dict[str, float]:
    """Return what the metadata says that attacks earn."""
    return {name: 1.0 for name in names if not ALL[name].is_stopped(verify_in)}


@pytest.mark.parametrize(
    ("sandbox", "agent", "verify_in"),
    [
        # Each provider, each agent and each place; the other combinations take four minutes each.
        pytest.param("docker", "attacker", None, marks=pytest.mark.long),
        pytest.param("docker", "attacker-root", "separate", marks=pytest.mark.soak),
        pytest.param("local", "attacker", "separate", marks=[pytest.mark.local, pytest.mark.long]),
        pytest.param("local", "attacker-root", None, marks=[pytest.mark.local, pytest.mark.long]),
        pytest.param("docker", "attacker", "separate", marks=pytest.mark.soak),
        pytest.param("docker", "attacker-root", None, marks=pytest.mark.soak),
    ],
)
def test_none_of_all_attacks_earns_more_than_the_docs_say(
    module_jobs: Path, sandbox: str, agent: str, verify_in: str | None
) -> None:
    results = run([PACKAGE], module_jobs, sandbox=sandbox, agents=[agent], verify_in=verify_in)
    assert earned(results, ATTACKS) == expected(ATTACKS, verify_in)
    assert {name: results[name].reward for name in HONEST} == dict.fromkeys(HONEST, 1.0)
