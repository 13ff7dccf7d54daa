"""The activities that score: what is kept of the sandbox once the agent has acted, the verifier, the reward functions.

`verify` is destructive and comes after a step; `soft_verify` is a look between turns that changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from temporalio import activity

from benchflow.activities.agents import end_agent, redacted_errors, redactor_for
from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import (
    command_env,
    end_world,
    has_ended_world,
    keep_logs,
    keep_state,
    world_of,
)
from benchflow.activities.memory import keep_step_memory
from benchflow.contracts import names
from benchflow.contracts.activities import SoftVerifyInput, VerifyInput
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.reward import Evidence, Judge, RolloutNode, VerifyResult, Workbench
from benchflow.contracts.rollout import Node, RolloutTree, Step
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.task import Task, VerifierConfig
from benchflow.errors import RewardFuncError
from benchflow.paths import RolloutPaths, state_label
from benchflow.planes.agent.registry import record_for
from benchflow.planes.environment.environment import ManifestEnvironment
from benchflow.planes.reward.capture import inputs_of, keep_inputs, keep_workspace
from benchflow.planes.reward.judge.by_key import JudgeByKey
from benchflow.planes.reward.needs import table_of
from benchflow.planes.reward.score import score
from benchflow.planes.reward.strategy import verify
from benchflow.planes.reward.verify import ScriptVerifier, config_of, verifier_of
from benchflow.planes.reward.workbench import SandboxWorkbench
from benchflow.results.write import without_events, write_rewards
from benchflow.secrets import Redactor, Secrets
from benchflow.store import storage_errors, write_atomic
from benchflow.tasks import prompt_for
from benchflow.trajectories.journal import read_journal
from benchflow.trajectories.nodes import change_after, nodes_of, world_after
from benchflow.trajectories.tree import ROOT, node_id

_SETTLED = "settled.json"
"""In the evidence: that all of it is there, with the warnings. What comes after changes what there would be to keep."""


@dataclass(frozen=True)
class Scene:
    """A step that is to be scored: where it was taken, and where what is known of it lies."""

    context: WorkerContext
    spec: RolloutSpec
    step: Step
    task: Task
    directory: Path
    sandbox: Sandbox
    paths: RolloutPaths
    redact: Redactor

    @classmethod
    async def of(cls, context: WorkerContext, spec: RolloutSpec, step: Step, ref: SandboxRef) -> Scene:
        task, directory = await context.task(spec.task)
        sandbox = await context.sandbox(ref)
        paths, redact = context.results(spec), redactor_for(context, spec, task)
        return cls(context, spec, step, task, directory, sandbox, paths, redact)

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

    def clean(self, evidence: Path) -> None:
        """Take out of what was kept what nobody may read."""
        for file in (evidence / "inputs").rglob("*"):
            self.redact.clean(file)

    @property
    def inputs(self) -> list[str]:
        """The paths in the sandbox that the step's scorers read."""
        return inputs_of(self.task, self.config, self.step.name, workspace=self.sandbox.ref.workdir)

    def verifier(self, evidence: Path | None) -> ScriptVerifier:
        """The task's own, as it runs in the sandbox. evidence: what it is shown of the world's state."""
        return verifier_of(
            self.task,
            self.directory,
            self.step.name,
            key=f"verify-{self.step.index}",
            env=command_env(self.context, self.spec, self.task, self.config.env),
            trusted=self.is_trusted,
            clean=self.redact.clean,
            evidence=evidence,
        )

    def judge(self, transcripts: Path) -> Judge:
        secrets = Secrets.of_job(self.context.paths, self.spec.job_id)
        given = secrets.resolve(self.config.env)
        return JudgeByKey(
            self.spec.run.judge, lambda name: given.get(name) or secrets.value(name), transcripts, self.redact.cut
        )

    def node(self, evidence: Path, workbench: Workbench, transcripts: Path) -> RolloutNode:
        """What scorers read of the step: a linear rollout's path up to it."""
        paths, index = self.paths, self.step.index
        tree = RolloutTree(rollout=self.spec.id, root=ROOT, nodes=[Node(id=ROOT), *map(_linear, range(index + 1))])
        known = {node.id for node in tree.nodes}
        events = [event for event in read_journal(paths.trajectory) if event["node"] in known]
        about = Evidence(
            directory=paths.root,
            evidence=evidence,
            task=self.task.name,
            instruction=prompt_for(self.task, self.step.name),
            workspace=self.sandbox.ref.workdir,
            workbench=workbench,
            judge=self.judge(transcripts),
            state=lambda node: world_after(paths, self.step.name),
            diff=lambda node: change_after(paths, self.step.name),
        )
        return nodes_of(tree, events, about)[node_id(index)]


def _linear(index: int) -> Node:
    return Node(id=node_id(index), parent=node_id(index - 1) if index else ROOT, step=index)


class ScoringActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.VERIFY)
    async def verify(self, work: VerifyInput) -> VerifyResult:
        """Score the state that a step led to. What the agent left running ends."""
        spec, step = work.spec, work.step
        scene = await Scene.of(self.context, spec, step, work.sandbox)
        with redacted_errors(scene.redact):
            evidence, notes = await self._settle(scene, work)
            verifier = scene.verifier(evidence)
            bench = SandboxWorkbench(partial(_given, scene.sandbox), verifier, scene.logs)
            node = await asyncio.to_thread(scene.node, scene.evidence, bench, scene.paths.judge(step.name))
            now = datetime.now(UTC)
            result = await score(
                node,
                lambda: verify(node, scene.task, scene.config, step=step.name, now=now),
                table_of(scene.task, step.name),
                now=now,
                reward_range=scene.config.reward_range,
                file=f"{scene.task.name}/{scene.task.config_file}",
            )
        result = scene.redact.result(result)
        if result.reward is None:
            raise RewardFuncError(result.error or "the reward could not be made of what was measured")
        await asyncio.to_thread(write_rewards, scene.paths, step.index, result.events)
        warnings = list(dict.fromkeys([*notes, *result.warnings]))
        return without_events(result.model_copy(update={"warnings": warnings}))

    async def _settle(self, scene: Scene, work: VerifyInput) -> tuple[Path | None, list[str]]:
        """Between the agent and its verifier: the agent ends, the world tells its state, scorers get their evidence.

        Returns what the verifier is shown of the state, and warnings. Where a verifier has begun, that was done.
        """
        context, sandbox = self.context, scene.sandbox
        shown = scene.paths.state(scene.step.name)
        done = scene.evidence / _SETTLED
        if done.is_file():
            return shown if shown.is_dir() else None, json.loads(done.read_bytes())
        world = await world_of(context, scene.spec, scene.task, work.sandbox)
        if world is not None and not has_ended_world(context, work.sandbox):
            # First of all: where it was the sandbox's own process, all else would fail for want of it.
            await world.check()
        if work.session is not None:
            await end_agent(context, sandbox, scene.spec, work.session)
        # Without a world, settling the verifier does so at once.
        if world is not None and not scene.is_trusted:
            await sandbox.kill_processes()
        evidence, notes = await self._leave_world(scene, work, world) if world is not None else (None, [])
        notes += await scene.verifier(evidence).settle(sandbox, scene.logs)
        notes += await self._keep(scene, work)
        with storage_errors(done):
            done.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(done, json.dumps(notes).encode(), durable=False)
        return evidence, notes

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
        return notes

    @activity.defn(name=names.SOFT_VERIFY)
    async def soft_verify(self, work: SoftVerifyInput) -> VerifyResult:
        """What the verifier would say now, between turns: nothing ends, and nothing of it stays in the sandbox."""
        scene = await Scene.of(self.context, work.spec, work.step, work.sandbox)
        root = scene.paths.root / "soft" / str(work.number)
        with redacted_errors(scene.redact):
            world = await world_of(self.context, work.spec, scene.task, work.sandbox)
            shown = None
            if world is not None and not has_ended_world(self.context, work.sandbox):
                label = f"soft-{work.number}"
                shown, _ = await keep_state(world, label, work.sandbox.episode, work.baseline, scene.paths)
            verifier = replace(scene.verifier(shown), key=f"soft-{work.number}")
            bench = SandboxWorkbench(partial(_given, scene.sandbox), verifier, root / "verifier", soft=True)
            limit = work.spec.run.keep_max_mb * 1024 * 1024
            await keep_inputs(scene.sandbox, scene.inputs, root / "evidence", limit_bytes=limit)
            scene.clean(root / "evidence")
            node = await asyncio.to_thread(scene.node, root / "evidence", bench, root / "judge")
            result = await verify(node, scene.task, scene.config, step=work.step.name, now=datetime.now(UTC))
        return without_events(scene.redact.result(result))


async def _given(sandbox: Sandbox) -> Sandbox:
    return sandbox
