"""Basis on which the stored rollouts of a job are scored again, and the input of scoring without an agent."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.base import Model
from benchflow.contracts.job import RolloutSpec, TaskRef
from benchflow.contracts.rescoring import GivenRubric, TaskOrigin
from benchflow.contracts.rollout_records import Failure


class ScoredBy(Model):
    """The task that a rollout is scored by, or why there is none."""

    ref: TaskRef | None = None
    """The task, frozen in the store; None if it may not be used or is missing."""

    digest: str | None = None
    """Digest of the task's files; None without `ref`."""

    origin: TaskOrigin = "store"
    """Where the task comes from: the `source` directory that it was submitted from, the `store`, or the directory
    `given` with the request. Without meaning if there is no `ref`.
    """

    failure: Failure | None = None
    """Why the task may not be used, or is missing; None if `ref` is set."""


class Scoring(Model):
    """Tasks, rubric and settings that score the stored rollouts of a job again: one for all of them, in the store."""

    name: str
    """Name of the scoring: new scores are written to `rescored/<name>/` of each rollout."""

    digest: str
    """Digest of all that a score may depend on except the rollout: rubric, tasks, worlds and options of the request."""

    tasks: dict[str, ScoredBy]
    """Tasks to score by, by task name."""

    recorded: dict[str, ScoredBy]
    """Tasks of the first scoring, by task name; the same as `tasks` unless the request gave a directory of tasks."""

    rubric: GivenRubric | None = None
    """Rubric that scores instead of the tasks' own verifiers; None if those score."""

    judge: dict[str, Any] = {}
    """Fields of `JudgeSettings` that override those of the job."""

    ask_again: bool = False
    """Whether judges are asked again, although answers of the first scoring are recorded."""

    trust_workspace: bool = False
    """Whether a changed verifier runs without a check that the first one still gives the retained workspace its reward.
    """

    allow_code: list[str] = []
    """Modules whose code the tasks may name: those that the job allows, and those of the request."""


class AgentlessInput(Model):
    """Input of `rescore` and `try_world`, which score a rollout without running an agent."""

    spec: RolloutSpec
    """The rollout; `stored` or `trial` is set."""

    run_id: str
    """Run id of the first run of its workflow, to which sandboxes and slots of the scoring belong."""
