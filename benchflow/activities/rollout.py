"""The activities of one rollout, one a phase: decode, call a plane, return what the workflow needs to know."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio import activity

from benchflow.activities.agents import end_agent, fit_out, redacted_errors, redactor_for, remove_sessions
from benchflow.activities.context import WorkerContext
from benchflow.activities.models import forget_model
from benchflow.activities.turns import is_unwanted
from benchflow.activities.world import check_health, image_config, run_setup_commands
from benchflow.contracts import ids, names
from benchflow.contracts.job import (
    ProvisionInput,
    RolloutPlan,
    RolloutSpec,
    SandboxInput,
    VerifyInput,
)
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Step
from benchflow.contracts.sandbox import Sandbox, SandboxRef, SandboxSpec
from benchflow.contracts.task import Healthcheck, Task, VerifierConfig
from benchflow.errors import BenchFlowError, SandboxStartError, SandboxUnavailableError
from benchflow.planes.agent.registry import record_for
from benchflow.planes.reward.verify import ScriptVerifier
from benchflow.planes.sandbox import get_provider
from benchflow.results.write import set_aside, without_events, write_rewards
from benchflow.secrets import Secrets, is_literal
from benchflow.tasks import require_supported

INSTALL_SEC = 1800.0
"""The most that an agent's toolbox may take to be built."""


def lower(task: Task, spec: RolloutSpec) -> list[Step]:
    """The steps of a task: one a turn, scored after each of the task's `steps`, or once."""

    # What was prepared for one step must not be told by what was said in the one before.
    own_session = record_for(spec.agent).protocol not in ("oracle", "none")

    def step(index: int, name: str | None, timeout: float | None, verifier: VerifierConfig) -> dict[str, Any]:
        return {
            "index": index,
            "name": name,
            "agent": spec.agent.name,
            "model": spec.agent.model,
            "session": index if own_session else 0,
            "timeout_sec": _turn_timeout(task, spec, timeout),
            "idle_timeout_sec": spec.run.agent_idle_timeout_sec,
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
    if record_for(spec.agent).protocol == "oracle":
        candidates.append(task.oracle.timeout_sec)
    candidates.append(own)
    wanted = next((limit for limit in candidates if limit is not None), spec.run.deadline_sec)
    return min(wanted, spec.run.deadline_sec)


def health_limit(check: Healthcheck) -> float:
    """The most seconds that a healthcheck can take before it is decided."""
    return check.start_period_sec + (check.retries + 2) * (check.interval_sec + check.timeout_sec)


class RolloutActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.PLAN)
    async def plan(self, spec: RolloutSpec) -> RolloutPlan:
        task, _ = await self.context.task(spec.task)
        provider = get_provider(spec.run.sandbox)
        warnings = require_supported(task, provider.capabilities())
        self._secrets(spec).check(task)
        self._secrets(spec).check_agent(spec.agent)
        setup = task.sandbox.setup_commands
        return RolloutPlan(
            steps=lower(task, spec),
            strategy=task.multi_step_reward_strategy,
            has_healthcheck=task.sandbox.healthcheck is not None,
            build_timeout_sec=task.sandbox.build_timeout_sec,
            setup_timeout_sec=sum(command.timeout_sec for command in setup),
            install_timeout_sec=INSTALL_SEC if record_for(spec.agent).install is not None else 0.0,
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
            task, _ = await context.task(spec.task)
            with redacted_errors(redactor_for(context, spec, task)):
                sandbox = await self._start(request, name, paths.build_log)
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
        wanted = await fit_out(context, spec, provider, wanted, build_log)
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
        await asyncio.to_thread(remove_sessions, self.context, name)
        self.context.slots.free(name)

    @activity.defn(name=names.READINESS)
    async def readiness(self, here: SandboxInput) -> None:
        task, _ = await self.context.task(here.spec.task)
        assert task.sandbox.healthcheck is not None
        sandbox = await self.context.sandbox(here.sandbox)
        with redacted_errors(redactor_for(self.context, here.spec, task)):
            await check_health(sandbox, task.sandbox.healthcheck, self._env(here.spec, task))

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
        redact = redactor_for(self.context, spec, task)
        verifier = ScriptVerifier(
            config=config,
            document=task.verifier_document,
            sources=[directory / source for source in sources],
            target="/tests" if Path(sources[-1]).name == "tests" else "/verifier",
            key=f"verify-{step.index}",
            env=self._env(spec, task, config.env),
            trusted=record_for(spec.agent).protocol == "oracle",
            clean=redact.clean,
        )
        if work.session is not None:
            await end_agent(self.context, sandbox, spec, work.session)
        with redacted_errors(redact):
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
        await forget_model(self.context, here.spec)
        await asyncio.to_thread(remove_sessions, self.context, name)
        self.context.slots.free(name)

    def _secrets(self, spec: RolloutSpec) -> Secrets:
        return Secrets.of_job(self.context.paths, spec.job_id)

    def _env(self, spec: RolloutSpec, task: Task, *tables: dict[str, str]) -> dict[str, str]:
        """The environment of a command: the sandbox's, then the phase's own, with values put in for names."""
        return self._secrets(spec).resolve(task.sandbox.env, *tables)
