"""Rescoring: requests to score stored rollouts again, and their new scores."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.reward import JudgeRubric, VerifyResult
from benchflow.contracts.rollout_records import Failure, RewardKind, RolloutResult, StepOutcome

TaskOrigin = Literal["source", "store", "given"]
"""Sources of a task: the directory from which it was submitted, the artifact store, or the directory given for the
rescoring.
"""


class StoredRef(Model):
    """A stored rollout that is scored again, as a part of the `RolloutSpec` of its scoring."""

    scoring: ArtifactRef
    """The `Scoring` in the artifact store."""

    directory: str
    """Directory of its results on the submitting host."""

    pack: ArtifactRef | None = None
    """The same results in the artifact store, for other hosts of a cluster; None on the embedded stack."""


class RescoringSpec(Model):
    """The part of a `JobSpec` that makes it a job that scores the stored rollouts of another job again."""

    digest: str
    """Digest of all that scores: rubric, tasks, worlds and options. Scorings with equal digests are the same job."""

    scoring: ArtifactRef
    """The `Scoring` in the artifact store."""

    rollouts: dict[int, str]
    """Results directories of all stored rollouts of the job, by their index in it."""

    packs: dict[int, ArtifactRef] = {}
    """Results in the artifact store of the rollouts still to be scored, by index; empty on the embedded stack."""

    chosen: list[int] = []
    """Indices of the rollouts that the latest request asked for; empty if an earlier version wrote the spec."""

    def stored(self, index: int) -> StoredRef:
        """Return the stored rollout of an index. Raise `KeyError` if the job has none."""
        return StoredRef(scoring=self.scoring, directory=self.rollouts[index], pack=self.packs.get(index))


class GivenRubric(Model):
    """A rubric that scores instead of the tasks' own verifiers: from a file, or in code."""

    name: str
    """The file or `module:object`, as the user wrote it."""

    label: str
    """Short name for the name of the scoring: the file's stem, or the name of the object."""

    digest: str
    """Digest of the rubric's content, or of the name of the object and the file of its module."""

    judge: JudgeRubric | None = None
    """Criteria for a judge, from a rubric file; None if it is in code."""

    code: str | None = None
    """Object with an `async def score(node)`, as `module:object`; None if it is from a file."""

    code_root: str | None = None
    """Directory in which the module is looked for after the installed ones; None with a file."""


Outcome = Literal["unchanged", "changed", "failed", "unmeasured"]
"""Outcomes of rescoring a rollout.

`unchanged`, `changed`: its new rewards equal the stored ones, or do not. `failed`: it could not be scored now.
`unmeasured`: it has no reward because of how it ended, now as before.
"""

Ran = Literal["ran", "stored"]
"""Sources of a verifier's result: its script `ran` again, or its `stored` output was read again."""


class Change(Model):
    """The change of one metric of a rollout."""

    before: float | None
    """Metric in the stored result; None if it has no such metric."""

    after: float | None
    """Metric in the new score; None if it has no such metric."""


class JudgeUse(Model):
    """The answers of judges on which a score rests, and their cost."""

    asked: int = 0
    """Number of questions that were put to a model now."""

    recorded: int = 0
    """Number of answers that an earlier scoring had recorded for the same question."""

    input_tokens: int = 0
    """Input tokens of the questions that were put to a model now."""

    output_tokens: int = 0
    """Output tokens of the same."""

    cost_usd: float | None = None
    """Cost of the same, in USD; None if the price of one of them is not known."""


class StepScore(Model):
    """The new score of one step."""

    index: int
    """Index of the step, counted from the root."""

    name: str | None = None
    """Name of the task's step; None for a task without steps."""

    verify: VerifyResult | None = None
    """Result of the verifier; None if it failed."""

    verifier: Ran | None = None
    """Source of the result of the task's verifier script: `ran` again, or `stored`; None if no script was needed."""

    error: Failure | None = None
    """Error of the verifier; None if there is a result."""


class RescoredRollout(Model):
    """The new score of a stored rollout: the record that is written beside its stored results.

    Of a rollout that branched, the records of its children lie beside their own results.
    """

    rollout_name: str
    """Name of the rollout's results directory."""

    task_name: str
    """Name of its task."""

    agent: str
    """Name of its agent in the registry."""

    model: str | None = None
    """Model of its agent; None if none was named."""

    repeat: int = 0
    """Number of the repeat, from 0, of the same task and agent in its job."""

    scoring: str
    """Digest of all that scored it, as `RescoringSpec.digest`."""

    recorded_digest: str
    """Digest of the task that the agent worked on."""

    task_digest: str | None = None
    """Digest of the task that it was scored by now; None if the task was not needed, or could not be read."""

    task_from: Literal["source", "store", "given"] | None = None
    """Source of that task, as in `TaskOrigin`; None if there is no `task_digest`."""

    outcome: Outcome
    """Outcome of the rescoring: `unchanged`, `changed`, `failed` or `unmeasured`."""

    before: dict[str, float] | None = None
    """Rewards of the stored result, by key; None if it has none."""

    rewards: dict[str, float] | None = None
    """New rewards, by key; None if the outcome is `failed` or `unmeasured`."""

    changes: dict[str, Change] = {}
    """Metrics that differ between `before` and `rewards`, by key; empty without new rewards."""

    steps: list[StepScore] = []
    """New scores of its steps, those of its parents first, up to the first one that does not count."""

    value: StateValue | None = None
    """New V(s), which is its reward, of a rollout that ended where it branched; None of any other."""

    judge: JudgeUse | None = None
    """Answers of judges on which its score, and those of its children, rest; None if no judge was asked."""

    error: Failure | None = None
    """Reason why it has no score: an error of this scoring if `failed`, the error of the stored result if `unmeasured`;
    None if it has a score.
    """

    warnings: list[str] = []
    """Warnings of this scoring, and of the verifiers' results."""

    finished_at: datetime
    """Time of this score, in UTC."""

    stored_finished_at: datetime | None = None
    """End of the stored result that was scored, which differs from that of a result written after a roll-back. None in
    records that are older than this field.
    """

    def is_of(self, result: RolloutResult) -> bool:
        """Return whether this is the score of a given result, and not of one from before a roll-back."""
        return self.stored_finished_at in (None, result.finished_at)

    @property
    def agent_label(self) -> str:
        """Return `agent` or `agent:model`."""
        return f"{self.agent}:{self.model}" if self.model else self.agent

    @property
    def reward(self) -> float | None:
        """Return the new scalar reward; None if there is none."""
        return None if self.rewards is None else self.rewards.get("reward")

    @property
    def reward_before(self) -> float | None:
        """Return the stored scalar reward; None if there is none."""
        return None if self.before is None else self.before.get("reward")

    @property
    def has_lost_return(self) -> bool:
        """Return whether it had a return and could not be scored now. V(s) of its siblings alone is not comparable."""
        return self.reward_before is not None and self.outcome == "failed"

    @property
    def is_complete(self) -> bool:
        """Return whether its scoring did not fail, so that it is not repeated."""
        return self.outcome != "failed"

    @property
    def verifier(self) -> Ran | None:
        """Return the source of its verifier results: `stored` if that of one step is; None if no script was needed."""
        kinds = {step.verifier for step in self.steps}
        return "stored" if "stored" in kinds else "ran" if "ran" in kinds else None


class OutcomeCounts(Model):
    """Numbers of rollouts by the outcome of their rescoring."""

    unchanged: int = 0
    """Rollouts with the same rewards as before."""

    changed: int = 0
    """Rollouts with other rewards than before."""

    failed: int = 0
    """Rollouts that could not be scored now."""

    unmeasured: int = 0
    """Rollouts without a reward because of how they ended, then as now."""


class MeanChange(Model):
    """The change of an agent's mean reward, over its rollouts that have a reward both before and now."""

    agent: str
    """Label of the agent, `agent` or `agent:model`."""

    reward_kind: RewardKind = "measured"
    """Whether the rewards were measured, or are the V(s) of rollouts that branched."""

    before: float
    """Mean of the stored rewards."""

    after: float
    """Mean of the new rewards."""

    n: int
    """Number of rollouts in both means."""


class Rescoring(Model):
    """The summary of a rescored job.

    Its file, `rescored/<name>.json` of the job, counts all rollouts that have a score of this name. The one that
    `rescore` returns counts only those that were asked for.
    """

    job: str
    """Name of the job."""

    name: str
    """Name of the scoring: the new score of each rollout lies in its `rescored/<name>/`."""

    directory: str
    """Directory of the job."""

    scoring: str
    """Digest of all that scored it, as `RescoringSpec.digest`."""

    rubric: str | None = None
    """Rubric that scored, as the user wrote it; None for the tasks' own verifiers."""

    tasks: dict[str, str | None] = {}
    """Digests of the tasks to score by, by name; None where the directory that was given has no task of that name."""

    sandbox: str | None = None
    """Name of the sandbox provider in which verifiers ran; None for that of the job."""

    ask_again: bool = False
    """Whether judges were asked anew although their answers were recorded."""

    counts: OutcomeCounts
    """Numbers of its rollouts by outcome."""

    mean_before: float | None = None
    """The `before` of `means` if that has a single element, else None: no mean is of several agents."""

    mean_after: float | None = None
    """The `after` of the same."""

    means: list[MeanChange] = []
    """Changes of mean rewards, by agent and kind of reward."""

    rollouts: list[RescoredRollout]
    """New scores of its rollouts, by task, agent and repeat."""

    @property
    def is_complete(self) -> bool:
        """Return whether no rollout has failed."""
        return not self.counts.failed


class AgentlessScore(Model):
    """The result of an activity that scores without an agent: a stored rollout again, or the trial of a world."""

    steps: list[StepOutcome] = []
    """Outcomes of the steps that count, with their new scores."""

    outcomes: list[ChildOutcome] = []
    """Outcomes of all rollouts below it in its tree, with their new returns."""

    values: list[StateValue] = []
    """V(s) of all nodes of the tree where children started."""

    value: StateValue | None = None
    """The V(s) that is its reward, of a rollout that ended where it branched; None of any other."""

    outcome: Outcome | None = None
    """Outcome of rescoring a stored rollout; None for the trial of a world, and from a worker of an earlier version."""

    rewards: dict[str, float] | None = None
    """New rewards of a stored rollout. If `outcome` is set they alone count: the rewards of `steps` are not those of a
    rollout that ended where it branched.
    """

    error: Failure | None = None
    """Error that left it without a reward; None if there is none."""

    warnings: list[str] = []
    """Warnings of the scoring."""
