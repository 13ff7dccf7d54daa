"""The activities of one rollout, one a phase: decode, call a plane, return what the workflow needs to know."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio import activity

from benchflow.activities.context import WorkerContext
from benchflow.activities.world import check_health, image_config, run_setup_commands, run_step_setup
from benchflow.contracts import ids, names
from benchflow.contracts.job import (
    ProvisionInput,
    RolloutPlan,
    RolloutSpec,
    SandboxInput,
    StepInput,
    VerifyInput,
)
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Step, TurnResult
from benchflow.contracts.sandbox import Sandbox, SandboxRef, SandboxSpec
from benchflow.contracts.task import Healthcheck, Task, VerifierConfig
from benchflow.errors import BenchFlowError, SandboxStartError, SandboxUnavailableError
from benchflow.planes.agent.account import prepare_account
from benchflow.planes.agent.oracle import run_oracle
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.reward.verify import ScriptVerifier
from benchflow.planes.sandbox import get_provider
from benchflow.results.write import set_aside, without_events, write_rewards
from benchflow.secrets import Secrets, is_literal
from benchflow.tasks import prompt_for, require_supported
from benchflow.trajectories.journal import append_node
from benchflow.trajectories.tree import node_id

INSTRUCTION = "/instruction.md"


def lower(task: Task, spec: RolloutSpec) -> list[Step]:
    """The steps of a task: one a turn, scored after each of the task's `steps`, or once."""

    def step(index: int, name: str | None, timeout: float | None, verifier: VerifierConfig) -> dict[str, Any]:
        return {
            "index": index,
            "name": name,
            "agent": spec.agent.name,
            "model": spec.agent.model,
            "timeout_sec": _turn_timeout(task, spec, timeout),
            "verify_timeout_sec": verifier.timeout_sec,
        }

    if not task.steps:
        return [Step(**step(0, None, task.agent.timeout_sec, task.verifier))]
    return [
        Step(
            **step(index, config.name, config.agent.timeout_sec, config.verifier),
            min_reward=config.min_reward,
            healthcheck=config.healthcheck is not None,
        )
        for index, config in enumerate(task.steps)
    ]


def _turn_timeout(task: Task, spec: RolloutSpec, own: float | None) -> float:
    """Seconds of one turn: the job's, else the oracle's own, else the task's, never beyond the deadline."""
    candidates = [spec.run.agent_timeout_sec]
    if find_agent(spec.agent.name).protocol == "oracle":
        candidates.append(task.oracle.timeout_sec)
    candidates.append(own)
    wanted = next((limit for limit in candidates if limit is not None), spec.run.deadline_sec)
    return min(wanted, spec.run.deadline_sec)


def health_limit(check: Healthcheck) -> float:
    """The most seconds that a healthcheck can take before it is decided."""
    return check.start_period_sec + (check.retries + 2) * (check.interval_sec + check.timeout_sec)


def is_unwanted() -> bool:
    """Whether a cancelled activity's work is to end: its workflow cancelled it, or is over. A worker that only shuts
    down hands its work over instead.
    """
    details = activity.cancellation_details()
    return details is not None and (details.cancel_requested or details.not_found)


class RolloutActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.PLAN)
    async def plan(self, spec: RolloutSpec) -> RolloutPlan:
        task, _ = await self.context.task(spec.task)
        provider = get_provider(spec.run.sandbox)
        warnings = require_supported(task, provider.capabilities())
        self._secrets(spec).check(task)
        setup = task.sandbox.setup_commands
        return RolloutPlan(
            steps=lower(task, spec),
            strategy=task.multi_step_reward_strategy,
            has_healthcheck=task.sandbox.healthcheck is not None,
            build_timeout_sec=task.sandbox.build_timeout_sec,
            setup_timeout_sec=sum(command.timeout_sec for command in setup),
            healthcheck_timeout_sec=health_limit(task.sandbox.healthcheck or Healthcheck(command="true")),
            warnings=warnings,
        )

    @activity.defn(name=names.PROVISION)
    async def provision(self, request: ProvisionInput) -> SandboxRef:
        spec, context = request.spec, self.context
        name = ids.sandbox_name(context.stack, request.run_id, spec.task.name, request.generation)
        paths = await asyncio.to_thread(context.make_results_directory, spec)
        identity = {"run_id": request.run_id, "generation": request.generation}
        await asyncio.to_thread(set_aside, paths, identity | spec.model_dump(mode="json"))
        await context.slots.wait(name, activity.info().attempt)
        try:
            sandbox = await self._start(request, name, paths.build_log)
            task, _ = await context.task(spec.task)
            await run_setup_commands(sandbox, task, self._secrets(spec))
        except asyncio.CancelledError:
            if is_unwanted():
                await asyncio.shield(self._discard(spec.run.sandbox, name))
            raise
        except Exception:
            await self._discard(spec.run.sandbox, name)
            raise
        context.keep(sandbox)
        return sandbox.ref

    async def _start(self, request: ProvisionInput, name: str, build_log: Path) -> Sandbox:
        spec, context = request.spec, self.context
        task, directory = await context.task(spec.task)
        provider = get_provider(spec.run.sandbox)
        external = await context.directory(spec.task.context) if spec.task.context else None
        # What a sandbox that sees its host must not see of it, besides what its provider hides anyway.
        jobs_dir = context.results(spec).root.parent.parent
        hidden = tuple(str(path) for path in (directory, external, spec.task.source, jobs_dir) if path)
        image = await provider.build(await image_config(task, directory, external, hidden), log=build_log)
        config = task.sandbox
        wanted = SandboxSpec(
            name=name,
            image=image,
            labels=self._labels(request),
            env={key: value for key, value in config.env.items() if is_literal(value)},
            workdir=config.workdir,
            network_mode=config.network_mode,
            cpus=config.cpus,
            memory_mb=config.memory_mb,
            # Where it cannot be enforced, `plan` has recorded so.
            storage_mb=config.storage_mb if provider.capabilities().storage_limit else None,
            hidden=hidden,
        )
        start = provider.start(wanted, host_id=context.host_id, queue=context.queue, generation=request.generation)
        try:
            return await asyncio.wait_for(start, spec.run.sandbox_setup_timeout)
        except TimeoutError as error:
            raise SandboxStartError(
                f"the sandbox did not start within {spec.run.sandbox_setup_timeout:g} s",
                key="sandbox_setup_timeout",
                remedy="raise sandbox_setup_timeout, or see what keeps the host busy",
            ) from error

    def _labels(self, request: ProvisionInput) -> dict[str, str]:
        spec = request.spec
        return {
            "benchflow.stack": self.context.stack,
            "benchflow.workflow": spec.id,
            "benchflow.run": request.run_id,
            "benchflow.job": spec.job_name,
            "benchflow.task": spec.task.name,
            "benchflow.generation": str(request.generation),
            "benchflow.deadline": str(int(time.time() + spec.run.deadline_sec)),
        }

    async def _discard(self, provider: str, name: str) -> None:
        """What a failed provision leaves must not outlive it; the reaper finds what this misses.

        An attempt that was given up as lost and lives on must not remove what its successor has found.
        """
        if not self.context.slots.is_current(name, activity.info().attempt):
            return
        with suppress(BenchFlowError):
            await get_provider(provider).remove(name)
        self.context.slots.free(name)

    @activity.defn(name=names.READINESS)
    async def readiness(self, here: SandboxInput) -> None:
        task, _ = await self.context.task(here.spec.task)
        assert task.sandbox.healthcheck is not None
        sandbox = await self.context.sandbox(here.sandbox)
        await check_health(sandbox, task.sandbox.healthcheck, self._env(here.spec, task))

    @activity.defn(name=names.CONNECT)
    async def connect(self, here: SandboxInput) -> None:
        task, _ = await self.context.task(here.spec.task)
        sandbox = await self.context.sandbox(here.sandbox)
        record = find_agent(here.spec.agent.name)
        timeout = here.spec.run.sandbox_setup_timeout
        await prepare_account(sandbox, record, task.agent.user, timeout)
        await sandbox.mark_baseline()

    @activity.defn(name=names.EXECUTE)
    async def execute(self, work: StepInput) -> TurnResult:
        spec, step = work.spec, work.step
        task, directory = await self.context.task(spec.task)
        sandbox = await self.context.sandbox(work.sandbox)
        key = f"turn-{step.index}"
        if not await sandbox.was_started(key):
            await self._set_scene(work, sandbox, task, directory)
        prompt = prompt_for(task, step.name)
        lines: list[dict[str, Any]] = [{"type": "user_message", "text": prompt}]
        turn = TurnResult(stop_reason="end_turn")
        if find_agent(step.agent).protocol == "oracle":
            source = task.step_files[step.name].oracle_dir if step.name else task.oracle_dir
            try:
                turn, did = await run_oracle(
                    sandbox,
                    key=key,
                    source=directory / source if source else None,
                    target="/solution" if source and Path(source).name == "solution" else "/oracle",
                    env=self._env(spec, task, task.oracle.env),
                    timeout=step.timeout_sec,
                )
            except asyncio.CancelledError:
                await self._stop_turn(sandbox, key)
                raise
            lines += did
        paths = self.context.results(spec)
        first, last = await asyncio.to_thread(append_node, paths.trajectory, node_id(step.index), step.role, lines)
        return turn.model_copy(update={"events": last - first})

    async def _stop_turn(self, sandbox: Sandbox, key: str) -> None:
        """A cancelled rollout stops its agent; a worker that only shuts down leaves it running."""
        if is_unwanted():
            with suppress(BenchFlowError):
                await asyncio.shield(sandbox.kill_once(key))

    async def _set_scene(self, work: StepInput, sandbox: Sandbox, task: Task, directory: Path) -> None:
        """Before a turn: the instruction, the files that the task's step brings, their setup, its healthcheck."""
        step = work.step
        await sandbox.write_file(INSTRUCTION, prompt_for(task, step.name))
        if step.name is None:
            return
        files = task.step_files[step.name]
        env = self._env(work.spec, task)
        if files.workdir_dir:
            source = directory / files.workdir_dir
            await sandbox.upload(source, sandbox.ref.workdir)
            if (source / "setup.sh").is_file():
                await run_step_setup(sandbox, step, env, work.spec.run.sandbox_setup_timeout)
        config = task.steps[step.index]
        if config.healthcheck is not None:
            await check_health(sandbox, config.healthcheck, env)

    @activity.defn(name=names.VERIFY)
    async def verify(self, work: VerifyInput) -> VerifyResult:
        spec, step = work.spec, work.step
        task, directory = await self.context.task(spec.task)
        sandbox = await self.context.sandbox(work.sandbox)
        config = task.steps[step.index].verifier if step.name else task.verifier
        own = task.step_files[step.name].verifier_dir if step.name else None
        # What the steps share comes first, a step's own files over it.
        sources = [source for source in (task.verifier_dir, own) if source is not None]
        assert sources  # a task without a verifier is refused when it is read
        paths = self.context.results(spec)
        logs = paths.root / "steps" / step.name / "verifier" if step.name else paths.verifier
        verifier = ScriptVerifier(
            config=config,
            document=task.verifier_document,
            sources=[directory / source for source in sources],
            target="/tests" if Path(sources[-1]).name == "tests" else "/verifier",
            key=f"verify-{step.index}",
            env=self._env(spec, task, config.env),
            trusted=find_agent(step.agent).protocol == "oracle",
        )
        result = await verifier.run(sandbox, logs)
        await asyncio.to_thread(write_rewards, paths, step.index, result.events)
        return without_events(result)

    @activity.defn(name=names.TEARDOWN)
    async def teardown(self, here: SandboxInput) -> None:
        name = here.sandbox.name
        sandbox = self.context.forget(name)
        if sandbox is not None:
            await sandbox.stop()
        else:
            with suppress(SandboxUnavailableError):
                await get_provider(here.sandbox.provider).remove(name)
        self.context.slots.free(name)

    def _secrets(self, spec: RolloutSpec) -> Secrets:
        return Secrets.of_job(self.context.paths, spec.job_id)

    def _env(self, spec: RolloutSpec, task: Task, *tables: dict[str, str]) -> dict[str, str]:
        """The environment of a command: the sandbox's, then the phase's own, with values put in for names."""
        return self._secrets(spec).resolve(task.sandbox.env, *tables)
