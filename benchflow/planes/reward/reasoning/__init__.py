"""Reward functions of the reasoning space: whether the agent's stated reasoning fits its actions and its answer."""

from benchflow.planes.reward.reasoning.checks import ReasoningChecks
from benchflow.planes.reward.reasoning.judged import ReasoningJudge

__all__ = ["ReasoningChecks", "ReasoningJudge"]
