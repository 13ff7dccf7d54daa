"""What scores the stored rollouts of a job again: the same for all of them, and kept in the store."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.base import Model
from benchflow.contracts.job import RolloutSpec, TaskRef
from benchflow.contracts.rescoring import GivenRubric, TaskOrigin
from benchflow.contracts.rollout import Failure


class ScoredBy(Model):
    """The task that a rollout is scored by."""

    ref: TaskRef | None = None
    """The task, frozen; None where there is none."""

    digest: str | None = None
    """Digest of its files."""

    origin: TaskOrigin = "store"
    failure: Failure | None = None
    """Why it may not be used, or can't be had."""


class Scoring(Model):
    """What scores, and how."""

    name: str
    """Names the directories of the new scores."""

    digest: str
    """Digest of all that scores."""

    tasks: dict[str, ScoredBy]
    """Tasks to score by, by name."""

    recorded: dict[str, ScoredBy]
    """Tasks of the first scoring, by name."""

    rubric: GivenRubric | None = None
    """Scores instead of the tasks' own verifiers."""

    judge: dict[str, Any] = {}
    """Fields of `JudgeSettings`, over the job's own."""

    ask_again: bool = False
    """Whether judges are asked anew, though their answers are there."""

    trust_workspace: bool = False
    """Whether a changed verifier is run without a check that the one before still gives the workspace its reward."""

    allow_code: list[str] = []
    """Modules whose code the tasks may name."""


class AgentlessInput(Model):
    """A rollout that is scored without an agent."""

    spec: RolloutSpec
    run_id: str
    """First run of its workflow."""
