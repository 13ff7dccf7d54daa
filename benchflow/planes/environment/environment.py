"""A manifest's world in one sandbox: started, healthy, watched, rolled back, ended.

There are two kinds. Services that the framework starts are ended and started again around whatever needs nobody at the
files. A world that the image's entrypoint has started is never touched but through what it has open; only its sandbox
as a whole can be begun anew.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow.contracts.environment import (
    BASELINE,
    Manifest,
    Observation,
    ReadyWorld,
    Service,
    ServiceStatus,
    StateSnapshot,
    WorldState,
)
from benchflow.contracts.provider import EntrypointState, SandboxProvider
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.world import TOO_LARGE, Environment, EnvironmentContext, StateEvidence
from benchflow.errors import (
    SandboxError,
    SandboxLostError,
    ServiceDiedError,
    StateError,
    StatelessError,
    UnsupportedFeatureError,
)
from benchflow.planes.environment import incarnation
from benchflow.planes.environment.keeper import Keeper
from benchflow.planes.environment.observing import observe
from benchflow.planes.environment.readiness import targets_of, wait_until_healthy
from benchflow.planes.environment.services import Services
from benchflow.planes.environment.state import SqliteStore, diff_snapshots, read_state, remove_directories
from benchflow.planes.sandbox.timeouts import awake_clock

ENTRYPOINT = "entrypoint"
"""What logs and errors call the image's entrypoint, where services have their names."""

QUERY_BYTES = 8 * 2**30
"""A state of more is not brought to this host to be read."""

MAX_ROWS = 10_000
"""Rows of a table whose values a verifier is shown."""

_TAIL = 4000
_GLANCE_SEC = 3.0
_LATE_SEC, _LOOK_EVERY = 60.0, 0.05


@dataclass(frozen=True)
class Place:
    """A sandbox and what works inside it."""

    sandbox: Sandbox
    keeper: Keeper


Recycle = Callable[[], Awaitable[Place]]


class ManifestEnvironment(Environment):
    """The `Environment` of a manifest, on any sandbox."""

    def __init__(
        self,
        manifest: Manifest,
        context: EnvironmentContext,
        provider: SandboxProvider,
        *,
        keeper: Keeper,
        source: str = "",
        probed: Mapping[str, bool] | None = None,
        foreign: tuple[str, ...] = (),
        recycle: Recycle | None = None,
    ) -> None:
        """Make it of its manifest.

        Args:
            manifest: What it is.
            context: As any environment is given.
            provider: The sandbox's.
            keeper: What works inside the sandbox.
            source: The manifest's file, for errors.
            probed: Whether services have succeeded whose `--help` probe is known for this image.
            foreign: Directories of the sandbox whose files are not the world's (mounts).
            recycle: Ends this sandbox and starts one of the same image in its place.
        """
        super().__init__(context)
        self.name, self.is_stateful, self.keep_alive = manifest.name, manifest.is_stateful, manifest.keep_alive
        task, env = context.task, dict(context.env)
        self._manifest = manifest
        self._provider = provider
        self._env = env | manifest.task_env(task, "exec") | manifest.task_env(task, "entrypoint")
        self._source = source
        self._probed = dict(probed or {})
        self._foreign = foreign
        self._recycle = recycle
        self._place = Place(context.sandbox, keeper)
        self._held: Services | None = None

    @property
    def manifest(self) -> Manifest:
        """What it is."""
        return self._manifest

    @property
    def sandbox(self) -> Sandbox:
        """Where it is now: `reset` may have begun it anew."""
        return self._place.sandbox

    # --- its life ------------------------------------------------------------------------------------

    async def provision(self) -> ReadyWorld:
        """Start the services, wait until they are healthy, and capture the baseline; all of it unless it was done.

        Raises `NoServiceError`, `PortInUseError`, and what `readiness` raises.
        """
        await self.start()
        ready = await self.readiness()
        await self.capture_baseline()
        return ready

    async def start(self) -> tuple[ServiceStatus, ...]:
        """Start the services that this image has, unless they were; those that the entrypoint starts have begun."""
        if self._manifest.owns_lifecycle:
            return ()
        return await (await self._services()).start()

    async def readiness(self) -> ReadyWorld:
        """Return when all probes are healthy. Raises `ReadinessError` at the deadline, `ServiceDiedError` at once."""
        async with self._explaining_loss(), awake_clock() as clock:
            statuses = await self._statuses()
            probes = await wait_until_healthy(
                self._place.keeper,
                targets_of(self._manifest, self._started(statuses)),
                self._manifest.readiness.timeout_sec,
                exits=() if self._manifest.owns_lifecycle else await (await self._services()).exit_files(),
                look=self._look_while_starting,
                logs=self.logs,
                clock=clock,
            )
            age = await self._age()
            return ReadyWorld(
                services=await self._statuses(),
                probes=probes,
                ports=await self._reachable(statuses),
                seconds=age,
            )

    async def check(self) -> None:
        """Raise `ServiceDiedError` if a part of the world that should run has ended."""
        async with self._explaining_loss():
            if self._manifest.owns_lifecycle:
                await self._check_entrypoint(starting=False)
                # Who runs it may not yet know that it has ended, and its sandbox with it: the sandbox itself does.
                await self._place.sandbox.control(":")
            else:
                await (await self._services()).require_running()

    async def logs(self, *, tail: int | None = None) -> dict[str, str]:
        """What each service has printed, its last `tail` characters; of an entrypoint, the end of it."""
        if not self._manifest.owns_lifecycle:
            return await (await self._services()).logs(tail=tail)
        log = (await self._entrypoint()).log
        return {ENTRYPOINT: log if tail is None else log[-tail:] if tail else ""}

    async def teardown(self) -> None:
        """End what was started; the sandbox stays."""
        if self._manifest.owns_lifecycle:
            await self._provider.end_entrypoint(self._place.sandbox.ref.name)
        else:
            await (await self._services()).stop()

    # --- its state -----------------------------------------------------------------------------------

    async def snapshot(self, name: str) -> StateSnapshot:
        """Keep the state as of one moment; a snapshot of this name that is there already is the one meant."""
        paths = self._state_paths("snapshot")
        return await self._store().snapshot(name, paths)

    async def restore(self, snapshot: StateSnapshot) -> None:
        """Put the state back, and prove it. Services are ready again when it returns."""
        self._state_paths("restore")
        if self._manifest.owns_lifecycle:
            await self._store().restore(snapshot, live=True)
        else:
            services = await self._services()
            await services.stop()
            await self._store().restore(snapshot, live=False)
            await services.start()
        await self.readiness()

    async def reset(self) -> None:
        """Go back to the baseline. A world that the entrypoint owns is left as it is: see `recycle`."""
        self._state_paths("reset")
        if not self._manifest.owns_lifecycle:
            await self.restore(self.context.baseline())

    async def recycle(self) -> None:
        """Begin the sandbox anew, from its image. Raises `UnsupportedFeatureError` where that can't be done."""
        if self._recycle is None:
            raise UnsupportedFeatureError(
                "the image's entrypoint cannot be started a second time in its sandbox",
                file=self._source or None,
                key="owns_lifecycle",
                remedy="restore a snapshot, or start a fresh sandbox",
            )
        self._place = await self._recycle()
        self._held = None
        await self.readiness()

    async def collect_evidence(
        self, label: str, baseline: StateSnapshot | None, snapshots: Path, limit_bytes: int
    ) -> StateEvidence:
        """Return the rows of the state and what differs from the baseline; keep copies of both in `snapshots`."""
        snapshot = await self.snapshot(f"{self.context.namespace}{label}")
        for name, one in ((BASELINE, baseline), (label, snapshot)):
            if one is not None and not await self._store().fetch(one, snapshots / name, limit_bytes):
                await asyncio.to_thread(remove_directories, snapshots / label)
                return StateEvidence(None, warnings=(TOO_LARGE.format(limit_bytes),))

        def read() -> StateEvidence:
            state = read_state(snapshots / label, rows=MAX_ROWS)
            diff = diff_snapshots(snapshots / BASELINE, snapshots / label) if baseline is not None else None
            return StateEvidence(state, diff)

        return await asyncio.to_thread(read)

    async def query(self, *, rows: int | None = None) -> WorldState:
        """The state now. rows: the most whose values are given, a table; None for none."""
        name = f"query-{secrets.token_hex(8)}"
        snapshot = await self._store().snapshot(name, self._state_paths("query"))
        try:
            with tempfile.TemporaryDirectory(prefix="benchflow-query-") as directory:
                if not await self._store().fetch(snapshot, Path(directory) / name, QUERY_BYTES):
                    raise StateError(
                        f"the state is too large to be read as a whole: {snapshot.size / 2**20:.0f} MiB",
                        file=self._source or None,
                        key="state.paths",
                        remedy=f"keep it below {QUERY_BYTES // 2**20} MiB",
                    )
                return await asyncio.to_thread(read_state, Path(directory) / name, rows=rows)
        finally:
            await self._place.sandbox.control('rm -rf -- "$1"', snapshot.directory)

    def _state_paths(self, what: str) -> tuple[str, ...]:
        state = self._manifest.state
        if state is None:
            raise StatelessError(
                f"the environment {self._manifest.name!r} is stateless: there is nothing to {what}",
                file=self._source or None,
                key="state",
                remedy='declare its databases: [environment.state] with paths = ["/data/world.db"]',
            )
        return state.paths

    def _store(self) -> SqliteStore:
        return SqliteStore(self._place.keeper, foreign=self._foreign)

    async def observe(self) -> tuple[Observation, ...]:
        """Ask the URLs that the manifest declares for this, and return their answers without the bodies."""
        state = self._manifest.state
        return await observe(self._place.keeper, state.observe if state is not None else ())

    # --- who serves it -------------------------------------------------------------------------------

    async def _services(self) -> Services:
        """They are the sandbox's, not an episode's: whoever comes next in this sandbox finds them."""
        if self._held is None:
            sandbox = self._place.sandbox
            if sandbox.ref.episode:
                sandbox = await self._provider.attach(sandbox.ref.model_copy(update={"episode": ""}))
            self._held = Services(
                self._manifest.services,
                sandbox,
                ports=self._place.keeper,
                env=self._env,
                source=self._source,
                probed=self._probed,
            )
        return self._held

    async def _statuses(self) -> tuple[ServiceStatus, ...]:
        return () if self._manifest.owns_lifecycle else await (await self._services()).statuses()

    async def _look_while_starting(self) -> None:
        if self._manifest.owns_lifecycle:
            await self._check_entrypoint(starting=True)
        else:
            await (await self._services()).require_running(starting=True)

    async def _check_entrypoint(self, *, starting: bool) -> None:
        """One that ends with status 0 may have left its services in the background: then they tell."""
        state = await self._entrypoint()
        if state.running:
            return
        if state.exit_code == 0:
            targets = targets_of(self._manifest, ())
            if starting or not targets.names:
                return
            probed = await self._place.keeper.probe(http=targets.http, tcp=targets.tcp, deadline=_GLANCE_SEC)
            if probed.healthy:
                return
        raise self._death(state)

    async def _entrypoint(self) -> EntrypointState:
        return await self._provider.entrypoint_state(self._place.sandbox.ref.name)

    @asynccontextmanager
    async def _explaining_loss(self) -> AsyncIterator[None]:
        """Raise that the entrypoint ended, if the sandbox ended with it; who runs it may know a bit later."""
        try:
            yield
        except SandboxLostError:
            deadline = time.monotonic() + _LATE_SEC
            while self._manifest.owns_lifecycle and time.monotonic() < deadline:
                try:
                    state = await self._entrypoint()
                except SandboxError as error:
                    if error.retryable:
                        raise
                    break
                if not state.running:
                    raise self._death(state) from None
                await asyncio.sleep(_LOOK_EVERY)
            raise

    def _death(self, state: EntrypointState) -> ServiceDiedError:
        status = "an unknown exit status" if state.exit_code is None else f"exit status {state.exit_code}"
        return ServiceDiedError(
            f"the image's entrypoint ended with {status}",
            file=self._source or None,
            key="image",
            remedy="its log says why; it must stay, or leave services that do, for as long as the rollout",
            log_tail=state.log[-_TAIL:] or "(its log is empty)",
        )

    # --- how it is reached ---------------------------------------------------------------------------

    def _started(self, statuses: tuple[ServiceStatus, ...]) -> list[Service]:
        here = {status.name for status in statuses if status.state != "left_out"}
        return [service for service in self._manifest.services if service.name in here]

    async def _age(self) -> float:
        """Seconds since the services, or the sandbox, were started."""
        if self._manifest.owns_lifecycle:
            return await incarnation.seconds_up(self._place.sandbox)
        return await (await self._services()).age()

    async def _reachable(self, statuses: tuple[ServiceStatus, ...]) -> dict[int, str]:
        """Where this host reaches each port; nowhere if the sandbox has no network."""
        ports = [*self._manifest.ports, *(service.port for service in self._started(statuses))]
        found = {}
        for port in dict.fromkeys(ports):
            try:
                host, at = await self._place.sandbox.expose_port(port)
            except SandboxLostError:
                raise
            except SandboxError as error:
                if error.retryable:
                    raise
                return {}
            found[port] = f"{host}:{at}"
        return found
