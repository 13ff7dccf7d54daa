"""A step of a stored rollout as it is scored again: its verifier, and what that wrote at first."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchflow.contracts.reward import LENIENT_VARIABLE, VerifyResult
from benchflow.contracts.rollout import StepOutcome
from benchflow.contracts.task import Task
from benchflow.errors import VerifierError
from benchflow.paths import StatePaths
from benchflow.planes.agent.registry import record_for
from benchflow.planes.reward.hardening import HardeningBaseline, read_baseline
from benchflow.planes.reward.verifier_end import read_result
from benchflow.planes.reward.verify import ScriptVerifier, config_of, verifier_of
from benchflow.planes.sandbox import get_provider
from benchflow.rescoring.record import Ran
from benchflow.rescoring.sandboxes import Room, Setting
from benchflow.rescoring.stored import StoredRollout
from benchflow.rescoring.tasks import FoundTask
from benchflow.secrets import Redactor, Secrets, agent_references, references
from benchflow.tasks import verified_in

UNPINNED = (
    "nothing is known of the sandbox before its agent acted, because the rollout is from before that was kept: the "
    "environment of its verifier is not pinned, as it was not then"
)
_KEEP = "submit with --keep workspace, so that verifiers can be run again"


@dataclass
class Place:
    """task: finds what the step is scored by now; recorded: what it was scored by at first. logs: for what a verifier
    leaves. is_trusted: the kept workspace is taken to be all that verifiers read.

    ran: how the verifier's part was had, once it was; warnings: about that.
    """

    rollout: StoredRollout
    outcome: StepOutcome
    task: Callable[[], Awaitable[FoundTask]]
    recorded: Callable[[], Awaitable[FoundTask]]
    logs: Path
    secrets: Secrets
    state: StatePaths
    sandbox: str | None = None
    is_trusted: bool = False
    ran: Ran | None = field(default=None, init=False)
    warnings: list[str] = field(default_factory=list, init=False)

    @property
    def step(self) -> str | None:
        return self.outcome.step.name

    @property
    def workspace(self) -> Path | None:
        return self.rollout.workspace(self.step)

    @property
    def baseline(self) -> HardeningBaseline | None:
        """The first sandbox before its agent acted; None for a rollout from before that was kept."""
        return read_baseline(self.rollout.paths.evidence(self.step))

    def is_same(self, found: FoundTask) -> bool:
        """Whether a task is the one that the rollout was scored by at first."""
        return found.digest == self.rollout.result.task_digest

    def as_run(self, found: FoundTask) -> Task:
        """Return a task as the rollout's job has it verified."""
        run = self.rollout.spec.run
        return verified_in(found.task, run.verify_in, run.reward_key)

    @property
    def _is_lenient(self) -> bool:
        return self.rollout.spec.run.reward_lenient or os.environ.get(LENIENT_VARIABLE) == "1"

    def redactor(self, task: Task) -> Redactor:
        """Takes out of what comes back what the task and the agent were given by name."""
        named = {*references(task), *agent_references(self.rollout.spec.agent)}
        world = self.rollout.spec.task.environment
        return self.secrets.redactor(named | set(world.manifest.forward_env.keys if world else ()))

    def setting(self, found: FoundTask) -> Setting:
        provider = get_provider(self.sandbox or self.rollout.spec.run.sandbox)
        return Setting(self.rollout, found, self.step, provider, self.secrets, self.state)

    def verifier(self, found: FoundTask, setting: Setting, room: Room) -> ScriptVerifier:
        """A task's verifier, as at the first scoring. room: that it runs in, if it has one."""
        task = self.as_run(found)
        env = setting.env(config_of(task, self.step))
        verifier = verifier_of(
            task,
            found.directory,
            self.step,
            key=f"verify-{self.outcome.step.index}",
            env=env,
            trusted=record_for(self.rollout.spec.agent).protocol == "oracle",
            clean=self.redactor(task).clean_below,
            evidence=self.rollout.state(self.step),
            baseline=self.baseline,
            has_workdir=self.rollout.result.sandbox.get("has_workdir", True),
            is_lenient=self._is_lenient,
        )
        if not setting.has_clean_room:
            return verifier
        return verifier.alone(env, room)

    # --- the first scoring ---------------------------------------------------------------------------

    @property
    def has_first(self) -> bool:
        """Whether what the verifier wrote at the first scoring is there, and counted."""
        logs = self.rollout.paths.verifier_of(self.step)
        written = any((logs / name).is_file() for name in ("reward.txt", "reward.json"))
        return written and self.outcome.verify is not None

    def first(self, recorded: FoundTask) -> VerifyResult:
        """What the verifier said at the first scoring, read again. Raises `VerifierError` where it is not a reward."""
        task = self.as_run(recorded)
        return read_result(
            self.rollout.paths.verifier_of(self.step),
            config=config_of(task, self.step),
            document=task.verifier_document,
            rubrics=task.rubrics,
            # How it ended was told by the warnings of the first scoring.
            exit_code=0,
            is_split=task.layout == "split",
            is_lenient=self._is_lenient,
        )

    def nothing_kept(self, found: FoundTask | None = None) -> VerifierError:
        """Why nothing can be run."""
        why = "the workspace of this rollout was not kept"
        if found is not None and not self.is_same(found):
            why += ", and the task is not the one that it was scored by"
        elif found is not None:
            why += ", and what its verifier wrote is not there"
        return VerifierError(
            f"{why}: the verifier cannot be run again", file=str(self.rollout.paths.root), remedy=_KEEP
        )
