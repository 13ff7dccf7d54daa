"""Whether a world does what its manifest declares, tried in a sandbox of its own: started, healthy, rolled back, ended.

It is tried with what rollouts use, and nothing is taken on trust: state is compared by its content, after a write that
was seen. The first thing that fails ends the trial; the sandbox is removed in any case.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchflow.contracts.base import Model
from benchflow.contracts.environment import Manifest, ReadyWorld
from benchflow.contracts.failures import failure_of
from benchflow.contracts.images import ImageRef
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.rollout import Failure
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.errors import BenchFlowError, SandboxLostError, SandboxStartError, UnprovenStateError, WorldError
from benchflow.paths import StatePaths
from benchflow.planes.environment.context import WorldContext
from benchflow.planes.environment.copying import Comparison
from benchflow.planes.environment.environment import ManifestEnvironment, Place, Recycle
from benchflow.planes.environment.outfit import Outfit, fit_out_world
from benchflow.planes.environment.proofs import UrlProof
from benchflow.planes.environment.rollback import Rollback, Timed, answers_of
from benchflow.planes.environment.writing import Post, Writer
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.timeouts import awake_timeout

Outcome = Literal["holds", "fails", "unproven", "not declared", "not tried"]

START_SEC = 120.0
"""What a sandbox may take to start."""

_ROLLBACK = ("snapshot", "write", "restore", "reset")
_ROWS = ("image", "sandbox", "services", "ready", *_ROLLBACK, "copy", "teardown", "removed")
_MAX_DETAILS = 3
_NO_VERIFIER = "without a task there is no verifier to find a URL in: give --task"


class Finding(Model):
    """What came of one thing that a world should do. seconds: how long that took."""

    what: str
    outcome: Outcome
    detail: str = ""
    seconds: float | None = None


class EnvironmentCheck(Model):
    """What a trial found, in its order. world: as it became ready. failure: of the first thing that fails.

    urls: what was seen of each URL in a copy of the world.
    """

    name: str
    source: str
    sandbox: str
    findings: tuple[Finding, ...]
    urls: tuple[UrlProof, ...] = ()
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
    before the world is started. posts: how to write through a service. observe: URLs whose answers are compared in a
    copy; is_declared: whether the manifest names them, else verifiers were found to read them. solve: changes the state
    as the task's oracle does, and says how it ended.
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
    posts: tuple[Post, ...] = ()
    observe: tuple[str, ...] = ()
    is_declared: bool = False
    solve: Callable[[Sandbox], Awaitable[str]] | None = None
    paths: StatePaths | None = None
    has_task: bool = False
    """Whether `task` is one that was given, whose verifiers were searched for URLs."""


async def try_world(setting: Setting, tell: Callable[[str], None] = lambda what: None) -> EnvironmentCheck:
    """Try everything that the manifest declares. tell: is told what is tried now.

    What the world gets wrong is in the result. Raises only what is no `BenchFlowError`; also then, and when it is
    cancelled, the sandbox is removed.
    """
    with tempfile.TemporaryDirectory(prefix="benchflow-env-check-") as directory:
        trial = _Trial(setting, tell, Path(directory))
        try:
            await trial.start()
            if setting.manifest.is_stateful:
                await trial.roll_back()
            await trial.compare_copy()
        except _Ended:
            pass
        finally:
            await see_through(trial.end())
    return trial.result()


class _Ended(Exception):
    """Something failed, and is recorded."""


class _Trial:
    def __init__(self, setting: Setting, tell: Callable[[str], None], directory: Path) -> None:
        """Make it. directory: on this host, for copies of the state and what the world records."""
        self._setting = setting
        self._states, self._records = directory / "states", directory / "records"
        self._manifest = setting.manifest
        self._tell = tell
        self._findings: dict[str, Finding] = {}
        self._failure: Failure | None = None
        self._spec = setting.wanted
        self._place: Place | None = None
        self._world: ManifestEnvironment | None = None
        self._ready: ReadyWorld | None = None
        self._writer: Writer | None = None
        self._outfit: Outfit | None = None
        self._proofs: list[UrlProof] = []

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
            urls=tuple(self._proofs),
            world=self._ready,
            failure=self._failure,
        )

    async def _step(self, what: str, work: Callable[[], Awaitable[str | Timed]]) -> None:
        """Carry out one thing and record what came of it. Raises `_Ended` when it fails."""
        self._tell(what)
        started = time.monotonic()
        try:
            done = await work()
        except BenchFlowError as error:
            self._failure = self._failure or failure_of(error)
            self._record(what, "fails", error.message, time.monotonic() - started)
            raise _Ended from error
        whole = time.monotonic() - started
        detail, seconds = (done, whole) if isinstance(done, str) else done
        self._record(what, "holds", detail, seconds)

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
        self._spec, outfit = await fit_out_world(
            manifest, self._spec, provider, task=self._setting.task, paths=self._setting.paths
        )
        self._outfit = outfit

        async def place() -> Place:
            sandbox = await self._start_sandbox(self._spec)
            if self._setting.prepare is not None:
                await self._setting.prepare(sandbox)
            return Place(sandbox, outfit.keeper(sandbox))

        async def recycle() -> Place:
            await provider.remove(self._spec.name)
            self._place = await place()
            return self._place

        self._place = await place()
        self._writer = Writer(outfit.program, outfit.kind)
        self._world = self._world_in(self._place, recycle)
        return f"{provider.name}; {'its own python3' if outfit.kind == 'python3' else 'a mounted Node'} reads the state"

    def _world_in(self, place: Place, recycle: Recycle | None = None) -> ManifestEnvironment:
        return ManifestEnvironment(
            self._manifest,
            WorldContext(place.sandbox, self._setting.task, self._records / place.sandbox.ref.name, self._setting.env),
            self._setting.provider,
            keeper=place.keeper,
            source=self._setting.source,
            foreign=tuple(mount.target for mount in self._spec.mounts),
            recycle=recycle,
        )

    async def _start_sandbox(self, spec: SandboxSpec) -> Sandbox:
        start = self._setting.provider.start(spec, host_id="", queue="", secrets=self._setting.secrets)
        try:
            async with awake_timeout(START_SEC):
                return await start
        except TimeoutError as error:
            raise SandboxStartError(
                f"the sandbox did not start within {START_SEC:g} s", remedy="see what keeps this host busy"
            ) from error

    async def _provision(self) -> str:
        assert self._world is not None
        statuses = await self._world.start()
        if self._manifest.owns_lifecycle:
            return "the image's entrypoint starts them"
        here = [status.name for status in statuses if status.state != "left_out"]
        left_out = [status.name for status in statuses if status.state == "left_out"]
        absent = f"; not in this image: {', '.join(left_out)}" if left_out else ""
        return f"{', '.join(here)}{absent}"

    async def _wait(self) -> str:
        assert self._world is not None
        self._ready = await self._world.readiness()
        return answers_of(self._ready)

    # --- back ----------------------------------------------------------------------------------------

    async def roll_back(self) -> None:
        assert self._place is not None and self._world is not None and self._writer is not None
        states = Rollback(
            self._world, self._place, self._writer, self._states, self._setting.source, posts=self._setting.posts
        )
        await self._step("snapshot", states.take_baseline)
        if states.is_empty and not self._setting.posts:
            for what in ("write", "restore", "reset"):
                self._record(what, "not tried", "no declared database is in this image")
            return
        for what, work in (("write", states.write), ("restore", states.restore), ("reset", states.reset)):
            await self._step(what, work)

    # --- a copy --------------------------------------------------------------------------------------

    async def compare_copy(self) -> None:
        """Hold a copy of the world, as a child of a branch has one, against it by the answers of its services."""
        setting = self._setting
        if not setting.observe:
            absent = f"the verifier of {setting.task} names no URL of the world" if setting.has_task else _NO_VERIFIER
            return self._record("copy", "not declared", f"there is no environment.state.observe, and {absent}")
        if not setting.provider.capabilities().snapshot:
            return self._record("copy", "not tried", f"{setting.provider.name} takes no snapshots")
        started = time.monotonic()
        await self._step("copy", self._compare)
        lost = [proof.detail for proof in self._proofs if not proof.is_proven]
        if lost:
            # What nobody has declared fails nobody's check.
            more = f"; and {len(lost) - _MAX_DETAILS} more" if len(lost) > _MAX_DETAILS else ""
            detail = "; ".join(lost[:_MAX_DETAILS]) + more
            self._record("copy", "unproven", detail, time.monotonic() - started)

    async def _compare(self) -> str:
        assert self._place is not None and self._world is not None
        setting = self._setting
        done, self._proofs = await Comparison(
            world=self._world,
            place=self._place,
            provider=setting.provider,
            urls=setting.observe,
            act=self._act,
            start_copy=self._copy,
            name=f"{self._spec.name}-copy",
            image=self._spec.image.reference,
        ).run()
        lost = next((proof for proof in self._proofs if proof.is_lost), None)
        if lost is not None and setting.is_declared:
            raise UnprovenStateError(
                lost.detail,
                file=setting.source,
                key="environment.state.observe",
                remedy="have the service keep this state in its database or in files, and read it when it starts",
            )
        return f"{done}; {', '.join(setting.observe)} answer alike in a copy"

    async def _act(self) -> str:
        """Change the state by way of the services, and say how."""
        assert self._place is not None and self._writer is not None
        setting, done = self._setting, []
        if setting.solve is not None:
            done.append(await setting.solve(self._place.sandbox))
        for post in setting.posts:
            done.append(await self._writer.send(self._place.sandbox, post))
        return ", ".join(done) or "there is neither --write nor a task with an oracle"

    @asynccontextmanager
    async def _copy(self, image: ImageRef) -> AsyncIterator[tuple[ManifestEnvironment, Place]]:
        """Start a sandbox from a snapshot of this one, and remove it."""
        assert self._outfit is not None
        spec = self._spec.model_copy(update={"name": f"{self._spec.name}-copy", "image": image})
        try:
            sandbox = await self._start_sandbox(spec)
            place = Place(sandbox, self._outfit.keeper(sandbox))
            yield self._world_in(place), place
        finally:
            await see_through(self._setting.provider.remove(spec.name))

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
        assert self._place is not None and self._world is not None
        await self._world.teardown()
        ports = {*self._manifest.ports, *(service.port for service in self._manifest.services)}
        left = await self._place.keeper.ports_in_use(sorted(ports))
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
