"""The action space: what an agent did on its way, read off its trajectory, and off what it left in its sandbox. A
function a class, with a task's options.

`calls` reads the tool calls of all agents, with what shell commands and code in them touch; `patterns` is how a task
says which calls it means.
"""

from benchflow.planes.reward.action.asked import Asked
from benchflow.planes.reward.action.hacking import NoRewardHacking
from benchflow.planes.reward.action.tampering import Tampering
from benchflow.planes.reward.action.tools import CallBudget, CallOrder, ForbiddenTools, KnownTools, RequiredCalls

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
