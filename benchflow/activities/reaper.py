"""The reaper: removes sandboxes of this stack, on this host, whose workflow has ended.

A terminated workflow runs no code, and a killed worker does no cleanup; so every worker looks for orphans when it
starts, and periodically. It removes only sandboxes with the label of its own stack, or of a dead process of this host.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import structlog
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from benchflow.activities.job_secrets import remove_secrets_of_ended_jobs
from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts.fixed_durations import REAPED_ITEM_SEC, WATCHED_SEC
from benchflow.contracts.sandbox_provider import OwnedSandbox
from benchflow.errors import BenchFlowError, GatewayError
from benchflow.hosting.checkpoint_records import read_checkpoint_record, remove_checkpoint
from benchflow.hosting.session_files import remove_sessions
from benchflow.planes.sandbox import get_provider, list_provider_names
from benchflow.planes.sandbox.owners import OF_A_PROCESS, OWNER_LABEL, is_abandoned
from benchflow.rounds import Failures
from benchflow.workflow_executions import is_not_found

log = structlog.get_logger("benchflow.reaper")


class Reaper:
    """Removes what ended workflows have left on this host; each worker has one.

    Args:
        context: Host and client of this worker process.
    """

    def __init__(self, context: WorkerContext) -> None:
        """Make it."""
        self.context = context
        self.options = context.options
        self._failures = Failures("reaper")
        self._watched: dict[tuple[str, float], float] = {}
        self._watched_before = self._watched

    async def reap(self) -> int:
        """Run one round: remove orphans of all kinds, and return the number of sandboxes removed.

        Orphans are sandboxes, slots, session files, gateway registrations, checkpoints and secrets. An item that fails
        is logged, and retried in the next round.
        """
        self._failures.begin_round()
        self._watched_before, self._watched = self._watched, {}
        removed = 0
        living: set[str] = set()
        complete = True
        for name in list_provider_names():
            owned: list[OwnedSandbox] | None = None
            async with self._failures.item(f"provider {name}", REAPED_ITEM_SEC):
                provider = get_provider(name)
                try:
                    owned = [*await provider.owned(self.context.stack), *await provider.owned(OF_A_PROCESS)]
                except BenchFlowError as error:
                    # Without its daemon, nothing of a provider can be removed now.
                    log.debug("cannot reap", provider=name, error=error.message)
            if owned is None:
                complete = False
                continue
            living |= {sandbox.name for sandbox in owned}
            for sandbox in owned:
                # One that can't be removed now keeps its slot, and does not hold up the others.
                async with self._failures.item(f"sandbox {sandbox.name}", REAPED_ITEM_SEC):
                    if await self._is_orphan(sandbox):
                        await provider.remove(sandbox.name)
                        await asyncio.to_thread(self.context.release, sandbox.name)
                        log.info("removed a sandbox whose workflow is over", sandbox=sandbox.name)
                        living.discard(sandbox.name)
                        removed += 1
        async with self._failures.item("slots", REAPED_ITEM_SEC):
            await self._free_slots(living, is_complete=complete)
        if complete:
            async with self._failures.item("sessions", REAPED_ITEM_SEC):
                await asyncio.to_thread(self._remove_sessions, living)
        async with self._failures.item("models", REAPED_ITEM_SEC):
            await self._forget_models()
        async with self._failures.item("checkpoints"):
            await self._remove_checkpoints()
        async with self._failures.item("secrets", REAPED_ITEM_SEC):
            await remove_secrets_of_ended_jobs(self.context)
        return removed

    async def _free_slots(self, living: set[str], *, is_complete: bool) -> None:
        """Free slots without a sandbox: at once if their workflow has ended, else once they are abandoned.

        Args:
            living: Names of the existing sandboxes.
            is_complete: Whether every provider could be asked. If not, a slot is freed only because its workflow has
                ended.
        """
        slots = self.context.slots
        for name in await asyncio.to_thread(slots.taken):
            with suppress(FileNotFoundError):
                changed = (slots.directory / name).stat().st_mtime
                owner = slots.owner(name)
                is_free = name not in living and owner is not None and await self._has_ended(*owner)
                if not is_free and is_complete:
                    is_free = self._is_abandoned(f"slot {name}", changed, name in living)
                if is_free and await asyncio.to_thread(slots.free_unused, name):
                    log.info("freed a slot that has no sandbox", slot=name)

    async def _forget_models(self) -> None:
        """Have the gateway forget rollouts that have ended: a terminated one could not do so itself."""
        if not any(self.context.paths.gateway.rollouts.glob("*.json")):
            return
        from benchflow.gateway.gateway_client import GatewayClient

        client = GatewayClient(self.context.paths, patience=0.0)
        try:
            statuses = await client.statuses()
        except GatewayError as error:
            # The process that supervises it restarts it.
            log.debug("cannot ask the gateway", error=error.message)
            return
        for status in statuses:
            async with self._failures.item(f"model of {status.id}", REAPED_ITEM_SEC):
                if await self._has_ended(status.id):
                    await client.forget(status.id)

    async def _remove_checkpoints(self) -> None:
        """Remove the checkpoints whose root workflow has ended, unless they are retained."""
        for file in await asyncio.to_thread(lambda: sorted(self.context.paths.checkpoints.glob("*.json"))):
            async with self._failures.item(f"checkpoint {file.stem}", REAPED_ITEM_SEC):
                kept = await asyncio.to_thread(read_checkpoint_record, file)
                if kept is not None and not kept.is_retained and await self._has_ended(kept.workflow, kept.run_id):
                    await remove_checkpoint(file, self.context.store)
                    log.info("removed a checkpoint whose rollout is over", checkpoint=file.stem)

    async def _has_ended(self, workflow: str, run: str | None = None) -> bool:
        """Return whether a workflow has ended; False if the server can't tell.

        Args:
            workflow: Id of the workflow.
            run: Run id of its first run. If the id belongs to another first run by now, this one has ended.
        """
        try:
            description = await self.context.client.get_workflow_handle(workflow).describe()
        except RPCError:
            return False
        first_run = description.raw_description.workflow_execution_info.first_run_id
        return run not in (None, first_run) or description.status != WorkflowExecutionStatus.RUNNING

    def _remove_sessions(self, living: set[str]) -> None:
        """Remove the session files of sandboxes that are gone, after a grace: provisioning writes them first.

        Args:
            living: Names of the existing sandboxes.
        """
        root = self.context.paths.sessions
        for directory in root.iterdir() if root.is_dir() else ():
            with suppress(FileNotFoundError):
                changed = directory.stat().st_mtime
                if self._is_abandoned(f"session {directory.name}", changed, directory.name in living):
                    remove_sessions(directory)

    def _is_abandoned(self, name: str, changed: float, is_in_use: bool) -> bool:
        """Return whether an unused item is older than the grace by the monotonic clock, which can't be set.

        The wall clock alone decides nothing: if it is set, an item in use may look old, or an orphan new for years.

        Args:
            name: Name of the item.
            changed: Timestamp of its last change, by the wall clock.
            is_in_use: Whether the item is still in use, and so not abandoned.
        """
        if is_in_use:
            return False
        grace, now = self.options.unknown_grace_sec, time.monotonic()
        since = self._watched_before.get((name, changed), now)
        self._watched[name, changed] = since
        return now - since >= (min(grace, WATCHED_SEC) if time.time() - changed > grace else grace)

    async def _is_orphan(self, sandbox: OwnedSandbox) -> bool:
        """Return whether the workflow, or process, to which a sandbox belongs by its labels has ended.

        A workflow that the server does not know counts as ended after the deadline label and a grace.
        """
        labels = sandbox.labels
        if labels.get("benchflow.stack") == OF_A_PROCESS:
            return is_abandoned(labels.get(OWNER_LABEL, ""))
        workflow, run = labels.get("benchflow.workflow"), labels.get("benchflow.run")
        if not workflow or not run:
            return False
        try:
            description = await self.context.client.get_workflow_handle(workflow).describe()
        except RPCError as error:
            if not is_not_found(error):
                return False
            deadline = float(labels.get("benchflow.deadline") or 0)
            is_early = time.time() <= deadline + self.options.unknown_grace_sec
            return self._is_abandoned(f"sandbox {sandbox.name}", deadline, is_early)
        first_run = description.raw_description.workflow_execution_info.first_run_id
        return first_run != run or description.status != WorkflowExecutionStatus.RUNNING
