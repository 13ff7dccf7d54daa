"""What workflows hand to activities and get back: one model in and one out of each. Bulk travels by reference."""

from __future__ import annotations

from typing import Literal

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.branch import StateValue
from benchflow.contracts.checkpoint import Checkpoint, Rung, SessionLayer
from benchflow.contracts.environment import ReadyWorld, StateSnapshot
from benchflow.contracts.job import Origin, RolloutSpec
from benchflow.contracts.rollout import (
    AgentSession,
    Answer,
    Failure,
    RolloutOutcome,
    RolloutTree,
    Step,
    StepOutcome,
    Usage,
)
from benchflow.contracts.sandbox import SandboxRef


class BatchInput(Model):
    """Which rollouts of a job's specification to name. run_id: of the first run of the job's workflow."""

    job_id: str
    job_name: str
    spec: ArtifactRef
    origin: Origin
    indices: list[tuple[int, int]]
    run_id: str = ""


class Batch(Model):
    rollouts: list[RolloutSpec]


class OpenRollouts(Model):
    ids: list[str]


class RolloutState(Model):
    """What the server knows of a rollout's workflow; outcome: its result, when it completed."""

    id: str
    status: Literal["running", "completed", "failed", "cancelled", "terminated", "unknown"]
    outcome: RolloutOutcome | None = None


class RolloutStates(Model):
    states: list[RolloutState]


class RolloutPlan(Model):
    """What the workflow needs to know of the task: the steps with their times. Bulk stays in the store.

    readiness_timeout_sec: for the world of a manifest, 0 for a task without one.
    """

    steps: list[Step]
    strategy: Literal["mean", "final"] = "mean"
    has_healthcheck: bool = False
    readiness_timeout_sec: float = 0.0
    build_timeout_sec: float = 600.0
    setup_timeout_sec: float = 0.0
    install_timeout_sec: float = 0.0
    healthcheck_timeout_sec: float = 0.0
    warnings: list[str] = []


class ProvisionInput(Model):
    """run_id: of the workflow's first execution; sandbox names derive from it, so that no run finds another's.
    checkpoint: what it is to begin with, in place of the task's image; goes_on: of the same run, whose results stay.
    """

    spec: RolloutSpec
    run_id: str
    generation: int = 0
    checkpoint: Checkpoint | None = None
    goes_on: bool = False


class SandboxInput(Model):
    """For the activities that work in a sandbox."""

    spec: RolloutSpec
    sandbox: SandboxRef


class ConnectInput(SandboxInput):
    """session: which of the rollout's sessions is to be opened; `generation` of the sandbox is in its reference. load:
    what is known of it in the sandbox that this one is a copy of.
    """

    session: int = 0
    load: SessionLayer | None = None


class Connected(Model):
    """An agent that is ready; session: None for one that does not talk. rung: how its session goes on, None for one
    that is new. warnings: why it does not by a better way.
    """

    session: AgentSession | None = None
    rung: Rung | None = None
    warnings: list[str] = []


class Readied(Model):
    """A world that is healthy. baseline: its state at that moment, where it has any."""

    world: ReadyWorld | None = None
    baseline: StateSnapshot | None = None


class CheckpointInput(SandboxInput):
    """A state that is to be kept. run_id: of the root's first execution. node: of the tree; steps_done: that led to it.

    baseline: the state that the agent began with. goes_on: something is about to be done in the sandbox again; else it
    waits for its children.
    """

    run_id: str
    goes_on: bool = False
    node: str
    steps_done: int
    session: AgentSession | None = None
    baseline: StateSnapshot | None = None


class ReleaseInput(Model):
    """Checkpoints that nobody needs any more, on one host."""

    checkpoints: list[Checkpoint]


class TreeInput(Model):
    """A rollout's tree as it has grown so far."""

    spec: RolloutSpec
    tree: RolloutTree


class StepInput(Model):
    """answers: to what the agent asked in this turn before. goes_on: its session has had a turn, and nothing was done
    to the sandbox since.
    """

    spec: RolloutSpec
    sandbox: SandboxRef
    step: Step
    session: AgentSession | None = None
    answers: list[Answer] = []
    goes_on: bool = False


class ReportInput(Model):
    """All that is known of a rollout when it ends. sandbox: None when there never was one or it is lost.

    readied: its world, if a manifest describes one and it became ready. tree: of a root that branched; value: of where
    the rollout itself branched, which is its reward. used_below: by its children's models; n_tool_calls: with theirs.
    """

    spec: RolloutSpec
    run_id: str
    sandbox: SandboxRef | None
    status: Literal["passed", "failed", "errored", "cancelled"]
    rewards: dict[str, float] | None = None
    error: Failure | None = None
    verifier_error: Failure | None = None
    steps: list[StepOutcome] = []
    sessions: list[AgentSession] = []
    tree: RolloutTree | None = None
    value: StateValue | None = None
    used_below: list[Usage] = []
    n_tool_calls: int = 0
    readied: Readied | None = None
    warnings: list[str] = []
    timing: dict[str, float] = {}
    started_at: float
    generations: int = 1


class ReportResult(Model):
    directory: str | None = None
    pack: ArtifactRef | None = None


class VerifyInput(Model):
    """session: the agent's, which ends before the verifier begins. baseline: the state that the agent began with.
    run_id: as in `ProvisionInput`.
    """

    spec: RolloutSpec
    sandbox: SandboxRef
    step: Step
    run_id: str = ""
    session: AgentSession | None = None
    baseline: StateSnapshot | None = None
    is_last: bool = True


class SoftVerifyInput(Model):
    """A look at what the verifier would say, between turns. number: of such looks in this rollout. baseline: the state
    that the agent began with. run_id: as in `ProvisionInput`.
    """

    spec: RolloutSpec
    sandbox: SandboxRef
    step: Step
    run_id: str = ""
    number: int
    baseline: StateSnapshot | None = None


class HostQuery(Model):
    queue: str


class HostStatus(Model):
    """last_poll_sec: seconds since a worker of the host asked for work; None when none is known."""

    last_poll_sec: float | None


class LostRollout(Model):
    """A rollout whose workflow ended without reporting."""

    spec: RolloutSpec
    failure: Failure


class FinishJob(Model):
    """run_id: of the first run of the job's workflow."""

    job_id: str
    job_name: str
    spec: ArtifactRef
    origin: Origin
    run_id: str = ""
