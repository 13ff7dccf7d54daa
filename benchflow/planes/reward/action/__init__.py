"""Reward functions of the action space: they score an agent's tool calls, or the hardening's findings.

Each function is a class whose fields are the options of a task. `calls` reads the tool calls of any agent, and which
files and requests their shell commands and code touch; `patterns` is the syntax by which a task selects calls.
"""

from benchflow.planes.reward.action.asked import Asked
from benchflow.planes.reward.action.hacking import NoRewardHacking
from benchflow.planes.reward.action.tampering import Tampering
from benchflow.planes.reward.action.tool_rules import CallBudget, CallOrder, ForbiddenTools, KnownTools, RequiredCalls

__all__ = [
    "Asked",
    "CallBudget",
    "CallOrder",
    "ForbiddenTools",
    "KnownTools",
    "NoRewardHacking",
    "RequiredCalls",
    "Tampering",
]
