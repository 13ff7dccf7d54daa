"""Scoring again: stored rollouts are scored as live ones are, from what was kept of them; no agent is run.

The new scores are written beside the old ones, which nothing here changes.
"""

from benchflow.rescoring.job import Request, Tell, rescore
from benchflow.rescoring.record import Change, Counts, JudgeUse, RescoredRollout, Rescoring, StepScore, row
from benchflow.rescoring.workbench import stored_workbench

__all__ = [
    "Change",
    "Counts",
    "JudgeUse",
    "Request",
    "RescoredRollout",
    "Rescoring",
    "StepScore",
    "Tell",
    "rescore",
    "row",
    "stored_workbench",
]
