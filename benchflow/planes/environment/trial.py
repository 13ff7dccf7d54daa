"""Whether a world does what its manifest declares, tried in a sandbox of its own: started, healthy, rolled back, ended.

It is tried with what rollouts use, and nothing is taken on trust: state is compared by its content, after a write that
was seen. The first thing that fails ends the trial; the sandbox is removed in any case.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from benchflow.contracts.base import Model
from benchflow.contracts.environment import BASELINE, Manifest, ReadyWorld, StateDiff, StateSnapshot
from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout import Failure
from benchflow.contracts.sandbox import ImageRef, Sandbox, SandboxProvider, SandboxSpec
from benchflow.errors import BenchFlowError, SandboxLostError, SandboxStartError, StateError, WorldError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import ensure_runtime, image_with_toolboxes, libc_of
from benchflow.planes.environment.environment import ManifestEnvironment, Place
from benchflow.planes.environment.interpreter import interpreter_of, program_of
from benchflow.planes.environment.keeper import Keeper
from benchflow.planes.environment.state import SqliteStore, diff_snapshots, read_state
from benchflow.planes.environment.writing import Post, Writer

T = TypeVar("T")
Outcome = Literal["holds", "fails", "not declared", "not tried"]

START_SEC = 120.0
"""What a sandbox may take to start."""

SEEN_SEC = 5.0
"""How long a service may take until what it was sent is in its database."""

_ROLLBACK = ("snapshot", "write", "restore", "reset")
_ROWS = ("image", "sandbox", "services", "ready", *_ROLLBACK, "teardown", "removed")
_TAIL = 2000
_MOST_BYTES = 8 * 2**30


class Finding(Model):
    """What came of one thing that a world should do. seconds: how long that took."""

    what: str
    outcome: Outcome
    detail: str = ""
    seconds: float | None = None


class EnvironmentCheck(Model):
    """What a trial found, in its order. world: as it became ready. failure: of the first thing that fails."""

    name: str
    source: str
    sandbox: str
    findings: tuple[Finding, ...]
    world: ReadyWorld | None = None
    failure: Failure | None = None

    @property
    def ok(self) -> bool:
        return all(finding.outcome != "fails" for finding in self.findings)


@dataclass(frozen=True)
class Setting:
    """What a world is tried in.

    build: makes the image. wanted: the sandbox, without what the manifest adds to it. task: its id, for the world. env:
    variables of services that the framework starts; secrets: of an entrypoint. prepare: what a task does in its sandbox
    before the world is started. post: how to write through a service.
    """

    manifest: Manifest
    source: str
    provider: SandboxProvider
    build: Callable[[], Awaitable[ImageRef]]
    wanted: SandboxSpec
    task: str
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Sandbox], Awaitable[None]] | None = None
    post: Post | None = None
    paths: StatePaths | None = None


async def try_world(setting: Setting, tell: Callable[[str], None] = lambda what: None) -> EnvironmentCheck:
    """Try everything that the manifest declares. tell: is told what is tried now.

    What the world gets wrong is in the result. Raises only what is no `BenchFlowError`; also then, and when it is
    cancelled, the sandbox is removed.
    """
    trial = _Trial(setting, tell)
    try:
        await trial.start()
        if setting.manifest.is_stateful:
            await trial.roll_back()
    except _Ended:
        pass
    finally:
        await trial.end()
    return trial.result()


class _Ended(Exception):
    """Something failed, and is recorded."""


class _Trial:
    def __init__(self, setting: Setting, tell: Callable[[str], None]) -> None:
        self._setting = setting
        self._manifest = setting.manifest
        self._tell = tell
        self._findings: dict[str, Finding] = {}
        self._failure: Failure | None = None
        self._spec = setting.wanted
        self._place: Place | None = None
        self._world: ManifestEnvironment | None = None
        self._ready: ReadyWorld | None = None
        self._writer: Writer | None = None
        self._took: float | None = None

    def result(self) -> EnvironmentCheck:
        for what in _ROWS:
            if what not in self._findings:
                undeclared = what in _ROLLBACK and not self._manifest.is_stateful
                self._findings[what] = (
                    Finding(what=what, outcome="not declared", detail="there is no [environment.state]")
                    if undeclared
                    else Finding(what=what, outcome="not tried")
                )
        return EnvironmentCheck(
            name=self._manifest.name,
            source=self._setting.source,
            sandbox=self._setting.provider.name,
            findings=tuple(self._findings[what] for what in _ROWS),
            world=self._ready,
            failure=self._failure,
        )

    async def _step(self, what: str, work: Callable[[], Awaitable[str]]) -> None:
        """Carry out one thing and record what came of it. Raises `_Ended` when it fails.

        What took the time is the whole of it, or what was done by `took`: not how it was looked at afterwards.
        """
        self._tell(what)
        self._took = None
        started = time.monotonic()
        try:
            detail = await work()
        except BenchFlowError as error:
            self._failure = self._failure or failure_of(error)
            self._record(what, "fails", error.message, time.monotonic() - started)
            raise _Ended from error
        self._record(what, "holds", detail, self._took or time.monotonic() - started)

    async def took(self, work: Awaitable[T]) -> T:
        """Carry out the part of a step whose time counts."""
        started = time.monotonic()
        done = await work
        self._took = time.monotonic() - started
        return done

    def _record(self, what: str, outcome: Outcome, detail: str, seconds: float | None = None) -> None:
        rounded = None if seconds is None else round(seconds, 4)
        self._findings[what] = Finding(what=what, outcome=outcome, detail=detail, seconds=rounded)

    # --- up ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._step("image", self._build)
        await self._step("sandbox", self._start)
        await self._step("services", self._provision)
        await self._step("ready", self._wait)

    async def _build(self) -> str:
        image = await self._setting.build()
        self._spec = self._spec.model_copy(update={"image": image})
        notes = [("made" if image.built else "found"), *image.warnings]
        return f"{image.reference}, {'; '.join(notes)}"

    async def _start(self) -> str:
        manifest, provider = self._manifest, self._setting.provider
        kind = await interpreter_of(provider, self._spec.image, self._setting.paths, labels=self._spec.labels)
        runtime = None
        if kind == "node":
            libc = await libc_of(provider, self._spec.image, labels=self._spec.labels)
            runtime = await ensure_runtime(self._setting.paths, libc)
            if provider.capabilities().mounts:
                mounts = (*self._spec.mounts, runtime.mount)
                self._spec = self._spec.model_copy(update={"mounts": mounts})
            else:
                image = await image_with_toolboxes(provider, self._spec.image, [runtime])
                self._spec = self._spec.model_copy(update={"image": image})
        ports = {*manifest.ports, *(service.port for service in manifest.services)}
        self._spec = self._spec.model_copy(
            update={
                "env": self._spec.env | manifest.task_env(self._setting.task, "entrypoint"),
                "entrypoint": ("first" if manifest.keep_alive else "below") if manifest.owns_lifecycle else "none",
                "ports": tuple(sorted(ports)) if self._spec.network_mode != "no-network" else (),
            }
        )
        program = program_of(kind, runtime)

        async def place() -> Place:
            sandbox = await self._start_sandbox()
            return Place(sandbox, Keeper(sandbox, program, kind))

        async def recycle() -> Place:
            await provider.remove(self._spec.name)
            self._place = await place()
            return self._place

        self._place = await place()
        self._writer = Writer(program, kind)
        self._world = ManifestEnvironment(
            manifest,
            self._place.sandbox,
            provider,
            keeper=self._place.keeper,
            task=self._setting.task,
            env=self._setting.env,
            source=self._setting.source,
            foreign=tuple(mount.target for mount in self._spec.mounts),
            recycle=recycle,
        )
        return f"{provider.name}; {'its own python3' if kind == 'python3' else 'a mounted Node'} reads the state"

    async def _start_sandbox(self) -> Sandbox:
        start = self._setting.provider.start(self._spec, host_id="", queue="", secrets=self._setting.secrets)
        try:
            sandbox = await asyncio.wait_for(start, START_SEC)
        except TimeoutError as error:
            raise SandboxStartError(
                f"the sandbox did not start within {START_SEC:g} s", remedy="see what keeps this host busy"
            ) from error
        if self._setting.prepare is not None:
            await self._setting.prepare(sandbox)
        return sandbox

    async def _provision(self) -> str:
        assert self._world is not None
        statuses = await self._world.provision()
        if self._manifest.owns_lifecycle:
            return "the image's entrypoint starts them"
        here = [status.name for status in statuses if status.state != "left_out"]
        left_out = [status.name for status in statuses if status.state == "left_out"]
        absent = f"; not in this image: {', '.join(left_out)}" if left_out else ""
        return f"{', '.join(here)}{absent}"

    async def _wait(self) -> str:
        assert self._world is not None
        self._ready = await self._world.readiness()
        return _answers(self._ready)

    # --- back ----------------------------------------------------------------------------------------

    async def roll_back(self) -> None:
        assert self._place is not None and self._world is not None
        with tempfile.TemporaryDirectory(prefix="benchflow-env-check-") as directory:
            states = _States(self, Path(directory))
            await self._step("snapshot", states.take_baseline)
            if not any(file.present for file in states.baseline.files) and self._setting.post is None:
                why = "no declared database is in this image"
                for what in ("write", "restore", "reset"):
                    self._record(what, "not tried", why)
                return
            await self._step("write", states.write)
            await self._step("restore", states.restore)
            await self._step("reset", states.reset)

    @property
    def place(self) -> Place:
        assert self._place is not None
        return self._place

    @property
    def world(self) -> ManifestEnvironment:
        assert self._world is not None
        return self._world

    @property
    def writer(self) -> Writer:
        assert self._writer is not None
        return self._writer

    @property
    def source(self) -> str:
        return self._setting.source

    @property
    def post(self) -> Post | None:
        return self._setting.post

    # --- down ----------------------------------------------------------------------------------------

    async def end(self) -> None:
        """End the world and remove its sandbox, however far the trial came, and see that both is so."""
        with suppress(_Ended):
            if self._ready is not None:
                await self._step("teardown", self._tear_down)
        if "sandbox" in self._findings:
            with suppress(_Ended):
                await self._step("removed", self._remove_sandbox)
        else:
            # It may have been cut short in the middle of its start.
            await self._setting.provider.remove(self._spec.name)
            self._record("removed", "not tried", "no sandbox was started")

    async def _tear_down(self) -> str:
        if self._manifest.owns_lifecycle and self._manifest.keep_alive:
            return "the entrypoint ends with its sandbox"
        await self.world.teardown()
        ports = {*self._manifest.ports, *(service.port for service in self._manifest.services)}
        left = await self.place.keeper.ports_in_use(sorted(ports))
        if left:
            who = ", ".join(f"{port} ({by or 'unknown'})" for port, by in left.items())
            raise WorldError(
                f"after the end of the world somebody listens on {who}",
                file=self._setting.source,
                remedy="a service has left something behind that its own end does not end",
            )
        return "nothing listens on its ports any more" if ports else ""

    async def _remove_sandbox(self) -> str:
        provider = self._setting.provider
        await provider.remove(self._spec.name)
        if self._place is None:
            return ""
        try:
            await provider.attach(self._place.sandbox.ref)
        except SandboxLostError:
            return "nothing is left of the sandbox"
        raise SandboxStartError("the sandbox is still there", remedy=f"remove it by hand: {self._spec.name}")


class _States:
    """The states of one trial, by name, as directories on this host."""

    def __init__(self, trial: _Trial, directory: Path) -> None:
        self._trial = trial
        self._directory = directory
        self._digests: dict[str, str] = {}
        self.baseline: StateSnapshot

    async def take_baseline(self) -> str:
        self.baseline = await self._trial.took(self._trial.world.snapshot(BASELINE))
        await self._read(self.baseline)
        absent = [file.path for file in self.baseline.files if not file.present]
        count = len(self.baseline.files) - len(absent)
        held = f"{count} database{'' if count == 1 else 's'}, {_size(self.baseline.size)}"
        return held + (f"; not in this image: {', '.join(absent)}" if absent else "")

    async def write(self) -> str:
        done = await self._trial.took(self._write())
        until = time.monotonic() + SEEN_SEC
        while (await self._trial.world.query()).digest == self._digests[BASELINE]:
            if time.monotonic() > until:
                raise StateError(
                    f"{done}, and the declared state is what it was before",
                    file=self._trial.source,
                    key="environment.state.paths",
                    remedy="declare the files that the services really write to",
                )
            await asyncio.sleep(0.1)
        return f"{done}; the state has changed"

    async def restore(self) -> str:
        await self._trial.took(self._trial.world.restore(self.baseline))
        return await self._require_baseline("restored")

    async def reset(self) -> str:
        await self._write()
        world = self._trial.world
        if await self._trial.took(world.reset(self.baseline)):
            return await self._require_baseline("reset")
        await self._trial.took(world.reset(self.baseline, hard=True))
        return "a no-op: the entrypoint owns the services; hard: the sandbox was begun anew, and is ready"

    async def _write(self) -> str:
        place, writer, post = self._trial.place, self._trial.writer, self._trial.post
        if post is not None:
            try:
                return await writer.send(place.sandbox, post)
            except WorldError as error:
                logs = await self._trial.world.logs(tail=_TAIL)
                error.log_tail = error.log_tail or "\n".join(f"{name}:\n{text}" for name, text in logs.items() if text)
                raise
        paths = [file.path for file in self.baseline.files if file.present]
        for path in paths:
            await writer.insert(place.sandbox, path)
        where = paths[0] if len(paths) == 1 else f"each of {len(paths)} databases"
        return f"SQLite in the sandbox, not a service, has put a row into {where}"

    async def _require_baseline(self, name: str) -> str:
        """The state now is the baseline's, and the world answers."""
        await self._read(await self._trial.world.snapshot(name))
        if self._digests[name] != self._digests[BASELINE]:
            diff = diff_snapshots(self._directory / BASELINE, self._directory / name)
            raise StateError(
                f"the state is not that of the snapshot: {_differs(diff)}",
                remedy="what a service writes by itself, as soon as it is started, is no state to roll back",
            )
        ready = await self._trial.world.readiness()
        return f"the state is the snapshot's; {_answers(ready)}"

    async def _read(self, snapshot: StateSnapshot) -> None:
        """Bring a snapshot to this host, and keep the digest of its rows."""
        target = self._directory / snapshot.name
        if not await SqliteStore(self._trial.place.keeper).fetch(snapshot, target, _MOST_BYTES):
            raise StateError(f"the state is too large to be compared: {_size(snapshot.size)}")
        self._digests[snapshot.name] = (await asyncio.to_thread(read_state, target, rows=None)).digest


def _answers(ready: ReadyWorld) -> str:
    if not ready.probes:
        return "no probe is declared"
    return ", ".join(f"{probe.target} {probe.answer}" for probe in ready.probes)


def _differs(diff: StateDiff) -> str:
    parts = []
    for database in diff.databases:
        if database.change is not None:
            parts.append(f"{database.path} has {database.change}")
        for table in database.tables:
            counts = ((table.n_added, "added"), (table.n_removed, "removed"), (table.n_changed, "changed"))
            said = ", ".join(f"{count} {word}" for count, word in counts if count) or table.change or "differs"
            parts.append(f"{database.path}: {table.name}: {said}")
    return "; ".join(parts) or "in what is no row of a table"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 1024:.0f} KiB"
