"""Rollouts that have ended and whose checkpoints are retained, so that they can be rolled back."""

from __future__ import annotations

from benchflow.contracts.base import Model
from benchflow.contracts.branch import ChildOutcome
from benchflow.contracts.checkpoint import Checkpoint, SessionBegin
from benchflow.contracts.rollout_records import AgentSession, Rollback, StepOutcome, Usage


class Restart(Model):
    """The checkpoint from which a rollout that has ended starts again."""

    node: str
    """Id of a node on the rollout's own branch path that has a checkpoint."""

    queue: str
    """Task queue of the host that has the checkpoints."""


class EndedState(Model):
    """State of a rollout that has ended, from which it can continue at one of its checkpoints.

    `retain` writes it to the state directory of each host that has checkpoints of the rollout; `recall` reads it.
    """

    steps: list[StepOutcome]
    """Outcomes of the steps that led to the rollout's end."""

    sessions: list[AgentSession]
    """Sessions that were opened with agents, the last one last."""

    session_begin: SessionBegin | None = None
    """Where the last session began; None if it cannot be replayed from there."""

    outcomes: list[ChildOutcome] = []
    """Children that have ended, in that order. Their checkpoints were released."""

    adopted: dict[int, str] = {}
    """Ids of children's nodes from which the rollout continued, by the index of the step that led to each."""

    retained: list[Checkpoint]
    """Checkpoints of the rollout's own nodes; `recall` returns those that its host still has."""

    session_checkpoints: list[Checkpoint] = []
    """Checkpoints at which sessions began that may be replayed."""

    rollbacks: list[Rollback] = []
    """Roll-backs that were carried out, in their order."""

    reverted_usage: list[Usage] = []
    """Model usage of reverted work, which counts in the rollout's totals."""


class RetainInput(Model):
    """Input of `retain`: a rollout that ends, and its checkpoints on one host that outlive it."""

    rollout: str
    """Workflow id of the rollout."""

    checkpoints: list[Checkpoint]
    """Checkpoints on that host, of nodes and of starts of sessions."""

    state: EndedState
    """State of the rollout at its end."""
