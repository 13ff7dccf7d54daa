"""Score a step on this host: what is kept of the sandbox once the agent has acted, the verifier, the reward functions.

`verify` is destructive and comes after a step; `preview` looks between turns, and changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchflow.contracts import ids
from benchflow.contracts.activities import SoftVerifyInput, VerifyInput
from benchflow.contracts.reward import (
    Evidence,
    HardeningFinding,
    HardeningReport,
    Judge,
    RolloutNode,
    VerifyResult,
    Workbench,
)
from benchflow.contracts.rollout import Node, RolloutTree, Step
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import ArtifactSpec, VerifierConfig
from benchflow.contracts.world import Environment
from benchflow.errors import BenchFlowError, RewardFuncError
from benchflow.host import SlotOwner
from benchflow.hosting.agent import HostedAgent
from benchflow.hosting.agent_memory import keep_step_memory
from benchflow.hosting.clean_room import CleanRoom, keep_for_room, room_notes
from benchflow.hosting.freezing import freeze, thaw
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.out_of_memory import explaining_losses, verifier_note
from benchflow.hosting.provisioning import sandbox_labels
from benchflow.hosting.verifier_files import SETTLED
from benchflow.hosting.world import end_world, has_ended_world, keep_logs, keep_state
from benchflow.paths import state_label
from benchflow.planes.reward.aggregate import require_scalar
from benchflow.planes.reward.capture import inputs_of, keep_inputs, keep_workspace
from benchflow.planes.reward.hardening import harden, read_baseline
from benchflow.planes.reward.judge.by_key import JudgeByKey
from benchflow.planes.reward.needs import table_of
from benchflow.planes.reward.on_tampering import apply_rule
from benchflow.planes.reward.score import score
from benchflow.planes.reward.strategy import verify as output_of
from benchflow.planes.reward.verify import ScriptVerifier, config_of, verifier_of
from benchflow.planes.reward.workbench import SandboxWorkbench
from benchflow.results.findings import hardening_metadata
from benchflow.results.write import without_events, write_rewards
from benchflow.store import storage_errors, write_atomic
from benchflow.tasks import prompt_of
from benchflow.trajectories.journal import read_journal
from benchflow.trajectories.nodes import change_after, findings_after, hardening_after, nodes_of, world_after
from benchflow.trajectories.stored import events_before, path_before
from benchflow.trajectories.tree import ROOT, node_id

Open = Callable[[], Awaitable[Sandbox]]
Scorers = Callable[[Open, ScriptVerifier], Awaitable[VerifyResult]]
"""Scores with a sandbox to be opened, and the verifier as it runs there."""


@dataclass(frozen=True)
class ScoredStep:
    """A step that is scored on the host of its sandbox."""

    rollout: Hosted
    step: Step

    @property
    def config(self) -> VerifierConfig:
        """Configuration of the step's verifier."""
        return config_of(self.rollout.task, self.step.name)

    @property
    def is_trusted(self) -> bool:
        """Whether the oracle acted, whose services may stay."""
        return self.rollout.record.protocol == "oracle"

    @property
    def evidence(self) -> Path:
        """Directory of what was kept for scoring."""
        return self.rollout.paths.evidence(self.step.name)

    @property
    def logs(self) -> Path:
        """Directory of what the verifier leaves."""
        return self.rollout.paths.verifier_of(self.step.name)

    @property
    def inputs(self) -> list[str]:
        """Paths in the sandbox that the step's scorers read."""
        rollout = self.rollout
        workspace, allowed = rollout.ref.workdir, rollout.spec.run.allow_code
        return inputs_of(rollout.task, self.config, self.step.name, workspace=workspace, allowed=allowed)

    @property
    def has_clean_room(self) -> bool:
        """Whether the verifier runs in a sandbox of its own."""
        return self.config.sandbox_mode == "separate"

    # --- what it leaves to be scored --------------------------------------------------------------------------

    async def settle(self, work: VerifyInput) -> tuple[Path | None, list[str]]:
        """End the agent, record the world's state, and keep the evidence: once, before the verifier begins.

        Returns:
            The state that the verifier is shown, if there is one, and warnings.
        """
        rollout, sandbox = self.rollout, self.rollout.sandbox
        shown = rollout.paths.state(self.step.name)
        done = self.evidence / SETTLED
        if done.is_file():
            return shown if shown.is_dir() else None, json.loads(done.read_bytes())
        world = await rollout.world()
        if world is not None and not has_ended_world(rollout):
            # First of all: where it was the sandbox's own process, all else would fail for want of it.
            await world.check()
        # What has lost its parent is no part of the agent any more, whose end is no finding.
        left = [process.command for process in await sandbox.strangers() if process.parent == 1]
        if work.session is not None:
            await HostedAgent(rollout).end(work.session, kill=self.config.hardening.kill_processes)
        await self._harden(left)
        evidence, notes = await self._leave_world(work, world) if world is not None else (None, [])
        notes += await self.verifier(evidence).settle(sandbox, self.logs)
        notes += await self._keep(work)
        with storage_errors(done):
            done.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(done, json.dumps(notes).encode(), durable=False)
        return evidence, notes

    async def _harden(self, left: Sequence[str]) -> None:
        """Harden the sandbox for the verifier, and record what was found. left: what the agent has left running."""
        sandbox, config = self.rollout.sandbox, self.config
        verifier, baseline = self.verifier(None), read_baseline(self.evidence)
        if baseline is None:
            # A step whose agent had no prompt, or a rollout that began before there were baselines.
            await verifier.end_agent(sandbox)
            return
        report = await harden(
            sandbox, baseline, config.hardening, verifier=verifier.user, trusted=self.is_trusted, left=left
        )
        own = sorted(verifier.pinned(sandbox).keys() & verifier.env.keys())
        findings = report.findings
        if self.is_trusted:
            findings = [finding.model_copy(update={"weight": "note"}) for finding in findings]
        content = report.model_copy(update={"own_env": own, "findings": findings}).model_dump(mode="json")
        text = json.dumps(self.rollout.redact.within(content), indent=2)
        write_atomic(self.rollout.paths.hardening(self.step.name), text.encode() + b"\n", durable=False)

    async def _leave_world(self, work: VerifyInput, world: Environment) -> tuple[Path | None, list[str]]:
        rollout = self.rollout
        if has_ended_world(rollout):
            await end_world(rollout, world)
            kept = rollout.paths.state(self.step.name)
            return kept if kept.is_dir() else None, []
        evidence, notes = await keep_state(rollout, world, state_label(self.step.name), work.baseline)
        if work.is_last and not world.keep_alive:
            notes += await keep_logs(world, rollout.paths)
            await end_world(rollout, world)
        return evidence, notes

    async def _keep(self, work: VerifyInput) -> list[str]:
        """Keep what scorers read, and what scoring again takes. Returns warnings."""
        run, sandbox = self.rollout.spec.run, self.rollout.sandbox
        notes = await self.keep_inputs(self.evidence)
        await keep_step_memory(self.rollout, self.step, work.session, "after")
        if run.keep in ("workspace", "checkpoints"):
            notes += await keep_workspace(sandbox, self.evidence, limit_bytes=run.keep_max_mb * 1024 * 1024)
        if self.has_clean_room:
            notes += await self.keep_for_room(self.evidence)
        return notes

    async def keep_inputs(self, evidence: Path) -> list[str]:
        """Keep what scorers read, without secrets. Returns warnings."""
        limit_bytes = self.rollout.spec.run.keep_max_mb * 1024 * 1024
        notes = await keep_inputs(self.rollout.sandbox, self.inputs, evidence, limit_bytes=limit_bytes)
        self.rollout.redact.clean_below(evidence / "inputs")
        return notes

    async def keep_for_room(self, evidence: Path) -> list[str]:
        """Keep the workspace, and what goes into the clean room beside it. Returns warnings."""
        task = self.rollout.task
        own = [artifact for step in task.steps if step.name == self.step.name for artifact in step.artifacts]
        travelling = [*task.artifacts, *own, *(ArtifactSpec(source=path) for path in self.inputs)]
        return await keep_for_room(self.rollout.sandbox, travelling, evidence)

    # --- scoring it -------------------------------------------------------------------------------------------

    def verifier(self, evidence: Path | None) -> ScriptVerifier:
        """Return the task's own verifier, as it runs in the sandbox. evidence: the world's state that it is shown."""
        rollout = self.rollout
        return verifier_of(
            rollout.task,
            rollout.directory,
            self.step.name,
            key=f"verify-{self.step.index}",
            env=rollout.env(self.config.env),
            trusted=self.is_trusted,
            clean=rollout.redact.clean_below,
            evidence=evidence,
            baseline=read_baseline(self.evidence),
            kills=verifier_note(rollout, self.step.index),
            has_workdir=rollout.ref.has_workdir,
            is_lenient=rollout.spec.run.reward_lenient,
        )

    async def score(self, verifier: ScriptVerifier, run_id: str, evidence: Path, scorers: Scorers) -> VerifyResult:
        """Return what the scorers give the step, where the task wants them to run, without secrets.

        Args:
            verifier: The task's own, as it runs in the agent's sandbox.
            run_id: First run of the rollout's workflow.
            evidence: Where the work that travels was kept.
            scorers: What scores.
        """
        rollout, ref = self.rollout, self.rollout.ref

        async def redacted(open: Open, verifier: ScriptVerifier) -> VerifyResult:
            with rollout.redacted_errors():
                return rollout.redact.result(await scorers(open, verifier))

        if not self.has_clean_room:
            return await redacted(partial(_given, rollout.sandbox), verifier)
        blueprint = rollout.blueprint.of_verifier(self.step.name, self.config, ref.workdir)
        room = CleanRoom(
            blueprint,
            ids.clean_room_name(ref.name, run_id, verifier.key),
            sandbox_labels(rollout.host.stack, rollout.spec, SlotOwner(rollout.spec.id, run_id), ref.generation),
            ref.model_dump(include={"host_id", "queue", "generation"}),
            room_notes(evidence),
            evidence,
            rollout.env(task=blueprint.task),
            self.config.user,
            rollout.secrets,
            rollout.spec.run.sandbox_setup_timeout,
        )
        alone = verifier.alone(rollout.env(self.config.env, task=blueprint.task), room.baseline)
        # It runs in its rollout's slot, in place of the agent's sandbox. Where the room stays for another attempt, that
        # one stays frozen.
        await freeze(rollout.sandbox)
        try:
            result = await room.once(lambda: redacted(room.open, alone))
        except BenchFlowError as error:
            if not error.retryable:
                await thaw(rollout.sandbox, rollout.paths.root)
            raise
        await thaw(rollout.sandbox, rollout.paths.root)
        return result.model_copy(update={"metadata": {**result.metadata, "verified_in": "separate"}})

    def judge(self, transcripts: Path) -> Judge:
        """Return the judge of the step. transcripts: directory of what it is asked, and answers."""
        rollout = self.rollout
        given = rollout.secrets.resolve(self.config.env)
        return JudgeByKey(
            rollout.spec.run.judge,
            lambda name: given.get(name) or rollout.secrets.value(name),
            transcripts,
            rollout.redact.cut,
        )

    def node(self, evidence: Path, workbench: Workbench, transcripts: Path) -> RolloutNode:
        """Return the node that scorers read: a path from the root of its tree up to the step."""
        rollout, paths, spec = self.rollout, self.rollout.paths, self.rollout.spec
        started = spec.begins_at[1]
        steps = {node_id(done, spec.chain): done for done in range(started, self.step.index + 1)}
        names = [*(path_before(spec.chain) or [ROOT]), *steps]
        # What its parents have done, scorers read from their events.
        nodes = [Node(id=names[0])]
        nodes += [Node(id=name, parent=names[at], step=steps.get(name)) for at, name in enumerate(names[1:])]
        tree = RolloutTree(rollout=spec.id, root=names[0], nodes=nodes)
        known = {node.id for node in tree.nodes}
        before = events_before(paths) if spec.branch is not None else []
        own = [event for event in read_journal(paths.trajectory) if event["node"] in known]
        for event in own:
            # In place: a second copy of a long trajectory is worth saving.
            event["seq"] += len(before)

        def findings(node: str) -> tuple[HardeningFinding, ...]:
            # Of the turns of scenes, which share a directory, the last is scored alone.
            names: dict[int, str | None] = {done: step.name for done, step in enumerate(rollout.task.steps)}
            names[self.step.index] = self.step.name
            index = steps.get(node)
            return findings_after(paths, names[index]) if index is not None and index in names else ()

        about = Evidence(
            directory=paths.root,
            evidence=evidence,
            task=rollout.task.name,
            instruction=prompt_of(rollout.task, self.step),
            workspace=rollout.ref.workdir,
            workbench=workbench,
            judge=self.judge(transcripts),
            state=lambda node: world_after(paths, self.step.name),
            diff=lambda node: change_after(paths, self.step.name),
            findings=findings,
        )
        return nodes_of(tree, before + own, about)[nodes[-1].id]

    def hardening(self) -> HardeningReport | None:
        """Return the report of the step's hardening; None where nothing was hardened."""
        return hardening_after(self.rollout.paths, self.step.name)


async def verify(rollout: Hosted, work: VerifyInput) -> VerifyResult:
    """Score the state that a step led to. Processes that the agent left running end."""
    step, scored = work.step, ScoredStep(rollout, work.step)

    async def scorers(open: Open, verifier: ScriptVerifier) -> VerifyResult:
        task, config = rollout.task, scored.config
        bench = SandboxWorkbench(open, verifier, scored.logs)
        node = await asyncio.to_thread(scored.node, scored.evidence, bench, rollout.paths.judge(step.name))
        now = datetime.now(UTC)
        return await score(
            node,
            lambda: output_of(node, task, config, step=step.name, now=now),
            table_of(task, step.name),
            now=now,
            reward_range=config.reward_range,
            file=f"{task.name}/{task.config_file}",
            allowed=rollout.spec.run.allow_code,
        )

    async with explaining_losses(rollout.sandbox):
        evidence, notes = await scored.settle(work)
        result = await scored.score(scored.verifier(evidence), work.run_id, scored.evidence, scorers)
    if rollout.spec.run.branch is not None:
        require_scalar(result, "a rollout that branches")
    if isinstance(step.min_reward, int | float):
        require_scalar(result, "min_reward", of_only_key=False)
    if not result.is_scored:
        raise RewardFuncError(result.error or "the reward could not be made of what was measured")
    report = await asyncio.to_thread(scored.hardening)
    rule, reward_range = rollout.spec.run.on_tampering, scored.config.reward_range
    result = apply_rule(result, report, rule, reward_range=reward_range, now=datetime.now(UTC))
    await asyncio.to_thread(write_rewards, rollout.paths, step.index, result.events)
    warnings = list(dict.fromkeys([*notes, *result.warnings]))
    metadata = result.metadata | hardening_metadata(report)
    return without_events(result.model_copy(update={"warnings": warnings, "metadata": metadata}))


async def preview(rollout: Hosted, work: SoftVerifyInput) -> VerifyResult:
    """Return the verifier's result for the world as it is, between turns. Nothing ends, and nothing of it stays."""
    scored, root = ScoredStep(rollout, work.step), rollout.paths.root / "soft" / str(work.number)
    evidence, shown = root / "evidence", None
    # Of an attempt that a crash cut off.
    await thaw(rollout.sandbox, rollout.paths.root)
    world = await rollout.world()
    if world is not None and not has_ended_world(rollout):
        shown, _ = await keep_state(rollout, world, f"soft-{work.number}", work.baseline)
    verifier = replace(scored.verifier(shown), key=f"soft-{work.number}")
    await scored.keep_inputs(evidence)
    if scored.has_clean_room:
        await scored.keep_for_room(evidence)

    async def scorers(open: Open, verifier: ScriptVerifier) -> VerifyResult:
        bench = SandboxWorkbench(open, verifier, root / "verifier", soft=not scored.has_clean_room)
        node = await asyncio.to_thread(scored.node, evidence, bench, root / "judge")
        return await output_of(node, rollout.task, scored.config, step=work.step.name, now=datetime.now(UTC))

    return without_events(await scored.score(verifier, work.run_id, evidence, scorers))


async def _given(sandbox: Sandbox) -> Sandbox:
    return sandbox
