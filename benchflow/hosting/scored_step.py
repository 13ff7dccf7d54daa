"""One step that is scored on this host: what is kept of the sandbox once the agent has acted, and where scorers run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchflow.contracts import ids
from benchflow.contracts.activities import VerifyInput
from benchflow.contracts.base import Model
from benchflow.contracts.reward import (
    Judge,
    RolloutNode,
    VerifyResult,
    Workbench,
)
from benchflow.contracts.rollout_records import Step
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.task import ArtifactSpec
from benchflow.contracts.verifier import VerifierConfig
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import BenchFlowError, VerifierError, VerifierTimeoutError
from benchflow.host import SlotOwner
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.hosting.agent_baseline import read_agent_baseline
from benchflow.hosting.agent_memory import store_step_memory
from benchflow.hosting.clean_room import CleanRoom, pack_for_room, room_notes
from benchflow.hosting.fidelity import Fidelity, read_fidelity
from benchflow.hosting.freezing import freeze_meanwhile, thaw
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_agent import HostedAgent
from benchflow.hosting.hosted_world import end_world, has_ended_world, store_logs, store_state
from benchflow.hosting.out_of_memory import make_verifier_note
from benchflow.hosting.provisioning import make_sandbox_labels
from benchflow.hosting.room_base import has_same_base, read_room_base
from benchflow.hosting.room_trial import RoomTrial
from benchflow.hosting.step_node import make_step_node
from benchflow.hosting.step_report import StepReport
from benchflow.hosting.verifier_files import SETTLED
from benchflow.hosting.verifier_place import VerifierPlace, choose_place, note_outside
from benchflow.paths import make_state_label
from benchflow.planes.reward.evidence import list_inputs, store_inputs, store_workspace
from benchflow.planes.reward.hardening import HardeningBaseline, harden
from benchflow.planes.reward.hardening.foundation import CLEAN_ROOM
from benchflow.planes.reward.hardening.hardening_record import HardeningRecord
from benchflow.planes.reward.hardening.strangers import list_unaltered_strangers, translate_kill_errors
from benchflow.planes.reward.inputs import find_config
from benchflow.planes.reward.judge.model_judge import JudgeByKey
from benchflow.planes.reward.needs import HARDEN_SEC
from benchflow.planes.reward.sandbox_workbench import SandboxWorkbench
from benchflow.planes.reward.strategy import verify as output_of
from benchflow.planes.reward.verify import ScriptVerifier, make_verifier
from benchflow.planes.sandbox.timeouts import awake_timeout

Open = Callable[[], Awaitable[Sandbox]]
Scorers = Callable[[Open, ScriptVerifier], Awaitable[VerifyResult]]
"""Scores with a sandbox to be opened, and the verifier as it runs there."""


class Settled(Model):
    """State of a step whose agent has ended, and whose verifier is to begin."""

    state: Path | None = None
    """The world's state that it is shown."""

    notes: list[str] = []
    """Warnings."""

    place: VerifierPlace = VerifierPlace()
    """Where it runs."""


@dataclass(frozen=True)
class ScoredStep:
    """A step that is scored on the host of its sandbox."""

    rollout: Hosted
    step: Step

    @property
    def config(self) -> VerifierConfig:
        """Configuration of the step's verifier."""
        return find_config(self.rollout.task, self.step.name)

    @property
    def is_trusted(self) -> bool:
        """Whether the oracle acted, whose services may stay."""
        return self.rollout.record.protocol == "oracle"

    @property
    def report(self) -> StepReport:
        """Report of the step's hardening."""
        return StepReport(self.rollout, self.step.name, self.is_trusted)

    @property
    def evidence(self) -> Path:
        """Directory of what was kept for scoring."""
        return self.rollout.paths.evidence(self.step.name)

    @property
    def baseline(self) -> HardeningBaseline | None:
        """Baseline of the sandbox before the agent acted; None if nobody has. Raises `VerifierError` if it is gone."""
        return read_agent_baseline(self.rollout, self.step.name)

    @property
    def logs(self) -> Path:
        """Directory of what the verifier leaves."""
        return self.rollout.paths.verifier_of(self.step.name)

    @property
    def inputs(self) -> list[str]:
        """Paths in the sandbox that the step's scorers read."""
        rollout = self.rollout
        workspace, allowed = rollout.ref.workdir, rollout.spec.run.allow_code
        return list_inputs(rollout.task, self.config, self.step.name, workspace=workspace, allowed=allowed)

    @property
    def provider(self) -> SandboxProvider:
        """Provider of the sandbox."""
        return self.rollout.blueprint.provider

    @property
    def trial(self) -> RoomTrial | None:
        """Trial of a clean room that this rollout is to make: an oracle's, if its job asks for it."""
        config, spec = self.config, self.rollout.spec
        task = spec.task.digest, self.rollout.ref.provider, self.step.name
        is_wanted = spec.run.try_clean_room and self.is_trusted and config.type == "test-script"
        if not is_wanted or spec.branch is not None or not self.has_rooms:
            return None
        return RoomTrial(self.evidence / "trial", task)

    @property
    def _fidelity(self) -> Fidelity | None:
        return read_fidelity(self.rollout.spec.task.digest, self.rollout.ref.provider, self.step.name)

    def make_fidelity_metadata(self) -> dict[str, object]:
        """Return the metadata of an oracle's result about the clean room."""
        known = self._fidelity
        if known is None or not self.is_trusted:
            return {}
        return {"clean_room": known.model_dump(mode="json") | {"is_faithful": known.is_faithful}}

    @property
    def has_rooms(self) -> bool:
        """True if the provider has clean rooms."""
        return self.provider.capabilities().lockdown == "clean_room"

    # --- what it leaves to be scored --------------------------------------------------------------------------

    async def settle(self, work: VerifyInput) -> Settled:
        """End the agent, record the world's state, and keep the evidence: once, before the verifier begins."""
        rollout, sandbox = self.rollout, self.rollout.sandbox
        shown = rollout.paths.state(self.step.name)
        done = self.evidence / SETTLED
        if done.is_file():
            kept = json.loads(done.read_bytes())
            # An earlier version kept the warnings alone.
            record = {"notes": kept, "place": self._asked_place} if isinstance(kept, list) else kept
            return Settled(state=shown if shown.is_dir() else None, **record)
        world = await rollout.open_world()
        if world is not None and not has_ended_world(rollout):
            # First of all: where it was the sandbox's own process, all else would fail for want of it.
            await world.check()
        # What has lost its parent is no part of the agent any more, whose end is no finding.
        left = [process.command for process in await list_unaltered_strangers(sandbox) if process.parent == 1]
        if work.session is not None:
            with translate_kill_errors():
                await HostedAgent(rollout).end(work.session, kill=self.config.hardening.kill_processes)
        record = await self._harden(left)
        evidence, notes = await self._end_world(work, world) if world is not None else (None, [])
        notes += await self.make_verifier(evidence).settle(sandbox, self.logs)
        place, outside = await self._choose_place()
        if record.unsafe and not place.is_separate:
            raise VerifierError(record.unsafe, remedy=CLEAN_ROOM)
        if not place.is_separate and not self.is_trusted and self.config.hardening.verify_tools:
            self.report.add(await note_outside(sandbox, self.baseline, self._room_paths, outside, record.listing))
        notes += await self._store_evidence(work, place)
        settled = Settled(state=evidence, notes=notes, place=place)
        with raise_storage_errors(done):
            done.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(done, settled.model_dump_json(exclude={"state"}).encode(), durable=False)
        return settled

    async def _choose_place(self) -> tuple[VerifierPlace, list[str] | None]:
        return await choose_place(
            self.rollout.sandbox,
            self.config,
            self._fidelity,
            self.baseline,
            self._room_paths,
            has_rooms=self.has_rooms,
        )

    @property
    def _asked_place(self) -> VerifierPlace:
        """Where the verifier runs, as far as the task and the job say."""
        return VerifierPlace(is_separate=self.config.sandbox_mode == "separate")

    async def _harden(self, left: Sequence[str]) -> HardeningRecord:
        """Harden the sandbox for the verifier, and record what was found, also where that fails.

        left: Commands that the agent has left running.
        """
        sandbox, config, record = self.rollout.sandbox, self.config, HardeningRecord()
        verifier, baseline = self.make_verifier(None), self.baseline
        if baseline is None:
            # A step whose agent had no prompt, or a rollout that began before there were baselines.
            await verifier.end_agent(sandbox)
            return record
        trusted, items = self.is_trusted, config.hardening
        try:
            async with awake_timeout(HARDEN_SEC):
                report = await harden(
                    sandbox,
                    baseline,
                    items,
                    verifier=verifier.user,
                    trusted=trusted,
                    left=left,
                    record=record,
                    plugins=config.pytest_plugins,
                )
        except TimeoutError as error:
            self.report.add(record.findings)
            raise VerifierTimeoutError(
                f"the sandbox could not be made ready for the verifier in {HARDEN_SEC:g} s",
                remedy="see what the agent has left in it: very many files, or very deep directories",
            ) from error
        except BenchFlowError:
            self.report.add(record.findings)
            raise
        own = sorted(verifier.pin_env(sandbox).keys() & verifier.env.keys())
        self.report.write(report.model_copy(update={"own_env": own}))
        return record

    async def _end_world(self, work: VerifyInput, world: StatefulEnvironment) -> tuple[Path | None, list[str]]:
        rollout = self.rollout
        if has_ended_world(rollout):
            await end_world(rollout, world)
            kept = rollout.paths.state(self.step.name)
            return kept if kept.is_dir() else None, []
        evidence, notes = await store_state(rollout, world, make_state_label(self.step.name), work.baseline)
        if work.is_last and not world.keep_alive:
            notes += await store_logs(world, rollout.paths)
            await end_world(rollout, world)
        return evidence, notes

    async def _store_evidence(self, work: VerifyInput, place: VerifierPlace) -> list[str]:
        """Keep what scorers read, and what scoring again takes. Returns warnings."""
        run, sandbox = self.rollout.spec.run, self.rollout.sandbox
        notes = await self.store_inputs(self.evidence)
        await store_step_memory(self.rollout, self.step, work.session, "after")
        if run.keep in ("workspace", "checkpoints"):
            notes += await store_workspace(sandbox, self.evidence, limit_bytes=run.keep_max_mb * 1024 * 1024)
        if place.is_separate:
            notes += await self.pack_for_room(self.evidence)
        elif (trial := self.trial) is not None:
            await trial.pack(self.pack_for_room)
        return notes

    async def store_inputs(self, evidence: Path) -> list[str]:
        """Keep what scorers read, without secrets. Returns warnings."""
        limit_bytes = self.rollout.spec.run.keep_max_mb * 1024 * 1024
        notes = await store_inputs(self.rollout.sandbox, self.inputs, evidence, limit_bytes=limit_bytes)
        self.rollout.redact.clean_below(evidence / "inputs")
        return notes

    async def pack_for_room(self, evidence: Path) -> list[str]:
        """Keep the workspace, and what goes into the clean room beside it. Returns warnings."""
        return await pack_for_room(self.rollout.sandbox, self._room_artifacts, evidence)

    @property
    def _room_paths(self) -> list[str]:
        """Paths that go into a clean room beside the workspace."""
        return [artifact.source for artifact in self._room_artifacts]

    @property
    def _room_artifacts(self) -> list[ArtifactSpec]:
        """Artifacts that go into a clean room beside the workspace."""
        task = self.rollout.task
        own = [artifact for step in task.steps if step.name == self.step.name for artifact in step.artifacts]
        return [*task.artifacts, *own, *(ArtifactSpec(source=path) for path in self.inputs)]

    # --- scoring it -------------------------------------------------------------------------------------------

    def make_verifier(self, evidence: Path | None) -> ScriptVerifier:
        """Return the task's own verifier, as it runs in the sandbox. evidence: the world's state that it is shown."""
        rollout = self.rollout
        return make_verifier(
            rollout.task,
            rollout.directory,
            self.step.name,
            key=f"verify-{self.step.index}",
            env=rollout.make_env(self.config.env),
            trusted=self.is_trusted,
            clean=rollout.redact.clean_below,
            evidence=evidence,
            baseline=self.baseline,
            kills=make_verifier_note(rollout, self.step.index),
            report=self.report.add,
            has_workdir=rollout.ref.has_workdir,
            is_lenient=rollout.spec.run.reward_lenient,
        )

    async def score(
        self,
        verifier: ScriptVerifier,
        run_id: str,
        evidence: Path,
        scorers: Scorers,
        place: VerifierPlace,
        *,
        is_last: bool = False,
    ) -> VerifyResult:
        """Return what the scorers give the step, at their place, without secrets.

        Args:
            verifier: The task's own, as it runs in the agent's sandbox.
            run_id: First run of the rollout's workflow.
            evidence: Where the work that travels was kept.
            scorers: What scores.
            place: Where.
            is_last: Whether nothing is done in the agent's sandbox afterwards.
        """
        rollout = self.rollout

        async def redacted(open: Open, verifier: ScriptVerifier) -> VerifyResult:
            with rollout.redact_errors():
                return rollout.redact.result(await scorers(open, verifier))

        if place.is_separate:
            room = self.make_room(verifier.key, run_id, evidence)
            alone = self.make_room_verifier(verifier, room)
            result = await self._score_in_room(room, lambda opened: redacted(opened, alone), is_last=is_last)
        else:
            result = await redacted(partial(_return_sandbox, rollout.sandbox), verifier)
        return result.model_copy(update={"metadata": {**result.metadata, **place.metadata}})

    def make_room_verifier(self, verifier: ScriptVerifier, room: CleanRoom) -> ScriptVerifier:
        """Return a verifier as it runs in a clean room."""
        return verifier.isolate(self.rollout.make_env(self.config.env, task=room.blueprint.task), room.load_baseline)

    def make_room(self, key: str, run_id: str, evidence: Path) -> CleanRoom:
        """Return the clean room of a verifier. key: the verifier's; evidence: where the work that travels is kept."""
        rollout, ref, step = self.rollout, self.rollout.ref, self.step.name
        blueprint = rollout.blueprint.adapt_to_verifier(step, self.config, ref.workdir)
        # A child's sandbox began with what its parent's agent had left.
        is_alike = has_same_base(rollout.task, step, self.config) and rollout.spec.branch is None
        return CleanRoom(
            blueprint,
            ids.clean_room_name(ref.name, run_id, key),
            make_sandbox_labels(rollout.host.stack, rollout.spec, SlotOwner(rollout.spec.id, run_id), ref.generation),
            ref.model_dump(include={"host_id", "queue", "generation"}),
            room_notes(evidence),
            evidence,
            rollout.make_env(task=blueprint.task),
            self.config.user,
            rollout.secrets,
            rollout.spec.run.sandbox_setup_timeout,
            base=read_room_base(rollout) if is_alike else None,
            # Before a step there is what its setup, and the steps before it, have left.
            known=self.baseline if is_alike and step is None else None,
        )

    async def _score_in_room(
        self, room: CleanRoom, verify: Callable[[Open], Awaitable[VerifyResult]], *, is_last: bool
    ) -> VerifyResult:
        """Run a verifier in a clean room, in the slot of its rollout, whose own sandbox is frozen meanwhile.

        Where the room stays for another attempt, that one stays frozen, and where it is not used again: what collects
        from it thaws it, once the room is gone.
        """
        sandbox, results = self.rollout.sandbox, self.rollout.paths.root
        try:
            async with freeze_meanwhile(sandbox) as frozen:

                async def opened() -> Sandbox:
                    found = await room.open()
                    await frozen
                    return found

                result = await room.run_once(lambda: verify(opened))
        except BenchFlowError as error:
            if not error.retryable:
                await thaw(sandbox, results)
            raise
        if not is_last:
            await thaw(sandbox, results)
        return result

    async def measure_alone(self, room: CleanRoom, verifier: ScriptVerifier) -> VerifyResult:
        """Return what the task's own verifier reports in a clean room, and no other scorer."""
        bench = SandboxWorkbench(room.open, verifier, self.evidence / "trial" / "verifier")
        node = await asyncio.to_thread(self.make_node, self.evidence, bench, self.evidence / "trial" / "judge")
        return await output_of(node, self.rollout.task, self.config, step=self.step.name, now=datetime.now(UTC))

    def make_judge(self, transcripts: Path) -> Judge:
        """Return the judge of the step. transcripts: directory of what it is asked, and answers."""
        rollout = self.rollout
        given = rollout.secrets.resolve(self.config.env)
        return JudgeByKey(
            rollout.spec.run.judge,
            lambda name: given.get(name) or rollout.secrets.value(name),
            transcripts,
            rollout.redact.cut,
        )

    def make_node(self, evidence: Path, workbench: Workbench, transcripts: Path) -> RolloutNode:
        """Return the node that scorers read. transcripts: directory of what the judge is asked, and answers."""
        return make_step_node(self.rollout, self.step, evidence, workbench, self.make_judge(transcripts))


async def _return_sandbox(sandbox: Sandbox) -> Sandbox:
    return sandbox
