"""The reaper: removes the sandboxes of this stack, on this host, whose workflow is over.

A terminated workflow runs no code, and a killed worker cleans nothing up; so every worker looks, when it starts and
from time to time. It touches only what carries the label of its own stack.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import structlog
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from benchflow.activities.context import WorkerContext
from benchflow.activities.job_secrets import remove_secrets_of_ended_jobs
from benchflow.activities.kept import read_kept, remove_kept
from benchflow.activities.sandboxes import release_sandbox
from benchflow.activities.session_files import remove_sessions
from benchflow.contracts.sandbox import OwnedSandbox
from benchflow.errors import BenchFlowError, GatewayError
from benchflow.planes.sandbox import get_provider, provider_names

log = structlog.get_logger("benchflow.reaper")


class Reaper:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.options = context.options

    async def run(self) -> None:
        """Reap for ever."""
        while True:
            await self.reap()
            await asyncio.sleep(self.options.reap_every_sec)

    async def reap(self) -> int:
        """One round over all providers of this host. Returns the number of sandboxes removed."""
        removed = 0
        living: set[str] = set()
        complete = True
        for name in provider_names():
            try:
                provider = get_provider(name)
                owned = await provider.owned(self.context.stack)
                over = [sandbox for sandbox in owned if await self._is_over(sandbox)]
                living |= {sandbox.name for sandbox in owned}
                for sandbox in over:
                    try:
                        await provider.remove(sandbox.name)
                    except BenchFlowError as error:
                        # One that can't be removed now keeps its place, and holds up no other.
                        log.warning("cannot remove a sandbox", sandbox=sandbox.name, error=error.message)
                        continue
                    await asyncio.to_thread(release_sandbox, self.context, sandbox.name)
                    log.info("removed a sandbox whose workflow is over", sandbox=sandbox.name)
                    living.discard(sandbox.name)
                    removed += 1
            except BenchFlowError as error:
                # A provider that cannot be asked (no daemon) has nothing that could be removed now.
                complete = False
                log.debug("cannot reap", provider=name, error=error.message)
        if complete:
            await self._free_slots(living)
            await asyncio.to_thread(self._remove_sessions, living)
        await self._forget_models()
        await self._remove_checkpoints()
        await remove_secrets_of_ended_jobs(self.context)
        return removed

    async def _free_slots(self, living: set[str]) -> None:
        """A slot without a sandbox is that of a provision that runs now, or of one that died long ago."""
        for name in self.context.slots.taken():
            slot = self.context.slots.directory / name
            try:
                age = time.time() - slot.stat().st_mtime
            except FileNotFoundError:
                continue
            if name not in living and age > self.options.unknown_grace_sec:
                self.context.slots.free(name)

    async def _forget_models(self) -> None:
        """A rollout that is over has no call to make; one that was terminated has not said so."""
        if not any(self.context.paths.gateway.rollouts.glob("*.json")):
            return
        from benchflow.gateway.client import GatewayClient

        client = GatewayClient(self.context.paths, patience=0.0)
        with suppress(GatewayError):
            for status in await client.statuses():
                if await self._has_ended(status.id):
                    await client.forget(status.id)

    async def _remove_checkpoints(self) -> None:
        """A state is kept for as long as the root of its tree runs."""
        for file in await asyncio.to_thread(lambda: sorted(self.context.paths.checkpoints.glob("*.json"))):
            kept = await asyncio.to_thread(read_kept, file)
            if kept is None or not await self._has_ended(kept.workflow, kept.run_id):
                continue
            with suppress(BenchFlowError):
                await remove_kept(file, self.context.store)
                log.info("removed a checkpoint whose rollout is over", checkpoint=file.stem)

    async def _has_ended(self, workflow: str, run: str | None = None) -> bool:
        """run: the first of the workflow's, if it matters which of them it was."""
        try:
            description = await self.context.client.get_workflow_handle(workflow).describe()
        except RPCError:
            return False
        first_run = description.raw_description.workflow_execution_info.first_run_id
        return run not in (None, first_run) or description.status != WorkflowExecutionStatus.RUNNING

    def _remove_sessions(self, living: set[str]) -> None:
        """The files of agents whose sandbox is gone: of a provision that runs now, they are young."""
        root = self.context.paths.sessions
        for directory in root.iterdir() if root.is_dir() else ():
            with suppress(FileNotFoundError):
                if (
                    directory.name not in living
                    and time.time() - directory.stat().st_mtime > self.options.unknown_grace_sec
                ):
                    remove_sessions(self.context, directory.name)

    async def _is_over(self, sandbox: OwnedSandbox) -> bool:
        labels = sandbox.labels
        workflow, run = labels.get("benchflow.workflow"), labels.get("benchflow.run")
        if not workflow or not run:
            return False
        try:
            description = await self.context.client.get_workflow_handle(workflow).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                return False
            deadline = float(labels.get("benchflow.deadline") or 0)
            return time.time() > deadline + self.options.unknown_grace_sec
        first_run = description.raw_description.workflow_execution_info.first_run_id
        return first_run != run or description.status != WorkflowExecutionStatus.RUNNING
