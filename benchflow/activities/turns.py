"""The activities in which an agent acts: its session is opened, and each step is one turn of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from temporalio import activity

from benchflow.activities.agent_turn import AgentTurn, trajectory_writer
from benchflow.activities.agents import (
    acts_by_itself,
    end_agent,
    explaining_model_errors,
    go_on_or_open,
    open_model,
    redacted,
    redacted_errors,
    redactor_for,
    talk_to,
    without_secrets,
)
from benchflow.activities.attempts import is_cancelled
from benchflow.activities.blueprint import verifies_as
from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import command_env, died, world_of
from benchflow.activities.freezing import thaw
from benchflow.activities.memory import keep_step_memory
from benchflow.activities.models import RELAY_KEY
from benchflow.activities.out_of_memory import TurnMemory, explaining_agent_errors, explaining_losses, session_note
from benchflow.activities.replays import compared
from benchflow.activities.session_files import is_from_checkpoint, session_files, sessions_of
from benchflow.activities.settled import remove_verifiers
from benchflow.activities.world import check_health, run_step_setup
from benchflow.contracts import names
from benchflow.contracts.activities import Connected, ConnectInput, StepInput
from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout import TurnResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import Task
from benchflow.errors import (
    AgentOutputError,
    BenchFlowError,
    SandboxLostError,
    ServiceDiedError,
    TurnInterruptedError,
)
from benchflow.planes.agent.account import AGENT_USER, prepare_account
from benchflow.planes.agent.acp.bounds import outgrown
from benchflow.planes.agent.oracle import run_oracle
from benchflow.planes.agent.registry import record_for
from benchflow.planes.reward.hardening import keep_baseline, read_baseline, take_baseline
from benchflow.planes.reward.verify import config_of
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.store import storage_errors
from benchflow.tasks import prompt_of
from benchflow.trajectories.journal import NodeWriter

INSTRUCTION = "/instruction.md"


def _inherit(source: Path, target: Path) -> None:
    """Have what was kept before the first turn of a session that began in the parent."""
    if source.is_dir() and not target.exists():
        part = target.with_name(".evidence.part")
        with storage_errors(part):
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(source, part, symlinks=True)
            part.rename(target)


class TurnActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.CONNECT)
    async def connect(self, here: ConnectInput) -> Connected:
        """The account that the agent acts as, and its session, if it is one that talks."""
        spec = here.spec
        task, _ = await self.context.task(spec.task)
        sandbox = await self.context.sandbox(here.sandbox)
        record = record_for(spec.agent)
        # An agent's program acts from its start on, before it is told anything.
        await remove_verifiers(self.context, spec, sandbox)
        user = await prepare_account(sandbox, record, task.agent.user, spec.run.sandbox_setup_timeout)
        if not acts_by_itself(record):
            await sandbox.mark_baseline()
            return Connected()
        redact = redactor_for(self.context, spec, task)
        # Before the baseline: the way to the model is there for all sessions.
        with redacted_errors(redact):
            await open_model(self.context, spec, sandbox)
        # What an agent has started by the time that a worker takes over is no part of the world.
        marked = sessions_of(self.context, sandbox) / "baseline"
        if not marked.exists():
            is_restored = is_from_checkpoint(self.context, sandbox)
            await sandbox.mark_baseline(is_restored=is_restored)
            if is_restored:
                await sandbox.mark_baseline(RELAY_KEY)
            marked.touch()
        note = session_note(self.context, sandbox, here.session)
        with redacted_errors(redact):
            async with (
                explaining_model_errors(self.context, spec, sandbox, here.session),
                explaining_losses(sandbox),
                explaining_agent_errors(sandbox, note, task),
            ):
                connected = await go_on_or_open(self.context, here, task, sandbox, user)
        if connected.session is None:
            return connected
        return connected.model_copy(update={"session": without_secrets(connected.session, redact)})

    @activity.defn(name=names.EXECUTE)
    async def execute(self, work: StepInput) -> TurnResult:
        spec, step = work.spec, work.step
        task, directory = await self.context.task(spec.task)
        sandbox = await self.context.sandbox(work.sandbox)
        # After a preview that a crash cut off while the agent waited for an answer.
        await thaw(sandbox, self.context.results(spec).root)
        redact = redactor_for(self.context, spec, task)
        with closing(trajectory_writer(self.context, work, redact)) as writer:
            memory = TurnMemory(self.context, work, task, sandbox, writer)
            talk = await talk_to(self.context, work, task, sandbox, writer.skip) if work.session else None
            key = f"turn-{step.index}"
            begun = await (talk.was_begun(step.index) if talk is not None else sandbox.was_started(key))
            if not begun:
                await self._set_scene(work, sandbox, task, directory)
                await self._take_baseline(work, sandbox, task)
                await memory.begin()
            prompt = prompt_of(task, step)
            writer.add([{"type": "user_message", "text": prompt}])
            if talk is not None:
                acting = AgentTurn(self.context, work, task, sandbox, prompt, redact).take(talk, writer)
            else:
                acting = self._act(work, sandbox, task, directory, writer)
            try:
                async with explaining_losses(sandbox):
                    turn = await self._watched(work, task, sandbox, acting, memory)
            except (AgentOutputError, ServiceDiedError) as error:
                await self._end_turn(work, sandbox)
                failure = redacted(failure_of(error), redact)
                line = {"type": "service_died"}
                if isinstance(error, AgentOutputError):
                    # Whoever fills the host's disk may be no child of the agent's any more.
                    await sandbox.kill_processes()
                    line = {"type": "agent_error", "category": failure.category}
                writer.add([line | {"message": failure.message}])
                turn = TurnResult(stop_reason="error", failure=failure)
            turn = await memory.judge(turn)
            first, last = writer.events
        turn = turn.model_copy(update={"events": last - first})
        return turn if work.before is None else await compared(self.context, work, task, sandbox, turn)

    async def _act(
        self, work: StepInput, sandbox: Sandbox, task: Task, directory: Path, writer: NodeWriter
    ) -> TurnResult:
        """A turn of one of the engine's own agents."""
        if record_for(work.spec.agent).protocol == "oracle":
            return await self._run_oracle(work, sandbox, task, directory, writer)
        return TurnResult(stop_reason="end_turn")

    async def _watched(
        self,
        work: StepInput,
        task: Task,
        sandbox: Sandbox,
        acting: Coroutine[Any, Any, TurnResult],
        memory: TurnMemory,
    ) -> TurnResult:
        """Return the turn's result.

        Raises `ServiceDiedError` when the world breaks before the turn ends, and `AgentOutputError` when the sandbox
        fills the directory that it shares with this host.
        """
        world = await world_of(self.context, work.spec, task, work.sandbox)
        turn = asyncio.ensure_future(acting)
        watches = [asyncio.ensure_future(memory.watch())]
        if world is not None:
            watches.append(asyncio.ensure_future(died(world)))
        if work.session is not None:
            watches.append(asyncio.ensure_future(outgrown(session_files(self.context, sandbox).shared)))
        try:
            await asyncio.wait([turn, *watches], return_when=asyncio.FIRST_COMPLETED)
            for watch in watches:
                if watch.done() and not turn.done():
                    watch.result()
            return await turn
        except SandboxLostError:
            # It may have ended with the process that the world was.
            if world is not None:
                await world.check()
            raise
        finally:
            for task_ in (turn, *watches):
                task_.cancel()
            await asyncio.gather(turn, *watches, return_exceptions=True)

    async def _end_turn(self, work: StepInput, sandbox: Sandbox) -> None:
        """End whoever acts: nobody waits for it any more."""
        with suppress(SandboxLostError):
            if work.session is not None:
                await end_agent(self.context, sandbox, work.spec, work.session)
            else:
                await self._kill_oracle(sandbox, f"turn-{work.step.index}")

    async def _set_scene(self, work: StepInput, sandbox: Sandbox, task: Task, directory: Path) -> None:
        """Before a turn: the instruction, the files that the task's step brings, their setup, its healthcheck."""
        step, session = work.step, work.session
        if work.goes_on:
            await sandbox.write_file(INSTRUCTION, prompt_of(task, step))
            return
        if step.index and session is not None:
            # The step before was verified, for which the workspace became the verifier's.
            record, limit = record_for(work.spec.agent), work.spec.run.sandbox_setup_timeout
            await prepare_account(sandbox, record, session.user, limit)
        await remove_verifiers(self.context, work.spec, sandbox)
        await keep_step_memory(self.context, work.spec, task, sandbox, step, session, "before")
        await sandbox.write_file(INSTRUCTION, prompt_of(task, step))
        if step.name is None:
            return
        files = task.step_files[step.name]
        env = command_env(self.context, work.spec, task)
        if files.workdir_dir:
            source = directory / files.workdir_dir
            start = "/" if task.starts_in_root(sandbox.ref.has_workdir) else sandbox.ref.workdir
            await sandbox.upload(source, start)
            if (source / "setup.sh").is_file():
                user, limit = task.acts_as(step.name, sandbox.ref.image_user), work.spec.run.sandbox_setup_timeout
                await run_step_setup(sandbox, step, env, limit, cwd=start, user=user)
        config = task.steps[step.index]
        if config.healthcheck is not None:
            await check_health(sandbox, config.healthcheck, env)

    async def _take_baseline(self, work: StepInput, sandbox: Sandbox, task: Task) -> None:
        """What the sandbox is before the agent acts in this step, for the verifier after it."""
        evidence = self.context.results(work.spec).evidence(work.step.name)
        if work.goes_on and work.spec.branch is not None:
            # What its parent's agent has left is not the image's, whoever goes on from there.
            await asyncio.to_thread(_inherit, self.context.results_of_parent(work.spec).evidence(), evidence)
        if read_baseline(evidence) is not None:
            return
        # Where nobody acts but the engine's own agents, which are trusted, nobody has changed the system.
        # The user is an agent's nevertheless: the oracle's work is verified as an agent's would be.
        own = AGENT_USER if task.agent.user in (None, "root", 0, "0") else task.agent.user
        agent = work.session.user if work.session is not None else own
        verifier, default = config_of(task, work.step.name).user, verifies_as(task, sandbox)
        keep_baseline(await take_baseline(sandbox, agent=agent, verifier=verifier, default=default), evidence)

    # --- the oracle ----------------------------------------------------------------------------------

    async def _run_oracle(
        self, work: StepInput, sandbox: Sandbox, task: Task, directory: Path, writer: NodeWriter
    ) -> TurnResult:
        step = work.step
        source = task.oracle_dir_of(step.name)
        key = f"turn-{step.index}"
        try:
            turn, did = await run_oracle(
                sandbox,
                key=key,
                source=directory / source if source else None,
                target="/solution" if source and Path(source).name == "solution" else "/oracle",
                env=command_env(self.context, work.spec, task, task.oracle.env),
                timeout=step.timeout_sec,
                cwd="/" if task.starts_in_root(sandbox.ref.has_workdir) else None,
                user=task.acts_as(step.name, sandbox.ref.image_user),
            )
        except asyncio.CancelledError:
            # A cancelled rollout stops its agent; a worker that only shuts down leaves it running.
            if is_cancelled():
                with suppress(BenchFlowError):
                    await see_through(self._kill_oracle(sandbox, key))
            raise
        if turn.failure is not None and self._is_stopped(sandbox, key):
            raise TurnInterruptedError("the engine stopped the oracle, and the rollout was not cancelled")
        writer.add(did)
        return turn

    async def _kill_oracle(self, sandbox: Sandbox, key: str) -> None:
        """Kill the oracle. It is noted before, so that no later attempt takes the kill for the oracle's own failure."""
        note = self._stop_note(sandbox, key)
        with storage_errors(note):
            note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            note.touch()
        await sandbox.kill_once(key)

    def _is_stopped(self, sandbox: Sandbox, key: str) -> bool:
        return self._stop_note(sandbox, key).exists()

    def _stop_note(self, sandbox: Sandbox, key: str) -> Path:
        return sessions_of(self.context, sandbox) / f"{sandbox.ref.episode}{key}.stopped"
