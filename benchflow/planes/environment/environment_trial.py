"""Trial of a world, in a sandbox of its own, against its manifest: start, readiness, rollback, copy, teardown.

It uses the code that rollouts use, and verifies every effect: state is compared by its content, after a write that was
observed. The first failure ends the trial; the sandbox is removed in any case.
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
from benchflow.contracts.rollout_records import Failure
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import BenchFlowError, SandboxLostError, SandboxStartError, UnprovenStateError, WorldError
from benchflow.paths import StatePaths
from benchflow.planes.environment.copying import Comparison
from benchflow.planes.environment.manifest_environment import ManifestEnvironment, Recycle, WorldPlace
from benchflow.planes.environment.proofs import UrlProof
from benchflow.planes.environment.world_context import WorldContext
from benchflow.planes.environment.world_rollback import Timed, WorldRollback, format_answers
from benchflow.planes.environment.world_setup import WorldSetup, prepare_world
from benchflow.planes.environment.writing import Post, Writer
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.timeouts import awake_timeout

Outcome = Literal["holds", "fails", "unproven", "not declared", "not tried"]

START_SEC = 120.0
"""Timeout of the start of a sandbox, in seconds."""

_ROLLBACK = ("snapshot", "write", "restore", "reset")
_ROWS = ("image", "sandbox", "services", "ready", *_ROLLBACK, "copy", "teardown", "removed")
_MAX_DETAILS = 3
_NO_VERIFIER = "without a task there is no verifier to find a URL in: give --task"


class TrialFinding(Model):
    """Result of one step of a trial."""

    what: str
    """Name of the step: one of `_ROWS`."""

    outcome: Outcome
    detail: str = ""
    """Observation, or the error's message, in words."""

    seconds: float | None = None
    """Duration of the step; None if it was not tried."""


class EnvironmentCheck(Model):
    """Result of a trial."""

    name: str
    """Name of the environment."""

    source: str
    """Path of the manifest's file."""

    sandbox: str
    """Name of the sandbox provider."""

    findings: tuple[TrialFinding, ...]
    """Findings, one for each step, in the order of the steps."""

    urls: tuple[UrlProof, ...] = ()
    """Findings about each observed URL in a copy of the world."""

    world: ReadyWorld | None = None
    """The world as it became ready; None if it did not."""

    failure: Failure | None = None
    """Failure of the first step that failed."""

    @property
    def ok(self) -> bool:
        """Return whether no step failed."""
        return all(finding.outcome != "fails" for finding in self.findings)


@dataclass(frozen=True)
class Setting:
    """Setting of a trial: the world, and all that it is tried with."""

    manifest: Manifest
    source: str
    """Path of the manifest's file, for errors."""

    provider: SandboxProvider
    build: Callable[[], Awaitable[ImageRef]]
    """Builds or finds the sandbox's image."""

    wanted: SandboxSpec
    """Specification of the sandbox, without the manifest's additions."""

    task: str
    """Id of the task, which the world is told."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of services that the framework starts."""

    secrets: Mapping[str, str] = field(default_factory=dict)
    """Secret variables of the image's entrypoint."""

    prepare: Callable[[Sandbox], Awaitable[None]] | None = None
    """Runs the task's own setup in its sandbox before the world is started."""

    posts: tuple[Post, ...] = ()
    """Requests that write to a service."""

    observe: tuple[str, ...] = ()
    """URLs whose answers are compared in a copy."""

    is_declared: bool = False
    """Whether the manifest names the URLs of `observe`; else they were found in verifiers."""

    solve: Callable[[Sandbox], Awaitable[str]] | None = None
    """Changes the state as the task's oracle does, and returns a sentence about how that ended."""

    paths: StatePaths | None = None
    """State directory; None for the default one."""

    has_task: bool = False
    """Whether `task` is one that was given, whose verifiers were searched for URLs."""


async def try_world(setting: Setting, tell: Callable[[str], None] = lambda what: None) -> EnvironmentCheck:
    """Try everything that the manifest declares, and return the findings.

    A `BenchFlowError` becomes a finding. The sandbox is removed in any case, also after another exception and after a
    cancellation.

    Args:
        setting: The world, and all that it is tried with.
        tell: Called with the name of each step before it begins.
    """
    with tempfile.TemporaryDirectory(prefix="benchflow-env-check-") as directory:
        trial = _Trial(setting, tell, Path(directory))
        try:
            await trial.start()
            if setting.manifest.is_stateful:
                await trial.roll_back()
            await trial.compare_copy()
        except _EndedError:
            pass
        finally:
            await run_to_completion(trial.end())
    return trial.result()


class _EndedError(Exception):
    """A step has failed, and is recorded: the trial ends."""


class _Trial:
    """A trial that is under way: its steps, its findings, and the sandbox to remove at its end."""

    def __init__(self, setting: Setting, tell: Callable[[str], None], directory: Path) -> None:
        """Make it. `directory` on this host holds copies of the state and the world's records."""
        self._setting = setting
        self._states, self._records = directory / "states", directory / "records"
        self._manifest = setting.manifest
        self._tell = tell
        self._findings: dict[str, TrialFinding] = {}
        self._failure: Failure | None = None
        self._spec = setting.wanted
        self._place: WorldPlace | None = None
        self._world: ManifestEnvironment | None = None
        self._ready: ReadyWorld | None = None
        self._writer: Writer | None = None
        self._setup: WorldSetup | None = None
        self._proofs: list[UrlProof] = []

    def result(self) -> EnvironmentCheck:
        """Return the findings; a step without one is `not declared` or `not tried`."""
        for what in _ROWS:
            if what not in self._findings:
                undeclared = what in _ROLLBACK and not self._manifest.is_stateful
                self._findings[what] = (
                    TrialFinding(what=what, outcome="not declared", detail="there is no [environment.state]")
                    if undeclared
                    else TrialFinding(what=what, outcome="not tried")
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

    async def _run_step(self, what: str, work: Callable[[], Awaitable[str | Timed]]) -> None:
        """Run one step and record its finding. Raise `_EndedError` if it raises a `BenchFlowError`."""
        self._tell(what)
        started = time.monotonic()
        try:
            done = await work()
        except BenchFlowError as error:
            self._failure = self._failure or failure_of(error)
            self._record(what, "fails", error.message, time.monotonic() - started)
            raise _EndedError from error
        whole = time.monotonic() - started
        detail, seconds = (done, whole) if isinstance(done, str) else done
        self._record(what, "holds", detail, seconds)

    def _record(self, what: str, outcome: Outcome, detail: str, seconds: float | None = None) -> None:
        rounded = None if seconds is None else round(seconds, 4)
        self._findings[what] = TrialFinding(what=what, outcome=outcome, detail=detail, seconds=rounded)

    # --- start ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Build the image, start the sandbox and the services, and wait until the world is ready."""
        await self._run_step("image", self._build)
        await self._run_step("sandbox", self._start)
        await self._run_step("services", self._provision)
        await self._run_step("ready", self._await_readiness)

    # Each of these steps returns a phrase for its finding.

    async def _build(self) -> str:
        image = await self._setting.build()
        self._spec = self._spec.model_copy(update={"image": image})
        notes = [("made" if image.built else "found"), *image.warnings]
        return f"{image.reference}, {'; '.join(notes)}"

    async def _start(self) -> str:
        manifest, provider = self._manifest, self._setting.provider
        self._spec, setup = await prepare_world(
            manifest, self._spec, provider, task=self._setting.task, paths=self._setting.paths
        )
        self._setup = setup

        async def place() -> WorldPlace:
            sandbox = await self._start_sandbox(self._spec)
            if self._setting.prepare is not None:
                await self._setting.prepare(sandbox)
            return WorldPlace(sandbox, setup.make_helper(sandbox))

        async def recycle() -> WorldPlace:
            await provider.remove(self._spec.name)
            self._place = await place()
            return self._place

        self._place = await place()
        self._writer = Writer(setup.python)
        self._world = self._make_world(self._place, recycle)
        whose = "its own python3" if setup.python == "python3" else "a mounted Python"
        return f"{provider.name}; {whose} reads the state"

    def _make_world(self, place: WorldPlace, recycle: Recycle | None = None) -> ManifestEnvironment:
        return ManifestEnvironment(
            self._manifest,
            WorldContext(place.sandbox, self._setting.task, self._records / place.sandbox.ref.name, self._setting.env),
            self._setting.provider,
            helper=place.helper,
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

    async def _await_readiness(self) -> str:
        assert self._world is not None
        self._ready = await self._world.readiness()
        return format_answers(self._ready)

    # --- rollback ------------------------------------------------------------------------------------

    async def roll_back(self) -> None:
        """Take the baseline, then write, restore and reset. Without a database or a request, the baseline alone."""
        assert self._place is not None and self._world is not None and self._writer is not None
        states = WorldRollback(
            self._world, self._place, self._writer, self._states, self._setting.source, posts=self._setting.posts
        )
        await self._run_step("snapshot", states.take_baseline)
        if states.is_empty and not self._setting.posts:
            for what in ("write", "restore", "reset"):
                self._record(what, "not tried", "no declared database is in this image")
            return
        for what, work in (("write", states.write), ("restore", states.restore), ("reset", states.reset)):
            await self._run_step(what, work)

    # --- copy ----------------------------------------------------------------------------------------

    async def compare_copy(self) -> None:
        """Compare the world with a copy such as a branch's child gets, by the answers of their services."""
        setting = self._setting
        if not setting.observe:
            absent = f"the verifier of {setting.task} names no URL of the world" if setting.has_task else _NO_VERIFIER
            return self._record("copy", "not declared", f"there is no environment.state.observe, and {absent}")
        if not setting.provider.capabilities().snapshot:
            return self._record("copy", "not tried", f"{setting.provider.name} takes no snapshots")
        started = time.monotonic()
        await self._run_step("copy", self._compare)
        lost = [proof.detail for proof in self._proofs if not proof.is_proven]
        if lost:
            # URLs that are not declared do not fail a check.
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
            act=self._change_state,
            start_copy=self._start_copy,
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

    async def _change_state(self) -> str:
        """Change the state by the task's oracle and the requests; return a sentence about it."""
        assert self._place is not None and self._writer is not None
        setting, done = self._setting, []
        if setting.solve is not None:
            done.append(await setting.solve(self._place.sandbox))
        for post in setting.posts:
            done.append(await self._writer.send(self._place.sandbox, post))
        return ", ".join(done) or "there is neither --write nor a task with an oracle"

    @asynccontextmanager
    async def _start_copy(self, image: ImageRef) -> AsyncIterator[tuple[ManifestEnvironment, WorldPlace]]:
        """Start a sandbox from a snapshot of this one, yield its world, not started yet, and remove it."""
        assert self._setup is not None
        spec = self._spec.model_copy(update={"name": f"{self._spec.name}-copy", "image": image})
        try:
            sandbox = await self._start_sandbox(spec)
            place = WorldPlace(sandbox, self._setup.make_helper(sandbox))
            yield self._make_world(place), place
        finally:
            await run_to_completion(self._setting.provider.remove(spec.name))

    # --- end -----------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Tear the world down and remove its sandbox, however far the trial came, and verify both."""
        with suppress(_EndedError):
            if self._ready is not None:
                await self._run_step("teardown", self._tear_down)
        if "sandbox" in self._findings:
            with suppress(_EndedError):
                await self._run_step("removed", self._remove_sandbox)
        else:
            # A start that was cancelled halfway may have left a sandbox.
            await self._setting.provider.remove(self._spec.name)
            self._record("removed", "not tried", "no sandbox was started")

    async def _tear_down(self) -> str:
        """Tear the world down. Raise `WorldError` if a process still listens on one of its ports."""
        if self._manifest.owns_lifecycle and self._manifest.keep_alive:
            return "the entrypoint ends with its sandbox"
        assert self._place is not None and self._world is not None
        await self._world.teardown()
        ports = {*self._manifest.ports, *(service.port for service in self._manifest.services)}
        left = await self._place.helper.ports_in_use(sorted(ports))
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
