"""Reward functions of the reasoning space: whether the agent's stated reasoning fits its actions and its answer."""

from benchflow.planes.reward.reasoning.judged import ReasoningJudge
from benchflow.planes.reward.reasoning.reasoning_checks import ReasoningChecks

__all__ = ["ReasoningChecks", "ReasoningJudge"]
