"""A step of a stored rollout that is scored again: its retained work, its first score, and its verifier's rooms."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchflow.contracts import ids
from benchflow.contracts.job_retries import TAMPERING
from benchflow.contracts.rescoring import Ran
from benchflow.contracts.reward import LENIENT_VARIABLE, HardeningFinding, HardeningReport, VerifyResult
from benchflow.contracts.rollout_records import StepOutcome
from benchflow.contracts.run_settings import RunSettings
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import BenchFlowError, VerifierError
from benchflow.host import SlotOwner
from benchflow.hosting.clean_room import CleanRoom
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.provisioning import make_sandbox_labels
from benchflow.hosting.step_report import redact_report
from benchflow.planes.reward.hardening import HardeningBaseline, read_baseline
from benchflow.planes.reward.hardening.hardening_record import extend_report
from benchflow.planes.reward.inputs import find_config
from benchflow.planes.reward.verifier_end import read_result
from benchflow.planes.reward.verify import ScriptVerifier, make_verifier
from benchflow.results.stored_rollouts import StoredRollout
from benchflow.tasks import require_supported
from benchflow.trajectories.nodes import read_hardening

UNPINNED = (
    "nothing is known of the sandbox before its agent acted, because the rollout is from before that was kept: the "
    "environment of its verifier is not pinned, as it was not then"
)
_KEEP = "submit with --keep workspace, so that verifiers can be run again"

Find = Callable[[], Awaitable[Hosted]]
"""Returns the rollout with its task read. Raises `TaskError` if the task may not be used, or can't be had."""


@dataclass
class StoredStep:
    """A step of a stored rollout that is scored again."""

    stored: StoredRollout
    """The stored rollout."""

    outcome: StepOutcome
    """Stored outcome of the step."""
    by: Find
    """Returns the rollout with the task that it is scored by now."""

    first_by: Find
    """Returns the rollout with the task of its first scoring."""

    logs: Path
    """Directory for the files that the verifier writes now."""

    notes: Path
    """Directory for the files of its rooms, one below it for each room."""

    labels: Callable[[Hosted], dict[str, str]]
    """Returns the labels of its rooms."""

    owner: SlotOwner
    """Workflow whose end frees its rooms and their slots."""

    is_trusted: bool = False
    """Whether it is taken on trust that verifiers read nothing but the retained workspace."""

    ran: Ran | None = field(default=None, init=False)
    """Source of the verifier's result: its script `ran` again, or its `stored` output was read. None before."""

    warnings: list[str] = field(default_factory=list, init=False)
    """Warnings of the scoring so far; they may hold secrets."""

    found: list[HardeningFinding] = field(default_factory=list, init=False)
    """Hardening findings of its verifier when that is run again."""

    @property
    def step(self) -> str | None:
        """Name of the step; None for the only one."""
        return self.outcome.step.name

    @property
    def workspace(self) -> Path | None:
        """Return the archive of the retained workspace; None if it was not retained. Raises `ResultFileError`."""
        return self.stored.workspace(self.step)

    @property
    def baseline(self) -> HardeningBaseline | None:
        """Return the stored baseline of the agent's sandbox; None in a rollout from before baselines were stored."""
        return read_baseline(self.stored.paths.evidence(self.step))

    def is_same(self, rollout: Hosted) -> bool:
        """Return whether the rollout's task has the digest of the first scoring's."""
        return rollout.spec.task.digest == self.stored.result.task_digest

    def find_config(self, rollout: Hosted) -> VerifierConfig:
        """Return the configuration of the step's verifier."""
        return find_config(rollout.task, self.step)

    def has_clean_room(self, rollout: Hosted) -> bool:
        """Return whether the verifier is configured to run in a clean room, not where the agent worked."""
        return self.find_config(rollout).sandbox_mode == "separate"

    def _is_lenient(self, rollout: Hosted) -> bool:
        return rollout.spec.run.reward_lenient or os.environ.get(LENIENT_VARIABLE) == "1"

    # --- running the verifier again ---------------------------------------------------------------------------

    def make_room(self, rollout: Hosted, purpose: str = "") -> CleanRoom:
        """Return the room of the step's verifier, not yet opened: a clean room, or one like the agent's sandbox.

        Args:
            rollout: The rollout with the task to score by.
            purpose: Suffix of the room's name, by which several rooms of a step differ.
        """
        config, blueprint = self.find_config(rollout), rollout.blueprint
        is_clean = self.has_clean_room(rollout)
        if is_clean:
            blueprint = blueprint.adapt_to_verifier(self.step, config, self.stored.result.sandbox.get("workdir"))
        host, key = rollout.host, f"{self.stored.spec.chain}/verify-{self.outcome.step.index}{purpose}"
        base = ids.sandbox_name(host.stack, self.owner.run, rollout.task.name, 0)
        return CleanRoom(
            blueprint,
            ids.clean_room_name(base, self.owner.run, key),
            self.labels(rollout),
            {"host_id": host.host_id, "queue": host.queue},
            self.notes / f"{self.outcome.step.index}{purpose}",
            self.stored.paths.evidence(self.step),
            rollout.make_env(task=blueprint.task),
            config.user,
            rollout.secrets,
            rollout.spec.run.sandbox_setup_timeout,
            is_clean,
            on_removed=host.slots.free,
        )

    @asynccontextmanager
    async def open_room(self, rollout: Hosted, room: CleanRoom) -> AsyncIterator[Sandbox]:
        """Wait for a slot of this host, open a room for the block, and yield its sandbox; then remove it.

        If the block is interrupted or fails retryably, the room stays for the next attempt.

        Args:
            rollout: The rollout with the task to score by.
            room: The room, from `room`.

        Raises:
            VerifierError: No workspace was retained, or it can't be put into the room.
            UnsupportedFeatureError: The task asks for something that the sandbox lacks.
            MissingSecretError: A variable that the task needs is not set.
            HostFullError: No slot became free in time.
        """
        if self.workspace is None:
            raise self.make_no_workspace_error()
        require_supported(rollout.task, rollout.provider.capabilities())
        rollout.secrets.check(rollout.task)
        await rollout.host.slots.wait(room.name, attempt=0, owner=self.owner)
        try:
            async with room.remove_unless_retried():
                yield await room.open()
        except Exception as error:
            # An error that is not the engine's is a scorer's own, and recorded: no further attempt would use the room.
            if not isinstance(error, BenchFlowError):
                await room.remove()
            raise
        await room.remove()

    def make_verifier(self, rollout: Hosted, room: CleanRoom) -> ScriptVerifier:
        """Return a task's verifier with the evidence of the first scoring: state, baseline, workspace.

        Args:
            rollout: The rollout with the task to score by.
            room: Room in which it will run.
        """
        config = self.find_config(rollout)
        verifier = make_verifier(
            rollout.task,
            rollout.directory,
            self.step,
            key=f"verify-{self.outcome.step.index}",
            env=rollout.make_env(config.env),
            trusted=rollout.record.protocol == "oracle",
            clean=rollout.redact.clean_below,
            evidence=self.stored.state(self.step),
            baseline=self.baseline,
            has_workdir=self.stored.result.sandbox.get("has_workdir", True),
            is_lenient=self._is_lenient(rollout),
            report=self.found.extend,
        )
        if not room.is_clean:
            return verifier
        return verifier.isolate(rollout.make_env(config.env, task=room.blueprint.task), room.load_baseline)

    def make_hardening_report(self, rollout: Hosted) -> HardeningReport | None:
        """Return the stored report of the step's hardening, extended by the findings of now; None without either."""
        report = read_hardening(self.stored.paths, self.step)
        if not self.found:
            return report
        now = HardeningReport(findings=self.found)
        now = redact_report(now, rollout, is_trusted=rollout.record.protocol == "oracle")
        return extend_report(report or HardeningReport(), now.findings)

    # --- the first scoring ------------------------------------------------------------------------------------

    @property
    def has_first(self) -> bool:
        """Return whether the reward file of the first scoring is there, and was valid then."""
        logs = self.stored.paths.verifier_of(self.step)
        written = any((logs / name).is_file() for name in ("reward.txt", "reward.json"))
        failure = self.outcome.verifier_error
        # A reward that the job's rule withheld was measured: the same rule is applied to it again.
        is_withheld = failure is not None and failure.category == TAMPERING
        return written and (self.outcome.verify is not None or is_withheld)

    def read_first_result(self, rollout: Hosted) -> VerifyResult:
        """Return the result that the first scoring's reward file gives by the rollout's task.

        Args:
            rollout: The rollout with the task to score by.

        Raises:
            VerifierError: The file is no valid reward.
        """
        return read_result(
            self.stored.paths.verifier_of(self.step),
            config=self.find_config(rollout),
            document=rollout.task.verifier_document,
            rubrics=rollout.task.rubrics,
            # A nonzero exit status is among the warnings of the first scoring already.
            exit_code=0,
            is_split=rollout.task.layout == "split",
            is_lenient=self._is_lenient(rollout),
        )

    def make_no_workspace_error(self, rollout: Hosted | None = None) -> VerifierError:
        """Return, not raise, the error for a verifier that can't run again, because no workspace was retained.

        Args:
            rollout: The rollout with the task to score by, to say why the first result does not count; None for none.
        """
        why = "the workspace of this rollout was not kept"
        if rollout is not None and not self.is_same(rollout):
            why += ", and the task is not the one that it was scored by"
        elif rollout is not None:
            why += ", and what its verifier wrote is not there"
        return VerifierError(f"{why}: the verifier cannot be run again", file=str(self.stored.paths.root), remedy=_KEEP)


def make_labeller(run: SlotOwner) -> Callable[[Hosted], dict[str, str]]:
    """Return a function that returns the labels for the rooms of a rollout.

    Args:
        run: Workflow run whose end is the end of the rooms.
    """

    def labels(rollout: Hosted) -> dict[str, str]:
        # The deadline of the scoring is for a whole tree, and may be months; a room is for one step.
        limit_sec = min(rollout.spec.run.deadline_sec, RunSettings().deadline_sec)
        config = rollout.spec.run.model_copy(update={"deadline_sec": limit_sec})
        return make_sandbox_labels(rollout.host.stack, rollout.spec.model_copy(update={"run": config}), run, 0)

    return labels
