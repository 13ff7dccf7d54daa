"""The reasoning space: whether what an agent states is connected to what it does and to what it answers."""

from benchflow.planes.reward.reasoning.checks import ReasoningChecks
from benchflow.planes.reward.reasoning.judged import ReasoningJudge

__all__ = ["ReasoningChecks", "ReasoningJudge"]
