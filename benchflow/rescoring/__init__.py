"""Rescoring: a job scores stored rollouts as live ones, from their retained evidence, without running agents.

New scores are written beside the old ones, which are never changed.
"""

from benchflow.contracts.rescoring import Change, JudgeUse, RescoredRollout, Rescoring, StepScore
from benchflow.contracts.rescoring import OutcomeCounts as Counts
from benchflow.contracts.rescoring_request import RescoringRequest
from benchflow.rescoring.process_workbench import open_stored_workbench
from benchflow.rescoring.rescoring_job import OnUpdate, rescore
from benchflow.results.rescored import make_record_row

__all__ = [
    "Change",
    "Counts",
    "JudgeUse",
    "OnUpdate",
    "RescoredRollout",
    "Rescoring",
    "RescoringRequest",
    "StepScore",
    "make_record_row",
    "open_stored_workbench",
    "rescore",
]
