"""A rollout on this host with everything that one of its activities reads: task, secrets, paths, sandbox, world, model.

Its operations are the methods of `HostedRollout`, which call the modules that take a `Hosted`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

from benchflow.contracts.agent_record import TOOLBOX_ROOT, AgentRecord
from benchflow.contracts.environment import EnvironmentRef, Manifest
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rollout_records import AgentSession, Failure
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.task import Task
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import BenchFlowError, MissingArtifactError, TaskError
from benchflow.host_files import raise_storage_errors
from benchflow.hosting.blueprint import Blueprint
from benchflow.hosting.model import RolloutModel
from benchflow.hosting.sandbox_readiness import check_health
from benchflow.hosting.worker_host import Host, TaskFiles
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.registry import find_record
from benchflow.planes.environment.exports import WorldContext, WorldSetup, open_environment
from benchflow.planes.sandbox import get_provider
from benchflow.secrets import Redactor, Secrets, list_agent_references, list_task_variables
from benchflow.tasks import apply_verifier_options

WORLD_SETUP = "world.json"
"""File in a sandbox's session directory: how the sandbox was prepared for its world."""

WORLD_RECORDS = "world"
"""Directory in a sandbox's session directory: the records of its world."""


class Hosted:
    """A rollout's task, agent, secrets, paths, sandbox, world and model on this host, for one activity.

    They are read at their first use and cached. Properties that need the task raise `TaskError` if it can't be read.
    """

    def __init__(self, host: Host, spec: RolloutSpec, ref: SandboxRef | None = None) -> None:
        """Make it without reading anything: see `of`.

        Args:
            host: This host.
            spec: Specification of the rollout.
            ref: Reference of its sandbox; None if it has none yet.
        """
        self.host = host
        self.spec = spec
        self._ref = ref
        self._sandbox: Sandbox | None = None
        self._files: TaskFiles | TaskError | None = None
        self._world: StatefulEnvironment | None = None
        self._is_healthy = False

    @classmethod
    async def load(cls, host: Host, spec: RolloutSpec, ref: SandboxRef | None = None) -> Self:
        """Return a rollout with its task read, attached to its sandbox if it has one.

        A task that can't be read raises its `TaskError` only where it is needed.

        Args:
            host: This host.
            spec: Specification of the rollout.
            ref: Reference of its sandbox; None if it has none yet.

        Raises:
            SandboxLostError: The sandbox is gone.
            StoreError: The task's files can't be fetched.
        """
        rollout = cls(host, spec, ref)
        await rollout.read_task()
        if ref is not None:
            await rollout.attach()
        return rollout

    async def read_task(self) -> None:
        """Read the task. Raises `StoreError`; a `TaskError` is stored, and raised where the task is needed."""
        try:
            self._files = await self.host.load_task_files(self.spec.task)
        except TaskError as error:
            self._files = error

    # --- its task and agent ----------------------------------------------------------------------------------

    @property
    def files(self) -> TaskFiles:
        """Return the submitted task and its files on this host. Raises `TaskError` if it can't be read."""
        if isinstance(self._files, TaskError):
            raise self._files
        assert self._files is not None, "the task was not read"
        return self._files

    @cached_property
    def task(self) -> Task:
        """Return the task with the job's settings of where verifiers run, and of the reward key, applied to it."""
        return apply_verifier_options(self.files.task, self.spec.run.verify_in, self.spec.run.reward_key)

    @property
    def directory(self) -> Path:
        """Directory of the task's files."""
        return self.files.directory

    @cached_property
    def record(self) -> AgentRecord:
        """Registry record of the agent."""
        return find_record(self.spec.agent)

    @property
    def has_agent(self) -> bool:
        """Return whether an agent acts that is not one of the engine's own, such as the oracle."""
        return not self.record.is_engine

    @property
    def min_resume_mode(self) -> Rung:
        """The worst resume mode in which the job lets a child resume its parent's session."""
        branch = self.spec.run.branch
        return branch.min_session_rung if branch is not None else "fresh"

    # --- secrets -----------------------------------------------------------------------------------------------

    @cached_property
    def secrets(self) -> Secrets:
        """Return the job's secrets from its private file on this host, else from this process's environment."""
        return Secrets.of_job(self.host.paths, self.spec.job_id)

    @cached_property
    def redact(self) -> Redactor:
        """Redactor of the secrets of agent, task and world, for everything that comes back from a sandbox."""
        named = {*list_agent_references(self.spec.agent), *(self.manifest.forward_env.keys if self.manifest else ())}
        with contextlib.suppress(TaskError):
            named |= set(list_task_variables(self.task))
        return self.secrets.redactor(named)

    @contextlib.contextmanager
    def redact_errors(self) -> Iterator[None]:
        """Redact secrets in a `BenchFlowError` of the block: an agent's output in it ends up in workflow histories."""
        try:
            yield
        except BenchFlowError as error:
            self.redact_error(error)
            raise

    def redact_error(self, error: BenchFlowError) -> None:
        """Redact secrets in the message and the log tail of an error, in place."""
        error.message = self.redact.cut(error.message)
        error.log_tail = self.redact.cut(error.log_tail) if error.log_tail else None
        error.args = (error.message,)

    def redact_failure(self, failure: Failure) -> Failure:
        """Return a failure with secrets redacted in its message and log tail."""
        tail = self.redact.cut(failure.log_tail) if failure.log_tail else None
        return failure.model_copy(update={"message": self.redact.cut(failure.message), "log_tail": tail})

    def make_env(self, *tables: Mapping[str, str], task: Task | None = None) -> dict[str, str]:
        """Return the environment of a command in the sandbox, with names of secrets replaced by their values.

        It consists of the task's id, if the world takes it from a variable, the sandbox's variables, and `tables`.

        Args:
            tables: Further variables, such as those of a phase; later ones win.
            task: Task whose sandbox table is used, for a sandbox other than the agent's; None for the rollout's.
        """
        task = task or self.task
        of_world = self.manifest.task_env(task.name, "exec") if self.manifest else {}
        return self.secrets.resolve(of_world, task.sandbox.env, *tables)

    # --- paths ---------------------------------------------------------------------------------------------------

    @property
    def root_paths(self) -> RolloutPaths:
        """Return the paths of the results of the tree's root on this host: in the job's directory, or a copy of it."""
        origin = self.spec.origin
        elsewhere = self.host.paths.rollouts / self.spec.job_id.replace("/", "_")
        job = Path(origin.job_dir) if self.host.is_origin(origin) else elsewhere
        return JobPaths(job).rollout(self.spec.name)

    @property
    def paths(self) -> RolloutPaths:
        """Return the paths of the rollout's results on this host; a child's lie below the root's."""
        branch = self.spec.branch
        return self.root_paths.child(branch.chain) if branch is not None else self.root_paths

    @property
    def parent_paths(self) -> RolloutPaths:
        """Return the paths of the results of a child's parent on this host."""
        assert self.spec.branch is not None
        path = self.spec.branch.node.rpartition("/")[0]
        return self.root_paths.child(path) if path else self.root_paths

    def make_results_directory(self) -> RolloutPaths:
        """Make the directory of the results unless it exists, and return its paths.

        Raises:
            MissingArtifactError: The job's directory is gone.
        """
        origin, paths = self.spec.origin, self.paths
        if self.host.is_origin(origin) and not Path(origin.job_dir).is_dir():
            raise MissingArtifactError(
                "the job's directory is gone", file=origin.job_dir, remedy="do not move it while the job runs"
            )
        with raise_storage_errors(paths.root):
            paths.root.mkdir(parents=True, exist_ok=True)
        return paths

    # --- its sandbox ---------------------------------------------------------------------------------------------

    @property
    def provider(self) -> SandboxProvider:
        """Return the provider of the rollout's sandbox, or of the one that it will have."""
        return get_provider(self._ref.provider if self._ref is not None else self.spec.run.sandbox)

    @property
    def ref(self) -> SandboxRef:
        """Return the reference of the rollout's sandbox, which it must have."""
        assert self._ref is not None, "the rollout has no sandbox"
        return self._ref

    @property
    def sandbox(self) -> Sandbox:
        """Return the sandbox, to which the rollout must be attached."""
        assert self._sandbox is not None, "the rollout is not attached to its sandbox"
        return self._sandbox

    async def attach(self, ref: SandboxRef | None = None) -> None:
        """Attach to the rollout's sandbox, or to another one by its reference. Raises `SandboxLostError`."""
        self._ref = ref or self.ref
        self._sandbox = await self.host.attach_sandbox(self._ref)

    async def attach_whole_sandbox(self) -> Sandbox:
        """Return a handle of the sandbox outside of the rollout's namespace, for things that its rollouts share."""
        return await self.host.attach_sandbox(self.ref.model_copy(update={"episode": ""}))

    @cached_property
    def blueprint(self) -> Blueprint:
        """Return the blueprint of the agent's sandbox: task, files, world, provider, hidden paths."""
        files, spec = self.files, self.spec
        results = Path(spec.stored.directory) if spec.stored is not None else self.paths.root
        jobs_dir = results.parent.parent
        hidden = (files.directory, files.context, self.spec.task.source, jobs_dir)
        return Blueprint(
            self.task,
            files.directory,
            files.context,
            self.spec.task.environment,
            self.host.fetch_directory,
            get_provider(self.spec.run.sandbox),
            hidden=tuple(str(path) for path in hidden if path),
            rebuild=self.spec.run.rebuild,
        )

    @property
    def sessions(self) -> Path:
        """Directory on this host with the session files and marks of the sandbox."""
        return self.host.paths.sessions / self.ref.name

    @property
    def session_files(self) -> SessionFiles:
        """Paths of the files of the sandbox's agent sessions: journals and notes."""
        return SessionFiles.from_directory(self.sessions)

    def has_mark(self, name: str) -> bool:
        """Return whether `mark` has marked the sandbox with this name, in any process."""
        return (self.sessions / name).exists()

    def mark(self, name: str) -> None:
        """Record a fact about the sandbox by an empty file of this name, for later attempts and activities."""
        mark = self.sessions / name
        with raise_storage_errors(mark):
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch()

    # --- its world and model -------------------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the task's world; None for a task without one."""
        return self.spec.task.environment.manifest if self.spec.task.environment else None

    async def open_world(self) -> StatefulEnvironment | None:
        """Return the rollout's world, opened once and cached; it is not started. None for a task without one.

        Raises:
            FileNotFoundError: The sandbox was never prepared for the world.
            ConfigError: A world in code can't be imported.
        """
        environment = self.spec.task.environment
        if environment is None or self._world is not None:
            return self._world
        is_manifest = environment.code is None
        self._world = open_environment(
            environment,
            await self.make_world_context(environment),
            self.provider,
            WorldSetup.model_validate_json((self.sessions / WORLD_SETUP).read_bytes()) if is_manifest else None,
            job=self.spec.job_id,
            foreign=(TOOLBOX_ROOT,),
            probed=self.host.installed.get((self.spec.task.digest, environment.digest)),
        )
        return self._world

    async def make_world_context(self, environment: EnvironmentRef) -> WorldContext:
        """Return the context with which a world is opened: sandbox, variables, directory for its records, namespace."""
        return WorldContext(
            # Without a namespace: a world outlives the rollouts that share its sandbox.
            sandbox=await self.attach_whole_sandbox(),
            task=self.task.name,
            records=self.sessions / WORLD_RECORDS,
            env=self.make_env() | self.secrets.forwarded(environment.manifest),
            namespace=self.ref.episode,
            wait_healthy=self.wait_healthy,
        )

    async def wait_healthy(self) -> None:
        """Wait for the task's healthcheck, if it has one; at most once per activity. Raises `ReadinessError`."""
        check = self.task.sandbox.healthcheck
        if check is not None and not self._is_healthy:
            await check_health(self.sandbox, check, self.make_env())
        self._is_healthy = True

    @cached_property
    def model(self) -> RolloutModel:
        """Return the gateway's side of the rollout. Its notes are in the rollout's namespace of a shared sandbox."""
        notes = self.session_files.notes / self.ref.episode if self._ref is not None else None
        parent = self.parent_paths if self.spec.branch is not None else None
        return RolloutModel(self.host.paths, self.spec, self.record, self.paths, parent, notes)

    def find_gateway_model(self, session: AgentSession | None) -> RolloutModel | None:
        """Return `model` if the session's calls pass the gateway; else None."""
        return self.model if session is not None and session.model_access == "gateway" else None
