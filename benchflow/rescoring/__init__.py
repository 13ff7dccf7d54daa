"""Rescoring: a job scores stored rollouts as live ones, from their retained evidence, without running agents.

New scores are written beside the old ones, which are never changed.
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
