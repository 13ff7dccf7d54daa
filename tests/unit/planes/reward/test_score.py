"""Functions run on a node, and the numbers that come of them: a missing one is never made up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from fractions import Fraction
from math import inf, nan
from typing import Any

import pytest
from support.own_rewards import BARRIERS, NOW, Meets, NotAsync, Says, Unsaid

from benchflow.contracts.reward import (
    AggregatePolicy,
    RewardEvent,
    RewardFuncSpec,
    RewardTable,
    RolloutNode,
    VerifyResult,
)
from benchflow.errors import RewardFuncError, VerifierError
from benchflow.planes.reward.score import Scored, combine, compute_mean, run_function, score

NODE = RolloutNode(id="n1", events=({"type": "agent_message", "text": "please"},), parent=RolloutNode(id="n0"), step=0)


async def verified(reward: float | None = 1.0, **more: Any) -> VerifyResult:
    return VerifyResult(reward=reward, **more)


def event(value: float, **more: Any) -> RewardEvent:
    return RewardEvent(**{"value": value, "source": "own", "ts": NOW, **more})


async def ran(function: Any, **more: Any) -> Scored:
    return await run_function(function, "f", NODE, **more)


# --- one function ---------------------------------------------------------------------------------------


async def test_an_event_is_a_result_under_the_functions_name() -> None:
    scored = await ran(Says(event(0.5, space="action", granularity="step", step=0), space="action"))
    assert (scored.value, scored.space, scored.error) == (0.5, "action", "")
    assert scored.result is not None and scored.result.granularity == "step"
    [told] = scored.result.events
    assert (told.source, told.tag, told.step) == ("f", "own", 0)


async def test_a_result_keeps_the_tags_of_its_events() -> None:
    result = VerifyResult(reward=0.25, events=[event(0.0, tag="a"), event(0.5, tag="b")], items={"x": 7.0})
    scored = await ran(Says(result))
    assert scored.result is not None
    assert [(told.source, told.tag) for told in scored.result.events] == [("f", "a"), ("f", "b")]
    assert (scored.value, scored.result.items) == (0.25, {"x": 7.0})


FAILING: list[tuple[Any, str]] = [
    (Says(RuntimeError("broken")), "RuntimeError: broken"),
    (Says(RewardFuncError("broken", remedy="mend it")), "broken\n  remedy: mend it"),
    (Says(SystemExit(3)), "SystemExit: 3"),
    (Says(asyncio.CancelledError()), "CancelledError"),
    (Says(None), "returned NoneType"),
    (Says("1.0"), "returned str"),
    (NotAsync(), "gave RewardEvent"),
    (Says(nan), "the reward is nan"),
    (Says(inf), "the reward is inf"),
    (Says(1.5), "outside the reward range [0, 1]"),
    (Says(-0.1), "outside the reward range [0, 1]"),
    (Says(VerifyResult(reward=None, error="no judge")), "no judge"),
    (Says(VerifyResult(reward=None, errors={"a": "no key"})), "no key"),
    (Says(VerifyResult(reward=None)), "did not say why"),
    (Says(VerifyResult(reward=0.5, events=[event(2.0)])), "the value of an event is 2.0"),
    (Says(VerifyResult(reward=0.5, items={"a": inf})), "the metric 'a' is inf"),
    (Says(VerifyResult.model_construct(reward=True, events=[], items={}, space="output")), "the reward is True"),
    (Says(event(1.0, space="action"), space="memory"), "says that it scores 'memory' and scored 'action'"),
]


@pytest.mark.parametrize(("function", "words"), FAILING, ids=[words for _, words in FAILING])
async def test_what_is_no_reward_is_an_error_and_no_number(function: Any, words: str) -> None:
    scored = await ran(function)
    assert (scored.value, scored.result) == (None, None)
    assert words in scored.error


async def test_a_wider_range_is_the_verifiers() -> None:
    assert (await ran(Says(1.5), reward_range=(-1.0, 2.0))).value == 1.5


async def test_a_long_error_is_cut() -> None:
    assert len((await ran(Says(RuntimeError("x" * 100_000)))).error) < 5000


async def test_who_cancels_the_scoring_ends_its_functions() -> None:
    BARRIERS["here"] = barrier = asyncio.Barrier(2)
    running = asyncio.create_task(ran(Meets("here")))
    while barrier.n_waiting == 0:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# --- a table --------------------------------------------------------------------------------------------


def row(name: str, **options: Any) -> RewardFuncSpec:
    return RewardFuncSpec(type="support.own_rewards:Politeness", name=name, options=options)


async def test_a_task_without_a_table_is_scored_by_its_verifier_alone() -> None:
    assert await score(NODE, verified, None, now=NOW) == await verified()


async def test_functions_of_a_table_are_made_and_run_on_the_node() -> None:
    table = RewardTable(funcs=[row("english"), row("german", language="de")])
    result = await score(NODE, verified, table, now=NOW, allowed=["support"])
    assert result.rewards == {"reward": 1.0, "output": 1.0, "action": 0.5, "action.english": 1.0, "action.german": 0.0}
    assert [told.source for told in result.events] == ["english", "german"]
    assert (result.errors, result.error) == ({}, None)


async def test_a_function_that_cannot_be_made_leaves_nothing_that_it_may_belong_to() -> None:
    table = RewardTable(funcs=[row("english"), row("odd", tone=1)])
    result = await score(NODE, verified, table, now=NOW, allowed=["support"])
    assert result.rewards == {"reward": 1.0, "action.english": 1.0}
    assert "cannot be made with these options" in result.errors["odd"]


async def test_a_verifier_that_fails_is_not_caught() -> None:
    async def fails() -> VerifyResult:
        raise VerifierError("no reward")

    with pytest.raises(VerifierError, match="no reward"):
        await score(NODE, fails, RewardTable(funcs=[row("english")]), now=NOW)


async def test_functions_run_beside_each_other_and_after_the_verifier() -> None:
    BARRIERS["here"] = barrier = asyncio.Barrier(3)

    async def output() -> VerifyResult:
        await asyncio.sleep(0)
        assert barrier.n_waiting == 0
        return await verified()

    meets = [RewardFuncSpec(type="support.own_rewards:Meets", name=name, options={"place": "here"}) for name in "abc"]
    result = await asyncio.wait_for(score(NODE, output, RewardTable(funcs=meets), now=NOW, allowed=["support"]), 60)
    assert (result.errors, result.items["output.a"]) == ({}, 1.0)


# --- combining ------------------------------------------------------------------------------------------


def one(name: str, space: Any, value: float | None, weight: float = 1.0, **more: Any) -> Scored:
    result = None if value is None else VerifyResult(reward=value, space=space, **more)
    return Scored(name, space, weight, result, "" if result else f"{name} broke")


def combined(scored: list[Scored], aggregate: AggregatePolicy | None = None, **more: Any) -> VerifyResult:
    return combine(VerifyResult(**{"reward": 1.0, **more}), scored, aggregate, now=NOW)


def test_a_space_is_the_mean_of_its_functions_by_their_weights() -> None:
    result = combined([one("a", "action", 1.0, 3.0), one("b", "action", 0.0), one("c", "memory", 0.5)])
    assert result.items == {
        "output": 1.0,
        "action": 0.75,
        "memory": 0.5,
        "action.a": 1.0,
        "action.b": 0.0,
        "memory.c": 0.5,
    }
    assert result.reward == 1.0


def test_the_verifier_is_one_of_the_functions_of_output() -> None:
    assert combined([one("match", "output", 0.0, 3.0)]).items == {"output": 0.25, "output.match": 0.0}


def test_what_a_function_reports_besides_has_its_name_before_it() -> None:
    result = combined([one("s", "memory", 0.5, items={"recall": 0.25}, warnings=["odd"], metadata={"n": 1})])
    assert result.items["memory.s.recall"] == 0.25
    assert (result.warnings, result.metadata) == (["s: odd"], {"reward_funcs": {"s": {"n": 1}}})


def test_a_function_of_weight_0_is_only_told() -> None:
    result = combined([one("a", "action", 1.0), one("b", "action", 0.0, 0.0), one("c", "memory", 0.0, 0.0)])
    assert (result.items["action"], result.items["action.b"], "memory" in result.items) == (1.0, 0.0, False)


def test_a_function_that_failed_takes_its_metric_and_its_spaces_mean_along() -> None:
    result = combined([one("a", "action", None), one("b", "action", 1.0), one("c", "memory", 1.0)])
    assert result.items == {"output": 1.0, "action.b": 1.0, "memory": 1.0, "memory.c": 1.0}
    assert (result.errors, result.reward, result.error) == ({"a": "a broke"}, 1.0, None)


def test_an_aggregate_makes_the_scalar_and_an_event_of_it() -> None:
    policy = AggregatePolicy(weights={"output": 0.7, "action": 0.3})
    result = combined([one("a", "action", 0.0)], policy)
    assert result.reward == pytest.approx(0.7)
    assert (result.events[-1].source, result.events[-1].value) == ("aggregate:weighted_mean", result.reward)


def test_an_aggregate_without_weights_takes_the_spaces_alike_and_no_function_twice() -> None:
    scored = [one("a", "action", 0.0), one("b", "action", 0.5), one("c", "memory", 1.0)]
    assert combined(scored, AggregatePolicy(method="mean")).reward == pytest.approx((1.0 + 0.25 + 1.0) / 3)


def test_an_aggregate_may_weigh_the_verifiers_own_metrics() -> None:
    assert combined([], AggregatePolicy(weights={"speed": 1.0}), items={"speed": 0.5}).reward == 0.5


@pytest.mark.parametrize("weights", [{}, {"action": 1.0}, {"action.a": 1.0}, {"typo": 1.0}])
def test_an_aggregate_that_lacks_what_it_needs_gives_no_reward_and_says_why(weights: dict[str, float]) -> None:
    result = combined([one("a", "action", None)], AggregatePolicy(weights=weights))
    assert result.reward is None
    assert "reward" not in result.rewards
    assert result.error is not None and "could not be measured" in result.error and "a: a broke" in result.error


def test_an_aggregate_that_needs_nothing_of_what_failed_counts() -> None:
    result = combined([one("a", "action", None)], AggregatePolicy(weights={"output": 1.0}), reward=0.5)
    assert (result.reward, result.error, result.errors) == (0.5, None, {"a": "a broke"})


def test_a_verifier_without_a_reward_leaves_no_output() -> None:
    result = combined([one("a", "action", 1.0)], reward=None, error="no judge")
    assert (result.rewards, result.error) == ({"action": 1.0, "action.a": 1.0}, "no judge")
    assert result.errors == {"output": "no judge"}
    result = combined([one("a", "action", 1.0)], AggregatePolicy(weights={"action": 1}), reward=None, error="no judge")
    assert (result.reward, result.error, result.errors) == (1.0, None, {"output": "no judge"})


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (AggregatePolicy(method="weighted_sum", weights={"output": 2.0}), "is 2.0, outside"),
        (AggregatePolicy(weights={"output": 0.0}), "sum to 0"),
        (AggregatePolicy(weights={"output": inf}), "must be finite"),
        (AggregatePolicy(method="weighted_sum", weights={"output": inf}), "is inf, outside"),
        (AggregatePolicy(method="weighted_sum", weights={"output": inf, "action": -inf}), "is nan, outside"),
    ],
)
def test_an_aggregate_that_is_no_reward_is_an_error(policy: AggregatePolicy, words: str) -> None:
    result = combined([one("a", "action", 1.0)], policy)
    assert result.reward is None
    assert words in (result.error or "")


def test_a_metric_that_two_report_is_neither_ones() -> None:
    result = combined([one("a", "action", 0.5)], items={"action": 1.0, "speed": 1.0})
    assert result.items == {"speed": 1.0, "output": 1.0, "action.a": 0.5}
    assert "two report" in result.errors["action"]


async def test_a_space_that_is_not_known_may_be_any() -> None:
    unknown = await run_function(Unsaid(RuntimeError("broken")), "u", NODE)
    assert unknown.space is None
    assert combined([unknown, one("a", "action", 1.0)]).items == {"action.a": 1.0}
    known = await run_function(Unsaid(event(0.5, space="memory")), "u", NODE)
    assert combined([known]).items == {"output": 1.0, "memory": 0.5, "memory.u": 0.5}


def test_a_mean_of_ones_is_one_whatever_the_weights() -> None:
    weights = [0.1, 0.2, 0.7, 1e-300, 1e300, 3.0]
    assert compute_mean([one(str(w), "action", 1.0, w) for w in weights]) == 1.0
    assert compute_mean([one("a", "action", 1.0, 0.7), one("b", "action", 0.0, 0.3)]) == pytest.approx(0.7)
    assert compute_mean([]) is None


# --- random tables ---------------------------------------------------------------------------------------

SPACES = ["output", "action", "reasoning", "memory", "latent"]
METHODS = ["mean", "weighted_mean", "weighted_sum", "all_pass", "any_pass", "threshold"]
WEIGHTS = [0.0, 0.0, 1.0, 0.3, 2.5, 1e-12, 1e6, 5e-324, 1e308]
VALUES = [0.0, 1.0, 0.5, 1 / 3, 1e-300, 0.1]
ODD = [nan, inf, -inf, 1.5, -0.5, True, None, "1.0", [], RuntimeError("broken"), SystemExit(1)]


def any_table(dice: random.Random) -> tuple[VerifyResult, list[tuple[str, str, float, Any]], AggregatePolicy | None]:
    """What a verifier says, functions as (name, space, weight, what it says), and an aggregate."""
    rows = [
        (f"f{n}", dice.choice(SPACES), dice.choice(WEIGHTS), dice.choice(ODD if dice.random() < 0.15 else VALUES))
        for n in range(dice.randrange(6))
    ]
    names = [*SPACES, *(f"{space}.{name}" for name, space, _, _ in rows), "speed", "nobody"]
    items = {name: dice.choice(VALUES) for name in dice.sample(names, dice.randrange(3)) if dice.random() < 0.3}
    reward = None if dice.random() < 0.1 else dice.choice(VALUES)
    said = VerifyResult(reward=reward, items=items, error=None if reward is not None else "the verifier broke")
    if dice.random() < 0.25:
        return said, rows, None
    weights = {name: dice.choice(WEIGHTS) for name in dice.sample(names, dice.randrange(4))}
    return said, rows, AggregatePolicy(method=dice.choice(METHODS), weights=weights, threshold=dice.choice(VALUES))


def usable(what: Any) -> bool:
    return isinstance(what, float) and 0 <= what <= 1


def mean(pairs: list[tuple[float, float]]) -> float:
    total = sum(Fraction(weight) for weight, _ in pairs)
    return float(sum(Fraction(weight) * Fraction(value) for weight, value in pairs) / total)


def model(
    said: VerifyResult, rows: list[tuple[str, str, float, Any]], policy: AggregatePolicy | None
) -> tuple[dict[str, float], float | None]:
    """The metrics and the scalar as one would work them out by hand, None for what cannot be."""
    found: dict[str, list[float]] = {name: [value] for name, value in said.items.items()}
    spaces: list[str] = []
    for space in SPACES:
        mine = [(weight, what) for _, of, weight, what in rows if of == space and weight > 0]
        if space == "output":
            mine.append((1.0, said.reward))
        if mine:
            spaces.append(space)
            if all(usable(what) for _, what in mine):
                found.setdefault(space, []).append(mean(mine))
    for name, space, _, what in rows:
        if usable(what):
            found.setdefault(f"{space}.{name}", []).append(what)
    metrics = {name: values[0] for name, values in found.items() if len(values) == 1}
    if policy is None:
        return metrics, said.reward
    weights = policy.weights or dict.fromkeys(spaces, 1.0)
    if not weights or any(name not in metrics for name in weights):
        return metrics, None
    weighed = [(weight, metrics[name]) for name, weight in weights.items()]
    if policy.method in ("weighted_mean", "threshold") and not any(weights.values()):
        return metrics, None
    reached = [value >= policy.threshold for _, value in weighed]
    ways: dict[str, Callable[[], float]] = {
        "mean": lambda: mean([(1.0, value) for _, value in weighed]),
        "weighted_mean": lambda: mean(weighed),
        "weighted_sum": lambda: sum(weight * value for weight, value in weighed),
        "all_pass": lambda: float(all(reached)),
        "any_pass": lambda: float(any(reached)),
        "threshold": lambda: float(mean(weighed) >= policy.threshold),
    }
    value = ways[policy.method]()
    return metrics, value if value <= 1 + 1e-9 else None


@pytest.mark.parametrize("tables", [500, pytest.param(10_000, marks=pytest.mark.long)])
async def test_random_tables_give_what_one_works_out_by_hand_or_an_error(tables: int) -> None:
    dice = random.Random(20261121)
    measured = missing = 0
    for _ in range(tables):
        said, rows, policy = any_table(dice)
        scored = [
            await run_function(Says(what, space), name, NODE, weight=weight)  # type: ignore[arg-type]
            for name, space, weight, what in rows
        ]
        result = combine(said, scored, policy, now=NOW)
        metrics, reward = model(said, rows, policy)
        assert result.items == metrics, (said, rows)
        for name, _, _, what in rows:
            assert (name in result.errors) == (not usable(what))
        if reward is None:
            assert result.reward is None and result.error, (said, rows, policy)
            missing += 1
            continue
        # A sum and a plain mean are rounded more than once.
        assert result.reward == pytest.approx(reward, rel=1e-15, abs=0), (said, rows, policy, result.error)
        measured += 1
    assert min(measured, missing) > tables / 10
