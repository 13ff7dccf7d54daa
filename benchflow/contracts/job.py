"""A job: tasks × agents × repeats, what it is made from and what its workflow exchanges with the world."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pydantic import Field

from benchflow.contracts import ids
from benchflow.contracts.agent import AgentRecord
from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.branch import BranchOrigin
from benchflow.contracts.counts import Counts
from benchflow.contracts.ended import Restart
from benchflow.contracts.environment import EnvironmentRef
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.lost import LostGroup, SweepState
from benchflow.contracts.modes import JobMode
from benchflow.contracts.options import WorkflowOptions
from benchflow.contracts.rescoring import RescoringSpec, StoredRef
from benchflow.contracts.retries import RetryConfig
from benchflow.contracts.rollout import Failure, Phase, Question, Rollback, RolloutOutcome
from benchflow.contracts.settings import RunSettings
from benchflow.contracts.slots import PooledAccount
from benchflow.contracts.trial import TrialSpec

MAX_WINDOW = 500
"""Most rollouts of one job that are open at a time."""


class AgentSpec(Model):
    """Which agent acts, with which model, at which endpoint.

    model: `provider/model`, or as the agent's first provider spells it. base_url: of an endpoint other than the
    provider's own. effort: one of the agent's levels. env: for the agent's process; `${VAR}` is put in where it runs.
    credentials: the variables or files (`~/…`) whose values it logs in with, by name. record: what the registry said
    when the job was submitted; None for what the engine does itself.
    """

    name: str
    model: str | None = None
    base_url: str | None = None
    effort: str | None = None
    env: dict[str, str] = {}
    credentials: tuple[str, ...] = ()
    record: AgentRecord | None = None

    @classmethod
    def parse(cls, text: str) -> AgentSpec:
        """`NAME` or `NAME:MODEL`."""
        name, _, model = text.partition(":")
        return cls(name=name, model=model or None)

    @property
    def label(self) -> str:
        return f"{self.name}:{self.model}" if self.model else self.name


class TaskRef(Model):
    """A task frozen at submit: its files by digest, in the store.

    context: the build context, when it is not the task's own `environment/` (`context_root`). source: where the
    task lay when it was submitted; no part of what the task is. environment: the world that it is set in.
    """

    name: str
    digest: str
    pack: ArtifactRef
    context: ArtifactRef | None = None
    source: str | None = None
    environment: EnvironmentRef | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward that its verifiers may report. Jobs that are older than this field have the default."""

    @property
    def has_world_image(self) -> bool:
        """Whether its world names the sandbox's image, so that the task need not."""
        return self.environment is not None and self.environment.manifest.has_image


class RunConfig(RunSettings):
    """How every rollout of a job is run, as its workers read it."""

    sandbox: str = "docker"
    """Name of the provider."""

    mode: JobMode | None = None
    """What the job is for, where that says when a rollout branches."""

    rebuild: str | None = None
    """Name of the job's request to build its images anew, by which all of its rollouts share the builds."""


class Origin(Model):
    """The host and directory that results go back to."""

    host_id: str
    job_dir: str


class JobSpec(Model):
    """All that decides what a job does. Its digest decides whether two submits are the same job.

    context_root, environment_manifest: where the build context and the manifest lay that were given for all tasks;
    their content counts, their place does not.
    """

    name: str
    tasks: list[TaskRef]
    agents: list[AgentSpec]
    repeats: int = Field(default=1, ge=1)
    run: RunConfig = RunConfig()
    retry: RetryConfig = RetryConfig()
    context_root: str | None = None
    environment_manifest: str | None = None
    options: WorkflowOptions = WorkflowOptions()
    """Timing of its workflows, as the submitting environment had it. No part of the digest."""
    concurrency: int | None = Field(default=None, ge=1, le=MAX_WINDOW)
    """Sandboxes at a time, as it was last started. No part of the digest. None of jobs older than this field."""

    rescoring: RescoringSpec | None = None
    """Makes it a job that scores stored rollouts again: those of the job whose tasks, agents and repeats it has."""

    trial: TrialSpec | None = None
    """Makes it a job that tries the world of its only task."""

    restarts: dict[int, Restart] = {}
    """Rollouts that have ended and are rolled back, by index. Only of the start that rolls them back."""

    @property
    def indices(self) -> Sequence[int]:
        """Indices of its rollouts."""
        if self.rescoring is not None:
            return sorted(self.rescoring.rollouts)
        return range(len(self.tasks) * len(self.agents) * self.repeats)

    @property
    def total(self) -> int:
        """Number of its rollouts."""
        return len(self.indices)

    @property
    def is_persistent(self) -> bool:
        """Whether all rollouts share one sandbox, one after another."""
        worlds = [task.environment.manifest for task in self.tasks if task.environment is not None]
        has_agents = self.rescoring is None and self.trial is None
        return has_agents and any(world.isolation == "persistent" for world in worlds)

    def coordinates(self, index: int) -> tuple[int, int, int]:
        """(task, agent, repeat) indices of the rollout number `index`: repeats outermost, then tasks, then agents."""
        per_repeat = len(self.tasks) * len(self.agents)
        repeat, rest = divmod(index, per_repeat)
        task, agent = divmod(rest, len(self.agents))
        return task, agent, repeat

    def rollout_id(self, job_id: str, index: int) -> str:
        """The workflow id of the rollout number `index` of this job."""
        task, agent, repeat = self.coordinates(index)
        return ids.rollout_id(job_id, self.tasks[task].name, self.agents[agent].label, repeat)

    def rollout_name(self, job_id: str, index: int) -> str:
        """The name of its results directory."""
        return ids.rollout_name(self.tasks[self.coordinates(index)[0]].name, self.rollout_id(job_id, index))

    def rollout(self, job_id: str, origin: Origin, index: int, *, run_id: str = "") -> RolloutSpec:
        """Return the rollout number `index` of the job `job_id`. run_id: of the first run of the job's workflow."""
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
"""Longest run timeout: a backstop, not a limit."""


class RolloutSpec(Model):
    """One rollout of a job. id: its workflow id. name: its directory's name.

    job_run_id: of the first run of the job's workflow, where the job owns the sandbox and not the rollout. branch: what
    it begins with, where it is a child of another.
    """

    id: str
    job_id: str
    job_name: str
    name: str
    index: int
    attempt: int = 1
    task: TaskRef
    agent: AgentSpec
    repeat: int
    run: RunConfig
    origin: Origin
    job_run_id: str | None = None
    branch: BranchOrigin | None = None
    options: WorkflowOptions = WorkflowOptions()
    """Timing of its workflow: the job's."""

    stored: StoredRef | None = None
    """The stored rollout that is scored again, in place of running an agent."""

    trial: TrialSpec | None = None
    """How its world is tried, in place of running an agent."""

    restart: Restart | None = None
    """Where it starts again, having ended before."""

    @property
    def chain(self) -> str:
        """Its chain of nodes in its tree; empty for a root."""
        return self.branch.chain if self.branch is not None else ""

    @property
    def begins_at(self) -> tuple[str, int]:
        """The node where it begins, and how many steps led there."""
        return (self.branch.node, self.branch.checkpoint.steps_done) if self.branch is not None else ("n0", 0)

    @property
    def run_timeout(self) -> timedelta:
        """Return how long its workflow may run: a backstop, longer than a rollout takes that ends by itself.

        Its report is tried in the sandbox and without it, for as long as an outage of `max_wait_sec` lasts, and each
        once more after a cancellation; checkpoints are released on their hosts, and elsewhere where these are lost; the
        sandbox is removed. Of one that branches, all children may run one after another, each for as long; those of a
        child are fewer, so that it ends before its parent does.
        """
        limits = self.options
        ending = 4 * limits.report_total_sec + 3 * limits.teardown_total_sec
        alone = self.run.deadline_sec + ending + limits.max_wait_sec
        return timedelta(seconds=min(alone * (1 + self._max_descendants), MAX_RUN_SEC))

    @property
    def _max_descendants(self) -> int:
        """Return how many rollouts may begin below this one."""
        if self.branch is not None:
            return self.branch.budget
        return self.run.branch.max_children if self.run.branch is not None else 0


# --- what the job workflow exchanges ---------------------------------------------------------------------


class OpenRollout(Model):
    """A rollout that was started and has not reported."""

    index: int
    attempt: int
    id: str
    since: float | None = None
    """Workflow time, in seconds, at which the server confirmed its start. None before: it may not exist yet."""

    run_id: str = ""
    """First run of its workflow; empty where another run of this job has started it."""


class Retry(Model):
    """A rollout that is to be run again. not_before: workflow time, seconds."""

    index: int
    attempt: int
    not_before: float


class JobInput(Model):
    """What a JobWorkflow starts from, and all that it carries across continue-as-new.

    spec: the JobSpec in the store. pending: half-open ranges of rollout indices still to be started. concurrency: its
    sandboxes that run at a time. one_at_a_time: its rollouts share a sandbox, whatever its concurrency.
    """

    id: str
    name: str
    spec: ArtifactRef
    origin: Origin
    total: int
    pending: list[tuple[int, int]]
    concurrency: int = Field(ge=1, le=MAX_WINDOW)
    one_at_a_time: bool = False
    retry: RetryConfig = RetryConfig()
    open: list[OpenRollout] = []
    retries: list[Retry] = []
    counts: Counts = Counts()
    paused: bool = False
    cancelled: bool = False
    started: int = 0
    error_limit: ErrorLimit = ErrorLimit()
    """When the job stops starting rollouts."""
    options: WorkflowOptions = WorkflowOptions()
    """Timing of the job's workflows, frozen at submit."""

    given_up: bool = False
    """Whether it starts nothing more, since rollouts can't be started."""

    to_cancel: list[str] = []
    """Workflow ids of rollouts whose cancellation was asked for, of those that have not started as well."""

    lost: list[LostGroup] = []
    """Counted as errored, but without a row where the job was submitted."""

    failed_starts: dict[int, tuple[float, int]] = {}
    """Failed starts of rollouts, by index: when the first was (workflow time), and how many there were."""

    naming_since: float | None = None
    """From when on the failures to name rollouts count, workflow time; None if that does not fail."""

    slots: list[PooledAccount] = []
    """The slots of rollouts that have branched."""

    sweep: SweepState | None = None
    """None in the first run of the job's workflow."""

    agents: list[str] = []
    """Labels of its agents, in the order of the specification; none if an earlier version began the job."""

    def agent_of(self, index: int) -> str | None:
        """Return the label of the agent of rollout number `index`, as `JobSpec.coordinates` has it; None if unknown."""
        return self.agents[index % len(self.agents)] if self.agents else None


class JobProgress(Model):
    """The answer to the `progress` query. open: at most 50 ids. recent: the last outcomes, oldest first.

    run_again: likewise, those of attempts that another one follows.
    """

    id: str
    name: str
    total: int
    counts: Counts
    open_count: int
    open: list[str]
    waiting: int
    concurrency: int
    paused: bool
    cancelled: bool
    recent: list[RolloutOutcome] = []
    run_again: list[RolloutOutcome] = []
    asked: Failure | None = None
    """Why the job has stopped starting rollouts, and asks whether to go on; None if it does not."""
    trouble: str | None = None
    """The failure that the job's workflow tries again; None for none."""


class RolloutProgress(Model):
    """The answer to a rollout's `progress` query. since: seconds since the epoch, workflow time.

    chain: its own in its tree. question: what its agent waits to be answered.
    """

    phase: Phase
    detail: str = ""
    since: float
    attempt: int = 1
    chain: str = ""
    question: Question | None = None
    rollback: Rollback | None = None
    """The last roll-back that was carried out."""


class SetConcurrency(Model):
    concurrency: int = Field(ge=1, le=MAX_WINDOW)


class CancelRollout(Model):
    id: str


class JobOutcome(Model):
    """What a JobWorkflow returns. not_started: rollouts that a cancel kept from starting."""

    id: str
    counts: Counts
    not_started: int = 0
    lost: list[LostGroup] = []
    """Counted as errored, but without a row where the job was submitted: `Job.fetch` writes it."""
