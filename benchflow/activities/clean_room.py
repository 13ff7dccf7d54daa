"""The clean room: a sandbox for a verifier alone, made afresh, which receives the agent's work and nothing else.

What travels is the workspace, `/logs/artifacts` and what the task declares: declared artifacts, and paths that its
scorers read. All of it goes by way of files of this host, never from one sandbox to the other. What an agent has left
anywhere else (a tool on PATH, a library, a process, a file in /var) is not there.

It is not the default, because verifiers that others have written do read more than that: a reply that was put into a
spool outside of the workspace, a service that has to answer.

It counts in the slots that its rollout has, of the job and of the host: if it had to wait for one of its own, rollouts
that hold all the slots would wait for each other for ever. Meanwhile the rollout's own sandbox is frozen. So a host may
for the time of verifiers have up to twice its capacity in sandboxes, of which half run.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchflow.activities.attempts import is_cancelled
from benchflow.activities.blueprint import Blueprint, baseline_of_room
from benchflow.contracts.base import Model
from benchflow.contracts.failures import error_of, failure_of
from benchflow.contracts.job import RunConfig
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Failure
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.task import ArtifactSpec, VerifierConfig
from benchflow.errors import BenchFlowError, VerifierError, VerifierTimeoutError
from benchflow.planes.reward.capture import WORKSPACE, keep_artifacts, keep_workspace, kept_workspace
from benchflow.planes.reward.hardening import HardeningBaseline, keep_baseline, read_baseline
from benchflow.planes.reward.placement import PUT_SEC, put_work
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.secrets import Secrets
from benchflow.store import storage_errors, write_atomic

MOST = 4 * 1024**3
"""Bytes of a workspace, and of the artifacts, that travel, however little may be kept for later."""

_ROOM = "room"
_NAME = "sandbox"
"""Names the room's, from before it is started."""

_SAID = "said.json"
_ARRIVED = "arrived"


class _Said(Model):
    """What came of the verifier, so that it is not run again when the sandbox is gone already."""

    result: VerifyResult | None = None
    failure: Failure | None = None


async def keep_for_room(
    sandbox: Sandbox, artifacts: Sequence[ArtifactSpec], evidence: Path, *, limit_bytes: int = MOST
) -> list[str]:
    """Keep what travels, below a step's evidence: beside the workspace that is kept for later, if it is. Warnings.

    What is hardened in the workspace was, before this: links that lead out of it, for one, mean nothing elsewhere.
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
    """Put into a fresh sandbox what was kept for it. Raises `VerifierError`."""
    workspace = kept_workspace(_place(evidence))
    await put_work(sandbox, workspace, workspace.parent)


async def end_rooms(provider: str, results: Path) -> None:
    """Remove the clean rooms that a rollout has left, and what was kept for them. results: of one that has ended.

    It may have been cancelled while the worker that was to remove them was dead.
    """
    for evidence in ("evidence", "steps/*/evidence", "soft/*/evidence"):
        for place in results.glob(f"{evidence}/{_ROOM}"):
            name = place / _NAME
            if name.is_file():
                # The reaper finds what cannot be removed now.
                with suppress(BenchFlowError):
                    await get_provider(provider).remove(name.read_text())
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def clean_room_sec(blueprint: Blueprint, step: str | None, config: VerifierConfig, run: RunConfig) -> float:
    """The most seconds that a step's verifier waits for its clean room; 0 where it needs none."""
    if config.sandbox_mode == "shared":
        return 0.0
    return blueprint.of_verifier(step, config, None).ready_sec(run.sandbox_setup_timeout) + 4 * PUT_SEC


def _place(evidence: Path) -> Path:
    return evidence if (evidence / WORKSPACE).is_file() else evidence / _ROOM


@dataclass(frozen=True)
class CleanRoom:
    """The clean room of one verification. name: of its sandbox; beside: the agent's, on whose host it is started.

    evidence: where `keep_for_room` kept the agent's work. env: of the task's commands in it; user: of the verifier;
    start_sec: for its start.
    """

    blueprint: Blueprint
    name: str
    labels: dict[str, str]
    beside: SandboxRef
    evidence: Path
    env: dict[str, str]
    user: str | int | None
    secrets: Secrets
    start_sec: float

    async def open(self) -> Sandbox:
        """Find the sandbox, or make it, with the agent's work in it."""
        name = self.evidence / _ROOM / _NAME
        with storage_errors(name):
            name.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(name, self.name.encode(), durable=False)
        where = self.beside.model_dump(include={"host_id", "queue", "generation"})
        sandbox = await self.blueprint.start_alone(self.name, self.labels, self.start_sec, **where)
        if not await sandbox.was_started(_ARRIVED):
            await self.blueprint.make_ready(sandbox, self.env, self.secrets)
            keep_baseline(await baseline_of_room(sandbox, self.blueprint.task, self.user), self.evidence / _ROOM)
            await put_for_room(sandbox, self.evidence)
            # After a crash, what the verifier has begun to do there must not be undone.
            await sandbox.exec_once(_ARRIVED, ["true"], cwd="/")
        return sandbox

    def baseline(self) -> HardeningBaseline | None:
        """What the open room was before the agent's work came."""
        return read_baseline(self.evidence / _ROOM)

    async def once(self, verify: Callable[[], Awaitable[VerifyResult]]) -> VerifyResult:
        """What is said in the room, asked for once; then the room is removed, and what was kept for it alone.

        verify: raises `VerifierError` for what counts as an answer, too. A worker that only shuts down, or is to try
        again, leaves the room to the next one.
        """
        file = self.evidence / _SAID
        if not file.exists():
            try:
                said = _Said(result=await verify())
            except asyncio.CancelledError:
                if is_cancelled():
                    await see_through(self._remove())
                raise
            except VerifierError as error:
                if error.retryable:
                    raise
                said = _Said(failure=failure_of(error, "verify"))
            except BenchFlowError as error:
                if not error.retryable:
                    await self._remove()
                raise
            write_atomic(file, said.model_dump_json().encode(), durable=False)
        await self._remove()
        await asyncio.to_thread(shutil.rmtree, self.evidence / _ROOM, ignore_errors=True)
        said = _Said.model_validate_json(file.read_bytes())
        if said.result is None:
            assert said.failure is not None
            raise error_of(said.failure)
        return said.result

    async def _remove(self) -> None:
        # The reaper finds what cannot be removed now, once the rollout is over.
        with suppress(BenchFlowError):
            await self.blueprint.provider.remove(self.name)
