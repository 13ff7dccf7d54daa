"""Contracts of scoring: its results, its declaration in a task, and its inputs.

Results are reward events and the `VerifyResult` that combines them, and the report of the hardening. A task declares
reward functions and rubrics. Scorers read a node of a rollout, and may use its world and ask a judge model.
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
"""Space that a reward is read from: `output` (the outcome), `action` (the tool calls), `reasoning` (whether the
agent's messages fit its actions) or `memory` (its skills and notes). `latent` is reserved: nothing scores it yet.
"""

LENIENT_VARIABLE = "BENCHFLOW_REWARD_LENIENT"
"""Environment variable of the submit; with `1`, the job reads reward files leniently."""

OnTampering = Literal["keep", "null", "zero"]
"""Rule for a step's reward where tampering was found: `keep` leaves it as measured, `null` withholds it, `zero` lowers
it to 0, or to the lower end of a reward range without 0.
"""

Granularity = Literal["terminal", "step"]
"""Granularity of a reward: `terminal` is for the state that is scored, `step` for one step on the path to it (process
reward).
"""

AggregateMethod = Literal["mean", "weighted_mean", "weighted_sum", "all_pass", "any_pass", "threshold"]
"""Method that makes one reward of several metrics. `mean` does not use their weights. `all_pass`,
`any_pass` and `threshold` give 1 or 0: whether all metrics, any metric, or the weighted mean reach the threshold.
"""


class RewardEvent(Model):
    """One measured reward: a line of `rewards.jsonl`."""

    space: Space = "output"
    """Space that it was read from."""

    granularity: Granularity = "terminal"
    """Granularity: `terminal` for an outcome reward, `step` for a process reward."""

    value: float
    """The reward, within the verifier's reward range ([0, 1] by default). For one of several keys without a
    scalar, whose name is the tag, any finite number.
    """

    source: str
    """Name of the reward function; of a verifier's reward, the file (`reward.json`), or the rule that made it
    (`aggregate:METHOD`, `on_tampering:zero`).
    """

    ts: datetime
    """Time of the measurement."""

    step: int | None = None
    """Index of the step that it belongs to, from 0; None for the step after which it was measured."""

    tag: str | None = None
    """Narrower name: the verifier's metric, the rubric's criterion, or the source that a reward function gave its event
    and that its own name has replaced. None for none.
    """

    meta: dict[str, Any] = {}
    """Evidence for it: a judge's reasoning, the calls that count; its keys are up to the source."""


class AggregatePolicy(Model):
    """Policy that makes one reward of named metrics, where a verifier gives no scalar."""

    method: AggregateMethod = "weighted_mean"
    """Method of aggregation."""

    weights: dict[str, float] = {}
    """Metrics that count, with their weights. Empty: all metrics count alike."""

    threshold: float = 0.7
    """Value that a metric (`all_pass`, `any_pass`) or the weighted mean (`threshold`) has to reach. Other methods do
    not use it.
    """


class VerifyResult(Model):
    """Result of a verifier, or of a reward function, for one state of a rollout."""

    reward: float | None
    """Scalar reward. None if it could not be measured (`error` has the reason), or if the verifier reported several
    keys and nothing declares which of them is the scalar.
    """

    only_key: str | None = None
    """Metric that `reward` copies, because the verifier reported a single key and no scalar; else None. Steps are
    combined without the copy: the only key of one step need not be that of another.
    """

    items: dict[str, float] = {}
    """Metrics by name: the verifier's own (keys of `reward.json`, criteria of a rubric); with reward functions also the
    mean of each space, and `<space>.<function>` and `<space>.<function>.<item>` of each function.
    """

    events: list[RewardEvent] = Field(default_factory=list)
    """Reward events in order. Empty in a workflow, where only the numbers travel: events are in `rewards.jsonl`."""

    space: Space = "output"
    """Space of `reward`."""

    granularity: Granularity = "terminal"
    """Granularity of `reward`."""

    metadata: dict[str, Any] = {}
    """Further data, as the verifier reported it. The engine adds `hardening`, `judge` (model, tokens, cost),
    `reward_funcs` (metadata of functions), `measured_reward` (a scalar replaced because of tampering) and others.
    """

    warnings: list[str] = []
    """Facts that do not invalidate the reward, but may explain it, such as the verifier's exit status."""

    error: str | None = None
    """Reason that there is no reward; None if there is one, or several keys."""

    errors: dict[str, str] = {}
    """Errors by the name of the reward function, or part of one, that failed; a metric that two report is one, too."""

    @property
    def is_keyed(self) -> bool:
        """Return whether it was scored by several keys, without a scalar."""
        return self.reward is None and not self.error and bool(self.items)

    @property
    def is_scored(self) -> bool:
        """Return whether it has a reward, scalar or by key, of which a rollout's result can be made."""
        return self.reward is not None or self.is_keyed

    @property
    def rewards(self) -> dict[str, float]:
        """Return `{"reward": x, **items}`, the shape that results have; without `reward` if there is no scalar."""
        measured = {} if self.reward is None else {"reward": self.reward}
        return measured | self.items

    @property
    def reported(self) -> dict[str, float]:
        """Return `rewards` without a scalar that is only a copy of the only key."""
        is_copy = self.only_key is not None and self.reward == self.items.get(self.only_key)
        return self.items if is_copy else self.rewards


Weight = Literal["note", "tampering"]
"""Weight of a finding: `tampering` is what honest work has no reason to do, `note` is what it often leaves."""


class HardeningFinding(Model):
    """A finding of the hardening: something that stood between the agent and a fair verifier."""

    item: str
    """Item of `verifier.hardening` that found it, e.g. `kill_processes`."""

    action: Literal["killed", "removed", "restored", "replaced", "found"]
    """Action that was taken: a process was `killed`, a file `removed`, `restored` to its former content, or `replaced`
    by a new one; `found` means that it was left as it was.
    """

    path: str = ""
    """Path in the sandbox; empty if it is not about a file."""

    detail: str = ""
    """Further facts: a process's command, a link's target, the reason that it was left; may be empty."""

    weight: Weight = "note"
    """`tampering` is what honest work has no reason to do: a program that had to be restored, a link to the verifier's
    files, a planted reward. `note` is what honest work often leaves: a `__pycache__`, an ended process, a new
    `conftest.py`. The oracle's findings are notes.
    """

    @property
    def is_tampering(self) -> bool:
        """Return whether honest work has no reason to do this."""
        return self.weight == "tampering"


class StepFinding(HardeningFinding):
    """A finding of the hardening, as a rollout's result lists it."""

    step: str | None = None
    """Name of the step after which it was found; None for a task without steps."""


class HardeningReport(Model):
    """Report of the hardening: of what was done to a sandbox between the agent and a verifier."""

    findings: list[HardeningFinding] = []
    """Findings, tampering first: up to 200 in the evidence of a step, 50 in a result."""

    left_out: int = 0
    """Number of findings that are not listed."""

    disabled: list[str] = []
    """Items of `verifier.hardening` that the task has switched off."""

    own_env: list[str] = []
    """Names of pinned environment variables that the task's own `verifier.env` overrides."""

    seconds: float = 0.0
    """Seconds that the hardening took."""

    unsafe: str = ""
    """Reason that no verifier may run in the sandbox; empty if one may."""

    @property
    def tampering(self) -> list[HardeningFinding]:
        """Return the findings of the weight `tampering`, in their order."""
        return [finding for finding in self.findings if finding.is_tampering]


# --- declared by a task --------------------------------------------------------------------------------


class RewardFuncSpec(Model):
    """A reward function that a task declares: one row of `reward.funcs`."""

    type: str
    """Name of a built-in function or of an entry point of the group `benchflow.rewards`, or `module:Class`."""

    name: str
    """Name of its events, and of its metric `<space>.<name>`; unique in the table. By default the type."""

    weight: float = Field(default=1.0, ge=0)
    """Weight among the functions of its space. One of weight 0 is reported and does not count."""

    options: dict[str, Any] = {}
    """Keyword arguments of the function: all other keys of the row."""


class RewardTable(Model):
    """Reward functions that score beside a task's verifier: its `reward` table."""

    funcs: list[RewardFuncSpec] = []
    """Reward functions. They run at the same time, once the verifier is done."""

    aggregate: AggregatePolicy | None = None
    """Policy that makes the scalar of the metrics (the spaces, `output` for the verifier's among them;
    `<space>.<name>` of functions; the verifier's own). Without weights, the spaces count alike, and for a verifier of
    several keys these count in place of `output`. None: the scalar is the verifier's.
    """


class Criterion(Model):
    """A criterion of a rubric: one thing that a judge scores. Its score is mapped to [0, 1]."""

    id: str
    """Id, unique in the rubric, and name of its metric: up to 64 letters, digits, `_`, `.` and `-`. Made of the `title`
    or `name` of the file, or of the criterion's number, if the file has no id.
    """

    description: str
    """Text of what the judge is to look for."""

    type: Literal["binary", "likert", "numeric"] = "binary"
    """Scale: `binary` is 0 or 1, `likert` a whole number from 1 to `points`, `numeric` a number from `min` to `max`."""

    points: int = Field(default=5, ge=2)
    """Highest score on a `likert` scale."""

    min: float = 0.0
    """Lowest score on a `numeric` scale."""

    max: float = 100.0
    """Highest score on a `numeric` scale."""

    weight: float = Field(default=1.0, ge=0)
    """Weight in the rubric's reward. One of weight 0 is reported and does not count."""

    files: list[str] = []
    """Shell patterns of the documents by which it is judged, among those that the judge is shown; empty for all."""

    space: Space = "output"
    """Space of its events."""


class RubricJudge(Model):
    """How a rubric has its criteria judged: its `judge` table."""

    model: str | None = None
    """Model that judges (`provider/model`), unless the job or the verifier names one; None if the rubric names none."""

    mode: Literal["individual", "batched"] = "individual"
    """Calls of the model: `individual` is one for each criterion, `batched` one for all."""

    timeout: float = Field(default=120.0, gt=0)
    """Seconds that one call may take."""


class RubricScoring(Model):
    """How a rubric makes one reward of its criteria: its `scoring` table."""

    aggregation: Literal["weighted_mean", "all_pass", "any_pass", "threshold"] = "weighted_mean"
    """Method of aggregation, as in `AggregatePolicy`."""

    threshold: float = 0.7
    """Value in [0, 1] that a criterion (`all_pass`, `any_pass`) or the weighted mean (`threshold`) has to reach."""


class JudgeRubric(Model):
    """A rubric, as its file has it: criteria for a judge model, and how they make one reward."""

    criteria: list[Criterion] = Field(min_length=1)
    """Criteria, in the order of the file."""

    judge: RubricJudge = RubricJudge()
    """How the criteria are judged."""

    scoring: RubricScoring = RubricScoring()
    """How they make one reward."""


class JudgeSettings(Model):
    """A job's settings for judge models: model, endpoint, key, concurrency and retries."""

    model: str | None = None
    """Model that judges, as `provider/model` with the provider `openai` or `anthropic`, whose API it has; a name that
    begins like theirs (`gpt-…`, `claude-…`) needs no provider. It wins over the model of a rubric or verifier; None
    for theirs.
    """

    base_url: str | None = None
    """Base URL of another endpoint with that API; None for the provider's own."""

    credential: str | None = None
    """Environment variable that holds the key; None for `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`, by the provider."""

    concurrency: int = Field(default=8, ge=1)
    """Maximum number of calls at a time in one process."""

    retries: int = Field(default=3, ge=0)
    """Further calls for one question, after an answer that can't be used or a failure of the endpoint."""


# --- read and used by scorers --------------------------------------------------------------------------


class JudgeScale(Model):
    """A scale on which a judge scores one criterion."""

    id: str
    """Id of the criterion, and key of its verdict; `score` where a judge gives a single number."""

    description: str
    """Text of what is to be judged."""

    low: float = 0.0
    """Lowest score."""

    high: float = 1.0
    """Highest score."""

    is_whole: bool = False
    """Whether the score has to be a whole number."""


class JudgeQuestion(Model):
    """A question to a judge: one request, with an answer for each of its scales."""

    id: str
    """Name of the question, and of its transcript's file, e.g. `<function>.<criterion>`."""

    system: str
    """System prompt."""

    prompt: str
    """User prompt: the material, and the question about it."""

    scales: tuple[JudgeScale, ...] = Field(min_length=1)
    """Scales, on each of which a verdict is wanted."""

    model: str | None = None
    """Model that is asked, if the settings name none; None if the question names none either."""

    timeout_sec: float = Field(default=120.0, gt=0)
    """Seconds that one call may take."""


class Verdict(Model):
    """Verdict of a judge on one criterion."""

    score: float
    """Score on the criterion's own scale."""

    reasoning: str
    """Reasons in the judge's words; empty if it gave none."""


class JudgeAnswer(Model):
    """Answer of a judge to a question."""

    verdicts: dict[str, Verdict]
    """Verdicts by the id of the scale: one for each scale of the question."""

    model: str
    """Model that answered, as `provider/model`."""

    transcript: str
    """File name of the transcript, in the directory of transcripts."""

    is_recorded: bool = False
    """Whether it was read from the transcript of the very same question, without a call. Calls, tokens and cost are
    then those of that time.
    """

    calls: int = 1
    """Number of calls of the model, those without a usable answer included."""

    input_tokens: int = 0
    """Input tokens of these calls."""

    output_tokens: int = 0
    """Output tokens of these calls."""

    cost_usd: float | None = None
    """Cost of these calls in USD; None if the model's price is not known."""


class Judge(Protocol):
    """A model that judges."""

    async def ask(self, question: JudgeQuestion) -> JudgeAnswer:
        """Return a verdict on every scale of the question.

        Raises:
            JudgeError: There is no usable answer.
        """
        ...


class Workbench(Protocol):
    """The world as the agent left it, in which a scorer may run something.

    It is the rollout's sandbox or, for a stored rollout, a new sandbox with the retained workspace.
    """

    async def tests(self) -> VerifyResult:
        """Return the result of the task's own verifier, which runs once, however often this is called."""
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
        """Run a command in the workspace as the verifier's user, once for each key.

        Args:
            key: Idempotency key. A further call with it returns the result of the first.
            command: Argv.
            files: Files that are written before, by absolute path.
            env: Further environment variables.
            timeout_sec: Seconds that the command may take.
        """
        ...

    async def read(self, path: str, *, limit: int) -> bytes | None:
        """Return a file's content; None if there is no such file.

        Args:
            path: Path relative to the workspace.
            limit: Maximum number of bytes.

        Raises:
            VerifierError: The file is larger, or is no file.
        """
        ...


@dataclass(frozen=True)
class Evidence:
    """Evidence of a rollout for its scorers, which each of its nodes carries.

    The world's states, and the findings, are read when they are asked for.
    """

    directory: Path | None = None
    """Directory of the rollout's results; None for a node that does not come from a rollout's files."""

    evidence: Path | None = None
    """Directory of the files of the sandbox that were retained for scoring (`inputs/`, `memory/`, …); None for none."""

    task: str = ""
    """Name of the task; empty if it is not known."""

    instruction: str = ""
    """Prompt that the agent was given in the step; empty if it is not known."""

    workspace: str = "/"
    """Absolute path of the agent's working directory in the sandbox."""

    workbench: Workbench | None = None
    """World in which a scorer may run something; None if there is none."""

    judge: Judge | None = None
    """Judge model that scorers may ask; None if there is none."""

    state: Callable[[str], WorldState | None] = lambda node: None
    """Returns the world's state at the node of an id; None if there is no stateful world, or no state was stored."""

    diff: Callable[[str], StateDiff | None] = lambda node: None
    """Returns the change of the world's state at the node of an id since the world was ready; None as for `state`."""

    findings: Callable[[str], tuple[HardeningFinding, ...]] = lambda node: ()
    """Returns the findings of the hardening after the step that led to the node of an id; empty if none was done."""


@dataclass(frozen=True, eq=False)
class RolloutNode:
    """A state that a rollout reached, as scorers see it, with its place in the tree.

    A live step is scored on a path of nodes that have no role, rewards or value yet.
    """

    id: str
    """Id of the node in its tree: `n0` is the root, `n1.0/n2` a node of a child."""

    parent: RolloutNode | None = None
    """Node before it; None for the root."""

    step: int | None = None
    """Index of the step that led here, from 0; None for the root, and for nodes before the start of a live child."""

    role: str | None = None
    """Role that acted in that step; None for the root, and in live scoring."""

    events: tuple[dict[str, Any], ...] = ()
    """Lines of the trajectory of the step that led here, in order."""

    rewards: Mapping[str, float] | None = None
    """Rewards of this state by name; None if it was not verified, and in live scoring."""

    value: float | None = None
    """V(s) of this state; None if the rollout did not branch here, and in live scoring."""

    children: list[RolloutNode] = field(default_factory=list)
    """Nodes that follow it, in the order of the tree."""

    rollout: Evidence = Evidence()
    """Evidence of the rollout at this node."""

    @property
    def path(self) -> tuple[RolloutNode, ...]:
        """Return the nodes from the root to this one."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return tuple(reversed(path))

    @property
    def subtree(self) -> Iterator[RolloutNode]:
        """Yield this node and all below it, parents before children."""
        yield self
        for child in self.children:
            yield from child.subtree

    @property
    def trajectory(self) -> tuple[dict[str, Any], ...]:
        """Return all events from the root to here."""
        return tuple(event for node in self.path for event in node.events)

    @property
    def answer(self) -> str:
        """Return the messages of the agent after its last tool call or prompt, joined; empty if there are none."""
        said: list[str] = []
        for event in self.trajectory:
            if event["type"] == "agent_message":
                said.append(str(event["text"]))
            elif event["type"] in ("tool_call", "tool_call_update", "user_message", "oracle"):
                said.clear()
        return "".join(said).strip()

    @property
    def state(self) -> WorldState | None:
        """Return the world's state here, as the environment's `query()` gave it; None without a stateful world."""
        return self.rollout.state(self.id)

    @property
    def diff(self) -> StateDiff | None:
        """Return the change of the world's state since the world was ready; None without a stateful world."""
        return self.rollout.diff(self.id)

    @property
    def findings(self) -> tuple[HardeningFinding, ...]:
        """Return the findings of the hardening after the step that led here; empty if none was done."""
        return self.rollout.findings(self.id)


@runtime_checkable
class RewardFunc(Protocol):
    """A function that scores a node: an outcome reward by the node's state, or a process reward by its path.

    It may have the attributes `name` (by default that of its class) and `space` (by default `output`); its result has
    to be of that space.
    """

    def score(self, node: RolloutNode) -> Awaitable[RewardEvent | VerifyResult]:
        """Return the reward of a node: one event, or a result with metrics, events and warnings."""
        ...
