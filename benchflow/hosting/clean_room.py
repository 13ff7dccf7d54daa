"""The clean room: a sandbox for a verifier alone, made afresh, which receives the agent's work and nothing else.

It begins with the task's image, as the agent's sandbox did, or with what that was after the task's setup commands
(`room_base`).

What travels is the workspace, `/logs/artifacts` and what the task declares: declared artifacts, and paths that its
scorers read. All of it goes by way of files of this host, never from one sandbox to the other. What an agent has left
anywhere else (a tool on PATH, a library, a process, a file in /var) is not there.

It is taken only where it is asked for or known to be faithful (`verifier_place`), because verifiers that others have
written do read more than that: a reply that was put into a spool outside of the workspace, a service that has to
answer.

It counts in the slots that its rollout has, of the job and of the host: if it had to wait for one of its own, rollouts
that hold all the slots would wait for each other for ever. Meanwhile the rollout's own sandbox is frozen. So a host may
for the time of verifiers have up to twice its capacity in sandboxes, of which half run.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.contracts.base import Model
from benchflow.contracts.failures import error_of, failure_of
from benchflow.contracts.images import ImageRef
from benchflow.contracts.job import RunConfig
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Failure
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import ArtifactSpec
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import BenchFlowError, VerifierError, VerifierTimeoutError
from benchflow.hosting.blueprint import Blueprint
from benchflow.hosting.interruption import is_cancelled
from benchflow.paths import WORKSPACE
from benchflow.planes.reward.capture import keep_artifacts, keep_workspace, kept_workspace
from benchflow.planes.reward.hardening import HardeningBaseline, keep_baseline, read_baseline
from benchflow.planes.reward.placement import PUT_SEC, put_work, put_workspace
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.secrets import Secrets
from benchflow.store import storage_errors, write_atomic
from benchflow.stored_files import read_stored

MAX_TRAVELLING_BYTES = 4 * 1024**3
"""Bytes of a workspace, and of the artifacts, that travel, however little may be retained for later."""

_ROOM = "room"
_NAME = "sandbox"
"""File with the name of the room's sandbox, from before it is started."""

_VERDICT = "said.json"
_ARRIVED = "arrived"
"""File with the handle of the room's sandbox, once the work is in it."""


class _Verdict(Model):
    """The outcome of the verifier, so that it is not run again when the sandbox is gone already."""

    result: VerifyResult | None = None
    failure: Failure | None = None


async def keep_for_room(
    sandbox: Sandbox, artifacts: Sequence[ArtifactSpec], evidence: Path, *, limit_bytes: int = MAX_TRAVELLING_BYTES
) -> list[str]:
    """Keep what travels into the clean room below a step's evidence, beside a workspace that is kept for later.

    The workspace was hardened before: links that lead out of it, for one, mean nothing elsewhere. Returns warnings.
    """
    place = _place(evidence)
    try:
        async with awake_timeout(PUT_SEC):
            notes = await keep_workspace(sandbox, place, limit_bytes=limit_bytes)
            return notes + await keep_artifacts(sandbox, artifacts, place, limit_bytes=limit_bytes)
    except TimeoutError as error:
        raise VerifierTimeoutError(
            f"the workspace could not be packed for the verifier's own sandbox in {PUT_SEC:g} s",
            key="verifier.sandbox_mode",
            remedy="keep the workspace small, or see what the agent left in it",
        ) from error


async def put_for_room(sandbox: Sandbox, evidence: Path) -> None:
    """Put the kept work into a fresh sandbox. Raises `VerifierError`."""
    workspace = kept_workspace(_place(evidence))
    await put_work(sandbox, workspace, workspace.parent)


async def end_rooms(provider: str, results: Path) -> None:
    """Remove the clean rooms that a rollout has left, and what was kept for them. results: of one that has ended.

    It may have been cancelled while the worker that should have removed them was dead.
    """
    for evidence in ("evidence", "steps/*/evidence", "soft/*/evidence"):
        for place in results.glob(f"{evidence}/{_ROOM}"):
            name = place / _NAME
            if name.is_file():
                if (removal := _REMOVALS.get(name.read_text())) is not None:
                    await asyncio.wait([removal])
                # The reaper finds what cannot be removed now.
                with suppress(BenchFlowError):
                    await get_provider(provider).remove(name.read_text())
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def clean_room_sec(blueprint: Blueprint, step: str | None, config: VerifierConfig, run: RunConfig) -> float:
    """Return the most seconds that a step's verifier waits for its clean room; 0 where it has none in any case."""
    if config.sandbox_mode == "shared" or blueprint.provider.capabilities().lockdown != "clean_room":
        return 0.0
    return blueprint.of_verifier(step, config, None).ready_sec(run.sandbox_setup_timeout) + 4 * PUT_SEC


def _place(evidence: Path) -> Path:
    return evidence if (evidence / WORKSPACE).is_file() else evidence / _ROOM


_REMOVALS: dict[str, asyncio.Task[None]] = {}
"""Rooms that this process is removing, by the names of their sandboxes. Nobody has to wait for their end."""


@dataclass(frozen=True)
class CleanRoom:
    """The clean room of one verification."""

    blueprint: Blueprint
    name: str
    """Name of its sandbox."""

    labels: dict[str, str]
    where: Mapping[str, Any]
    """Arguments of `provider.start` that say on which host it is started."""

    notes: Path
    """Directory of the room's own notes."""

    work: Path
    """Directory in which the agent's work was kept."""

    env: dict[str, str]
    """Environment of the task's commands in it."""

    user: str | int | None
    """User of the verifier."""

    secrets: Secrets
    start_sec: float
    """Limit of its start."""

    is_clean: bool = True
    """Whether it is the verifier's alone. Otherwise it stands for the agent's sandbox, and gets the workspace only."""

    base: ImageRef | None = None
    """What the agent's sandbox was after the setup commands, which then are not run again."""

    known: HardeningBaseline | None = None
    """Baseline of the agent's sandbox, if that began with nothing else than the room does."""

    on_removed: Callable[[str], None] = lambda name: None
    """Called with its name after it was removed."""

    async def open(self) -> Sandbox:
        """Find the sandbox, or make it, with the agent's work in it."""
        name = self.notes / _NAME
        with storage_errors(name):
            name.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(name, self.name.encode(), durable=False)
        sandbox = await self.blueprint.start_alone(self.name, self.labels, self.start_sec, base=self.base, **self.where)
        if not self._has_arrived(sandbox):
            await self.blueprint.make_ready(sandbox, self.env, self.secrets, is_set_up=self.base is not None)
            if self.is_clean:
                keep_baseline(self.known or await self.blueprint.room_baseline(sandbox, self.user), self.notes)
                await put_for_room(sandbox, self.work)
            else:
                await put_workspace(sandbox, kept_workspace(self.work))
            # After a crash, what the verifier has begun to do there must not be undone.
            write_atomic(self.notes / _ARRIVED, sandbox.ref.handle.encode(), durable=False)
        return sandbox

    def _has_arrived(self, sandbox: Sandbox) -> bool:
        """Return whether the work is in this sandbox, and not only in an earlier one of its name."""
        try:
            return read_stored(self.notes / _ARRIVED).decode() == sandbox.ref.handle
        except FileNotFoundError:
            return False

    def baseline(self) -> HardeningBaseline | None:
        """Return what the open room was before the agent's work came."""
        return read_baseline(self.notes)

    async def once(self, verify: Callable[[], Awaitable[VerifyResult]]) -> VerifyResult:
        """Run a verifier in the room once; then begin to remove the room, and what was kept for it alone.

        verify: raises `VerifierError` for what counts as an answer, too. A worker that only shuts down, or is to try
        again, leaves the room to the next one.
        """
        file = self.work / _VERDICT
        if not file.exists():
            async with self.kept_for_retries():
                try:
                    verdict = _Verdict(result=await verify())
                except VerifierError as error:
                    if error.retryable:
                        raise
                    verdict = _Verdict(failure=failure_of(error, "verify"))
                write_atomic(file, verdict.model_dump_json().encode(), durable=False)
        self.discard()
        verdict = _Verdict.model_validate_json(file.read_bytes())
        if verdict.result is None:
            assert verdict.failure is not None
            raise error_of(verdict.failure)
        return verdict.result

    @asynccontextmanager
    async def kept_for_retries(self) -> AsyncIterator[None]:
        """Remove the room when a block fails for good. One that is interrupted or retried leaves it to the next one."""
        try:
            yield
        except asyncio.CancelledError:
            if is_cancelled():
                await see_through(self.remove())
            raise
        except BenchFlowError as error:
            if not error.retryable:
                await self.remove()
            raise

    def discard(self) -> None:
        """Begin to remove the sandbox, and what was noted of it. `end_rooms` waits for the end of that."""

        async def remove() -> None:
            await self.remove()
            await asyncio.to_thread(shutil.rmtree, self.notes, ignore_errors=True)

        removal = _REMOVALS[self.name] = asyncio.create_task(remove())
        removal.add_done_callback(lambda task: _REMOVALS.pop(self.name, None))

    async def remove(self) -> None:
        """Remove the sandbox. What can't be removed now the reaper finds, once the rollout is over."""
        with suppress(BenchFlowError):
            await self.blueprint.provider.remove(self.name)
        self.on_removed(self.name)


def room_notes(evidence: Path) -> Path:
    """Return the directory of a clean room's notes, beside a step's evidence."""
    return evidence / _ROOM
