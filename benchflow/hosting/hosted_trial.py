"""Try a world on this host: check in a sandbox of its own that the world does what its manifest declares."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchflow.contracts import ids
from benchflow.contracts.activities import RolloutPlan
from benchflow.contracts.images import ImageRef
from benchflow.contracts.rescoring import AgentlessScore
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout_records import Step, StepOutcome, TurnResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import ImagePullError
from benchflow.host import SlotOwner
from benchflow.host_files import write_atomic
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_world import make_entrypoint_env
from benchflow.hosting.interruption import is_cancelled
from benchflow.hosting.oracle import run_oracle
from benchflow.hosting.provisioning import make_sandbox_labels
from benchflow.paths import TRIAL_FILE, TRIAL_STEP
from benchflow.planes.environment.exports import EnvironmentCheck, Setting, find_verifier_urls, parse_post, try_world
from benchflow.results.write import begin_run

ORACLE_SEC = 600.0
"""Timeout of an oracle that has none of its own, in seconds."""

WORLD_SEC = 1800.0
"""Seconds for a trial beside its image builds, setup commands, oracles and readiness."""


class HostedTrial:
    """The trial of a rollout's world, for one run of its workflow."""

    def __init__(self, rollout: Hosted, run_id: str) -> None:
        """Make it.

        Args:
            rollout: The rollout, with its task read; its spec has a world and a trial.
            run_id: Run id of the first run of the rollout's workflow, which names the sandbox.
        """
        environment, trial = rollout.spec.task.environment, rollout.spec.trial
        assert environment is not None and trial is not None
        self._rollout = rollout
        self._environment = environment
        self._trial = trial
        self._owner = SlotOwner(rollout.spec.id, run_id)
        self._name = ids.sandbox_name(rollout.host.stack, run_id, rollout.task.name, 0)

    def plan(self) -> RolloutPlan:
        """Return a plan without steps, with the timeout of the trial."""
        task, manifest = self._rollout.task, self._environment.manifest
        oracle_sec = (task.oracle.timeout_sec or ORACLE_SEC) * len(self._oracles)
        setup_sec = sum(command.timeout_sec for command in task.sandbox.setup_commands)
        limit_sec = 2 * task.sandbox.build_timeout_sec + 4 * manifest.readiness.timeout_sec + WORLD_SEC
        return RolloutPlan(steps=[], scoring_timeout_sec=limit_sec + oracle_sec + 2 * setup_sec)

    async def run(self) -> AgentlessScore:
        """Try the world in a slot of this host, write the findings to `TRIAL_FILE`, and return their counts as a score.

        Meanwhile `TRIAL_STEP` has the name of the current check. A retry removes the sandboxes of the earlier attempt,
        and tries the world from the beginning.

        Returns:
            A score with one step, whose items count the outcomes `holds`, `fails` and `unproven`.

        Raises:
            HostFullError: No slot became free in time.
        """
        rollout, provider = self._rollout, self._rollout.provider
        paths = await asyncio.to_thread(rollout.make_results_directory)
        identity = {"run_id": self._owner.run, "generation": 0} | rollout.spec.model_dump(mode="json")
        await asyncio.to_thread(begin_run, paths, identity)
        await rollout.host.slots.wait(self._name, attempt=0, owner=self._owner)

        def show(what: str) -> None:
            write_atomic(paths.root / TRIAL_STEP, what.encode(), durable=False)

        try:
            for name in (self._name, f"{self._name}-copy"):
                await provider.remove(name)
            await provider.remove_snapshots(f"{self._name}-")
            with rollout.redact_errors():
                found = await try_world(self.make_setting(), show)
        except BaseException as error:
            # A worker that merely stops leaves the slot to the next attempt.
            if not isinstance(error, asyncio.CancelledError) or is_cancelled():
                rollout.host.slots.free(self._name)
            raise
        rollout.host.slots.free(self._name)
        text = rollout.redact.within(found.model_dump(mode="json"))
        found = EnvironmentCheck.model_validate(text)
        await asyncio.to_thread(write_atomic, paths.root / TRIAL_FILE, found.model_dump_json(indent=2).encode() + b"\n")
        outcomes = [finding.outcome for finding in found.findings]
        counts = {outcome: float(outcomes.count(outcome)) for outcome in ("holds", "fails", "unproven")}
        step = Step(index=0, agent=rollout.spec.agent.name)
        scored = StepOutcome(
            step=step, turn=TurnResult(stop_reason="end_turn"), verify=VerifyResult(reward=None, items=counts)
        )
        return AgentlessScore(steps=[scored])

    def make_setting(self) -> Setting:
        """Return the setting of the trial: the world, its sandbox, and the oracles that change its state."""
        rollout, manifest, task = self._rollout, self._environment.manifest, self._rollout.task
        owner_labels = make_sandbox_labels(rollout.host.stack, rollout.spec, self._owner, 0)
        declared = manifest.state.observe if manifest.state is not None else ()
        has_task, directory = self._trial.has_task, rollout.directory
        return Setting(
            manifest=manifest,
            source=self._environment.source,
            provider=rollout.provider,
            build=self._prepare_image,
            wanted=rollout.blueprint.make_spec(self._name, ImageRef(reference=""), owner_labels),
            task=task.name,
            env=rollout.make_env() | rollout.secrets.forwarded(manifest),
            secrets=make_entrypoint_env(rollout),
            prepare=self._set_up if has_task else None,
            posts=tuple(parse_post(post) for post in self._trial.posts),
            observe=declared or (find_verifier_urls(manifest, task, directory) if has_task else ()),
            is_declared=bool(declared),
            has_task=has_task,
            solve=self._solve if self._oracles else None,
            paths=rollout.host.paths,
        )

    async def _prepare_image(self) -> ImageRef:
        """Return the image that a rollout's sandbox would start from; without a task, the manifest's image."""
        blueprint, manifest = self._rollout.blueprint, self._environment.manifest
        if self._trial.has_task:
            return await blueprint.prepare_image()
        try:
            return await blueprint.provider.build(await blueprint.make_world_config(self._environment))
        except ImagePullError as error:
            error.file = self._environment.source
            error.key = "environment.image" if manifest.image is not None else "environment.base_image"
            raise

    async def _set_up(self, sandbox: Sandbox) -> None:
        """Run the task's setup commands, as a rollout does before its world is started."""
        await self._rollout.blueprint.set_up(sandbox, self._rollout.make_env(), self._rollout.secrets)

    @property
    def _oracles(self) -> list[Path]:
        """Return the directories of the task's oracles, one per step; empty without a task."""
        if not self._trial.has_task:
            return []
        task, directory = self._rollout.task, self._rollout.directory
        found = [task.oracle_dir_of(step.name) for step in task.steps] if task.steps else [task.oracle_dir]
        return [directory / source for source in found if source is not None]

    async def _solve(self, sandbox: Sandbox) -> str:
        """Run the task's oracles, step by step until one fails, and return a sentence about how that ended."""
        task = self._rollout.task
        for number, source in enumerate(self._oracles):
            turn, _ = await run_oracle(
                sandbox,
                key=f"oracle-{number}",
                source=source,
                target="/solution" if source.name == "solution" else "/oracle",
                env=self._rollout.make_env(task.oracle.env),
                timeout=task.oracle.timeout_sec or ORACLE_SEC,
            )
            if turn.failure is not None:
                return f"the oracle of {task.name} was run: {turn.failure.message}"
        return f"the oracle of {task.name} was run"
