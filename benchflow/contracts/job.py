"""A job: its specification (tasks × agents × repeats), and the messages of its workflow and of its rollouts'."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pydantic import Field

from benchflow.contracts import ids
from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.branch import BranchOrigin
from benchflow.contracts.counts import Counts
from benchflow.contracts.ended import Restart
from benchflow.contracts.environment import EnvironmentRef
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.job_modes import JobMode
from benchflow.contracts.job_retries import RetryConfig
from benchflow.contracts.lost_rollouts import LostGroup, SweepState
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.contracts.rescoring import RescoringSpec, StoredRef
from benchflow.contracts.rollout_records import Failure, Phase, Question, Rollback, RolloutOutcome
from benchflow.contracts.run_settings import RunSettings
from benchflow.contracts.slot_messages import PooledAccount
from benchflow.contracts.trial import TrialSpec

MAX_WINDOW = 500
"""Maximum number of rollouts of one job that run at a time."""


class AgentSpec(Model):
    """An agent of a job, with its model, endpoint and secrets by name.

    An agent that is part of the engine (`oracle`, `nop`) has nothing but a name.
    """

    name: str
    """Name or alias in the agent registry, or `module:object` of an agent in code; once the job is submitted, the
    name in the agent's record.
    """

    model: str | None = None
    """Model as `provider/model`, or as the agent's first endpoint spells it. None leaves the choice to the agent."""

    base_url: str | None = None
    """Base URL of a model endpoint of the user's own; None for the provider's endpoint."""

    effort: str | None = None
    """Reasoning effort: one of the levels in the agent's record. None leaves it to the agent."""

    env: dict[str, str] = {}
    """Environment variables of the agent's process. `${VAR}` is resolved on the worker; at submit, such references
    replace literal values, which may be secret.
    """

    credentials: tuple[str, ...] = ()
    """Names of the secrets with which the agent logs in to its model: alternative variables, of which the first that
    is set counts, or files of the submitter's home (`~/…`). Empty if agent and endpoint need none.
    """

    record: AgentRecord | None = None
    """Registry record of the agent as of the submit; None before it, and for an agent that is part of the engine."""

    @classmethod
    def parse(cls, text: str) -> AgentSpec:
        """Parse `NAME` or `NAME:MODEL`."""
        name, _, model = text.partition(":")
        return cls(name=name, model=model or None)

    @property
    def label(self) -> str:
        """Return `NAME:MODEL`, or `NAME` without a model: the agent's name in ids and tables, unique in a job."""
        return f"{self.name}:{self.model}" if self.model else self.name


class TaskRef(Model):
    """A task frozen at submit: its files are in the store, by digest."""

    name: str
    """Name of the task, unique in its job: that of its directory."""

    digest: str
    """Hex sha256 of the task's files, without ignored files."""

    pack: ArtifactRef
    """Archive of the task's files in the store, without ignored files."""

    context: ArtifactRef | None = None
    """Archive of the build context in the store, if a `context_root` of the job or the task replaces the task's own
    `environment/`; else None.
    """

    source: str | None = None
    """Path of the task's directory on the submitting host; no part of the job's digest. None if there is none: the
    trial of a world without a task makes one up.
    """

    environment: EnvironmentRef | None = None
    """World (environment) in which the task is set; None for a task without one."""

    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward that its verifiers, those of its steps included, may report. Tasks of jobs that are
    older than this field have the default.
    """

    @property
    def has_world_image(self) -> bool:
        """Return whether its world names the sandbox's image, so that the task need not."""
        return self.environment is not None and self.environment.manifest.has_image


class RunConfig(RunSettings):
    """How every rollout of a job is run, as its workers read it."""

    sandbox: str = "docker"
    """Name of the sandbox provider."""

    mode: JobMode | None = None
    """Mode of the job, GRPO groups or V(s) at given depths, for which the job writes extra rows beside its results;
    how its rollouts branch then is in `branch`. None for a job without a mode.
    """

    rebuild: str | None = None
    """Random name of the job's request to rebuild its images, by which all of its rollouts share the new builds; a
    resumed job has the same one. None if existing builds are used.
    """


class Origin(Model):
    """Host from which a job was submitted, and the directory there to which its results return."""

    host_id: str
    """Id of the submitting host (`benchflow.host.read_host_id`); empty where a client writes missing rows by itself."""

    job_dir: str
    """Absolute path of the job's results directory on that host."""


class JobSpec(Model):
    """Specification of a job: everything that decides what it does.

    Its digest (`benchflow.jobs.compute_spec_digest`) decides whether two submits of one name are the same job.
    """

    name: str
    """Name of the job, and of its results directory. No part of the digest."""

    tasks: list[TaskRef]
    """Tasks, in the order of their indices."""

    agents: list[AgentSpec]
    """Agents, in the order of their indices. Each of them runs every task."""

    repeats: int = Field(default=1, ge=1)
    """Number of rollouts of each task with each agent."""

    run: RunConfig = RunConfig()
    """Settings that all rollouts share."""

    retry: RetryConfig = RetryConfig()
    """Rule by which failed rollouts are run again: error categories, number of attempts, waits."""

    context_root: str | None = None
    """Absolute path, on the submitting host, of the build context for all tasks; None if each task has its own. The
    digest covers its content, not its path.
    """

    environment_manifest: str | None = None
    """Absolute path, on the submitting host, of the manifest of all tasks' world; None if none was given for all. The
    digest covers its content, not its path.
    """

    options: WorkflowOptions = WorkflowOptions()
    """Timing of its workflows, read from the environment at each start of the job. No part of the digest."""

    concurrency: int | None = Field(default=None, ge=1, le=MAX_WINDOW)
    """Maximum number of sandboxes at a time, as of the latest start. No part of the digest. None in jobs that are older
    than this field.
    """

    rescoring: RescoringSpec | None = None
    """Stored rollouts that the job scores again, in place of running agents: those of the job whose tasks, agents and
    repeats this one has. The job's digest then covers `RescoringSpec.digest` alone. None for a job that runs
    agents.
    """

    trial: TrialSpec | None = None
    """Trial of the world of the only task, in place of running an agent; None for any other job."""

    restarts: dict[int, Restart] = {}
    """Ended rollouts to roll back, by index. Set only for the start that rolls them back, and no part of the digest."""

    @property
    def indices(self) -> Sequence[int]:
        """Return the indices of its rollouts."""
        if self.rescoring is not None:
            return sorted(self.rescoring.rollouts)
        return range(len(self.tasks) * len(self.agents) * self.repeats)

    @property
    def total(self) -> int:
        """Return the number of its rollouts."""
        return len(self.indices)

    @property
    def is_persistent(self) -> bool:
        """Return whether all rollouts share one sandbox, one after another."""
        worlds = [task.environment.manifest for task in self.tasks if task.environment is not None]
        has_agents = self.rescoring is None and self.trial is None
        return has_agents and any(world.isolation == "persistent" for world in worlds)

    def coordinates(self, index: int) -> tuple[int, int, int]:
        """Return the (task, agent, repeat) indices of a rollout: repeats vary slowest, then tasks, then agents."""
        per_repeat = len(self.tasks) * len(self.agents)
        repeat, rest = divmod(index, per_repeat)
        task, agent = divmod(rest, len(self.agents))
        return task, agent, repeat

    def rollout_id(self, job_id: str, index: int) -> str:
        """Return the workflow id of the rollout number `index` of the job `job_id`."""
        task, agent, repeat = self.coordinates(index)
        return ids.rollout_id(job_id, self.tasks[task].name, self.agents[agent].label, repeat)

    def rollout_name(self, job_id: str, index: int) -> str:
        """Return the name of the results directory of the rollout number `index` of the job `job_id`."""
        return ids.rollout_name(self.tasks[self.coordinates(index)[0]].name, self.rollout_id(job_id, index))

    def rollout(self, job_id: str, origin: Origin, index: int, *, run_id: str = "") -> RolloutSpec:
        """Return the specification of the rollout number `index`, in its first attempt.

        Args:
            job_id: Workflow id of the job.
            origin: Host and directory of the results.
            index: Index of the rollout.
            run_id: Run id of the first run of the job's workflow, which names the sandbox of a persistent job.
        """
        task, agent, repeat = self.coordinates(index)
        return RolloutSpec(
            options=self.options,
            id=self.rollout_id(job_id, index),
            job_id=job_id,
            job_name=self.name,
            name=self.rollout_name(job_id, index),
            index=index,
            task=self.tasks[task],
            agent=self.agents[agent],
            repeat=repeat,
            run=self.run,
            origin=origin,
            job_run_id=run_id if self.is_persistent else None,
            stored=self.rescoring.stored(index) if self.rescoring is not None else None,
            trial=self.trial,
            restart=self.restarts.get(index),
        )


MAX_RUN_SEC = 50 * 365 * 86400.0
"""Longest run timeout of a rollout's workflow, in seconds: a backstop, not a limit."""


class RolloutSpec(Model):
    """Specification of one rollout of a job: a root, or a child in the tree of one."""

    id: str
    """Workflow id: `benchflow.contracts.ids.rollout_id` of a root, `child_id` of a child."""

    job_id: str
    """Workflow id of its job."""

    job_name: str
    """Name of its job."""

    name: str
    """Name of its results directory in the job's. A child has the name of its root, below which its results are."""

    index: int
    """Index among the rollouts of its job (`JobSpec.coordinates`); a child has that of its root."""

    attempt: int = 1
    """Number of the attempt, from 1; a child has that of its root."""

    task: TaskRef
    """Task that is run."""

    agent: AgentSpec
    """Agent that acts. A child may have a model of its own."""

    repeat: int
    """Index of the repeat, from 0."""

    run: RunConfig
    """Settings of the job. A child may have a seed of its own."""

    origin: Origin
    """Host and directory of the results."""

    job_run_id: str | None = None
    """Run id of the first run of the job's workflow, if the job owns the sandbox and its rollouts share it; None if the
    rollout has a sandbox of its own.
    """

    branch: BranchOrigin | None = None
    """Where in its tree a child starts; None for a root."""

    options: WorkflowOptions = WorkflowOptions()
    """Timing of its workflow: the job's."""

    stored: StoredRef | None = None
    """Stored rollout that is scored again, in place of running an agent; None otherwise."""

    trial: TrialSpec | None = None
    """Trial of the task's world, in place of running an agent; None otherwise."""

    restart: Restart | None = None
    """Checkpoint from which the rollout, which had ended, starts again; None for a start from its beginning."""

    @property
    def chain(self) -> str:
        """Return its branch path in its tree; empty for a root."""
        return self.branch.chain if self.branch is not None else ""

    @property
    def begins_at(self) -> tuple[str, int]:
        """Return the node where it starts, and the number of steps that led there: `("n0", 0)` for a root."""
        return (self.branch.node, self.branch.checkpoint.steps_done) if self.branch is not None else ("n0", 0)

    @property
    def run_timeout(self) -> timedelta:
        """Return the run timeout of its workflow: a backstop, longer than any rollout that ends by itself.

        Four attempts of a report count: with the sandbox and without it, and each once more after a cancellation. So do
        three teardowns: checkpoints are released on their hosts, and elsewhere if those are lost, and the sandbox is
        removed. Waits for slots, people, callbacks and the end of an outage count with `max_wait_sec`. The children of
        a rollout that branches may run one after another, each for as long. A child has fewer children below it than
        its parent, so that it ends first.
        """
        limits = self.options
        ending = 4 * limits.report_total_sec + 3 * limits.teardown_total_sec
        alone = self.run.deadline_sec + ending + limits.max_wait_sec
        return timedelta(seconds=min(alone * (1 + self._max_descendants), MAX_RUN_SEC))

    @property
    def _max_descendants(self) -> int:
        """Return the maximum number of rollouts below this one in its tree."""
        if self.branch is not None:
            return self.branch.budget
        return self.run.branch.max_children if self.run.branch is not None else 0


# --- inputs, signals, queries and results of the workflows -----------------------------------------------


class OpenRollout(Model):
    """A rollout that was started and has not reported."""

    index: int
    """Index among the rollouts of the job."""

    attempt: int
    """Number of the attempt, from 1; 0 if its workflow ran already when this run of the job was to start it."""

    id: str
    """Workflow id."""

    since: float | None = None
    """Workflow time, in seconds since the epoch, at which the server confirmed its start. None before: it may not exist
    yet.
    """

    run_id: str = ""
    """Run id of the first run of its workflow; empty before its start is confirmed, and if another run of this job has
    started it.
    """


class Retry(Model):
    """A rollout that is to be started later: again, or for the first time after a start that failed."""

    index: int
    """Index among the rollouts of the job."""

    attempt: int
    """Number of the attempt that is to be started; 1 if only its start has failed so far."""

    not_before: float
    """Earliest workflow time of the start, in seconds since the epoch."""


class JobInput(Model):
    """Input of a run of a JobWorkflow: the job as it was submitted, and all state carried across continue-as-new."""

    id: str
    """Workflow id of the job."""

    name: str
    """Name of the job."""

    spec: ArtifactRef
    """The `JobSpec` in the store, as JSON: it may be too large for a message."""

    origin: Origin
    """Host and directory of the results."""

    total: int
    """Number of all rollouts of the job, those that ended in an earlier start included."""

    pending: list[tuple[int, int]]
    """Half-open ranges of the indices of rollouts that are still to be started for the first time."""

    concurrency: int = Field(ge=1, le=MAX_WINDOW)
    """Maximum number of sandboxes at a time. The signal `SetConcurrency` changes it."""

    one_at_a_time: bool = False
    """Whether its rollouts run one after another, whatever its concurrency, because they share a sandbox."""

    retry: RetryConfig = RetryConfig()
    """Rule by which failed rollouts are run again: error categories, number of attempts, waits."""

    open: list[OpenRollout] = []
    """Rollouts that were started and have not reported."""

    retries: list[Retry] = []
    """Rollouts that are to be started later."""

    counts: Counts = Counts()
    """Rollouts that have ended since the job was last started, by status."""

    paused: bool = False
    """Whether no further rollout is started until the job is resumed."""

    cancelled: bool = False
    """Whether the cancellation of the job was requested."""

    started: int = 0
    """Unused: nothing sets or reads it."""

    error_limit: ErrorLimit = ErrorLimit()
    """Number of equal errors after which the job starts no more rollouts, and what has counted towards it."""

    options: WorkflowOptions = WorkflowOptions()
    """Timing of the job's workflows, frozen at submit."""

    given_up: bool = False
    """Whether the job starts nothing more: rollouts can't be started, or the limit of equal errors was reached."""

    to_cancel: list[str] = []
    """Workflow ids of rollouts whose cancellation was requested, those that have not started included."""

    lost: list[LostGroup] = []
    """Rollouts without a result, grouped by failure: their rows are not yet on the submitting host."""

    failed_starts: dict[int, tuple[float, int]] = {}
    """Failed starts of rollouts, by index: workflow time of the first, in seconds since the epoch, and their number."""

    naming_since: float | None = None
    """Workflow time, in seconds since the epoch, from which failures to name rollouts count towards `start_total_sec`;
    None while naming works, or fails because of an outage.
    """

    slots: list[PooledAccount] = []
    """Slot accounts of rollouts that have branched."""

    sweep: SweepState | None = None
    """State of the sweep for silent rollouts; None in the first run of the job's workflow."""

    agents: list[str] = []
    """Labels of its agents, in the order of the specification; empty if an earlier version started the job."""

    def agent_of(self, index: int) -> str | None:
        """Return the label of the agent of rollout number `index`, as `JobSpec.coordinates` has it; None if unknown."""
        return self.agents[index % len(self.agents)] if self.agents else None


class JobProgress(Model):
    """Response to a job's query `progress`."""

    id: str
    """Workflow id of the job."""

    name: str
    """Name of the job."""

    total: int
    """Number of all rollouts of the job, those that ended in an earlier start included."""

    counts: Counts
    """Rollouts that have ended since the job was last started, by status."""

    open_count: int
    """Number of rollouts that were started and have not reported."""

    open: list[str]
    """Workflow ids of these rollouts, at most 50."""

    waiting: int
    """Number of rollouts that wait to be started, retries included."""

    concurrency: int
    """Maximum number of sandboxes at a time."""

    paused: bool
    """Whether no further rollout is started until the job is resumed."""

    cancelled: bool
    """Whether the cancellation of the job was requested."""

    recent: list[RolloutOutcome] = []
    """Last outcomes that stand, at most 20, oldest first. They are lost when the workflow continues as new."""

    run_again: list[RolloutOutcome] = []
    """Last outcomes of attempts that another one follows, at most 20, oldest first; lost likewise."""

    asked: Failure | None = None
    """Error for which the job has stopped starting rollouts and waits for its user to decide whether to continue; None
    if it does not wait.
    """

    trouble: str | None = None
    """Last failure that the job's workflow retries, as `WORK, attempt N: TYPE: MESSAGE`; None for none."""


class RolloutProgress(Model):
    """Response to a rollout's query `progress`."""

    phase: Phase
    """Phase that the rollout is in."""

    detail: str = ""
    """Progress within the phase, in a few words (`step 2 of 3`, the agent's question); empty if there is nothing to
    add. The client fills it in for the trial of a world.
    """

    since: float
    """Workflow time at which the phase began, in seconds since the epoch."""

    attempt: int = 1
    """Number of the attempt, from 1."""

    chain: str = ""
    """Branch path in its tree; empty for a root."""

    question: Question | None = None
    """Question of the agent that waits for an answer; None for none."""

    rollback: Rollback | None = None
    """Last roll-back that was carried out. None before the first, and until an ended rollout that was started again is
    back at its node.
    """


class SetConcurrency(Model):
    """Signal that changes how many sandboxes of a job may run at a time."""

    concurrency: int = Field(ge=1, le=MAX_WINDOW)
    """New maximum number of sandboxes. Those that run beyond it are not stopped."""


class CancelRollout(Model):
    """Signal that cancels one rollout of a job: now if it runs, else as soon as it does. It is not run again."""

    id: str
    """Workflow id of the rollout."""


class JobOutcome(Model):
    """Return value of a JobWorkflow."""

    id: str
    """Workflow id of the job."""

    counts: Counts
    """Rollouts that have ended since the job was last started, by status."""

    not_started: int = 0
    """Number of rollouts that have no attempt, because the job was cancelled before. Those that the limit of equal
    errors has prevented are in `counts`.
    """

    lost: list[LostGroup] = []
    """Rollouts without a result, grouped by failure, that may lack a row on the submitting host: `Job.fetch` writes the
    missing ones.
    """
