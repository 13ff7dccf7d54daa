"""The Environment plane's protocol: a stateful world in a sandbox, and what the engine gives to it.

Most environments are a manifest, and its default implementation is the engine's. What a manifest can't say, such as a
state that lies in a service's memory, is a subclass of `Environment`: see docs/custom-environment.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from benchflow.contracts.environment import Observation, ReadyWorld, StateDiff, StateSnapshot, WorldState
from benchflow.contracts.sandbox import Sandbox

TOO_LARGE = "the state is larger than {} bytes: it is not kept, nor shown to the verifier"
"""Warning of a state that is not written."""


class StateEvidence(NamedTuple):
    """The state after a step, as the verifier and rewards are shown it."""

    state: WorldState | None
    """None where it is too large to be shown."""

    diff: StateDiff | None = None
    """What differs from the baseline; None where that is not known."""

    warnings: tuple[str, ...] = ()


class EnvironmentContext(Protocol):
    """What an environment is made with, in any process. Its helpers may be called again after a crash in the middle."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox that the world is in, whichever provider it is of."""
        ...

    @property
    def task(self) -> str:
        """Id of the task: the name of its directory."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """Variables for the world's processes: the sandbox's, the task's id, and the secrets of `forward_env`."""
        ...

    @property
    def namespace(self) -> str:
        """Prefix of this episode's own names in a sandbox that several use, one after another; else empty."""
        ...

    @property
    def records(self) -> Path:
        """Directory on this host, for what the environment must know later. It is this sandbox's, and removed with it.

        Nothing in the sandbox can read or change it. A copy of the sandbox has a new one.
        """
        ...

    async def start_service(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        """Start a command of the world as root, unless it was started and not stopped since, and leave it running.

        Its processes are the world's: they stay when what an agent has left running is killed. Whether it is ready, or
        still runs, is not looked at.

        Args:
            name: Its name in this sandbox.
            command: Its argv.
            env: Variables besides `env` of the context.
        """
        ...

    async def stop_service(self, name: str) -> None:
        """Kill a service with all that it started. None running is success; `start_service` starts it anew."""
        ...

    async def save_snapshot(self, name: str, files: Mapping[str, bytes]) -> StateSnapshot:
        """Keep files in the sandbox, readable by root alone, as a snapshot.

        Copies of the sandbox have them. Their hashes are recorded on this host.

        Args:
            name: As `Environment.snapshot` was given it.
            files: Their contents, by name without `/`.
        """
        ...

    async def find_snapshot(self, name: str) -> StateSnapshot | None:
        """Return what `save_snapshot` has kept under a name in this sandbox; None if there is nothing."""
        ...

    async def load_snapshot(self, snapshot: StateSnapshot) -> dict[str, bytes]:
        """Return the files of a snapshot that `save_snapshot` has made, in this sandbox or one that it is a copy of.

        Raises:
            StateError: A file is not what it was.
        """
        ...

    async def keep_baseline(self, capture: Callable[[str], Awaitable[StateSnapshot]]) -> StateSnapshot:
        """Return the episode's baseline. The first time, wait for the task's healthcheck, and capture it.

        A copy of the sandbox has its original's baseline.
        """
        ...

    def baseline(self) -> StateSnapshot:
        """Return the episode's baseline. Raises `StateError` where none has been captured."""
        ...


class Environment(ABC):
    """A world in a sandbox: a class of this kind is constructed with a context, in any process, at any time.

    An object keeps nothing that another one can't find again, because a worker may die at any moment. Every method may
    be called again after a crash in the middle of it. The class's attributes are what the engine must know before there
    is a sandbox. Raise errors of `benchflow.errors`: `ReadinessError`, `ServiceDiedError`, `StateError`, `WorldError`.
    """

    name: str
    """Name of the environment."""

    image: str | None = None
    """Image of its sandboxes; None for each task's own."""

    ports: tuple[int, ...] = ()
    """TCP ports of the sandbox that this host must reach by `Sandbox.expose_port`."""

    is_stateful: bool = True
    """Whether it has a state. Without one, `query`, `snapshot`, `restore` and `reset` are never called."""

    keep_alive: bool = True
    """Whether the world stays up for the verifier. Else it is torn down as soon as the agent stops."""

    isolation: Literal["per_task", "persistent"] = "per_task"
    """`persistent`: the episodes of a job share one sandbox, one after another."""

    readiness_timeout_sec: float = 120.0
    """Seconds in which the world becomes ready. The engine adds five minutes for what `provision` does besides."""

    forward_env: tuple[str, ...] = ()
    """Variables of whoever submits the job that the world is given, by name."""

    def __init__(self, context: EnvironmentContext) -> None:
        self.context = context

    @abstractmethod
    async def provision(self) -> ReadyWorld:
        """Start the world unless it runs, return when it is ready and its baseline captured (`capture_baseline`).

        It is called again by other workers, in copies of the sandbox whose state was restored, and for each episode of
        a shared sandbox: a world that runs is left as it is, and a baseline that was captured stays.
        """

    @abstractmethod
    async def readiness(self) -> ReadyWorld:
        """Return when the world is ready. Raises `ReadinessError` at its deadline."""

    @abstractmethod
    async def query(self) -> WorldState:
        """Return the state now, as verifiers and rewards read it: of JSON, `WorldState.of(data)`."""

    @abstractmethod
    async def snapshot(self, name: str) -> StateSnapshot:
        """Keep the state as of one moment, in the sandbox; a snapshot of this name that is there is the one meant."""

    @abstractmethod
    async def restore(self, snapshot: StateSnapshot) -> None:
        """Put the state back, in this sandbox or in a copy of it where nothing runs yet. Return when it is ready."""

    @abstractmethod
    async def reset(self) -> None:
        """Put the state of the baseline back. Return when the world is ready."""

    @abstractmethod
    async def teardown(self) -> None:
        """End what was started; the sandbox stays."""

    # --- what need not be overridden ---------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise if a part of the world that should run has ended. Called every two seconds while an agent acts."""
        await self.readiness()

    async def logs(self, *, tail: int | None = None) -> dict[str, str]:
        """Return the output of each service by its name, its last `tail` characters."""
        return {}

    async def observe(self) -> tuple[Observation, ...]:
        """Return what must be the same in a copy of the world: by default, the digest of the state."""
        if not self.is_stateful:
            return ()
        state = await self.query()
        return (Observation(url="state", status=200, digest=state.digest),)

    async def collect_evidence(
        self, label: str, baseline: StateSnapshot | None, snapshots: Path, limit_bytes: int
    ) -> StateEvidence:
        """Return the state for the verifier and the results: by default what `query` returns.

        Args:
            label: Name of the moment in the results, after the namespace a name for a snapshot.
            baseline: State that the agent began with.
            snapshots: Directory of the results for copies of snapshots.
            limit_bytes: A state of more is not shown, with a warning.
        """
        state = await self.query()
        if len(state.model_dump_json()) > limit_bytes:
            return StateEvidence(None, warnings=(TOO_LARGE.format(limit_bytes),))
        return StateEvidence(state)

    async def capture_baseline(self) -> None:
        """Capture the baseline unless it was: the last thing that `provision` does. Nothing for a stateless world."""
        if self.is_stateful:
            await self.context.keep_baseline(self.snapshot)
