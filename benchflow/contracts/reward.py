"""What scoring yields (events in a space and at a granularity, and the result that sums them up), and what it reads: a
node of a rollout, and what scorers may ask of the world and of a model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from benchflow.contracts.base import Model

if TYPE_CHECKING:
    from benchflow.contracts.environment import StateDiff, WorldState
    from benchflow.contracts.sandbox import SandboxExecResult

Space = Literal["output", "action", "reasoning", "memory", "latent"]
"""Where a reward is read from. `latent` is a name that nothing here scores yet."""

LENIENT_VARIABLE = "BENCHFLOW_REWARD_LENIENT"
"""With `1`, jobs that are submitted read reward files leniently."""

OnTampering = Literal["keep", "null", "zero"]
"""What becomes of a step's reward where tampering was found: it stays as measured, it is withheld, or it is 0."""

Granularity = Literal["terminal", "step"]
AggregateMethod = Literal["mean", "weighted_mean", "weighted_sum", "all_pass", "any_pass", "threshold"]


class RewardEvent(Model):
    """One measured reward. value: within the verifier's reward range, [0, 1] by default; of one key of several, whose
    name is the tag, any finite number. step: index.
    """

    space: Space = "output"
    granularity: Granularity = "terminal"
    value: float
    source: str
    ts: datetime
    step: int | None = None
    tag: str | None = None
    meta: dict[str, Any] = {}


class AggregatePolicy(Model):
    """How named metrics become one reward where a verifier gives no scalar.

    weights: which metrics count and how much; empty means all of them, alike. threshold: what a metric
    (`all_pass`, `any_pass`) or the weighted mean (`threshold`) has to reach.
    """

    method: AggregateMethod = "weighted_mean"
    weights: dict[str, float] = {}
    threshold: float = 0.7


class VerifyResult(Model):
    """What a verifier said. reward: the scalar, None where it could not be measured, and then error says why; or where
    the verifier reported several keys and nothing says which of them is the scalar.

    items: other named numbers (metrics), with those keys among them. events: in order. errors: of the functions that
    failed, by name.
    """

    reward: float | None
    only_key: str | None = None
    """The metric that `reward` repeats because the verifier reported nothing else, and no scalar. Steps are combined
    without that copy: the only key of one step need not be that of another.
    """
    items: dict[str, float] = {}
    events: list[RewardEvent] = Field(default_factory=list)
    space: Space = "output"
    granularity: Granularity = "terminal"
    metadata: dict[str, Any] = {}
    warnings: list[str] = []
    error: str | None = None
    errors: dict[str, str] = {}

    @property
    def is_keyed(self) -> bool:
        """Whether it was scored by several keys, without a scalar."""
        return self.reward is None and not self.error and bool(self.items)

    @property
    def is_scored(self) -> bool:
        """Whether anything was measured that a rollout's result is made of."""
        return self.reward is not None or self.is_keyed

    @property
    def rewards(self) -> dict[str, float]:
        """`{"reward": x, **items}`, the shape that results carry; without `reward` where there is no scalar."""
        measured = {} if self.reward is None else {"reward": self.reward}
        return measured | self.items

    @property
    def reported(self) -> dict[str, float]:
        """`rewards` without a scalar that is only a copy of the only key."""
        is_copy = self.only_key is not None and self.reward == self.items.get(self.only_key)
        return self.items if is_copy else self.rewards


Weight = Literal["note", "tampering"]


class HardeningFinding(Model):
    """Something that stood between the agent and a fair verifier. item: of `verifier.hardening`, whose work it was.

    action: what was done about it; `found` means that it was left as it is, and detail says why.
    """

    item: str
    action: Literal["killed", "removed", "restored", "replaced", "found"]
    path: str = ""
    detail: str = ""

    weight: Weight = "note"
    """`tampering` is what honest work has no reason to do: a program that had to be restored, a link to the verifier's
    files, a planted reward. `note` is what honest work often leaves: a `__pycache__`, an ended process, a new
    `conftest.py`.
    """

    @property
    def is_tampering(self) -> bool:
        """Whether honest work has no reason to do this."""
        return self.weight == "tampering"


class StepFinding(HardeningFinding):
    """A finding as a rollout's result lists it."""

    step: str | None = None
    """Name of the step after which it was found; None for a task without steps."""


class HardeningReport(Model):
    """What was done before a verifier ran. left_out: findings beyond those listed. disabled: items that the task has
    lifted; own_env: pinned variables that it sets itself.
    """

    findings: list[HardeningFinding] = []
    left_out: int = 0
    disabled: list[str] = []
    own_env: list[str] = []
    seconds: float = 0.0

    unsafe: str = ""
    """Why no verifier may run in the sandbox; empty if one may."""

    @property
    def tampering(self) -> list[HardeningFinding]:
        """Findings of that weight, in their order."""
        return [finding for finding in self.findings if finding.is_tampering]


# --- what a task declares ------------------------------------------------------------------------------


class RewardFuncSpec(Model):
    """One row of a task's `reward.funcs`.

    type: the name of a built-in function or of an entry point of `benchflow.rewards`, or `module:Class`. name: of its
    events and of its metric, `<space>.<name>`; the type by default, and there once. weight: among those of its space.
    options: its own keys.
    """

    type: str
    name: str
    weight: float = Field(default=1.0, ge=0)
    options: dict[str, Any] = {}


class RewardTable(Model):
    """A task's `reward` table. aggregate: makes the scalar of the metrics (`output`, the other spaces,
    `<space>.<name>`, and the verifier's own); without it the scalar is the verifier's.
    """

    funcs: list[RewardFuncSpec] = []
    aggregate: AggregatePolicy | None = None


class Criterion(Model):
    """One thing that a judge says of a rollout. weight: in the aggregate. files: of the inputs, those that it is judged
    by; empty means all. points: of a `likert` scale; min, max: of a `numeric` one.
    """

    id: str
    description: str
    type: Literal["binary", "likert", "numeric"] = "binary"
    points: int = Field(default=5, ge=2)
    min: float = 0.0
    max: float = 100.0
    weight: float = Field(default=1.0, ge=0)
    files: list[str] = []
    space: Space = "output"


class RubricJudge(Model):
    """A rubric's `judge` table. mode: a call for each criterion, or one for all. timeout: seconds of one call."""

    model: str | None = None
    mode: Literal["individual", "batched"] = "individual"
    timeout: float = Field(default=120.0, gt=0)


class RubricScoring(Model):
    """A rubric's `scoring` table: how the criteria become one reward."""

    aggregation: Literal["weighted_mean", "all_pass", "any_pass", "threshold"] = "weighted_mean"
    threshold: float = 0.7


class JudgeRubric(Model):
    """A rubric as its file says it: what a model is to judge, and how that is summed up."""

    criteria: list[Criterion] = Field(min_length=1)
    judge: RubricJudge = RubricJudge()
    scoring: RubricScoring = RubricScoring()


class JudgeSettings(Model):
    """Which model judges. model: `provider/model`, with the provider `openai` or `anthropic`, whose interface it is.

    base_url: of another endpoint with that interface. credential: the variable that holds the key; the provider's own
    by default. concurrency: calls under way at a time in one process. retries: of one call, for an answer that is not
    one and for an endpoint that fails.
    """

    model: str | None = None
    base_url: str | None = None
    credential: str | None = None
    concurrency: int = Field(default=8, ge=1)
    retries: int = Field(default=3, ge=0)


# --- what scorers read ---------------------------------------------------------------------------------


class JudgeScale(Model):
    """A criterion as a judge is asked it: a number in [low, high], whole if so."""

    id: str
    description: str
    low: float = 0.0
    high: float = 1.0
    is_whole: bool = False


class JudgeQuestion(Model):
    """One call of a judge. id: names its transcript. system: who the judge is. prompt: what it is shown, and asked.

    scales: what it has to give a number for. model: where the settings name none. timeout_sec: of the call.
    """

    id: str
    system: str
    prompt: str
    scales: tuple[JudgeScale, ...] = Field(min_length=1)
    model: str | None = None
    timeout_sec: float = Field(default=120.0, gt=0)


class Verdict(Model):
    """What a judge says of one criterion, on its scale."""

    score: float
    reasoning: str


class JudgeAnswer(Model):
    """A judge's verdicts by criterion. transcript: the file of the call, in the directory of transcripts.

    is_recorded: an earlier answer to the very same question, for which nobody was asked again. cost_usd: None where the
    model's price is not known.
    """

    verdicts: dict[str, Verdict]
    model: str
    transcript: str
    is_recorded: bool = False
    calls: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class Judge(Protocol):
    """A model that judges."""

    async def ask(self, question: JudgeQuestion) -> JudgeAnswer:
        """The verdicts on every scale of the question. Raises `JudgeError` when there is no usable answer."""
        ...


class Workbench(Protocol):
    """The world as the agent left it, where a scorer may run something: the rollout's sandbox, or, for a stored
    rollout, a new one with the workspace that was kept.
    """

    async def tests(self) -> VerifyResult:
        """What the task's own verifier says; it is run once, however often it is asked."""
        ...

    async def run(
        self,
        key: str,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_sec: float = 60.0,
    ) -> SandboxExecResult:
        """Run a command in the workspace, once for each key. files: put in place before, by absolute path."""
        ...

    async def read(self, path: str, *, limit: int) -> bytes | None:
        """A file's content, relative to the workspace; None when there is none. Raises `VerifierError` beyond limit."""
        ...


@dataclass(frozen=True)
class Evidence:
    """What is known of a rollout, shared by its nodes.

    directory: of its results. evidence: what was kept of its sandbox for scoring (`inputs/`, `memory/`, …). task: its
    name; instruction: what the agent was asked. state, diff: the world at a node, and what has changed in it, read when
    they are asked for. findings: what the hardening found after the step that led to a node.
    """

    directory: Path | None = None
    evidence: Path | None = None
    task: str = ""
    instruction: str = ""
    workspace: str = "/"
    workbench: Workbench | None = None
    judge: Judge | None = None
    state: Callable[[str], WorldState | None] = lambda node: None
    diff: Callable[[str], StateDiff | None] = lambda node: None
    findings: Callable[[str], tuple[HardeningFinding, ...]] = lambda node: ()


@dataclass(frozen=True, eq=False)
class RolloutNode:
    """A state that a rollout reached, as scorers see it, with its place in the tree.

    events: the trajectory's lines of the step that led here, in order. parent: None for the root.
    """

    id: str
    parent: RolloutNode | None = None
    step: int | None = None
    role: str | None = None
    events: tuple[dict[str, Any], ...] = ()
    rewards: Mapping[str, float] | None = None
    value: float | None = None
    children: list[RolloutNode] = field(default_factory=list)
    rollout: Evidence = Evidence()

    @property
    def path(self) -> tuple[RolloutNode, ...]:
        """From the root to this node."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return tuple(reversed(path))

    @property
    def subtree(self) -> Iterator[RolloutNode]:
        """This node and all below it, parents before children."""
        yield self
        for child in self.children:
            yield from child.subtree

    @property
    def trajectory(self) -> tuple[dict[str, Any], ...]:
        """All events from the root to here."""
        return tuple(event for node in self.path for event in node.events)

    @property
    def answer(self) -> str:
        """What the agent said last, after its last action; empty when it said nothing."""
        said: list[str] = []
        for event in self.trajectory:
            if event["type"] == "agent_message":
                said.append(str(event["text"]))
            elif event["type"] in ("tool_call", "tool_call_update", "user_message", "oracle"):
                said.clear()
        return "".join(said).strip()

    @property
    def state(self) -> WorldState | None:
        """The world here, as the environment's `query()` tells it; None without a stateful world."""
        return self.rollout.state(self.id)

    @property
    def diff(self) -> StateDiff | None:
        """What has changed in the world since it was ready."""
        return self.rollout.diff(self.id)

    @property
    def findings(self) -> tuple[HardeningFinding, ...]:
        """Return what the hardening found after the step that led here; empty where nothing was hardened."""
        return self.rollout.findings(self.id)


@runtime_checkable
class RewardFunc(Protocol):
    """Scores a node. One method does outcome reward, by what the node is, and process reward, by its path.

    May have `name` (default: the class's) and `space` (default: `output`); what it returns says both for itself.
    """

    def score(self, node: RolloutNode) -> Awaitable[RewardEvent | VerifyResult]: ...
