"""A rollout that has ended and whose checkpoints are retained, so that it can be rolled back."""

from __future__ import annotations

from benchflow.contracts.base import Model
from benchflow.contracts.branch import ChildOutcome
from benchflow.contracts.checkpoint import Checkpoint, SessionBegin
from benchflow.contracts.rollout import AgentSession, Rollback, StepOutcome, Usage


class Restart(Model):
    """Where a rollout that has ended starts again."""

    node: str
    """A node of its own, of which there is a checkpoint."""

    queue: str
    """Task queue of the host that has its checkpoints."""


class EndedState(Model):
    """State of a rollout that has ended, with which it continues from one of its checkpoints."""

    steps: list[StepOutcome]
    """Outcomes of its steps."""

    sessions: list[AgentSession]
    """Sessions that were opened with agents."""

    session_begin: SessionBegin | None = None
    """Where the last session began."""

    outcomes: list[ChildOutcome] = []
    """Children that have ended."""

    adopted: dict[int, str] = {}
    """Nodes of children from which it has continued, by the index of the step that led to each."""

    retained: list[Checkpoint]
    """Checkpoints of its nodes."""

    session_checkpoints: list[Checkpoint] = []
    """Checkpoints of where sessions began that may be replayed."""

    rollbacks: list[Rollback] = []
    """Roll-backs that were carried out."""

    reverted_usage: list[Usage] = []
    """Model usage of what was reverted."""


class RetainInput(Model):
    """A rollout that ends, and the checkpoints of it on one host that are retained."""

    rollout: str
    """Workflow id of the rollout."""

    checkpoints: list[Checkpoint]
    state: EndedState
