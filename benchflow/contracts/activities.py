"""What workflows hand to activities and get back: one model in and one out of each. Bulk travels by reference."""

from __future__ import annotations

from typing import Literal

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.branch import ChildSpec, CustomPolicy, StateValue
from benchflow.contracts.checkpoint import Checkpoint, SessionBegin, SessionLayer, WorldDigests
from benchflow.contracts.environment import Observation, ReadyWorld, StateSnapshot
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec
from benchflow.contracts.lost import LostGroup, LostRollout
from benchflow.contracts.resuming import StoredRung
from benchflow.contracts.rollout import (
    AgentSession,
    Answer,
    Failure,
    Rollback,
    RolloutOutcome,
    RolloutTree,
    Status,
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
    """The rollouts of a sweep, and from when on one is stuck."""

    ids: list[str]
    """Their workflow ids."""

    awaited: list[str] = []
    """Workflow ids of attempts that have reported and that a retry waits for: one that is stuck is terminated."""

    stuck_attempts: int = 10
    """Failed attempts of a workflow task from which a rollout is stuck."""

    stuck_after_sec: float = 600.0
    """Seconds that the task must have failed for, besides."""


class RolloutState(Model):
    """What the server knows of a rollout's workflow."""

    id: str
    status: Literal["running", "completed", "failed", "cancelled", "terminated", "timed_out", "stuck", "unknown"]
    """`stuck`: it runs, but a workflow task of it fails again and again. `unknown`: the server has no such workflow."""

    outcome: RolloutOutcome | None = None
    """Its result, when it completed."""

    run_id: str = ""
    """First run of the workflow that has this id now."""

    reason: str | None = None
    """Why the workflow tasks of one that is stuck fail."""


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
    scoring_timeout_sec: float = 0.0
    """Limit of all that a rollout without an agent does: its scoring."""


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
    what is known of it in the sandbox that this one is a copy of. may_replay: where it does not load, one is to be
    driven there instead; not_replayed: why it could not.
    """

    session: int = 0
    load: SessionLayer | None = None
    may_replay: bool = False
    not_replayed: str | None = None


class Connected(Model):
    """An agent that is ready; session: None for one that does not talk. rung: how its session goes on, None for one
    that is new. warnings: why it does not by a better way.

    later: the best way to go on with it in a copy of its world. digests: of the world where no session was opened,
    because one can be driven there.
    """

    session: AgentSession | None = None
    rung: StoredRung = None
    warnings: list[str] = []
    later: StoredRung = None
    digests: WorldDigests | None = None


class Readied(Model):
    """A world that is healthy. baseline: its state at that moment, where it has any."""

    world: ReadyWorld | None = None
    baseline: StateSnapshot | None = None
    differences: tuple[str, ...] = ()
    """Sentences about URLs whose answers differ from those at the checkpoint that it began with."""


class ReadinessInput(SandboxInput):
    """baseline: the state that the agent began with, where the sandbox began with a later one."""

    baseline: StateSnapshot | None = None
    observed: tuple[Observation, ...] = ()
    """Answers of the world's URLs at the checkpoint that the sandbox began with."""


class CheckpointInput(SandboxInput):
    """A state that is to be kept. run_id: of the root's first execution. node: of the tree; steps_done: that led to it.

    baseline: the state that the agent began with. goes_on: something is about to be done in the sandbox again; else it
    waits for its children. begun: where the session did.
    """

    run_id: str
    goes_on: bool = False
    node: str
    steps_done: int
    session: AgentSession | None = None
    baseline: StateSnapshot | None = None
    begun: SessionBegin | None = None


class Resumed(SandboxInput):
    """A sandbox in which something is about to be done again. session: of its agent, whose model may be called then."""

    session: AgentSession | None = None


class ReleaseInput(Model):
    """Checkpoints that nobody needs any more, on one host."""

    checkpoints: list[Checkpoint]
    resumed: Resumed | None = None
    """The sandbox there that has waited for its children, and is used again."""

    waiting: SandboxRef | None = None
    """A sandbox there that is about to wait for its children: others may have its slot meanwhile."""


class DecideInput(Model):
    """What a user's policy is asked at a node. tree: as far as the rollout knows it, from the root to below itself;
    steps_left: that it may still run; most: children that the whole tree may have. agent: that is to run them.
    """

    policy: CustomPolicy
    agent: AgentSpec
    tree: RolloutTree
    node: str
    steps_left: int
    most: int


class Decision(Model):
    children: list[ChildSpec]


class AggregateInput(Model):
    """What a user's aggregate is asked. returns: of children, in the order of their numbers."""

    aggregate: str
    returns: list[float]


class Aggregated(Model):
    value: float


class TreeInput(Model):
    """A rollout's tree as it has grown so far."""

    spec: RolloutSpec
    tree: RolloutTree


class TakenBefore(Model):
    """What came of a turn that is taken again, by a session that is driven to where another one was. digests: of the
    world that it has led to, after the last of these turns.
    """

    stop_reason: str
    is_last: bool = False
    digests: WorldDigests | None = None


class StepInput(Model):
    """answers: to what the agent asked in this turn before. goes_on: its session has had a turn, and nothing was done
    to the sandbox since. before: the turn is one that is taken again.
    """

    spec: RolloutSpec
    sandbox: SandboxRef
    step: Step
    session: AgentSession | None = None
    answers: list[Answer] = []
    goes_on: bool = False
    before: TakenBefore | None = None


class ReportInput(Model):
    """All that is known of a rollout when it ends. sandbox: None when there never was one or it is lost.

    readied: its world, if a manifest describes one and it became ready. tree: of a root that branched; value: of where
    the rollout itself branched, which is its reward. used_below: by its children's models; n_tool_calls: with theirs.
    rung: how a child's session went on, None where there was none to go on with. rollbacks: what was undone.
    packs: results of children, by their chain. record: of the last checkpoint that other hosts have, if there is one.
    """

    spec: RolloutSpec
    run_id: str
    sandbox: SandboxRef | None
    status: Status
    rewards: dict[str, float] | None = None
    error: Failure | None = None
    verifier_error: Failure | None = None
    steps: list[StepOutcome] = []
    sessions: list[AgentSession] = []
    tree: RolloutTree | None = None
    value: StateValue | None = None
    used_below: list[Usage] = []
    n_tool_calls: int = 0
    rung: StoredRung = None
    rollbacks: list[Rollback] = []
    packs: dict[str, ArtifactRef] = {}
    record: ArtifactRef | None = None
    readied: Readied | None = None
    warnings: list[str] = []
    timing: dict[str, float] = {}
    is_frozen: bool = False
    """Whether the sandbox has to stay frozen, so that nothing can be collected in it."""

    keeps_result: bool = False
    """Whether a result that is there stays: that of a rollout which had ended, and of which nothing was undone."""

    started_at: float
    generations: int = 1


class ReportResult(Model):
    directory: str | None = None
    pack: ArtifactRef | None = None
    is_kept: bool = False
    """Whether nothing was written, since the earlier result stays."""


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
    """When a worker of a host last asked for work; both are None when the server knows of none."""

    last_poll_sec: float | None
    """Seconds since then, by the clock of the host that asks, which may differ from the server's."""

    last_poll: float | None = None
    """The server's time of it, in seconds since the epoch."""


class LostInput(Model):
    """Rollouts that were lost for one reason, and what their rows need."""

    job_id: str
    job_name: str
    spec: ArtifactRef
    """The job's specification. Rows are written without it where it can't be read."""

    origin: Origin
    run_id: str = ""
    """First run of the job's workflow."""

    rollouts: list[LostRollout]
    failure: Failure
    is_stuck: bool = False
    """Whether their workflows still run, and are to be terminated."""


class LostOutcomes(Model):
    """The outcomes of lost rollouts: as the row says that was written now, or as an earlier report of them says."""

    outcomes: list[RolloutOutcome]
    """In the order of the input. One without `directory` and `pack` has no row yet where the job was submitted."""


class FinishJob(Model):
    """A job that has ended, with the rollouts that have no row yet."""

    job_id: str
    job_name: str
    spec: ArtifactRef
    origin: Origin
    run_id: str = ""
    """First run of the job's workflow."""

    total: int = 0
    """Rollouts of the job; 0: as the specification says."""

    lost: list[LostGroup] = []
    """Rollouts that still need a row."""
