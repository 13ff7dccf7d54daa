"""The activities of one rollout, one a phase: decode, call a plane, return what the workflow needs to know."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from benchflow.activities.agents import fit_out, redacted_errors, redactor_for
from benchflow.activities.attempts import is_cancelled
from benchflow.activities.blueprint import Blueprint, start_within
from benchflow.activities.clean_room import clean_room_sec
from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import (
    command_env,
    compare_copy,
    entrypoint_env,
    fit_out_world,
    start_world,
    take_baseline,
    world_of,
)
from benchflow.activities.models import forget_model
from benchflow.activities.portable import at_hand
from benchflow.activities.sandboxes import (
    CLEAR_LOGS,
    blueprint_of,
    enter,
    leave,
    release_sandbox,
    sandbox_labels,
    sandbox_name,
)
from benchflow.activities.session_files import note_checkpoint
from benchflow.activities.world import check_health, health_limit, run_setup_commands
from benchflow.checkpoints import prove
from benchflow.contracts import names
from benchflow.contracts.activities import ProvisionInput, Readied, ReadinessInput, RolloutPlan, SandboxInput
from benchflow.contracts.environment import unproven_warning
from benchflow.contracts.failures import failure_of
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.options import CAPACITY_VARIABLE
from benchflow.contracts.rollout import Step
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.task import Healthcheck, Task, VerifierConfig
from benchflow.errors import BenchFlowError, HostFullError, SandboxUnavailableError, UnsupportedFeatureError
from benchflow.host import SlotOwner
from benchflow.planes.agent.registry import record_for
from benchflow.planes.reward.needs import check_scoring, scoring_sec
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.results.write import set_aside
from benchflow.secrets import Secrets
from benchflow.tasks import require_supported, turn_prompt

INSTALL_SEC = 1800.0
"""The most that an agent's toolbox may take to be built."""

WORLD_SEC = 300.0
"""What a world may take beyond its own readiness: to start its services, and to capture its baseline."""


def lower(blueprint: Blueprint, spec: RolloutSpec) -> list[Step]:
    """The steps of a task: one a turn, scored after each of the task's `steps`, or once."""
    task = blueprint.task

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
            "verify_timeout_sec": scoring_sec(task, verifier) + clean_room_sec(blueprint, name, verifier, spec.run),
        }

    if task.scenes:
        return _of_scenes(task, spec, step(0, None, task.agent.timeout_sec, task.verifier))
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


def _of_scenes(task: Task, spec: RolloutSpec, common: dict[str, Any]) -> list[Step]:
    """A step a turn; those of a scene are one session, and what the last has led to is scored."""
    wanted = {task.roles[turn.role].agent for scene in task.scenes for turn in scene.turns}
    if spec.agent.name not in wanted:
        raise UnsupportedFeatureError(
            f"the task's scenes are for the agent {', '.join(sorted(wanted))}, not for {spec.agent.name}",
            file=task.config_file,
            key="agents.roles",
            remedy=f"run it with --agent {sorted(wanted)[0]}",
        )
    steps: list[Step] = []
    for session, scene in enumerate(task.scenes):
        for turn in scene.turns:
            said = {"role": turn.role, "session": session, "prompt": turn_prompt(task, scene, turn), "scored": False}
            steps.append(Step(**common | said | {"index": len(steps)}))
    return [*steps[:-1], steps[-1].model_copy(update={"scored": True})]


def _told_otherwise(steps: list[Step], spec: RolloutSpec) -> list[Step]:
    """A child is told in its first step what was written for it alone, and takes all of its own by its own role."""
    if spec.branch is None:
        return steps
    child, first = spec.branch.child, spec.branch.checkpoint.steps_done
    told = {"prompt": child.prompt} if child.prompt is not None else {}
    acts = {"role": child.role} if child.role is not None else {}
    own = [step.model_copy(update=acts | (told if step.index == first else {})) for step in steps[first:]]
    return [*steps[:first], *own]


def _turn_timeout(task: Task, spec: RolloutSpec, own: float | None) -> float:
    """Seconds of one turn: the job's, else the oracle's own, else the task's, never beyond the deadline."""
    candidates = [spec.run.agent_timeout_sec]
    if record_for(spec.agent).protocol == "oracle":
        candidates.append(task.oracle.timeout_sec)
    candidates.append(own)
    wanted = next((limit for limit in candidates if limit is not None), spec.run.deadline_sec)
    return min(wanted, spec.run.deadline_sec)


class RolloutActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.PLAN)
    async def plan(self, spec: RolloutSpec) -> RolloutPlan:
        blueprint = await blueprint_of(self.context, spec)
        task = blueprint.task
        warnings = require_supported(task, blueprint.provider.capabilities())
        self._secrets(spec).check(task)
        self._secrets(spec).check_agent(spec.agent)
        environment = spec.task.environment
        if environment is not None:
            self._secrets(spec).check_world(environment)
        judging = check_scoring(task, spec.run.judge, spec.run.allow_code)
        if spec.run.judge.base_url is None:
            self._secrets(spec).check_judges(judging, task)
        setup = task.sandbox.setup_commands
        if environment is not None and environment.unproven is not None:
            warnings = [*warnings, unproven_warning(environment)]
        return RolloutPlan(
            steps=_told_otherwise(lower(blueprint, spec), spec),
            strategy=task.multi_step_reward_strategy,
            has_healthcheck=task.sandbox.healthcheck is not None,
            build_timeout_sec=task.sandbox.build_timeout_sec,
            setup_timeout_sec=sum(command.timeout_sec for command in setup),
            install_timeout_sec=INSTALL_SEC if record_for(spec.agent).install is not None else 0.0,
            healthcheck_timeout_sec=health_limit(task.sandbox.healthcheck or Healthcheck(command="true")),
            readiness_timeout_sec=environment.manifest.readiness.timeout_sec + WORLD_SEC if environment else 0.0,
            warnings=warnings,
        )

    @activity.defn(name=names.PROVISION)
    async def provision(self, request: ProvisionInput) -> SandboxRef:
        slots, name = self.context.slots, sandbox_name(self.context.stack, request)
        if not slots.take(name, activity.info().attempt, self._owner(request)):
            # Final: the workflow waits for a slot with the clock of its deadline standing still.
            failure = failure_of(HostFullError("all sandbox slots of this host are taken", key=CAPACITY_VARIABLE))
            raise ApplicationError(failure.message, failure, type=names.HOST_FULL, non_retryable=True)
        with slots.in_use(name):
            try:
                return await self._provision(request, name)
            except asyncio.CancelledError:
                if is_cancelled():
                    await see_through(self._discard(request.spec, name))
                raise
            except Exception:
                await self._discard(request.spec, name)
                raise

    async def _provision(self, request: ProvisionInput, name: str) -> SandboxRef:
        spec, context = request.spec, self.context
        paths = await asyncio.to_thread(context.make_results_directory, spec)
        identity = {"run_id": request.run_id, "generation": request.generation}
        if not request.goes_on:
            await asyncio.to_thread(set_aside, paths, identity | spec.model_dump(mode="json"))
        task, _ = await context.task(spec.task)
        with redacted_errors(redactor_for(context, spec, task)):
            sandbox = await self._start(request, name, paths.build_log)
            if request.checkpoint is None:
                await run_setup_commands(sandbox, task, command_env(context, spec, task), self._secrets(spec))
                await start_world(context, spec, task, sandbox.ref)
            else:
                await asyncio.to_thread(note_checkpoint, context, sandbox)
                world = await world_of(context, spec, task, sandbox.ref)
                await prove(request.checkpoint, sandbox, world)
                await sandbox.control(CLEAR_LOGS)
        return sandbox.ref

    @activity.defn(name=names.WAIT_FOR_SLOT)
    async def wait_for_slot(self, request: ProvisionInput) -> SandboxRef:
        """Take a slot of this host for a sandbox as soon as one is free. Return where the sandbox is to be.

        Raises:
            HostFullError: no slot was free for `slot_wait_sec`. Retried: another host may take the next attempt.
        """
        context, name = self.context, sandbox_name(self.context.stack, request)
        # Attempts are counted by what is done in the slot.
        await context.slots.wait(name, attempt=0, owner=self._owner(request))
        return SandboxRef(
            provider=request.spec.run.sandbox,
            name=name,
            handle=name,
            host_id=context.host_id,
            queue=context.queue,
            workdir="/",
            generation=request.generation,
        )

    async def _start(self, request: ProvisionInput, name: str, build_log: Path) -> Sandbox:
        spec, context = request.spec, self.context
        blueprint = await blueprint_of(context, spec)
        provider = blueprint.provider
        wanted = blueprint.spec(name, await blueprint.image(log=build_log), self._labels(request))
        wanted = await fit_out_world(context, spec, provider, wanted, build_log)
        wanted = await fit_out(context, spec, provider, wanted, build_log)
        if request.checkpoint is not None:
            # What fits the image that the root began with fits the state that it has come to.
            image = await at_hand(context, spec, request.run_id, request.checkpoint)
            wanted = wanted.model_copy(update={"image": image})
        start = provider.start(
            wanted,
            host_id=context.host_id,
            queue=context.queue,
            generation=request.generation,
            secrets=entrypoint_env(context, spec),
        )
        return await enter(context, spec, request.run_id, await start_within(start, spec.run.sandbox_setup_timeout))

    def _owner(self, request: ProvisionInput) -> SlotOwner:
        """Return the workflow whose end frees the sandbox and its slot: of a shared one the job, else the rollout."""
        spec = request.spec
        if spec.job_run_id is not None:
            return SlotOwner(spec.job_id, spec.job_run_id)
        return SlotOwner(spec.id, request.run_id)

    def _labels(self, request: ProvisionInput) -> dict[str, str]:
        owner = self._owner(request)
        labels = sandbox_labels(self.context, request.spec, request.run_id, request.generation)
        return labels | {"benchflow.workflow": owner.workflow, "benchflow.run": owner.run}

    async def _discard(self, spec: RolloutSpec, name: str) -> None:
        """What a failed provision leaves must not outlive it; the reaper finds what this misses.

        An attempt that was given up as lost and lives on must not remove what its successor has found, and no rollout
        what its job owns.
        """
        if spec.job_run_id is not None or not self.context.slots.is_current(name, activity.info().attempt):
            return
        with suppress(BenchFlowError):
            await get_provider(spec.run.sandbox).remove(name)
        release_sandbox(self.context, name)

    @activity.defn(name=names.READINESS)
    async def readiness(self, here: ReadinessInput) -> Readied | None:
        """Return when the world is healthy, as its manifest and its task tell, with the state that it begins with."""
        spec, context = here.spec, self.context
        task, _ = await context.task(spec.task)
        sandbox = await context.sandbox(here.sandbox)
        readied = None
        with redacted_errors(redactor_for(context, spec, task)):
            world = await world_of(context, spec, task, here.sandbox)
            if world is not None:
                readied = Readied(
                    world=await world.readiness(), differences=await compare_copy(spec, world, here.observed)
                )
            if task.sandbox.healthcheck is not None:
                await check_health(sandbox, task.sandbox.healthcheck, command_env(context, spec, task))
            if world is not None and readied is not None:
                baseline = here.baseline or await take_baseline(world, here.sandbox.episode)
                readied = readied.model_copy(update={"baseline": baseline})
        return readied

    @activity.defn(name=names.TEARDOWN)
    async def teardown(self, here: SandboxInput) -> None:
        name = here.sandbox.name
        await forget_model(self.context, here.spec)
        if here.spec.job_run_id is not None:
            await leave(self.context, here.sandbox)
            return
        sandbox = self.context.forget(name)
        if sandbox is not None:
            await sandbox.stop()
        else:
            try:
                await get_provider(here.sandbox.provider).remove(name)
            except SandboxUnavailableError as error:
                # Where the provider is gone for good, so is what it had.
                if error.retryable:
                    raise
        await asyncio.to_thread(release_sandbox, self.context, name)

    def _secrets(self, spec: RolloutSpec) -> Secrets:
        return Secrets.of_job(self.context.paths, spec.job_id)
