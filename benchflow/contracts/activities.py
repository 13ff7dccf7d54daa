"""Inputs and results of the activities: one model in and one model out. Bulk data travels by reference."""

from __future__ import annotations

from typing import Literal

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.branch import ChildSpec, CustomPolicy, StateValue
from benchflow.contracts.checkpoint import Checkpoint, SessionBegin, SessionLayer, WorldDigests
from benchflow.contracts.environment import Observation, ReadyWorld, StateSnapshot
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec
from benchflow.contracts.lost_rollouts import LostGroup, LostRollout
from benchflow.contracts.resuming import StoredRung
from benchflow.contracts.rollout_records import (
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
    """Input of `name_rollouts`, which derives rollouts from a job's specification."""

    job_id: str
    """Workflow id of the job."""

    job_name: str
    """Name of the job. The activity does not read it: it takes the name from `spec`."""

    spec: ArtifactRef
    """The `JobSpec` in the store."""

    origin: Origin
    """Host and directory that receive the results."""

    indices: list[tuple[int, int]]
    """Half-open ranges of the indices of the rollouts to name."""

    run_id: str = ""
    """Run id of the first run of the job's workflow. A sandbox that the job's rollouts share is named after it."""


class Batch(Model):
    """Result of `name_rollouts`: as many of the wanted rollouts as fit into one message, at least one."""

    rollouts: list[RolloutSpec]
    """Specifications of the first of the wanted rollouts, in their order. The job asks again for the rest."""


class OpenRollouts(Model):
    """Input of `rollout_states`: one batch of a job's sweep, and when a rollout counts as stuck."""

    ids: list[str]
    """Workflow ids of rollouts that have not reported."""

    awaited: list[str] = []
    """Workflow ids of attempts that have reported and whose end a retry awaits. The activity terminates a stuck one."""

    stuck_attempts: int = 10
    """Attempt number of a workflow task from which its rollout may count as stuck, one more than its failures."""

    stuck_after_sec: float = 600.0
    """Seconds since that workflow task was first scheduled, which must have passed as well."""


class ReportedState(Model):
    """State of a rollout's workflow, as the Temporal server reports it."""

    id: str
    """Workflow id."""

    status: Literal["running", "completed", "failed", "cancelled", "terminated", "timed_out", "stuck", "unknown"]
    """Status of the workflow. `stuck`: it runs, but one of its workflow tasks fails again and again. `unknown`: the
    server has no such workflow. `running` also stands for a workflow whose state cannot be read from the store now.
    """

    outcome: RolloutOutcome | None = None
    """Result of a `completed` workflow; None for any other status, or if the result cannot be decoded."""

    run_id: str = ""
    """Run id of the first run of the workflow that has this id now; empty if there is none, or it could not be read."""

    reason: str | None = None
    """Why the workflow tasks of a `stuck` workflow fail, or why the result of a `completed` one cannot be decoded; None
    or empty otherwise.
    """


class ReportedStates(Model):
    """Result of `rollout_states`."""

    states: list[ReportedState]
    """One state for each of `OpenRollouts.ids`, in the same order."""


class RolloutPlan(Model):
    """Result of `plan`: the steps of a task and the time limits of a rollout. Files and prompts stay in the store."""

    steps: list[Step]
    """All steps, one a turn; empty if a stored rollout is scored again or a world is tried."""

    strategy: Literal["mean", "final"] = "mean"
    """How the rewards of scored steps make the rollout's: `mean` of each key, or those of the `final` scored step."""

    has_healthcheck: bool = False
    """Whether the task declares a healthcheck of the sandbox."""

    readiness_timeout_sec: float = 0.0
    """Seconds until the world of a manifest must be ready, starting its services included; 0 for a task without one."""

    build_timeout_sec: float = 600.0
    """Seconds that building the sandbox's image may take."""

    setup_timeout_sec: float = 0.0
    """Seconds that all setup commands of the task may take together; 0 if it has none."""

    install_timeout_sec: float = 0.0
    """Seconds that building the agent's toolbox may take; 0 for an agent that needs none."""

    healthcheck_timeout_sec: float = 0.0
    """Seconds after which the healthcheck has failed for good; without one, those of a default healthcheck."""

    warnings: list[str] = []
    """Warnings for the rollout's result: limits that the sandbox cannot enforce, or a world without a proof."""

    scoring_timeout_sec: float = 0.0
    """Seconds of one attempt to score a stored rollout again, or to try a world; unused for a rollout with an agent."""


class ProvisionInput(Model):
    """Input of `provision`, and of `wait_for_slot` before it where a host has no free slot."""

    spec: RolloutSpec
    """The rollout that needs the sandbox."""

    run_id: str
    """Run id of the first run of the rollout's workflow. The sandbox's name derives from it, so that no other run finds
    the same sandbox.
    """

    generation: int = 0
    """Number of this sandbox among those of the rollout, from 0; part of the sandbox's name and labels."""

    checkpoint: Checkpoint | None = None
    """Checkpoint that the sandbox starts from; None to start from the task's image and run its setup."""

    goes_on: bool = False
    """Whether the rollout resumes in this sandbox, so that results of the same run stay; otherwise results that an
    earlier run left are set aside.
    """


class SandboxInput(Model):
    """Input of an activity that works in a sandbox; as such, that of `teardown`."""

    spec: RolloutSpec
    """The rollout that the sandbox belongs to."""

    sandbox: SandboxRef
    """The sandbox."""


class ConnectInput(SandboxInput):
    """Input of `connect`, which prepares the agent and opens or resumes its session."""

    session: int = 0
    """Index of the session among those of the rollout."""

    load: SessionLayer | None = None
    """Session of the checkpoint that the sandbox starts from, to be resumed; None to open a new session."""

    may_replay: bool = False
    """Whether, if the session cannot be loaded, none is opened, because a replay of it is tried next."""

    not_replayed: str | None = None
    """Why an attempt to replay the session has failed, for the warnings; None if none was made."""


class Connected(Model):
    """Result of `connect`: an agent that is ready for a turn, or one whose session is to be replayed."""

    session: AgentSession | None = None
    """The session that is open; None for an agent without sessions, and where a replay is to be tried."""

    rung: StoredRung = None
    """Resume mode of the session: `load`, `fresh`, or `replay` if a replay is to be tried; None for a new session."""

    warnings: list[str] = []
    """Why the session was not resumed in a better mode."""

    later: StoredRung = None
    """Best resume mode of this session in a copy of its world; None if no session is open."""

    digests: WorldDigests | None = None
    """Digests of the world in the sandbox, which a replay must reach; None unless a replay is to be tried."""


class Readied(Model):
    """Result of `readiness`: a world that is healthy. None in its place for a task without a world."""

    world: ReadyWorld | None = None
    """Services, probes and ports of the world. `readiness` always sets it."""

    baseline: StateSnapshot | None = None
    """Snapshot of the state that the agent began with: taken when the world became ready, and in a copy of a sandbox
    that of the original. None for a world without state.
    """

    differences: tuple[str, ...] = ()
    """Sentences about URLs whose responses differ from those at the checkpoint that the sandbox started from."""


class ReadinessInput(SandboxInput):
    """Input of `readiness`, which waits until the world and the task's healthcheck are healthy."""

    baseline: StateSnapshot | None = None
    """Snapshot of the state that the agent began with, for a sandbox that starts from a checkpoint; None if the world's
    own state at readiness becomes the baseline.
    """

    observed: tuple[Observation, ...] = ()
    """Responses of the world's URLs at the checkpoint that the sandbox starts from, to compare with; empty for none."""


class CheckpointInput(SandboxInput):
    """Input of `checkpoint`, which captures the state of a sandbox."""

    run_id: str
    """Run id of the first run of the workflow of the tree's root."""

    goes_on: bool = False
    """Whether the agent resumes in the sandbox at once; otherwise the sandbox is frozen, and lends its slot, while its
    children run.
    """

    node: str
    """Node of the tree whose state is captured; `-session` is appended at the start of a session."""

    steps_done: int
    """Number of steps, counted from the root, that led to the node."""

    session: AgentSession | None = None
    """Session of the agent, captured too; None if none is open."""

    baseline: StateSnapshot | None = None
    """Snapshot of the state that the agent began with; None for a world without state."""

    begun: SessionBegin | None = None
    """Where the session began, from where it may be replayed; None without a session, or if that is not known."""


class Resumed(SandboxInput):
    """A sandbox that was frozen while children ran, and in which the rollout resumes."""

    session: AgentSession | None = None
    """Session of its agent, whose model calls are let through again; None if none is open."""


class ReleaseInput(Model):
    """Input of `release_checkpoint`: checkpoints of one host to remove, and a sandbox to freeze or thaw."""

    checkpoints: list[Checkpoint]
    """Checkpoints that are no longer needed, removed from the host and from the store; empty for none."""

    resumed: Resumed | None = None
    """Sandbox on the host that has waited for its children and resumes; None for none."""

    waiting: SandboxRef | None = None
    """Sandbox on the host to freeze while its children run, so that others may use its slot; None for none."""


class DecideInput(Model):
    """Input of `decide`, which asks a user's branch policy at a node."""

    policy: CustomPolicy
    """Import path of the policy, and its options."""

    agent: AgentSpec
    """Agent that the children would run, to check them against."""

    tree: RolloutTree
    """The tree as far as this rollout knows it: from the root to its own node, and all below its origin."""

    node: str
    """Id of the present node of the rollout."""

    steps_left: int
    """Steps that the rollout may still run."""

    most: int
    """Maximum number of children that the policy may return: the limit of the whole tree (`branch.max_children`)."""


class BranchDecision(Model):
    """Result of `decide`."""

    children: list[ChildSpec]
    """Children that start at the node; empty if the rollout does not branch there."""


class AggregateInput(Model):
    """Input of `aggregate`, which calls a user's own aggregate function."""

    aggregate: str
    """Import path of the function, `module:function`."""

    returns: list[float]
    """Returns of the children that have one, in the order of the children's numbers."""


class Aggregated(Model):
    """Result of `aggregate`."""

    value: float
    """V(s) that the function made of the returns."""


class TreeInput(Model):
    """Input of `write_tree`, which writes the tree of a rollout that still runs."""

    spec: RolloutSpec
    """The rollout."""

    tree: RolloutTree
    """The tree from the rollout's origin, as far as it has grown."""


class TakenBefore(Model):
    """The parent's turn that a child replays, which the child's turn must equal."""

    stop_reason: str
    """Stop reason of the parent's turn."""

    is_last: bool = False
    """Whether it is the last turn to replay, after which the worlds are compared as well."""

    digests: WorldDigests | None = None
    """Digests of the world that the last turn must reach; None to compare no world."""


class StepInput(Model):
    """Input of `execute`, which runs one turn of the agent."""

    spec: RolloutSpec
    """The rollout."""

    sandbox: SandboxRef
    """Sandbox in which the agent acts."""

    step: Step
    """The step that the turn belongs to."""

    session: AgentSession | None = None
    """Session that is prompted; None for an agent without sessions, such as the oracle."""

    answers: list[Answer] = []
    """Answers to the questions that the agent has asked in this turn so far."""

    goes_on: bool = False
    """Whether the session has had a turn and nothing was done to the sandbox since, so that the step needs no setup."""

    before: TakenBefore | None = None
    """The parent's turn, if this one is a replay of it; None otherwise."""


class ReportInput(Model):
    """Input of `report` and `report_without_sandbox`: all that the workflow knows of a rollout that ends."""

    spec: RolloutSpec
    """The rollout."""

    run_id: str
    """Run id of the first run of the rollout's workflow."""

    sandbox: SandboxRef | None
    """Sandbox to collect logs and artifacts from; None if there never was one, it is lost, or collecting has failed."""

    status: Status
    """How the rollout ended: `passed`, `failed`, `scored` (several keys, no scalar), `errored` or `cancelled`."""

    rewards: dict[str, float] | None = None
    """Rewards by key, the scalar under `reward`; None if nothing was measured."""

    error: Failure | None = None
    """How the agent or the engine failed; None if neither did. An agent's failure may stand beside rewards."""

    verifier_error: Failure | None = None
    """How the verifier failed; None if it did not."""

    steps: list[StepOutcome] = []
    """Outcomes of the steps that led to the end, in a child those of its parent first."""

    sessions: list[AgentSession] = []
    """Sessions that were opened with agents, in their order."""

    tree: RolloutTree | None = None
    """The tree of a root that branched, or whose checkpoints are retained; None to derive it from `steps`."""

    value: StateValue | None = None
    """V(s) of the node where the rollout ended in its children, which is its reward; None if its reward is measured."""

    adopted_steps: list[int] = []
    """Indices of the `steps` that a child ran, from which the rollout continued. Their usage is in `used_below`."""

    used_below: list[Usage] = []
    """Model usage of all children, and of reverted work."""

    n_tool_calls: int = 0
    """Tool calls of the steps that the rollout ran itself, and of all children."""

    rung: StoredRung = None
    """Resume mode of the session, where the rollout started from a checkpoint; None if there was none to resume."""

    rollbacks: list[Rollback] = []
    """Roll-backs that were carried out, in their order."""

    packs: dict[str, ArtifactRef] = {}
    """Results of children in the store, by branch path; only of those that may have run on another host."""

    record: ArtifactRef | None = None
    """Results up to the last retained checkpoint that other hosts can restore, in the store. A report without a sandbox
    starts from them. None if there is no such checkpoint.
    """

    readied: Readied | None = None
    """World of the rollout; None for a task without one, or if it never became ready."""

    warnings: list[str] = []
    """Warnings for the result, in their order."""

    timing: dict[str, float] = {}
    """Seconds by phase."""

    is_frozen: bool = False
    """Whether the sandbox has to stay frozen, because it got no slot, so that nothing can be collected from it."""

    keeps_result: bool = False
    """Whether an existing result stays: that of an ended rollout whose roll-back has not reverted anything yet."""

    started_at: float
    """Start of the rollout, in seconds since the epoch; of a lost rollout, the time of the report."""

    generations: int = 1
    """Number of times that the rollout was started: once, and after each roll-back and each lost host."""


class ReportResult(Model):
    """Result of `report` and `report_without_sandbox`: where the rollout's result lies."""

    directory: str | None = None
    """Directory of the result on the host that wrote it; None if it only goes to the store, or nothing was written."""

    pack: ArtifactRef | None = None
    """All results of the rollout in the store: of a root that ran on another host than the job's origin, and of a child
    with portable checkpoints; None otherwise.
    """

    is_kept: bool = False
    """Whether nothing was written, because the earlier result stays."""


class VerifyInput(Model):
    """Input of `verify`, which scores the state after a step. It is destructive: the verifier changes the sandbox."""

    spec: RolloutSpec
    """The rollout."""

    sandbox: SandboxRef
    """Sandbox in which the agent has acted."""

    step: Step
    """The step whose state is scored."""

    run_id: str = ""
    """As in `ProvisionInput`; the name of a clean room derives from it."""

    session: AgentSession | None = None
    """Session of the agent, which is ended before the verifier starts; None if none is open."""

    baseline: StateSnapshot | None = None
    """Snapshot of the state that the agent began with, to compare with; None for a world without state."""

    is_last: bool = True
    """Whether it is the last step of the rollout, after which a world that is not kept alive is ended."""


class SoftVerifyInput(Model):
    """Input of `soft_verify`: a verification preview while the agent waits for an answer. It changes nothing."""

    spec: RolloutSpec
    """The rollout."""

    sandbox: SandboxRef
    """Sandbox in which the agent acts."""

    step: Step
    """The step under way, whose verifier runs."""

    run_id: str = ""
    """As in `ProvisionInput`; the name of a clean room derives from it."""

    number: int
    """Number of this preview among those of the rollout, from 1; names its directory `soft/<number>`."""

    baseline: StateSnapshot | None = None
    """Snapshot of the state that the agent began with, to compare with; None for a world without state."""


class HostQuery(Model):
    """Input of `host_status`."""

    queue: str
    """Task queue of the host."""


class HostStatus(Model):
    """Result of `host_status`: when a worker of a host last polled. Both are None if the server knows of no poll."""

    last_poll_sec: float | None
    """Seconds since the last poll, by the clock of the host that asks, which may differ from the server's."""

    last_poll: float | None = None
    """Time of the last poll by the server's clock, in seconds since the epoch."""


class LostInput(Model):
    """Input of `report_lost`: rollouts that were lost for one reason, for which result rows are to be written."""

    job_id: str
    """Workflow id of the job."""

    job_name: str
    """Name of the job."""

    spec: ArtifactRef
    """The `JobSpec` in the store. Rows are written without it if it cannot be read."""

    origin: Origin
    """Host and directory that receive the results."""

    run_id: str = ""
    """Run id of the first run of the job's workflow."""

    rollouts: list[LostRollout]
    """The lost rollouts."""

    failure: Failure
    """Why they were lost: the `error` of their rows."""

    is_stuck: bool = False
    """Whether their workflows still run, and are to be terminated."""


class LostOutcomes(Model):
    """Result of `report_lost`: an outcome for each lost rollout, from its new row or from the report it did write."""

    outcomes: list[RolloutOutcome]
    """Outcomes in the order of the input. One without `directory` and `pack` has no row yet at the job's origin."""


class FinishJob(Model):
    """Input of `finish_job`: a job that has ended, and its rollouts that have no row yet."""

    job_id: str
    """Workflow id of the job."""

    job_name: str
    """Name of the job."""

    spec: ArtifactRef
    """The `JobSpec` in the store. Rows and summary are written without it if it cannot be read."""

    origin: Origin
    """Host and directory that receive the results."""

    run_id: str = ""
    """Run id of the first run of the job's workflow. A sandbox that the job's rollouts share is named after it."""

    total: int = 0
    """Number of the job's rollouts; 0 to take it from the specification."""

    lost: list[LostGroup] = []
    """Rollouts that still need a row."""
