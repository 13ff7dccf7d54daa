"""The rule for the reward of a step in which hardening found tampering: a job's `on_tampering`."""

from __future__ import annotations

from datetime import datetime

from benchflow.contracts.reward import HardeningReport, OnTampering, RewardEvent, VerifyResult
from benchflow.errors import TamperingError

MEASURED = "measured_reward"
"""Key in a result's metadata of the measured scalar that the rule has replaced."""


def apply_rule(
    result: VerifyResult,
    report: HardeningReport | None,
    rule: OnTampering,
    *,
    reward_range: tuple[float, float],
    now: datetime,
) -> VerifyResult:
    """Return a step's result after the rule: unchanged without tampering or by `keep`, else with the lowest reward.

    The lowest reward is 0 if that is in the range. A lower measured reward stays.

    Args:
        result: The measured result, with a reward or several keys.
        report: Report of the step's hardening; None if nothing was hardened.
        rule: The job's rule.
        reward_range: Range of the verifier's rewards.
        now: Time of the event that records a replaced scalar.

    Raises:
        TamperingError: Tampering was found, and the rule withholds the reward.
    """
    found = report.tampering if report is not None else []
    if not found or rule == "keep":
        return result
    first = found[0].path or found[0].detail or found[0].item
    if rule == "null":
        raise TamperingError(
            f"tampering was found: {first}; the reward is withheld (--on-tampering null)",
            remedy="see `findings` of result.json; --on-tampering keep leaves rewards as they are measured",
        )
    low, high = reward_range
    lowest = 0.0 if low <= 0.0 <= high else low
    # Where rewards may be negative, tampering must not raise one.
    value = lowest if result.reward is None else min(result.reward, lowest)
    about = {MEASURED: result.reward, "path": first, "found": len(found)}
    event = RewardEvent(value=value, source="on_tampering:zero", ts=now, meta=about)
    changed = {"reward": value, "metadata": result.metadata | {MEASURED: result.reward}}
    return result.model_copy(update=changed | {"events": [*result.events, event]})
