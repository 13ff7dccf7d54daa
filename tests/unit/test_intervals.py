"""Confidence intervals of mean rewards, against tables and values computed by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from benchflow.results.intervals import Sample, compute_t_quantile, estimate


def samples(*tasks: Sequence[float], allowed: tuple[float, float] = (0.0, 1.0)) -> list[Sample]:
    """Rewards, those of one task after those of the other."""
    return [Sample(str(task), value, allowed) for task, values in enumerate(tasks) for value in values]


@pytest.mark.parametrize(
    ("df", "expected"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (5, 2.5706),
        (10, 2.2281),
        (30, 2.0423),
        (1000, 1.9623),
        (10**4, 1.9602),
    ],
)
def test_the_quantile_of_student_is_that_of_the_tables(df: int, expected: float) -> None:
    assert compute_t_quantile(df) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [(6, 6, 0.60967, 1.0), (0, 6, 0.0, 0.39033), (2, 4, 0.15004, 0.84996), (1, 1, 0.20655, 1.0), (0, 1, 0.0, 0.79345)],
)
def test_rewards_of_0_and_1_have_the_score_interval_of_wilson(passed: int, n: int, low: float, high: float) -> None:
    found = estimate(samples([1.0] * passed + [0.0] * (n - passed)))
    assert (found.mean, found.n, found.method) == (passed / n, n, "wilson")
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))


def test_other_rewards_have_the_t_interval_over_tasks() -> None:
    # Standard deviation 0.1, standard error 0.1/sqrt(3) = 0.0577, times 4.3027.
    found = estimate(samples([0.4], [0.5], [0.6]))
    assert (found.mean, found.n, found.n_tasks, found.method) == (pytest.approx(0.5), 3, 3, "t_by_task")
    assert (found.low, found.high) == (pytest.approx(0.25159, abs=1e-4), pytest.approx(0.74841, abs=1e-4))


def test_repeats_of_a_task_make_an_interval_no_narrower() -> None:
    # Of task means 0.4 and 0.6 the standard error is 0.1, times 12.7062, whatever number of repeats says the same.
    for repeats in (1, 2, 20):
        found = estimate(samples([0.4] * repeats, [0.6] * repeats, allowed=(-5.0, 5.0)))
        assert (found.n, found.n_tasks) == (2 * repeats, 2)
        assert (found.low, found.high) == (pytest.approx(-0.77062, abs=1e-4), pytest.approx(1.77062, abs=1e-4))


def test_task_means_that_happen_to_be_equal_do_not_make_a_mean_exact() -> None:
    found = estimate(samples([0.25, 0.75], [0.25, 0.75]))
    assert found.mean == 0.5
    assert (found.low, found.high) == (0.0, 1.0)


def test_the_only_task_has_the_interval_of_its_repeats() -> None:
    found = estimate(samples([0.4, 0.5, 0.6]))
    assert (found.n_tasks, found.method) == (1, "t")
    assert (found.low, found.high) == (pytest.approx(0.25159, abs=1e-4), pytest.approx(0.74841, abs=1e-4))


@pytest.mark.parametrize("values", [[0.7], [0.7, 0.7, 0.7]])
def test_one_value_has_a_mean_and_no_interval(values: list[float]) -> None:
    found = estimate(samples(values))
    assert (found.mean, found.low, found.high, found.method) == (pytest.approx(0.7), None, None, None)


def test_no_value_has_no_mean() -> None:
    assert estimate([]).model_dump() == {
        "mean": None, "low": None, "high": None, "level": 0.95, "method": None, "n": 0, "n_tasks": 0,
    }  # fmt: skip


def test_an_interval_ends_where_the_mean_cannot_be() -> None:
    # A task whose rewards reach from -1 to 3, and one of the default range: the mean is between -0.5 and 2.
    wide = [*samples([2.5], allowed=(-1.0, 3.0)), Sample("other", 0.1, (0.0, 1.0))]
    found = estimate(wide)
    assert (found.mean, found.low, found.high) == (pytest.approx(1.3), -0.5, 2.0)
    # A reward outside of what is allowed shows that more is: its job may be older than the note of the range.
    beyond = estimate(samples([2.0], [0.5]))
    assert (beyond.low, beyond.high) == (0.0, 1.5)


def test_values_of_states_are_no_trials_although_they_are_0_and_1() -> None:
    assert estimate(samples([1.0], [0.0]), is_trial=False).method == "t_by_task"


def test_every_interval_holds_its_mean_and_is_inside_of_the_range() -> None:
    rng = random.Random(7)
    for _ in range(300):
        low, high = rng.choice([(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0)])
        tasks = [[rng.choice([0.0, 1.0, rng.uniform(low, high)]) for _ in range(rng.randint(1, 4))] for _ in range(3)]
        found = estimate(samples(*tasks, allowed=(low, high)))
        assert found.mean is not None and found.low is not None and found.high is not None
        assert low <= found.low <= found.mean <= found.high <= high


def test_repeats_count_as_far_as_they_differ() -> None:
    alike = estimate(samples([1.0] * 4, [0.0] * 4, [1.0] * 4, [0.0] * 4))
    mixed = estimate(samples([1.0, 0.0] * 2, [0.0, 1.0] * 2, [1.0, 0.0] * 2, [1.0, 0.0] * 2))
    alone = estimate(samples([1.0], [0.0], [1.0], [0.0]))
    assert alike.method == mixed.method == "wilson_by_task"
    assert alike.mean == mixed.mean == alone.mean == 0.5
    assert alone.method == "wilson"
    # Four tasks whose repeats are alike say as much as four rollouts.
    assert alike.low == pytest.approx(alone.low, abs=0.01)
    assert mixed.low == pytest.approx(estimate(samples([1.0] * 8 + [0.0] * 8)).low)


def test_tasks_that_are_all_passed_count_once_each() -> None:
    found = estimate(samples([1.0] * 5, [1.0] * 5))
    assert found.low == pytest.approx(estimate(samples([1.0], [1.0])).low)


@pytest.mark.parametrize(("tasks", "repeats"), [(10, 8), (20, 8), (50, 4)])
def test_intervals_of_repeats_hold_the_mean_of_all_tasks_as_often_as_they_say(tasks: int, repeats: int) -> None:
    source, held = random.Random(7), 0
    for _ in range(400):
        drawn = []
        for task in range(tasks):
            passes = source.betavariate(0.5, 0.5)
            drawn += [Sample(str(task), float(source.random() < passes)) for _ in range(repeats)]
        found = estimate(drawn)
        assert found.low is not None and found.high is not None
        held += found.low <= 0.5 <= found.high
    assert held / 400 > 0.9
