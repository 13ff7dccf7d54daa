"""Scoring stored rollouts again: which they are, what scores them, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.reward import JudgeRubric, VerifyResult
from benchflow.contracts.rollout import Failure, RewardKind, RolloutResult, StepOutcome

TaskOrigin = Literal["source", "store", "given"]
"""Where a task is taken from: the place it was submitted from, the store, or the directory that was given now."""


class StoredRef(Model):
    """A rollout that is to be scored again."""

    scoring: ArtifactRef
    """The `Scoring` in the store."""

    directory: str
    """Its results on the host where the job was submitted."""

    pack: ArtifactRef | None = None
    """The same in the store, for hosts of a cluster."""


class RescoringSpec(Model):
    """The part of a job's specification that makes it one that scores stored rollouts again."""

    digest: str
    """Digest of all that scores, which decides whether two scorings are the same."""

    scoring: ArtifactRef
    """The `Scoring` in the store."""

    rollouts: dict[int, str]
    """Directories of the stored rollouts, by their index in the job that ran them."""

    packs: dict[int, ArtifactRef] = {}
    """Their results in the store, for hosts of a cluster."""

    chosen: list[int] = []
    """Indices of the rollouts that the latest request is about; empty where an earlier version wrote it."""

    def stored(self, index: int) -> StoredRef:
        """Return the stored rollout of an index."""
        return StoredRef(scoring=self.scoring, directory=self.rollouts[index], pack=self.packs.get(index))


class GivenRubric(Model):
    """A rubric that scores instead of the tasks' own verifiers."""

    name: str
    """As it was given."""

    label: str
    """A short name, for names of directories."""

    digest: str
    """Digest of all that is known of it."""

    judge: JudgeRubric | None = None
    """Criteria of a judge, from a rubric file."""

    code: str | None = None
    """`module:object` with an `async def score(node)`."""

    code_root: str | None = None
    """Directory in which the module is looked for after the installed ones."""


Outcome = Literal["unchanged", "changed", "failed", "unmeasured"]
"""failed: it could not be scored now. unmeasured: it has no reward because of how it ended, now as before."""

Ran = Literal["ran", "stored"]
"""Whether a verifier's script was run again, or what it wrote at first was read again."""


class Change(Model):
    """A number before and after; None where there was, or is, none."""

    before: float | None
    after: float | None


class JudgeUse(Model):
    """Answers of judges that this scoring rests on. recorded: given at an earlier scoring to the very same question.

    tokens and cost_usd: of those that were asked now; cost_usd: None where a price is not known.
    """

    asked: int = 0
    recorded: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class StepScore(Model):
    """What was said of one step. name: None for a task without steps. verifier: None where no script was needed."""

    index: int
    name: str | None = None
    verify: VerifyResult | None = None
    verifier: Ran | None = None
    error: Failure | None = None


class RescoredRollout(Model):
    """A rollout's new score. scoring: names all that scored it. before, rewards: at first, and now.

    task_digest: of the task that it was scored by now, which came from `task_from`; recorded_digest: of the one
    that the agent was given. value: of a rollout that branched, what its reward is made of now; its children's records
    lie beside their own results.
    """

    rollout_name: str
    task_name: str
    agent: str
    model: str | None = None
    repeat: int = 0
    scoring: str
    recorded_digest: str
    task_digest: str | None = None
    task_from: Literal["source", "store", "given"] | None = None
    outcome: Outcome
    before: dict[str, float] | None = None
    rewards: dict[str, float] | None = None
    changes: dict[str, Change] = {}
    steps: list[StepScore] = []
    value: StateValue | None = None
    judge: JudgeUse | None = None
    error: Failure | None = None
    warnings: list[str] = []
    finished_at: datetime

    stored_finished_at: datetime | None = None
    """End of the stored result that was scored: a rollback gives the rollout another one. None: of before this field.
    """

    def is_of(self, result: RolloutResult) -> bool:
        """Return whether this is a score of that very result, and not of one from before a rollback."""
        return self.stored_finished_at in (None, result.finished_at)

    @property
    def agent_label(self) -> str:
        """Return `agent` or `agent:model`."""
        return f"{self.agent}:{self.model}" if self.model else self.agent

    @property
    def reward(self) -> float | None:
        return None if self.rewards is None else self.rewards.get("reward")

    @property
    def reward_before(self) -> float | None:
        return None if self.before is None else self.before.get("reward")

    @property
    def has_lost_return(self) -> bool:
        """Whether it had a return and can't be scored: then the returns of its siblings are no measure without it."""
        return self.reward_before is not None and self.outcome == "failed"

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to be done for it."""
        return self.outcome != "failed"

    @property
    def verifier(self) -> Ran | None:
        """How the verifier's part was had; `stored` as soon as one step's was."""
        kinds = {step.verifier for step in self.steps}
        return "stored" if "stored" in kinds else "ran" if "ran" in kinds else None


class OutcomeCounts(Model):
    """Rollouts by their outcome."""

    unchanged: int = 0
    changed: int = 0
    failed: int = 0
    unmeasured: int = 0


class MeanChange(Model):
    """The mean reward of an agent, at first and now, of its rollouts that have a reward in both."""

    agent: str
    """`agent` or `agent:model`."""

    reward_kind: RewardKind = "measured"
    """Whether the rewards were measured, or are the V(s) of rollouts that branched."""

    before: float
    """The mean at first."""

    after: float
    """The mean now."""

    n: int
    """Rollouts that both means are of."""


class Rescoring(Model):
    """A job scored again. name: of the directory that each rollout's new score lies in. rubric: that was given.

    tasks: the digest of what each of the job's tasks is scored by; None where there is none. mean_before, mean_after:
    those of `means`, where it has a single element: no mean is of several agents.
    """

    job: str
    name: str
    directory: str
    scoring: str
    rubric: str | None = None
    tasks: dict[str, str | None] = {}
    sandbox: str | None = None
    ask_again: bool = False
    counts: OutcomeCounts
    mean_before: float | None = None
    mean_after: float | None = None
    means: list[MeanChange] = []
    """By agent and kind of reward."""

    rollouts: list[RescoredRollout]

    @property
    def is_complete(self) -> bool:
        return not self.counts.failed


class AgentlessScore(Model):
    """What is scored without an agent: a stored rollout, or a world that is tried."""

    steps: list[StepOutcome] = []
    """The steps that count, with their new results."""

    outcomes: list[ChildOutcome] = []
    """All rollouts below it in its tree, with their new returns."""

    values: list[StateValue] = []
    """V(s) of all nodes where it branched."""

    value: StateValue | None = None
    """The V(s) that its reward is, of a rollout that ended in children."""

    outcome: Outcome | None = None
    """What became of a stored rollout; None for a world that is tried, and from a worker of an earlier version."""

    rewards: dict[str, float] | None = None
    """A stored rollout's new rewards. Where `outcome` is set, they alone count: its steps may lead to a child."""

    error: Failure | None = None
    """Why it has no reward."""

    warnings: list[str] = []
