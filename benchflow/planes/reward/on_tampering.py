"""The rule for the reward of a step where the hardening found tampering: a job's `on_tampering`."""

from __future__ import annotations

from datetime import datetime

from benchflow.contracts.reward import HardeningReport, OnTampering, RewardEvent, VerifyResult
from benchflow.errors import TamperingError

MEASURED = "measured_reward"
"""Key of a result's metadata: the scalar that was measured, where the rule has replaced it."""


def apply_rule(
    result: VerifyResult,
    report: HardeningReport | None,
    rule: OnTampering,
    *,
    reward_range: tuple[float, float],
    now: datetime,
) -> VerifyResult:
    """Return the result of a step as the rule has it: unchanged where no tampering was found.

    Args:
        result: The result as it was measured, with a reward or several keys.
        report: The step's hardening; None where nothing was hardened.
        rule: The job's.
        reward_range: The verifier's.
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
