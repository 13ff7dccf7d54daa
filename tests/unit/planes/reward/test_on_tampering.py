"""The rule for a reward where tampering was found, and how steps combine after it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from benchflow.contracts.reward import HardeningFinding, HardeningReport, OnTampering, VerifyResult
from benchflow.contracts.rewards import combine_steps, reaches
from benchflow.contracts.rollout_records import Step, StepOutcome, TurnResult
from benchflow.errors import TamperingError
from benchflow.planes.reward.on_tampering import apply_rule

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOTE = HardeningFinding(item="cleanup_conftests", action="removed", path="/app/conftest.py")
RESTORED = HardeningFinding(item="verify_tools", action="restored", path="/usr/bin/diff", weight="tampering")
PLANTED = HardeningFinding(item="fresh_logs", action="removed", path="/logs/verifier/reward.txt", weight="tampering")


def ruled(
    result: VerifyResult, rule: OnTampering, *findings: HardeningFinding, reward_range: tuple[float, float] = (0.0, 1.0)
) -> VerifyResult:
    report = HardeningReport(findings=list(findings))
    return apply_rule(result, report, rule, reward_range=reward_range, now=NOW)


@pytest.mark.parametrize("rule", get_args(OnTampering))
def test_without_tampering_each_rule_leaves_the_result_as_it_is(rule: OnTampering) -> None:
    result = VerifyResult(reward=1.0, items={"style": 0.5})
    assert ruled(result, rule, NOTE) is result
    assert apply_rule(result, None, rule, reward_range=(0.0, 1.0), now=NOW) is result


def test_keep_leaves_a_tampered_reward_as_it_was_measured() -> None:
    result = VerifyResult(reward=1.0)
    assert ruled(result, "keep", RESTORED) is result


def test_null_withholds_the_reward_with_an_error_that_names_the_first_path() -> None:
    with pytest.raises(TamperingError) as caught:
        ruled(VerifyResult(reward=1.0), "null", NOTE, RESTORED, PLANTED)
    message = "tampering was found: /usr/bin/diff; the reward is withheld (--on-tampering null)"
    assert caught.value.message == message
    assert (caught.value.category, caught.value.retryable) == ("reward_tampering", False)


def test_null_names_what_has_no_path_by_its_detail() -> None:
    traced = HardeningFinding(item="kill_processes", action="killed", detail="a process", weight="tampering")
    with pytest.raises(TamperingError, match="tampering was found: a process;"):
        ruled(VerifyResult(reward=1.0), "null", traced)


def test_zero_replaces_the_scalar_alone_and_keeps_what_was_measured() -> None:
    result = VerifyResult(reward=0.75, items={"style": 0.5, "output": 0.75}, metadata={"by": "verifier"})
    zero = ruled(result, "zero", NOTE, RESTORED, PLANTED)
    assert zero.rewards == {"reward": 0.0, "style": 0.5, "output": 0.75}
    assert zero.metadata == {"by": "verifier", "measured_reward": 0.75}
    [event] = zero.events
    assert (event.source, event.value, event.space) == ("on_tampering:zero", 0.0, "output")
    assert event.meta == {"measured_reward": 0.75, "path": "/usr/bin/diff", "found": 2}


@pytest.mark.parametrize(
    ("reward_range", "measured", "expected"),
    [
        ((0.0, 1.0), 1.0, 0.0),
        ((-1.0, 1.0), 0.5, 0.0),
        # What was worth less than nothing is not worth more for the tampering.
        ((-1.0, 1.0), -0.5, -0.5),
        ((1.0, 5.0), 4.0, 1.0),
        ((-5.0, -1.0), -1.0, -5.0),
    ],
)
def test_zero_is_the_lower_end_of_a_range_without_zero(
    reward_range: tuple[float, float], measured: float, expected: float
) -> None:
    zero = ruled(VerifyResult(reward=measured), "zero", RESTORED, reward_range=reward_range)
    assert (zero.reward, zero.metadata) == (expected, {"measured_reward": measured})


def test_zero_is_the_scalar_of_several_keys_that_had_none() -> None:
    zero = ruled(VerifyResult(reward=None, items={"style": 1.0, "speed": 0.5}), "zero", RESTORED)
    assert zero.rewards == {"reward": 0.0, "style": 1.0, "speed": 0.5}
    assert not zero.is_keyed


# --- after it ------------------------------------------------------------------------------------------


def outcome(index: int, verify: VerifyResult) -> StepOutcome:
    turn = TurnResult(stop_reason="end_turn")
    return StepOutcome(step=Step(index=index, name=f"s{index}", agent="a"), turn=turn, verify=verify)


def only(key: str, value: float) -> VerifyResult:
    """Return the result of a verifier that reports a single key, which is the scalar."""
    return VerifyResult(reward=value, only_key=key, items={key: value})


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (VerifyResult(reward=0.5), VerifyResult(reward=1.0), {"reward": 0.25}),
        # The scalar was a copy of the key, and is not any more.
        (only("style", 0.5), only("style", 1.0), {"reward": 0.25, "style": 0.75}),
        (only("style", 0.5), only("speed", 1.0), {"style": 0.25, "speed": 0.5, "reward": 0.0}),
    ],
)
def test_the_mean_of_steps_is_of_the_rewards_after_the_rule(
    first: VerifyResult, second: VerifyResult, expected: dict[str, float]
) -> None:
    steps = [outcome(0, first), outcome(1, ruled(second, "zero", RESTORED))]
    assert combine_steps(steps, "mean", None) == (expected, None)


@pytest.mark.parametrize(("measured", "is_enough"), [("keep", True), ("zero", False)])
def test_min_reward_is_about_the_reward_after_the_rule(measured: Any, is_enough: bool) -> None:
    assert reaches(ruled(VerifyResult(reward=1.0), measured, RESTORED), 0.5) == is_enough
