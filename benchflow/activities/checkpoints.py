"""The activities of a tree: a state is kept, let go of, and what has grown so far is written down.

What this host keeps is in files: a note is written before anything is captured, so that what a crash leaves is found by
whoever tries again, or by the reaper once the root of the tree is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from temporalio import activity

from benchflow.activities.agents import least_rung, model_of, redacted_errors, redactor_for
from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import world_of
from benchflow.activities.freezing import freeze, thaw
from benchflow.activities.kept import Kept, read_kept, remove_kept, remove_layers, write_kept
from benchflow.activities.portable import packed
from benchflow.activities.session_files import sessions_of
from benchflow.activities.settled import remove_verifiers
from benchflow.checkpoints import capture, world_digests
from benchflow.contracts import names
from benchflow.contracts.activities import CheckpointInput, ReleaseInput, TreeInput
from benchflow.contracts.checkpoint import Checkpoint, SessionLayer
from benchflow.contracts.ids import cut, short_hash, slug
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout import AgentSession
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.planes.agent.acp.connect import session_rung
from benchflow.planes.agent.registry import record_for
from benchflow.planes.sandbox import get_provider
from benchflow.results.write import write_json


def checkpoint_id(stack: str, run_id: str, node: str, sandbox: str) -> str:
    """Of a state of one run of a tree; it names images. sandbox: where it was: a node may be come by again."""
    return f"bf-{cut(slug(node.replace('/', '-')), 24).lower()}-{short_hash(f'{stack}/{run_id}/{node}/{sandbox}', 16)}"


class CheckpointActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.CHECKPOINT)
    async def checkpoint(self, work: CheckpointInput) -> Checkpoint:
        """Keep the state of a sandbox, as of one moment."""
        context, spec = self.context, work.spec
        root = spec.branch.root if spec.branch is not None else spec.id
        name = checkpoint_id(context.stack, work.run_id, work.node, work.sandbox.name)
        file = context.paths.checkpoints / f"{name}.json"
        kept = await asyncio.to_thread(read_kept, file)
        if kept is not None and kept.checkpoint is not None:
            await self._let_go(work)
            return kept.checkpoint
        kept = kept or Kept(workflow=root, run_id=work.run_id, provider=work.sandbox.provider)
        # What an earlier try has left, by whichever process.
        await remove_layers(name, kept)
        kept = kept.model_copy(update={"tries": kept.tries + 1})
        await asyncio.to_thread(write_kept, file, kept)
        task, _ = await context.task(spec.task)
        with redacted_errors(redactor_for(context, spec, task)):
            checkpoint = await self._capture(work, name, kept.tries)
        if spec.run.branch is not None and spec.run.branch.portable:
            checkpoint = await packed(context, spec, checkpoint)
        await asyncio.to_thread(write_kept, file, kept.model_copy(update={"checkpoint": checkpoint}))
        await self._let_go(work)
        return checkpoint

    async def _let_go(self, work: CheckpointInput) -> None:
        """Let the agent's model be called again, or others have the slot of a sandbox that waits for its children."""
        if not work.goes_on:
            await self._wait_frozen(work.sandbox)
        else:
            await self._call_again(work.spec, work.sandbox, work.session)

    async def _wait_frozen(self, ref: SandboxRef) -> None:
        """Have a sandbox stand still for as long as its children run, and others have its slot."""
        await freeze(await self.context.sandbox(ref))
        self.context.slots.lend(ref.name)

    async def _call_again(self, spec: RolloutSpec, ref: SandboxRef, session: AgentSession | None) -> None:
        """Let the agent's model be called again."""
        if session is not None and session.model_access == "gateway":
            await model_of(self.context, spec, await self.context.sandbox(ref)).release()

    async def _capture(self, work: CheckpointInput, name: str, number: int) -> Checkpoint:
        context, spec = self.context, work.spec
        sandbox = await context.sandbox(work.sandbox)
        task, _ = await context.task(spec.task)
        await remove_verifiers(context, spec, sandbox)
        world = await world_of(context, spec, task, work.sandbox)
        stateful = world is not None and world.manifest.is_stateful
        state = world.manifest.state if world is not None else None
        # Held from before the capture on, so that nothing is said that no copy knows of.
        session = await self._session(sandbox, work)
        digests = None
        if session is not None and session.rung == "replay" and session.begun is not None:
            digests = await world_digests(sandbox, world)
        # Before the capture: afterwards the world may go on, and a copy begins with what was captured.
        observed = await world.observe() if world is not None else ()
        captured = await capture(
            f"{name}.{number}",
            sandbox,
            get_provider(work.sandbox.provider),
            world if stateful else None,
            paths=state.paths if state is not None else (),
            counters=lambda: self._counters(sandbox, work.session),
        )
        return Checkpoint(
            id=name,
            rollout=spec.branch.root if spec.branch is not None else spec.id,
            node=work.node,
            provider=work.sandbox.provider,
            host_id=work.sandbox.host_id,
            queue=work.sandbox.queue,
            workdir=work.sandbox.workdir,
            created_at=datetime.now(UTC),
            fence=captured.fence,
            steps_done=work.steps_done,
            attempts=captured.attempts,
            files=captured.files,
            state=captured.state,
            session=session,
            baseline=work.baseline,
            digests=digests,
            observed=observed,
            by_layer=dict(captured.by_layer),
        )

    async def _counters(self, sandbox: Sandbox, session: AgentSession | None) -> Mapping[str, int | str]:
        """How far the agent's journals have come."""
        if session is None:
            return {}
        directory = sessions_of(self.context, sandbox) / session.directory
        return {f"the agent's journal {name!r}": _size(directory / name) for name in ("in", "out")}

    async def _session(self, sandbox: Sandbox, work: CheckpointInput) -> SessionLayer | None:
        spec, session = work.spec, work.session
        if session is None:
            return None
        rung = session_rung(record_for(spec.agent), session, least_rung(spec))
        said = await asyncio.to_thread(_size, sessions_of(self.context, sandbox) / session.directory / "out")
        model = model_of(self.context, spec, sandbox) if session.model_access == "gateway" else None
        requests = await model.requests() if model is not None else 0
        return SessionLayer(session=session, rung=rung, said_bytes=said, requests=requests, begun=work.begun)

    @activity.defn(name=names.RELEASE_CHECKPOINT)
    async def release(self, work: ReleaseInput) -> None:
        """Release checkpoints of this host, the slot of a sandbox that waits, or calls of one that resumes."""
        for checkpoint in work.checkpoints:
            await remove_kept(self.context.paths.checkpoints / f"{checkpoint.id}.json", self.context.store)
        if work.waiting is not None:
            await self._wait_frozen(work.waiting)
        if work.resumed is not None:
            resumed = work.resumed
            await thaw(await self.context.sandbox(resumed.sandbox), self.context.results(resumed.spec).root)
            await self._call_again(resumed.spec, resumed.sandbox, resumed.session)

    @activity.defn(name=names.WRITE_TREE)
    async def write_tree(self, work: TreeInput) -> None:
        """Write down how far a tree has grown; its root's result comes later."""
        paths = await asyncio.to_thread(self.context.make_results_directory, work.spec)
        await asyncio.to_thread(write_json, paths.tree, work.tree.model_dump(mode="json"))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
