"""Run a turn on this host: prepare the step, run the agent or the oracle, watch world, memory and disk meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from benchflow.contracts.activities import StepInput
from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout_records import TurnResult
from benchflow.errors import (
    AgentOutputError,
    BenchFlowError,
    SandboxLostError,
    ServiceDiedError,
    StackError,
)
from benchflow.hosting.agent_baseline import inherit_baseline, store_agent_baseline
from benchflow.hosting.agent_memory import store_step_memory
from benchflow.hosting.agent_turn import SessionTurn, open_trajectory
from benchflow.hosting.freezing import thaw
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_agent import HostedAgent
from benchflow.hosting.hosted_world import watch_world
from benchflow.hosting.interruption import is_cancelled
from benchflow.hosting.oracle import run_oracle
from benchflow.hosting.out_of_memory import TurnMemory, explain_losses
from benchflow.hosting.replays import compare_turn
from benchflow.hosting.sandbox_readiness import check_health, run_step_setup
from benchflow.hosting.verifier_files import remove_verifiers
from benchflow.planes.agent.account import AGENT_USER, prepare_account
from benchflow.planes.agent.bounds import watch_shared_size
from benchflow.planes.reward.hardening import read_baseline, take_baseline
from benchflow.planes.reward.inputs import find_config
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.tasks import compose_step_prompt
from benchflow.trajectories.journal import NodeWriter

INSTRUCTION = "/instruction.md"


class HostedTurn:
    """One turn of a rollout's agent: of one with a session, of the oracle, or of `nop`.

    Args:
        rollout: The rollout, attached to its sandbox.
        work: The step, and the agent's session.
    """

    def __init__(self, rollout: Hosted, work: StepInput) -> None:
        """Make it."""
        self._rollout = rollout
        self._work = work
        self._step = work.step
        self._key = f"turn-{work.step.index}"
        """Idempotency key of the oracle's command in the sandbox."""

    async def run(self) -> TurnResult:
        """Run the turn to its end or to a question of the agent, or resume it where an earlier attempt left it.

        A failure of the agent, a broken world or a lack of memory is in the result. Events are written meanwhile.

        Raises:
            SandboxLostError: The sandbox is gone.
            StackError: The engine stopped the agent although the rollout was not cancelled; retryable.
        """
        rollout, work, sandbox = self._rollout, self._work, self._rollout.sandbox
        # A preview that a crash interrupted, while the agent waited for an answer, may have left it frozen.
        await thaw(sandbox, rollout.paths.root)
        with closing(open_trajectory(rollout, work)) as writer:
            memory = TurnMemory(rollout, work, writer)
            session = await HostedAgent(rollout).attach_session(work.session) if work.session is not None else None
            started = await (
                session.was_begun(self._step.index) if session is not None else sandbox.was_started(self._key)
            )
            if not started:
                await self._prepare()
                await self._take_baseline()
                await memory.begin()
            prompt = compose_step_prompt(rollout.task, self._step)
            writer.add([{"type": "user_message", "text": prompt}])
            acting = (
                SessionTurn(rollout, work, prompt).run(session, writer) if session is not None else self._act(writer)
            )
            try:
                async with explain_losses(sandbox):
                    turn = await self._run_watched(acting, memory)
            except (AgentOutputError, ServiceDiedError) as error:
                await self._end_acting()
                failure = rollout.redact_failure(failure_of(error))
                line = {"type": "service_died"}
                if isinstance(error, AgentOutputError):
                    # The process that fills the host's disk may be no child of the agent's any more.
                    await sandbox.kill_processes()
                    line = {"type": "agent_error", "category": failure.category}
                writer.add([line | {"message": failure.message}])
                turn = TurnResult(stop_reason="error", failure=failure)
            turn = await memory.judge(turn)
            first, last = writer.events
        turn = turn.model_copy(update={"events": last - first})
        return turn if work.before is None else await compare_turn(rollout, work, turn)

    async def _act(self, writer: NodeWriter) -> TurnResult:
        """Run a turn of one of the engine's own agents: the oracle, or `nop`, which does nothing."""
        if self._rollout.record.protocol == "oracle":
            return await self._run_oracle(writer)
        return TurnResult(stop_reason="end_turn")

    async def _run_watched(self, acting: Coroutine[Any, Any, TurnResult], memory: TurnMemory) -> TurnResult:
        """Run the turn's coroutine with its watches: memory, world, size of the shared directory. Return its result.

        Raises:
            ServiceDiedError: The world broke before the turn ended.
            AgentOutputError: The sandbox fills the directory that it shares with this host.
        """
        rollout, world = self._rollout, await self._rollout.open_world()
        turn = asyncio.ensure_future(acting)
        watches = [asyncio.ensure_future(memory.watch())]
        if world is not None:
            watches.append(asyncio.ensure_future(watch_world(world)))
        if self._work.session is not None:
            watches.append(asyncio.ensure_future(watch_shared_size(rollout.session_files.shared)))
        try:
            await asyncio.wait([turn, *watches], return_when=asyncio.FIRST_COMPLETED)
            for watch in watches:
                if watch.done() and not turn.done():
                    watch.result()
            return await turn
        except SandboxLostError:
            # If the world was the sandbox's main process, its error explains the loss.
            if world is not None:
                await world.check()
            raise
        finally:
            for task in (turn, *watches):
                task.cancel()
            await asyncio.gather(turn, *watches, return_exceptions=True)

    async def _end_acting(self) -> None:
        """End the agent or the oracle, after its turn was given up."""
        with suppress(SandboxLostError):
            if self._work.session is not None:
                await HostedAgent(self._rollout).end(self._work.session)
            else:
                await self._kill_oracle()

    # --- before it ----------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Write the instruction, upload the step's files, run their `setup.sh`, wait for the step's healthcheck.

        If the session continues after a turn, only the instruction is written.
        """
        rollout, step, session, task = self._rollout, self._step, self._work.session, self._rollout.task
        sandbox, setup_sec = rollout.sandbox, rollout.spec.run.sandbox_setup_timeout
        if self._work.goes_on:
            await sandbox.write_file(INSTRUCTION, compose_step_prompt(task, step))
            return
        if step.index and session is not None:
            # For the verification of the step before, the verifier became the owner of the workspace.
            await prepare_account(sandbox, rollout.record, session.user, setup_sec)
        await remove_verifiers(rollout)
        await store_step_memory(rollout, step, session, "before")
        await sandbox.write_file(INSTRUCTION, compose_step_prompt(task, step))
        if step.name is None:
            return
        files, env = task.step_files[step.name], rollout.make_env()
        if files.workdir_dir:
            source = rollout.directory / files.workdir_dir
            start = "/" if task.starts_in_root(sandbox.ref.has_workdir) else sandbox.ref.workdir
            await sandbox.upload(source, start)
            if (source / "setup.sh").is_file():
                user = task.acts_as(step.name, sandbox.ref.image_user)
                await run_step_setup(sandbox, step, env, setup_sec, cwd=start, user=user)
        config = task.steps[step.index]
        if config.healthcheck is not None:
            await check_health(sandbox, config.healthcheck, env)

    async def _take_baseline(self) -> None:
        """Store the sandbox's baseline before the agent acts in this step, for its verifier; once per step.

        A child that resumes its parent's session inherits the parent's baseline.
        """
        rollout, work, task = self._rollout, self._work, self._rollout.task
        step = self._step.name
        if work.goes_on and rollout.spec.branch is not None:
            # Files that the parent's agent left are not the image's, so no new baseline may hold them.
            await inherit_baseline(rollout, step)
        if read_baseline(rollout.paths.evidence(step)) is not None:
            return
        # The engine's own agents are trusted, and have not changed the system. The user is an agent's nevertheless: the
        # oracle's work is verified as an agent's would be.
        own = AGENT_USER if task.agent.user in (None, "root", 0, "0") else task.agent.user
        agent = work.session.user if work.session is not None else own
        config, default = find_config(task, step), task.verifies_as(rollout.sandbox.ref.image_user)
        baseline = await take_baseline(
            rollout.sandbox,
            agent=agent,
            verifier=config.user,
            default=default,
            # A clean room has no other files of the agent, and needs no list. It takes some milliseconds.
            is_listed=config.sandbox_mode != "separate",
            instruction=compose_step_prompt(task, self._step),
        )
        store_agent_baseline(rollout, step, baseline)

    # --- the oracle ---------------------------------------------------------------------------------------------

    async def _run_oracle(self, writer: NodeWriter) -> TurnResult:
        rollout, step, task = self._rollout, self._step, self._rollout.task
        source = task.oracle_dir_of(step.name)
        try:
            turn, events = await run_oracle(
                rollout.sandbox,
                key=self._key,
                source=rollout.directory / source if source else None,
                target="/solution" if source and Path(source).name == "solution" else "/oracle",
                env=rollout.make_env(task.oracle.env),
                timeout=step.timeout_sec,
                cwd="/" if task.starts_in_root(rollout.sandbox.ref.has_workdir) else None,
                user=task.acts_as(step.name, rollout.sandbox.ref.image_user),
            )
        except asyncio.CancelledError:
            # A cancelled rollout stops its oracle; a worker that only shuts down leaves it running.
            if is_cancelled():
                with suppress(BenchFlowError):
                    await run_to_completion(self._kill_oracle())
            raise
        if turn.failure is not None and rollout.has_mark(self._stop_mark):
            raise StackError("the engine stopped the oracle, and the rollout was not cancelled")
        writer.add(events)
        return turn

    async def _kill_oracle(self) -> None:
        """Mark the oracle as stopped, then kill it: no later attempt takes the kill for the oracle's own failure."""
        self._rollout.mark(self._stop_mark)
        await self._rollout.sandbox.kill_once(self._key)

    @property
    def _stop_mark(self) -> str:
        """Return the name of the mark that the engine has killed the oracle."""
        return f"{self._rollout.ref.episode}{self._key}.stopped"
