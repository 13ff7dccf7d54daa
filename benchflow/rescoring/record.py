"""What a rescoring came to, as it is written beside the first results: one record a rollout, and one of the job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.branch import StateValue
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Failure, RewardKind
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.write import write_json
from benchflow.store import write_atomic
from benchflow.stored_files import read_stored, require_directory

Outcome = Literal["unchanged", "changed", "failed", "unmeasured"]
"""failed: it could not be scored now. unmeasured: it has no reward because of how it ended, now as before."""

Ran = Literal["ran", "stored"]
"""Whether a verifier's script was run again, or what it wrote at first was read again."""

DIRECTORY = "rescored"


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
    def is_complete(self) -> bool:
        """Whether there is nothing left to be done for it."""
        return self.outcome != "failed"

    @property
    def verifier(self) -> Ran | None:
        """How the verifier's part was had; `stored` as soon as one step's was."""
        kinds = {step.verifier for step in self.steps}
        return "stored" if "stored" in kinds else "ran" if "ran" in kinds else None


class Counts(Model):
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
    counts: Counts
    mean_before: float | None = None
    mean_after: float | None = None
    means: list[MeanChange] = []
    """By agent and kind of reward."""

    rollouts: list[RescoredRollout]

    @property
    def is_complete(self) -> bool:
        return not self.counts.failed


def changes(before: dict[str, float] | None, after: dict[str, float] | None) -> dict[str, Change]:
    """Every metric that is not what it was."""
    old, new = before or {}, after or {}
    names = dict.fromkeys([*old, *new])
    return {name: Change(before=old.get(name), after=new.get(name)) for name in names if old.get(name) != new.get(name)}


def row(record: RescoredRollout) -> dict[str, Any]:
    """A rollout as the JSON object of the job lists it."""
    told = record.model_dump(mode="json")
    return told | {"reward": record.reward, "verifier": record.verifier}


def mean_changes(records: Sequence[RescoredRollout]) -> list[MeanChange]:
    """Return the means of each agent, in the order in which the agents appear."""
    pairs: dict[tuple[str, RewardKind], list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        if record.reward_before is not None and record.reward is not None:
            kind: RewardKind = "value" if record.value is not None else "measured"
            pairs[record.agent_label, kind].append((record.reward_before, record.reward))
    return [
        MeanChange(
            agent=agent,
            reward_kind=kind,
            before=fmean(before for before, _ in each),
            after=fmean(after for _, after in each),
            n=len(each),
        )
        for (agent, kind), each in pairs.items()
    ]


def count(records: list[RescoredRollout]) -> Counts:
    return Counts.model_validate(Counter(record.outcome for record in records))


# --- files ---------------------------------------------------------------------------------------------


def place_of(rollout: RolloutPaths, name: str) -> RolloutPaths:
    """Where a rollout's new score lies; laid out as the rollout itself is."""
    return RolloutPaths(rollout.root / DIRECTORY / name)


def check_place(rollout: RolloutPaths | JobPaths, place: RolloutPaths | JobPaths) -> None:
    """Raise `ResultFileError` where the way from a stored rollout or job to its new scores leads through a link."""
    require_directory(rollout.root, place.root.relative_to(rollout.root).as_posix())


def summary_of(job: JobPaths, name: str) -> Path:
    return job.root / DIRECTORY / f"{name}.json"


def read_record(place: RolloutPaths) -> RescoredRollout | None:
    """A rollout's new score; None where it has none, or one that another version wrote."""
    try:
        return RescoredRollout.model_validate_json(read_stored(place.result))
    except (FileNotFoundError, ValidationError):
        return None


def write_record(place: RolloutPaths, record: RescoredRollout) -> None:
    """Written last: that it is there says that all else is."""
    write_atomic(place.result, record.model_dump_json(indent=2).encode() + b"\n")


def read_rescoring(job: JobPaths, name: str) -> Rescoring | None:
    try:
        return Rescoring.model_validate_json(read_stored(summary_of(job, name)))
    except (FileNotFoundError, ValidationError):
        return None


def write_rescoring(job: JobPaths, rescoring: Rescoring) -> None:
    write_json(summary_of(job, rescoring.name), rescoring.model_dump(mode="json"))
