"""A manifest's world in one sandbox: start, readiness, health checks, snapshot and restore of its state, teardown.

There are two kinds. Services that the framework starts are stopped and restarted around a restore, which needs the
database files closed. Where the image's entrypoint starts the services, a restore writes into the database files that
they have open; only the sandbox as a whole can be replaced.
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
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import EntrypointState, SandboxProvider
from benchflow.contracts.world import TOO_LARGE, EnvironmentContext, StateEvidence, StatefulEnvironment
from benchflow.errors import (
    SandboxError,
    SandboxLostError,
    ServiceDiedError,
    StateError,
    StatelessError,
    UnsupportedFeatureError,
)
from benchflow.planes.environment import service_epoch
from benchflow.planes.environment.observing import observe
from benchflow.planes.environment.services import Services
from benchflow.planes.environment.world_helper import WorldHelper
from benchflow.planes.environment.world_readiness import list_targets, wait_until_healthy
from benchflow.planes.environment.world_state import SqliteStore, diff_snapshots, read_state, remove_directories
from benchflow.planes.sandbox.timeouts import awake_clock

ENTRYPOINT = "entrypoint"
"""Name of the image's entrypoint in logs and errors, where services have their own names."""

QUERY_BYTES = 8 * 2**30
"""Maximum size, in bytes, of a state that `query` downloads to this host."""

MAX_ROWS = 10_000
"""Maximum number of rows of a table up to which a verifier gets their values; of a larger one it gets the digest."""

_TAIL = 4000
_PROBE_SEC = 3.0
_LOSS_TIMEOUT_SEC, _POLL_INTERVAL_SEC = 60.0, 0.05


@dataclass(frozen=True)
class WorldPlace:
    """A sandbox, and the client of the helper inside it."""

    sandbox: Sandbox
    helper: WorldHelper


Recycle = Callable[[], Awaitable[WorldPlace]]


class ManifestEnvironment(StatefulEnvironment):
    """The `StatefulEnvironment` of a manifest, on any sandbox."""

    def __init__(
        self,
        manifest: Manifest,
        context: EnvironmentContext,
        provider: SandboxProvider,
        *,
        helper: WorldHelper,
        source: str = "",
        probed: Mapping[str, bool] | None = None,
        foreign: tuple[str, ...] = (),
        recycle: Recycle | None = None,
    ) -> None:
        """Make it.

        Args:
            manifest: Declaration of the world.
            context: Context of the environment: sandbox, task, variables, records.
            provider: Provider of the sandbox.
            helper: Client of the helper in the sandbox.
            source: Path of the manifest's file, for errors.
            probed: Known results of `--help` probes in this image, by the services' names: whether each succeeded.
            foreign: Directories of the sandbox whose files are not the world's (mounts).
            recycle: Removes this sandbox and starts one of the same image in its place.
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
        self._place = WorldPlace(context.sandbox, helper)
        self._held: Services | None = None

    @property
    def manifest(self) -> Manifest:
        """Return the declaration of the world."""
        return self._manifest

    @property
    def sandbox(self) -> Sandbox:
        """Return the sandbox that the world is in now: `recycle` replaces it."""
        return self._place.sandbox

    # --- lifecycle -----------------------------------------------------------------------------------

    async def provision(self) -> ReadyWorld:
        """Start the services, wait until they are healthy, and capture the baseline. May be called again.

        Services that run, and a baseline that was captured, are left as they are. Raise the errors of `readiness`,
        `WorldError` if the image has none of the services or a port was taken before.
        """
        await self.start()
        ready = await self.readiness()
        await self.capture_baseline()
        return ready

    async def start(self) -> tuple[ServiceStatus, ...]:
        """Start the services that this image has, unless they run; return the statuses, none with an entrypoint."""
        if self._manifest.owns_lifecycle:
            return ()
        return await (await self._open_services()).start()

    async def readiness(self) -> ReadyWorld:
        """Wait until all probes are healthy; return their answers, the services' statuses and their addresses.

        Raise `ReadinessError` at the deadline, or `ServiceDiedError` once a service or the entrypoint has ended.
        """
        async with self._explain_loss(), awake_clock() as clock:
            statuses = await self._read_statuses()
            probes = await wait_until_healthy(
                self._place.helper,
                list_targets(self._manifest, self._list_started(statuses)),
                self._manifest.readiness.timeout_sec,
                exits=() if self._manifest.owns_lifecycle else await (await self._open_services()).exit_files(),
                look=self._check_start,
                logs=self.logs,
                clock=clock,
            )
            age = await self._read_age()
            return ReadyWorld(
                services=await self._read_statuses(),
                probes=probes,
                ports=await self._expose_ports(statuses),
                seconds=age,
            )

    async def check(self) -> None:
        """Raise `ServiceDiedError` if a part of the world that should run has ended."""
        async with self._explain_loss():
            if self._manifest.owns_lifecycle:
                await self._check_entrypoint(starting=False)
                # The provider may learn late that entrypoint and sandbox have ended. A command there fails at once.
                await self._place.sandbox.control(":")
            else:
                await (await self._open_services()).require_running()

    async def logs(self, *, tail: int | None = None) -> dict[str, str]:
        """Return the output of each service, or the end of the entrypoint's under the name `ENTRYPOINT`.

        Args:
            tail: Limit of each text, which keeps its end, in bytes; of the entrypoint's in characters.
        """
        if not self._manifest.owns_lifecycle:
            return await (await self._open_services()).logs(tail=tail)
        log = (await self._read_entrypoint()).log
        return {ENTRYPOINT: log if tail is None else log[-tail:] if tail else ""}

    async def teardown(self) -> None:
        """Stop the services, or the image's entrypoint. The sandbox stays."""
        if self._manifest.owns_lifecycle:
            await self._provider.end_entrypoint(self._place.sandbox.ref.name)
        else:
            await (await self._open_services()).stop()

    # --- state ---------------------------------------------------------------------------------------

    async def snapshot(self, name: str) -> StateSnapshot:
        """Take a snapshot of the state as of one moment, or return the one of this name that exists already.

        Raise `StatelessError` if the manifest declares no state, and the errors of `SqliteStore.snapshot`.
        """
        paths = self._get_state_paths("snapshot")
        return await self._make_store().snapshot(name, paths)

    async def restore(self, snapshot: StateSnapshot) -> None:
        """Restore the state, verify it, and return when the services are ready again.

        Raise `StatelessError` if the manifest declares no state, and the errors of `SqliteStore.restore` and
        `readiness`.
        """
        self._get_state_paths("restore")
        if self._manifest.owns_lifecycle:
            await self._make_store().restore(snapshot, live=True)
        else:
            services = await self._open_services()
            await services.stop()
            await self._make_store().restore(snapshot, live=False)
            await services.start()
        await self.readiness()

    async def reset(self) -> None:
        """Restore the baseline. A no-op where the entrypoint starts the services: see `recycle`."""
        self._get_state_paths("reset")
        if not self._manifest.owns_lifecycle:
            await self.restore(self.context.baseline())

    async def recycle(self) -> None:
        """Replace the sandbox by a fresh one of its image, and return when the world is ready.

        Raise `UnsupportedFeatureError` if no callback for that was given.
        """
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
        """Return the rows of the state and their difference from the baseline; store copies of both snapshots.

        Args:
            label: Name of the step, for the snapshot and its copy.
            baseline: Snapshot to compare with; None for no comparison.
            snapshots: Directory of this host for the copies.
            limit_bytes: Maximum size of either snapshot. For a larger one the evidence is a warning alone.
        """
        snapshot = await self.snapshot(f"{self.context.namespace}{label}")
        for name, one in ((BASELINE, baseline), (label, snapshot)):
            if one is not None and not await self._make_store().fetch(one, snapshots / name, limit_bytes):
                await asyncio.to_thread(remove_directories, snapshots / label)
                return StateEvidence(None, warnings=(TOO_LARGE.format(limit_bytes),))

        def read() -> StateEvidence:
            state = read_state(snapshots / label, rows=MAX_ROWS)
            diff = diff_snapshots(snapshots / BASELINE, snapshots / label) if baseline is not None else None
            return StateEvidence(state, diff)

        return await asyncio.to_thread(read)

    async def query(self, *, rows: int | None = None) -> WorldState:
        """Return the current state.

        Args:
            rows: Maximum number of rows of a table up to which their values are included; None for no values.

        Raises:
            StateError: The state is larger than `QUERY_BYTES`, or cannot be read. `StatelessError` if there is none.
        """
        name = f"query-{secrets.token_hex(8)}"
        snapshot = await self._make_store().snapshot(name, self._get_state_paths("query"))
        try:
            with tempfile.TemporaryDirectory(prefix="benchflow-query-") as directory:
                if not await self._make_store().fetch(snapshot, Path(directory) / name, QUERY_BYTES):
                    raise StateError(
                        f"the state is too large to be read as a whole: {snapshot.size / 2**20:.0f} MiB",
                        file=self._source or None,
                        key="state.paths",
                        remedy=f"keep it below {QUERY_BYTES // 2**20} MiB",
                    )
                return await asyncio.to_thread(read_state, Path(directory) / name, rows=rows)
        finally:
            await self._place.sandbox.control('rm -rf -- "$1"', snapshot.directory)

    def _get_state_paths(self, what: str) -> tuple[str, ...]:
        """Return the declared databases; raise `StatelessError`, naming the operation `what`, if there are none."""
        state = self._manifest.state
        if state is None:
            raise StatelessError(
                f"the environment {self._manifest.name!r} is stateless: there is nothing to {what}",
                file=self._source or None,
                key="state",
                remedy='declare its databases: [environment.state] with paths = ["/data/world.db"]',
            )
        return state.paths

    def _make_store(self) -> SqliteStore:
        return SqliteStore(self._place.helper, foreign=self._foreign)

    async def observe(self) -> tuple[Observation, ...]:
        """Send a GET to each URL of `state.observe` and return the responses, without bodies."""
        state = self._manifest.state
        return await observe(self._place.helper, state.observe if state is not None else ())

    # --- services and entrypoint ---------------------------------------------------------------------

    async def _open_services(self) -> Services:
        """Return the services. They belong to the sandbox, not to a rollout: the next rollout in it finds them."""
        if self._held is None:
            sandbox = self._place.sandbox
            if sandbox.ref.episode:
                sandbox = await self._provider.attach(sandbox.ref.model_copy(update={"episode": ""}))
            self._held = Services(
                self._manifest.services,
                sandbox,
                ports=self._place.helper,
                env=self._env,
                source=self._source,
                probed=self._probed,
            )
        return self._held

    async def _read_statuses(self) -> tuple[ServiceStatus, ...]:
        return () if self._manifest.owns_lifecycle else await (await self._open_services()).statuses()

    async def _check_start(self) -> None:
        """Raise `ServiceDiedError` if a part of the world has ended before it was healthy."""
        if self._manifest.owns_lifecycle:
            await self._check_entrypoint(starting=True)
        else:
            await (await self._open_services()).require_running(starting=True)

    async def _check_entrypoint(self, *, starting: bool) -> None:
        """Raise `ServiceDiedError` if the entrypoint has ended, and its services with it.

        After exit status 0 they may run in the background. `starting`: leave it to the readiness probes; else probe
        them, if the manifest declares any.
        """
        state = await self._read_entrypoint()
        if state.running:
            return
        if state.exit_code == 0:
            targets = list_targets(self._manifest, ())
            if starting or not targets.names:
                return
            probed = await self._place.helper.probe(http=targets.http, tcp=targets.tcp, deadline=_PROBE_SEC)
            if probed.healthy:
                return
        raise self._make_death_error(state)

    async def _read_entrypoint(self) -> EntrypointState:
        return await self._provider.entrypoint_state(self._place.sandbox.ref.name)

    @asynccontextmanager
    async def _explain_loss(self) -> AsyncIterator[None]:
        """Turn the loss of the sandbox in a block into `ServiceDiedError`, if the entrypoint's end caused it.

        The provider may report that end some time after the loss: poll for `_LOSS_TIMEOUT_SEC`.
        """
        try:
            yield
        except SandboxLostError:
            deadline = time.monotonic() + _LOSS_TIMEOUT_SEC
            while self._manifest.owns_lifecycle and time.monotonic() < deadline:
                try:
                    state = await self._read_entrypoint()
                except SandboxError as error:
                    if error.retryable:
                        raise
                    break
                if not state.running:
                    raise self._make_death_error(state) from None
                await asyncio.sleep(_POLL_INTERVAL_SEC)
            raise

    def _make_death_error(self, state: EntrypointState) -> ServiceDiedError:
        status = "an unknown exit status" if state.exit_code is None else f"exit status {state.exit_code}"
        return ServiceDiedError(
            f"the image's entrypoint ended with {status}",
            file=self._source or None,
            key="image",
            remedy="its log says why; it must stay, or leave services that do, for as long as the rollout",
            log_tail=state.log[-_TAIL:] or "(its log is empty)",
        )

    # --- addresses -----------------------------------------------------------------------------------

    def _list_started(self, statuses: tuple[ServiceStatus, ...]) -> list[Service]:
        """Return the declared services that this image has."""
        here = {status.name for status in statuses if status.state != "left_out"}
        return [service for service in self._manifest.services if service.name in here]

    async def _read_age(self) -> float:
        """Return the seconds since the services were started, or the sandbox with its entrypoint."""
        if self._manifest.owns_lifecycle:
            return await service_epoch.read_uptime(self._place.sandbox)
        return await (await self._open_services()).age()

    async def _expose_ports(self, statuses: tuple[ServiceStatus, ...]) -> dict[int, str]:
        """Return `host:port` of this host for each port; empty if one cannot be exposed, as without a network."""
        ports = [*self._manifest.ports, *(service.port for service in self._list_started(statuses))]
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
