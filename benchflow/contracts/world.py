"""The Environment plane's contract: a stateful world in a sandbox, and the context that the engine gives to it.

Most environments are a manifest, which the engine itself implements. A world that a manifest cannot describe, such as
one whose state lies in a service's memory, is a subclass of `StatefulEnvironment`: see docs/custom-environment.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from benchflow.contracts.environment import Observation, ReadyWorld, StateDiff, StateSnapshot, WorldState
from benchflow.contracts.sandbox import Sandbox

TOO_LARGE = "the state is larger than {} bytes: it is not kept, nor shown to the verifier"
"""Warning for a state that is neither stored nor shown; formatted with the limit in bytes."""


class StateEvidence(NamedTuple):
    """The state of a world after a step, for the verifier and rewards."""

    state: WorldState | None
    """State after the step; None if it is too large to be shown."""

    diff: StateDiff | None = None
    """Differences from the baseline; None where they are not known, as for an environment in code."""

    warnings: tuple[str, ...] = ()
    """Warnings for the rollout's result, a sentence each, such as that the state is too large."""


class EnvironmentContext(Protocol):
    """The context that an environment is constructed with, in any process.

    Its methods may be called again after a crash in the middle of one.
    """

    @property
    def sandbox(self) -> Sandbox:
        """Return the sandbox that the world is in, of whichever provider."""
        ...

    @property
    def task(self) -> str:
        """Return the id of the task: the name of its directory."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """Return the variables of the world's processes: the sandbox's, the task's id, secrets of `forward_env`."""
        ...

    @property
    def namespace(self) -> str:
        """Return the prefix of this rollout's names in a sandbox that rollouts share one after another; else empty."""
        ...

    @property
    def records(self) -> Path:
        """Return the directory on this host for the environment's own records, which is removed with the sandbox.

        Nothing in the sandbox can read or change it. A copy of the sandbox has a new one.
        """
        ...

    async def start_service(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        """Start a command of the world as root, unless it was started and not stopped since, and leave it running.

        Its processes belong to the world: they survive when processes that an agent left running are killed. The method
        checks neither that the service is ready nor that it still runs.

        Args:
            name: Name of the service in this sandbox.
            command: Argv of the service.
            env: Variables besides `env` of the context.
        """
        ...

    async def stop_service(self, name: str) -> None:
        """Kill a service and all its descendants. Success if it does not run; `start_service` starts it again.

        Args:
            name: Name of the service in this sandbox.
        """
        ...

    async def save_snapshot(self, name: str, files: Mapping[str, bytes]) -> StateSnapshot:
        """Save files in the sandbox, readable by root alone, as a snapshot; one of this name is returned as it is.

        Copies of the sandbox have the files. Their hashes are recorded on this host.

        Args:
            name: Name of the snapshot, as `StatefulEnvironment.snapshot` received it.
            files: Contents of the files, by name without `/`.
        """
        ...

    async def find_snapshot(self, name: str) -> StateSnapshot | None:
        """Return the snapshot that `save_snapshot` has saved under a name in this sandbox; None if there is none."""
        ...

    async def load_snapshot(self, snapshot: StateSnapshot) -> dict[str, bytes]:
        """Return the files of a snapshot that `save_snapshot` has saved, in this sandbox or one that it is a copy of.

        Raises:
            StateError: A file is missing, or has changed since it was saved.
        """
        ...

    async def keep_baseline(self, capture: Callable[[str], Awaitable[StateSnapshot]]) -> StateSnapshot:
        """Return the rollout's baseline. The first time, wait for the task's healthcheck, and capture it.

        A copy of the sandbox has its original's baseline.

        Args:
            capture: Takes a snapshot of the name that it is called with.
        """
        ...

    def baseline(self) -> StateSnapshot:
        """Return the rollout's baseline.

        Raises:
            StateError: None has been captured.
        """
        ...


class StatefulEnvironment(ABC):
    """A stateful world in a sandbox.

    The engine constructs an object with a context, in any process, at any time. The object holds nothing in memory that
    another one can't find again, because a worker may die at any moment. Every method may be called again after a crash
    in the middle of it. The engine reads the class's attributes before there is a sandbox. Raise errors of
    `benchflow.errors`: `ReadinessError`, `ServiceDiedError`, `StateError`, `WorldError`.
    """

    name: str
    """Name of the environment, on one line. Required."""

    image: str | None = None
    """Image of the sandboxes; None for each task's own."""

    ports: tuple[int, ...] = ()
    """TCP ports of the sandbox that this host must reach by `Sandbox.expose_port`."""

    is_stateful: bool = True
    """Whether the world has a state. Without one, `query`, `snapshot`, `restore` and `reset` are never called."""

    keep_alive: bool = True
    """Whether the world stays up for the verifier. If not, it is torn down after the last step, before verification."""

    isolation: Literal["per_task", "persistent"] = "per_task"
    """`per_task`: each rollout has a sandbox of its own. `persistent`: the rollouts of a job share one sandbox, one
    after another, each in the state that the last one left."""

    readiness_timeout_sec: float = 120.0
    """Seconds in which the world becomes ready. The engine adds five minutes for the rest of `provision`."""

    forward_env: tuple[str, ...] = ()
    """Names of the submitter's variables that the world is given, in `env` of the context."""

    def __init__(self, context: EnvironmentContext) -> None:
        """Store the context as `self.context`."""
        self.context = context

    @abstractmethod
    async def provision(self) -> ReadyWorld:
        """Start the world unless it runs, and return when it is ready and its baseline is captured.

        Ends with `capture_baseline()`. It is called again by other workers, in copies of the sandbox whose state was
        restored, and for each rollout in a shared sandbox: leave a world that runs, and a captured baseline, as it is.
        """

    @abstractmethod
    async def readiness(self) -> ReadyWorld:
        """Return when the world is ready.

        Raises:
            ReadinessError: It is not ready at its deadline.
        """

    @abstractmethod
    async def query(self) -> WorldState:
        """Return the current state, as verifiers and rewards read it: `WorldState.of(data)` for JSON values."""

    @abstractmethod
    async def snapshot(self, name: str) -> StateSnapshot:
        """Capture the state as of one moment, in the sandbox; a snapshot of this name that exists is returned as it is.

        Args:
            name: Name of the snapshot.
        """

    @abstractmethod
    async def restore(self, snapshot: StateSnapshot) -> None:
        """Restore the state, in this sandbox or in a copy of it where nothing runs yet. Return when the world is ready.

        Args:
            snapshot: Snapshot to restore.
        """

    @abstractmethod
    async def reset(self) -> None:
        """Restore the state of the baseline. Return when the world is ready."""

    @abstractmethod
    async def teardown(self) -> None:
        """End the world's processes; the sandbox stays."""

    # --- what need not be overridden ---------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise an error if a part of the world has ended that should run.

        The engine calls it every two seconds while an agent acts, and before verification.
        """
        await self.readiness()

    async def logs(self, *, tail: int | None = None) -> dict[str, str]:
        """Return the output of each service, by the service's name.

        Args:
            tail: Number of characters, from the end; None for all.
        """
        return {}

    async def observe(self) -> tuple[Observation, ...]:
        """Return the observations that must be the same in a copy of the world: by default, the state's digest."""
        if not self.is_stateful:
            return ()
        state = await self.query()
        return (Observation(url="state", status=200, digest=state.digest),)

    async def collect_evidence(
        self, label: str, baseline: StateSnapshot | None, snapshots: Path, limit_bytes: int
    ) -> StateEvidence:
        """Return the state for the verifier and the results: by default the state that `query` returns.

        Args:
            label: Name of the moment in the results. With the context's namespace before it, a name for a snapshot.
            baseline: State that the agent started with.
            snapshots: Directory of the results for copies of snapshots.
            limit_bytes: Bytes above which a state is replaced by a warning.
        """
        state = await self.query()
        if len(state.model_dump_json()) > limit_bytes:
            return StateEvidence(None, warnings=(TOO_LARGE.format(limit_bytes),))
        return StateEvidence(state)

    async def capture_baseline(self) -> None:
        """Capture the baseline, unless that was done, as the last action of `provision`. Skip a stateless world."""
        if self.is_stateful:
            await self.context.keep_baseline(self.snapshot)
