"""Whether a world does what its manifest declares, tried in a sandbox of its own: started, healthy, rolled back, ended.

It is tried with what rollouts use, and nothing is taken on trust: state is compared by its content, after a write that
was seen. The first thing that fails ends the trial; the sandbox is removed in any case.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchflow.contracts.base import Model
from benchflow.contracts.environment import Manifest, ReadyWorld
from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout import Failure
from benchflow.contracts.sandbox import ImageRef, Sandbox, SandboxProvider, SandboxSpec
from benchflow.errors import BenchFlowError, SandboxLostError, SandboxStartError, WorldError
from benchflow.paths import StatePaths
from benchflow.planes.environment.environment import ManifestEnvironment, Place
from benchflow.planes.environment.outfit import fit_out_world
from benchflow.planes.environment.rollback import Rollback, Timed, answers_of
from benchflow.planes.environment.writing import Post, Writer
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.timeouts import awake_timeout

Outcome = Literal["holds", "fails", "not declared", "not tried"]

START_SEC = 120.0
"""What a sandbox may take to start."""

_ROLLBACK = ("snapshot", "write", "restore", "reset")
_ROWS = ("image", "sandbox", "services", "ready", *_ROLLBACK, "teardown", "removed")


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
        await see_through(trial.end())
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

        async def place() -> Place:
            sandbox = await self._start_sandbox()
            return Place(sandbox, outfit.keeper(sandbox))

        async def recycle() -> Place:
            await provider.remove(self._spec.name)
            self._place = await place()
            return self._place

        self._place = await place()
        self._writer = Writer(outfit.program, outfit.kind)
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
        return f"{provider.name}; {'its own python3' if outfit.kind == 'python3' else 'a mounted Node'} reads the state"

    async def _start_sandbox(self) -> Sandbox:
        start = self._setting.provider.start(self._spec, host_id="", queue="", secrets=self._setting.secrets)
        try:
            async with awake_timeout(START_SEC):
                sandbox = await start
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
        return answers_of(self._ready)

    # --- back ----------------------------------------------------------------------------------------

    async def roll_back(self) -> None:
        assert self._place is not None and self._world is not None and self._writer is not None
        with tempfile.TemporaryDirectory(prefix="benchflow-env-check-") as directory:
            states = Rollback(
                self._world, self._place, self._writer, Path(directory), self._setting.source, post=self._setting.post
            )
            await self._step("snapshot", states.take_baseline)
            if states.is_empty and self._setting.post is None:
                for what in ("write", "restore", "reset"):
                    self._record(what, "not tried", "no declared database is in this image")
                return
            for what, work in (("write", states.write), ("restore", states.restore), ("reset", states.reset)):
                await self._step(what, work)

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
