"""The activities that score: what is kept of the sandbox once the agent has acted, the verifier, the reward functions.

`verify` is destructive and comes after a step; `soft_verify` is a look between turns that changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from temporalio import activity

from benchflow.activities.agents import end_agent, redacted_errors, redactor_for
from benchflow.activities.blueprint import Blueprint
from benchflow.activities.clean_room import CleanRoom, keep_for_room
from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import (
    command_env,
    end_world,
    has_ended_world,
    keep_logs,
    keep_state,
    world_of,
)
from benchflow.activities.freezing import freeze, thaw
from benchflow.activities.memory import keep_step_memory
from benchflow.activities.out_of_memory import explaining_losses, verifier_note
from benchflow.activities.sandboxes import blueprint_of, sandbox_labels
from benchflow.activities.settled import SETTLED
from benchflow.contracts import ids, names
from benchflow.contracts.activities import SoftVerifyInput, VerifyInput
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.reward import Evidence, HardeningReport, Judge, RolloutNode, VerifyResult, Workbench
from benchflow.contracts.rollout import Node, RolloutTree, Step
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.task import ArtifactSpec, Task, VerifierConfig
from benchflow.errors import BenchFlowError, RewardFuncError
from benchflow.paths import RolloutPaths, state_label
from benchflow.planes.agent.registry import record_for
from benchflow.planes.environment.environment import ManifestEnvironment
from benchflow.planes.reward.aggregate import require_scalar
from benchflow.planes.reward.capture import inputs_of, keep_inputs, keep_workspace
from benchflow.planes.reward.hardening import harden, read_baseline
from benchflow.planes.reward.judge.by_key import JudgeByKey
from benchflow.planes.reward.needs import table_of
from benchflow.planes.reward.score import score
from benchflow.planes.reward.strategy import verify
from benchflow.planes.reward.verify import ScriptVerifier, config_of, verifier_of
from benchflow.planes.reward.workbench import SandboxWorkbench
from benchflow.results.write import without_events, write_rewards
from benchflow.secrets import Redactor, Secrets
from benchflow.store import storage_errors, write_atomic
from benchflow.tasks import prompt_of
from benchflow.trajectories.journal import read_journal
from benchflow.trajectories.nodes import change_after, nodes_of, world_after
from benchflow.trajectories.stored import events_before, path_before
from benchflow.trajectories.tree import ROOT, node_id

Open = Callable[[], Awaitable[Sandbox]]
Said = Awaitable[VerifyResult]

_HARDENING = "hardening.json"
_MOST_TOLD = 50
"""Findings that a result lists itself; a workflow carries it."""


@dataclass(frozen=True)
class Scene:
    """A step that is to be scored: where it was taken, and where what is known of it lies."""

    context: WorkerContext
    spec: RolloutSpec
    step: Step
    blueprint: Blueprint
    sandbox: Sandbox
    paths: RolloutPaths
    redact: Redactor

    @classmethod
    async def of(cls, context: WorkerContext, spec: RolloutSpec, step: Step, ref: SandboxRef) -> Scene:
        blueprint = await blueprint_of(context, spec)
        sandbox = await context.sandbox(ref)
        paths, redact = context.results(spec), redactor_for(context, spec, blueprint.task)
        return cls(context, spec, step, blueprint, sandbox, paths, redact)

    @property
    def task(self) -> Task:
        return self.blueprint.task

    @property
    def config(self) -> VerifierConfig:
        return config_of(self.task, self.step.name)

    @property
    def is_trusted(self) -> bool:
        """Whether what acted was the oracle, whose services may stay."""
        return record_for(self.spec.agent).protocol == "oracle"

    @property
    def evidence(self) -> Path:
        return self.paths.evidence(self.step.name)

    @property
    def logs(self) -> Path:
        return self.paths.verifier_of(self.step.name)

    def hardened(self) -> dict[str, Any]:
        """What a result says of the hardening."""
        try:
            report = HardeningReport.model_validate_json((self.evidence / _HARDENING).read_bytes())
        except FileNotFoundError:
            return {}
        most = len(report.findings) - _MOST_TOLD
        told = {"findings": report.findings[:_MOST_TOLD], "left_out": report.left_out + max(0, most)}
        return {"hardening": report.model_copy(update=told).model_dump(mode="json")}

    def clean(self, evidence: Path) -> None:
        """Take out of what was kept what nobody may read."""
        self.redact.clean_below(evidence / "inputs")

    @property
    def inputs(self) -> list[str]:
        """The paths in the sandbox that the step's scorers read."""
        allowed = self.spec.run.allow_code
        return inputs_of(self.task, self.config, self.step.name, workspace=self.sandbox.ref.workdir, allowed=allowed)

    def verifier(self, evidence: Path | None) -> ScriptVerifier:
        """The task's own, as it runs in the sandbox. evidence: what it is shown of the world's state."""
        return verifier_of(
            self.task,
            self.blueprint.directory,
            self.step.name,
            key=f"verify-{self.step.index}",
            env=command_env(self.context, self.spec, self.task, self.config.env),
            trusted=self.is_trusted,
            clean=self.redact.clean_below,
            evidence=evidence,
            baseline=read_baseline(self.evidence),
            kills=verifier_note(self.context, self.sandbox, self.step.index),
            has_workdir=self.sandbox.ref.has_workdir,
            is_lenient=self.spec.run.reward_lenient,
        )

    @property
    def has_clean_room(self) -> bool:
        return self.config.sandbox_mode == "separate"

    @property
    def travelling(self) -> list[ArtifactSpec]:
        """What goes into the clean room beside the workspace."""
        own = [artifact for step in self.task.steps if step.name == self.step.name for artifact in step.artifacts]
        return [*self.task.artifacts, *own, *(ArtifactSpec(source=path) for path in self.inputs)]

    async def say(
        self, verifier: ScriptVerifier, run_id: str, evidence: Path, say: Callable[[Open, ScriptVerifier], Said]
    ) -> VerifyResult:
        """What the scorers say of the step, where the task wants them to run; what nobody may read is taken out.

        say: with a sandbox to be opened and the verifier as it runs there. evidence: where what travels was kept.
        """

        async def clean(open: Open, verifier: ScriptVerifier) -> VerifyResult:
            with redacted_errors(self.redact):
                return self.redact.result(await say(open, verifier))

        if not self.has_clean_room:
            return await clean(partial(_given, self.sandbox), verifier)
        context, spec, ref = self.context, self.spec, self.sandbox.ref
        blueprint = self.blueprint.of_verifier(self.step.name, self.config, ref.workdir)
        room = CleanRoom(
            blueprint,
            ids.clean_room_name(ref.name, run_id, verifier.key),
            sandbox_labels(context, spec, run_id, ref.generation),
            ref,
            evidence,
            command_env(context, spec, blueprint.task),
            self.config.user,
            Secrets.of_job(context.paths, spec.job_id),
            spec.run.sandbox_setup_timeout,
        )
        env = command_env(context, spec, blueprint.task, self.config.env)
        alone = verifier.alone(env, room.baseline)
        # It runs in its rollout's slot, in place of the agent's sandbox. Where the room stays for another attempt, that
        # one stays frozen.
        await freeze(self.sandbox)
        try:
            result = await room.once(lambda: clean(room.open, alone))
        except BenchFlowError as error:
            if not error.retryable:
                await thaw(self.sandbox, self.paths.root)
            raise
        await thaw(self.sandbox, self.paths.root)
        return result.model_copy(update={"metadata": {**result.metadata, "verified_in": "separate"}})

    def judge(self, transcripts: Path) -> Judge:
        secrets = Secrets.of_job(self.context.paths, self.spec.job_id)
        given = secrets.resolve(self.config.env)
        return JudgeByKey(
            self.spec.run.judge, lambda name: given.get(name) or secrets.value(name), transcripts, self.redact.cut
        )

    def node(self, evidence: Path, workbench: Workbench, transcripts: Path) -> RolloutNode:
        """What scorers read of the step: a path from the root of its tree up to it."""
        paths, index = self.paths, self.step.index
        begun = self.spec.begins_at[1]
        steps = {node_id(done, self.spec.chain): done for done in range(begun, index + 1)}
        names = [*(path_before(self.spec.chain) or [ROOT]), *steps]
        # Of what its parents have done, scorers are told by their events.
        nodes = [Node(id=names[0])]
        nodes += [Node(id=name, parent=names[at], step=steps.get(name)) for at, name in enumerate(names[1:])]
        tree = RolloutTree(rollout=self.spec.id, root=names[0], nodes=nodes)
        known = {node.id for node in tree.nodes}
        before = events_before(paths) if self.spec.branch is not None else []
        own = [event for event in read_journal(paths.trajectory) if event["node"] in known]
        for event in own:
            # In place: a second copy of a long trajectory is worth saving.
            event["seq"] += len(before)
        events = before + own
        about = Evidence(
            directory=paths.root,
            evidence=evidence,
            task=self.task.name,
            instruction=prompt_of(self.task, self.step),
            workspace=self.sandbox.ref.workdir,
            workbench=workbench,
            judge=self.judge(transcripts),
            state=lambda node: world_after(paths, self.step.name),
            diff=lambda node: change_after(paths, self.step.name),
        )
        return nodes_of(tree, events, about)[nodes[-1].id]


class ScoringActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.VERIFY)
    async def verify(self, work: VerifyInput) -> VerifyResult:
        """Score the state that a step led to. What the agent left running ends."""
        spec, step = work.spec, work.step
        scene = await Scene.of(self.context, spec, step, work.sandbox)
        async with explaining_losses(scene.sandbox):
            return await self._verify(scene, work)

    async def _verify(self, scene: Scene, work: VerifyInput) -> VerifyResult:
        spec, step = work.spec, work.step
        with redacted_errors(scene.redact):
            evidence, notes = await self._settle(scene, work)

        async def say(open: Open, verifier: ScriptVerifier) -> VerifyResult:
            bench = SandboxWorkbench(open, verifier, scene.logs)
            node = await asyncio.to_thread(scene.node, scene.evidence, bench, scene.paths.judge(step.name))
            now = datetime.now(UTC)
            return await score(
                node,
                lambda: verify(node, scene.task, scene.config, step=step.name, now=now),
                table_of(scene.task, step.name),
                now=now,
                reward_range=scene.config.reward_range,
                file=f"{scene.task.name}/{scene.task.config_file}",
                allowed=spec.run.allow_code,
            )

        result = await scene.say(scene.verifier(evidence), work.run_id, scene.evidence, say)
        if spec.run.branch is not None:
            require_scalar(result, "a rollout that branches")
        if isinstance(step.min_reward, int | float):
            require_scalar(result, "min_reward", of_only_key=False)
        if not result.is_scored:
            raise RewardFuncError(result.error or "the reward could not be made of what was measured")
        await asyncio.to_thread(write_rewards, scene.paths, step.index, result.events)
        warnings = list(dict.fromkeys([*notes, *result.warnings]))
        metadata = result.metadata | scene.hardened()
        return without_events(result.model_copy(update={"warnings": warnings, "metadata": metadata}))

    async def _settle(self, scene: Scene, work: VerifyInput) -> tuple[Path | None, list[str]]:
        """Between the agent and its verifier: the agent ends, the world tells its state, scorers get their evidence.

        Returns what the verifier is shown of the state, and warnings. Where a verifier has begun, that was done.
        """
        context, sandbox = self.context, scene.sandbox
        shown = scene.paths.state(scene.step.name)
        done = scene.evidence / SETTLED
        if done.is_file():
            return shown if shown.is_dir() else None, json.loads(done.read_bytes())
        world = await world_of(context, scene.spec, scene.task, work.sandbox)
        if world is not None and not has_ended_world(context, work.sandbox):
            # First of all: where it was the sandbox's own process, all else would fail for want of it.
            await world.check()
        if work.session is not None:
            await end_agent(context, sandbox, scene.spec, work.session, kill=scene.config.hardening.kill_processes)
        await self._harden(scene)
        evidence, notes = await self._leave_world(scene, work, world) if world is not None else (None, [])
        notes += await scene.verifier(evidence).settle(sandbox, scene.logs)
        notes += await self._keep(scene, work)
        with storage_errors(done):
            done.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(done, json.dumps(notes).encode(), durable=False)
        return evidence, notes

    async def _harden(self, scene: Scene) -> None:
        """Make the sandbox fit for the verifier, and keep what there was to do."""
        verifier, baseline = scene.verifier(None), read_baseline(scene.evidence)
        if baseline is None:
            # A step whose agent was never told anything, or a rollout that began before there were baselines.
            await verifier.end_agent(scene.sandbox)
            return
        config = scene.config
        user = verifier.user
        report = await harden(scene.sandbox, baseline, config.hardening, verifier=user, trusted=scene.is_trusted)
        own = sorted(verifier.pinned(scene.sandbox).keys() & verifier.env.keys())
        report = scene.redact.within(report.model_copy(update={"own_env": own}).model_dump(mode="json"))
        write_atomic(scene.evidence / _HARDENING, json.dumps(report, indent=2).encode() + b"\n", durable=False)

    async def _leave_world(
        self, scene: Scene, work: VerifyInput, world: ManifestEnvironment
    ) -> tuple[Path | None, list[str]]:
        if has_ended_world(self.context, work.sandbox):
            await end_world(self.context, world, work.sandbox)
            kept = scene.paths.state(scene.step.name)
            return kept if kept.is_dir() else None, []
        label = state_label(scene.step.name)
        evidence, notes = await keep_state(world, label, work.sandbox.episode, work.baseline, scene.paths)
        if work.is_last and not world.manifest.keep_alive:
            notes += await keep_logs(world, scene.paths)
            await end_world(self.context, world, work.sandbox)
        return evidence, notes

    async def _keep(self, scene: Scene, work: VerifyInput) -> list[str]:
        """What scorers read, and what scoring again takes. Returns warnings."""
        run, sandbox = scene.spec.run, scene.sandbox
        limit = run.keep_max_mb * 1024 * 1024
        notes = await keep_inputs(sandbox, scene.inputs, scene.evidence, limit_bytes=limit)
        scene.clean(scene.evidence)
        await keep_step_memory(self.context, scene.spec, scene.task, sandbox, scene.step, work.session, "after")
        if run.keep == "workspace":
            notes += await keep_workspace(sandbox, scene.evidence, limit_bytes=limit)
        if scene.has_clean_room:
            notes += await keep_for_room(sandbox, scene.travelling, scene.evidence)
        return notes

    @activity.defn(name=names.SOFT_VERIFY)
    async def soft_verify(self, work: SoftVerifyInput) -> VerifyResult:
        """What the verifier would say now, between turns: nothing ends, and nothing of it stays in the sandbox."""
        scene = await Scene.of(self.context, work.spec, work.step, work.sandbox)
        root = scene.paths.root / "soft" / str(work.number)
        evidence = root / "evidence"
        # Of an attempt that a crash cut off.
        await thaw(scene.sandbox, scene.paths.root)
        with redacted_errors(scene.redact):
            world = await world_of(self.context, work.spec, scene.task, work.sandbox)
            shown = None
            if world is not None and not has_ended_world(self.context, work.sandbox):
                label = f"soft-{work.number}"
                shown, _ = await keep_state(world, label, work.sandbox.episode, work.baseline, scene.paths)
            verifier = replace(scene.verifier(shown), key=f"soft-{work.number}")
            limit = work.spec.run.keep_max_mb * 1024 * 1024
            await keep_inputs(scene.sandbox, scene.inputs, evidence, limit_bytes=limit)
            scene.clean(evidence)
            if scene.has_clean_room:
                await keep_for_room(scene.sandbox, scene.travelling, evidence)

        async def say(open: Open, verifier: ScriptVerifier) -> VerifyResult:
            bench = SandboxWorkbench(open, verifier, root / "verifier", soft=not scene.has_clean_room)
            node = await asyncio.to_thread(scene.node, evidence, bench, root / "judge")
            return await verify(node, scene.task, scene.config, step=work.step.name, now=datetime.now(UTC))

        return without_events(await scene.say(verifier, work.run_id, evidence, say))


async def _given(sandbox: Sandbox) -> Sandbox:
    return sandbox
