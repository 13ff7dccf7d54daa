"""The clean room: a fresh sandbox for a verifier alone, which receives the agent's work and nothing else.

It starts from the task's image, as the agent's sandbox did, or from a capture of that sandbox after the task's setup
commands (`room_base`).

The work that travels is the workspace, `/logs/artifacts`, declared artifacts, and paths that the task's scorers read.
All of it goes through files on this host, never from one sandbox to the other. Anything that an agent left elsewhere (a
tool on PATH, a library, a process, a file in /var) stays behind.

A clean room is used only if it is requested or known to be faithful (`verifier_place`), because third-party verifiers
read more than that: a reply in a spool outside of the workspace, a service that has to answer.

It shares the slots of its rollout, of the job and of the host: if it had to wait for one of its own, rollouts that hold
all the slots would wait for each other for ever. Meanwhile the rollout's own sandbox is frozen. So while verifiers run
a host may have up to twice its capacity in sandboxes, of which half run.
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
from benchflow.contracts.rollout_records import Failure
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import ArtifactSpec
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import BenchFlowError, VerifierError, VerifierTimeoutError
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.hosting.blueprint import Blueprint
from benchflow.hosting.interruption import is_cancelled
from benchflow.paths import WORKSPACE
from benchflow.planes.reward.evidence import require_workspace, store_artifacts, store_workspace
from benchflow.planes.reward.hardening import HardeningBaseline, read_baseline, store_baseline
from benchflow.planes.reward.placement import PUT_SEC, put_work, put_workspace
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.secrets import Secrets
from benchflow.stored_files import read_stored

MAX_PACKED_BYTES = 4 * 1024**3
"""Maximum size in bytes of the archive of the workspace, and of the archive of the artifacts. The job's limit on
retained workspaces does not apply."""

_ROOM = "room"
_NAME = "sandbox"
"""File with the name of the room's sandbox, written before the sandbox is started."""

_VERDICT = "said.json"
_ARRIVED = "arrived"
"""File with the handle of the room's sandbox, once the work is in it."""


class _Verdict(Model):
    """Outcome of the verifier, written so that a retry does not run it again without its sandbox."""

    result: VerifyResult | None = None
    failure: Failure | None = None


async def pack_for_room(
    sandbox: Sandbox, artifacts: Sequence[ArtifactSpec], evidence: Path, *, limit_bytes: int = MAX_PACKED_BYTES
) -> list[str]:
    """Pack the agent's work for the clean room below a step's evidence, each archive once, and return warnings.

    A workspace that is retained there already is used as it is. The workspace has to be hardened before: links that
    lead out of it, for one, mean nothing elsewhere.

    Args:
        sandbox: The agent's sandbox.
        artifacts: Artifacts and scorers' paths that travel beside the workspace.
        evidence: Directory of the step's evidence.
        limit_bytes: Maximum size of each archive. A larger one is not stored, and is warned about.

    Raises:
        VerifierTimeoutError: Packing takes longer than `PUT_SEC`.
    """
    place = _choose_pack_directory(evidence)
    try:
        async with awake_timeout(PUT_SEC):
            notes = await store_workspace(sandbox, place, limit_bytes=limit_bytes)
            return notes + await store_artifacts(sandbox, artifacts, place, limit_bytes=limit_bytes)
    except TimeoutError as error:
        raise VerifierTimeoutError(
            f"the workspace could not be packed for the verifier's own sandbox in {PUT_SEC:g} s",
            key="verifier.sandbox_mode",
            remedy="keep the workspace small, or see what the agent left in it",
        ) from error


async def unpack_for_room(sandbox: Sandbox, evidence: Path) -> None:
    """Unpack the work that `pack_for_room` packed in a fresh sandbox.

    Args:
        sandbox: The room's sandbox.
        evidence: Directory of the step's evidence.

    Raises:
        VerifierError: The workspace was not packed, an archive can't be read, or the sandbox can't take it.
    """
    workspace = require_workspace(_choose_pack_directory(evidence))
    await put_work(sandbox, workspace, workspace.parent)


async def remove_rooms(provider: str, results: Path) -> None:
    """Remove all clean rooms of a rollout that still exist, with their files. Removals under way are awaited.

    Rooms are left over, for one, if a rollout was cancelled while its worker was dead.

    Args:
        provider: Name of the sandbox provider.
        results: Directory of the rollout's results.
    """
    for evidence in ("evidence", "steps/*/evidence", "soft/*/evidence"):
        for place in results.glob(f"{evidence}/{_ROOM}"):
            try:
                name = (place / _NAME).read_text()
            except (FileNotFoundError, NotADirectoryError):
                name = None
            if name is not None:
                if (removal := _REMOVALS.get(name)) is not None:
                    # It removes the directory, too.
                    await asyncio.wait([removal])
                # The reaper removes a sandbox that can't be removed now.
                with suppress(BenchFlowError):
                    await get_provider(provider).remove(name)
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def compute_clean_room_sec(blueprint: Blueprint, step: str | None, config: VerifierConfig, run: RunConfig) -> float:
    """Return the maximum number of seconds to prepare the clean room of a step's verifier; 0 if it can't have one.

    Args:
        blueprint: Blueprint of the agent's sandbox.
        step: Name of the step; None for the only one.
        config: Configuration of the step's verifier.
        run: Settings of the job.
    """
    if config.sandbox_mode == "shared" or blueprint.provider.capabilities().lockdown != "clean_room":
        return 0.0
    return blueprint.adapt_to_verifier(step, config, None).compute_ready_sec(run.sandbox_setup_timeout) + 4 * PUT_SEC


def _choose_pack_directory(evidence: Path) -> Path:
    """Return the directory of the packed work: the evidence itself, if the workspace is retained there anyway."""
    return evidence if (evidence / WORKSPACE).is_file() else evidence / _ROOM


_REMOVALS: dict[str, asyncio.Task[None]] = {}
"""Removals that run in the background of this process, by the names of the rooms' sandboxes."""


@dataclass(frozen=True)
class CleanRoom:
    """The clean room of one verification: a sandbox, to be opened, used once, and removed."""

    blueprint: Blueprint
    """Blueprint of its sandbox."""

    name: str
    """Name of its sandbox."""

    labels: dict[str, str]
    """Labels of its sandbox."""

    where: Mapping[str, Any]
    """Arguments of `provider.start` about the host and the generation."""

    notes: Path
    """Directory of the room's own files, such as its name and its baseline."""

    work: Path
    """Evidence directory in which the agent's work was packed."""

    env: dict[str, str]
    """Environment of the task's commands in it."""

    user: str | int | None
    """User that the verifier's table names; None for none."""

    secrets: Secrets
    """Values of the variables that the task's commands name."""

    start_sec: float
    """Maximum number of seconds for its start."""

    is_clean: bool = True
    """Whether it is for the verifier alone. Otherwise it replaces the agent's sandbox when a stored rollout is scored
    again, and gets the workspace only.
    """

    base: ImageRef | None = None
    """Capture of the agent's sandbox after the setup commands, which then are not run again; None for the image."""

    known: HardeningBaseline | None = None
    """Baseline of the agent's sandbox, if that sandbox started in the same state as the room; None to take one."""

    on_removed: Callable[[str], None] = lambda name: None
    """Called with the sandbox's name after the sandbox was removed."""

    async def open(self) -> Sandbox:
        """Return the room's sandbox, found or started, with the agent's work in it.

        The work is put in once for each sandbox: a retry finds the verifier's changes.

        Raises:
            VerifierError: The work can't be put in.
            SandboxStartError: The sandbox does not start in time.
            SandboxSetupError: A setup command fails.
            ReadinessError: The healthcheck does not succeed.
        """
        name = self.notes / _NAME
        with raise_storage_errors(name):
            name.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(name, self.name.encode(), durable=False)
        sandbox = await self.blueprint.start_alone(self.name, self.labels, self.start_sec, base=self.base, **self.where)
        if not self._has_work(sandbox):
            await self.blueprint.make_ready(sandbox, self.env, self.secrets, is_set_up=self.base is not None)
            if self.is_clean:
                store_baseline(self.known or await self.blueprint.take_room_baseline(sandbox, self.user), self.notes)
                await unpack_for_room(sandbox, self.work)
            else:
                await put_workspace(sandbox, require_workspace(self.work))
            # Marked last: a retry after a crash must not revert changes that the verifier has made there.
            write_atomic(self.notes / _ARRIVED, sandbox.ref.handle.encode(), durable=False)
        return sandbox

    def _has_work(self, sandbox: Sandbox) -> bool:
        """Return whether the work was put into this very sandbox, not into an earlier one of the same name."""
        try:
            return read_stored(self.notes / _ARRIVED).decode() == sandbox.ref.handle
        except FileNotFoundError:
            return False

    def load_baseline(self) -> HardeningBaseline | None:
        """Return the baseline of the room before the work was put in; None before then, and if not `is_clean`."""
        return read_baseline(self.notes)

    async def run_once(self, verify: Callable[[], Awaitable[VerifyResult]]) -> VerifyResult:
        """Run the verifier, unless its outcome is recorded, start to remove the room, and return the verifier's result.

        The outcome is a result or a `VerifierError` that is not retryable. It is recorded in `work`, so that a later
        call returns or raises the same without the sandbox. If the verifier is interrupted because the worker stops, or
        fails retryably, nothing is recorded, and the room stays for the next attempt.

        Args:
            verify: Runs the verifier; opens the room itself.

        Raises:
            VerifierError: The verifier failed, now or at an earlier call.
            BenchFlowError: `verify` raised it. Unless it is retryable, the room is removed.
        """
        file = self.work / _VERDICT
        if not file.exists():
            async with self.remove_unless_retried():
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
    async def remove_unless_retried(self) -> AsyncIterator[None]:
        """Remove the room if the block raises an error that is not retryable, or its rollout is cancelled.

        After a retryable error, or if only the worker stops, the room stays for the next attempt.
        """
        try:
            yield
        except asyncio.CancelledError:
            if is_cancelled():
                await run_to_completion(self.remove())
            raise
        except BenchFlowError as error:
            if not error.retryable:
                await self.remove()
            raise

    def discard(self) -> None:
        """Start a background task that removes the sandbox and `notes`. `remove_rooms` awaits it."""

        async def remove() -> None:
            await self.remove()
            await asyncio.to_thread(shutil.rmtree, self.notes, ignore_errors=True)

        removal = _REMOVALS[self.name] = asyncio.create_task(remove())
        removal.add_done_callback(lambda task: _REMOVALS.pop(self.name, None))

    async def remove(self) -> None:
        """Remove the sandbox, and call `on_removed`. Errors are suppressed: the reaper retries after the rollout."""
        with suppress(BenchFlowError):
            await self.blueprint.provider.remove(self.name)
        self.on_removed(self.name)


def room_notes(evidence: Path) -> Path:
    """Return the directory of a clean room's own files, below a step's evidence."""
    return evidence / _ROOM
