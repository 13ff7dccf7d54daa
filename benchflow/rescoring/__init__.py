"""Score stored rollouts again: a job scores them as live ones are, from what was kept of them; no agent is run.

The new scores are written beside the old ones, which nothing here changes.
"""

from benchflow.contracts.rescoring import Change, JudgeUse, RescoredRollout, Rescoring, StepScore
from benchflow.contracts.rescoring import OutcomeCounts as Counts
from benchflow.rescoring.job import OnUpdate, rescore
from benchflow.rescoring.plan import Request
from benchflow.rescoring.workbench import stored_workbench
from benchflow.results.rescored import row

__all__ = [
    "Change",
    "Counts",
    "JudgeUse",
    "OnUpdate",
    "Request",
    "RescoredRollout",
    "Rescoring",
    "StepScore",
    "rescore",
    "row",
    "stored_workbench",
]
