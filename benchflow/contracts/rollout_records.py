"""Data models of a rollout: steps, tree nodes, failures, agent sessions and their questions, outcomes and results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.gateway import PrefixState, ReplayStatus
from benchflow.contracts.resuming import StoredRung
from benchflow.contracts.reward import RewardEvent, StepFinding, VerifyResult
from benchflow.errors import ResultFileError

Phase = Literal[
    "plan", "provision", "readiness", "connect", "execute", "branch", "verify", "report", "teardown", "done"
]
"""Phase of a rollout's workflow.

`plan`: the task is lowered to steps. `provision`: the sandbox starts. `readiness`: the environment becomes healthy.
`connect`: an agent session is opened or resumed. `execute`: the agent takes a turn. `branch`: children run. `verify`: a
state is scored. `report`: the result is written. `teardown`: the sandbox is removed. `done`: the workflow ends.
"""

Status = Literal["passed", "failed", "scored", "errored", "cancelled", "not_started"]
"""How a rollout ended.

`passed`: with a scalar reward of 1 or more. `failed`: with a lower one. `scored`: with rewards of several keys and no
scalar, so that it neither passed nor failed. `errored`: without rewards. `cancelled`: by request, without rewards.
`not_started`: never run, because the job had stopped starting rollouts.
"""

RewardKind = Literal["measured", "value"]
"""Source of a rollout's reward: `measured` by its verifier, or the `value` V(s) of the node where it branched."""

Permissions = Literal["auto", "deny", "ask"]
"""Policy for the questions that an agent asks its user.

`auto` allows, by the kind of the options and never by their order. `deny` rejects. `ask` waits for a user's answer,
without a time limit.
"""


def _check_parts(name: str | None) -> str | None:
    """Return the name, or raise `ValueError` if it is absolute, or has a NUL or an empty, `.` or `..` part.

    Results lie in directories of these names, and the names are read from files that others may have written.
    """
    if name is not None and ("\0" in name or {"", ".", ".."} & set(name.split("/"))):
        raise ValueError("must be a name of directories below that of the rollout")
    return name


def _check_part(name: str | None) -> str | None:
    """Return the name, or raise `ValueError` if it is not that of a single directory."""
    if name is not None and "/" in name:
        raise ValueError("must be the name of one directory")
    return _check_parts(name)


NodeId = Annotated[str, AfterValidator(_check_parts)]
"""Id of a node: a relative path, since the results of children lie in directories that are named after it."""

StepName = Annotated[str | None, AfterValidator(_check_part)]
"""Name of a task's step: a single directory name, since the results of the step lie in a directory of this name."""


class Failure(Model):
    """An error as data: the fields of a `BenchFlowError`, and the phase in which it was recorded."""

    type: str
    """Class name of the error. A name that is not in `benchflow.errors` is another exception's."""

    category: str
    """Category by which results group errors and retries select them (`BenchFlowError.category`); `internal` for an
    exception of any other type.
    """

    message: str
    """Sentence that says what failed; at most 4000 characters where it was made from an exception."""

    phase: Phase | None = None
    """Phase of the rollout in which it was recorded; None where the code that recorded it knows no phase."""

    file: str | None = None
    """File, or other source, that the error is about; None if it is about none."""

    key: str | None = None
    """Key of that file, or option of the request, that the error is about; None if it is about none."""

    remedy: str | None = None
    """Action that resolves the error, for users; None if none is known."""

    log_tail: str | None = None
    """End of a log that explains the error, at most 4000 characters; None if there is none."""

    retryable: bool = False
    """Whether the same work may succeed if it is done again. Activities are retried by it. True for an exception that
    is no `BenchFlowError`, since its cause is not known.
    """


class Step(Model):
    """A turn of one role: the unit to which a task is lowered, and which a rollout runs and may score.

    Written by the `plan` activity; the workflow, other activities and the results carry it unchanged.
    """

    index: int
    """Position in the rollout's plan, from 0. A child has its parent's plan, and so the same indices."""

    name: StepName = None
    """Name of the task's `steps` entry that the turn belongs to; None for a task without steps."""

    role: str = "agent"
    """Role that acts: of a scene's turn, or of a child's `ChildSpec`; else `agent`. Events and model calls carry it."""

    agent: str
    """Registry name of the agent that takes the turn."""

    model: str | None = None
    """Model of the agent, as the job spells it; None if the job names none."""

    session: int = 0
    """Index of the agent session that the turn belongs to. A step whose session differs from that of the step before
    opens its session.
    """

    prompt: str | None = None
    """Prompt of the turn; None for the task's own instruction."""

    scored: bool = True
    """Whether the verifier runs after the turn. False for the turns of scenes before the last one: the next turn of the
    same session then continues directly, and the verifier runs only if the turn failed or the rollout ends with it.
    """

    timeout_sec: float | None = None
    """Seconds that the agent's turn may take, without the time that a user takes to answer. None for no limit but the
    rollout's deadline.
    """

    idle_timeout_sec: float | None = None
    """Seconds that the agent may send nothing within the turn; None for no limit."""

    verify_timeout_sec: float = 600.0
    """Seconds that scoring the state may take, the time for a clean room included."""

    min_reward: float | dict[str, float] | None = None
    """Lowest reward with which the next step is run: of the scalar, or of each key that is named. None for no
    condition.
    """

    healthcheck: bool = False
    """Whether the task's step has a healthcheck of its own, which runs before the turn."""


class Node(Model):
    """A state of the world in a rollout's tree: the root's start, or where a step led.

    `value`, `n`, `variance`, `stderr`, `failed` and `pending` describe V(s) of a node where children begin, as in
    `benchflow.contracts.branch.StateValue`. At any other node they have their defaults.
    """

    id: NodeId
    """Name, unique in the tree: `n<k>` after k steps from the root, `<branch path>/n<k>` in a child. With the suffix
    `-asked`: the agent's question at which children begin, within a step.
    """

    parent: str | None = None
    """Id of the node before; None for the root of the tree."""

    step: int | None = None
    """Index of the step that led here; None for the root and for a node of a question."""

    role: str | None = None
    """Role of that step; None where `step` is None."""

    events: tuple[int, int] = (0, 0)
    """Range [first, last) of the `seq` of that step's events in the trajectory of the rollout that ran it; (0, 0) for
    none. A root's `tree.json` has (0, 0) for nodes of its children, whose own `tree.json` has the range.
    """

    rewards: dict[str, float] | None = None
    """Rewards by key, `reward` for the scalar: those that the verifier measured, and those in `given`. None where
    nothing was scored.
    """

    value: float | None = None
    """V(s): the aggregate of the children's returns. None if the node did not branch, or no child has a return."""

    scores: list[RewardEvent] = []
    """Reward events with granularity `step` for that step, without their `meta`. Written to the `tree.json` of the
    rollout that ran the step, as `events` is.
    """

    chain: str | None = None
    """Branch path of the child that the node belongs to, `<node where it begins>.<number>`; None for the root's."""

    tree: str | None = None
    """Branch path with which the node's tree of Tree-GRPO began, of the several trees that grow from one root. None
    for the root's own nodes, and under any other policy.
    """

    checkpoint: str | None = None
    """Id of the retained checkpoint of this state; None if none is retained."""

    given: tuple[str, ...] = ()
    """Keys of `rewards` that a user added after the end (`StoredTree.reward`). They count in no return, value or
    advantage.
    """

    rung: str | None = None
    """Resume mode of a child's agent session, at the child's first node: `load`, `replay` or `fresh`. None for any
    other node, and without a session to resume. Earlier versions wrote `process` for the latter.
    """

    returns: float | None = None
    """Return of the trajectory that ends here; None where none ends, or nothing was measured."""

    advantages: dict[str, float] = {}
    """Advantages by estimator: `grpo`, `leave_one_out`, `tree_grpo`. Of a leaf its own; of a node above the mean over
    the leaves below it. Empty without a measured leaf.
    """

    n: int = 0
    """Number of children whose returns `value` is made of."""

    variance: float | None = None
    """Sample variance of these returns (denominator n - 1); None for fewer than two."""

    stderr: float | None = None
    """Standard error of the mean of these returns; None for fewer than two."""

    failed: dict[str, Failure] = {}
    """Failures of the children that ended without a return, by branch path. They are left out of `value`."""

    pending: tuple[str, ...] = ()
    """Branch paths of the children that have not ended."""


class RolloutTree(Model):
    """The tree of a rollout's nodes, as `tree.json` holds it. A rollout that did not branch is a tree of degree 1."""

    rollout: str
    """Workflow id of the rollout."""

    root: str
    """Id of the first node: `n0`, or, in the tree of a child, the node where the child begins."""

    nodes: list[Node]
    """All nodes: the root first, parents before their children."""

    warnings: list[str] = []
    """Reasons why values may be wrong: worlds of children that are not, or not provably, copies of their parent's."""

    def path(self, node_id: str) -> list[Node]:
        """Return the nodes from the root to `node_id`.

        Raises:
            KeyError: The node, or one above it, is not in the tree.
            ResultFileError: A node is its own ancestor, in a file that the engine did not write.
        """
        by_id = {node.id: node for node in self.nodes}
        path = [by_id[node_id]]
        while path[-1].parent is not None:
            if len(path) > len(by_id):
                raise ResultFileError(f"node {node_id} of the tree of {self.rollout} is its own ancestor", key="nodes")
            path.append(by_id[path[-1].parent])
        return path[::-1]

    def without_checkpoints(self) -> RolloutTree:
        """Return the tree without the ids of checkpoints, for a rollout whose checkpoints are released."""
        return self.model_copy(update={"nodes": [node.model_copy(update={"checkpoint": None}) for node in self.nodes]})

    @property
    def leaves(self) -> list[Node]:
        """Return the nodes that have no children, in the order of `nodes`."""
        parents = {node.parent for node in self.nodes}
        return [node for node in self.nodes if node.id not in parents]


TRUNCATING = frozenset({"agent_timeout", "budget_exhausted", "deadline", "cancelled"})
"""Error categories that truncate a trajectory: it was cut off before the agent was done."""

ModelAccess = Literal["gateway", "direct", "none"]
"""Route of an agent's model calls: the `gateway`, `direct` to the endpoint, or `none` for an agent without a model."""


class Usage(Model):
    """Model usage, tokens and cost, of a turn or of several: counted by the gateway, else reported by the agent."""

    calls: int | None = None
    """Model calls that went to the endpoint, side calls included; None if they were not counted."""

    estimated_calls: int = 0
    """Number of `calls` whose endpoint did not report tokens; these are estimated from the length of the text."""

    input_tokens: int = 0
    """Input tokens, the cached ones included where the gateway counted them. 0 also if none were reported."""

    output_tokens: int = 0
    """Output tokens, those of reasoning included where the gateway counted them. 0 also if none were reported."""

    cached_tokens: int = 0
    """Input tokens that were read from the endpoint's cache."""

    reasoning_tokens: int = 0
    """Output tokens of the model's reasoning."""

    cost: float | None = None
    """Cost in `currency`; None if it is not known of all of the calls."""

    currency: str | None = None
    """Currency of `cost`: USD for what the gateway counted, else as the agent reports it. None without a cost."""


def total(used: Sequence[Usage]) -> Usage | None:
    """Return the sum of the usage of several turns; None for no turns.

    `calls` is None in the sum if it is None in a part; so is `cost`, also where the currencies differ.
    """
    if not used:
        return None
    counts = ("estimated_calls", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    calls, costs = [each.calls for each in used], [each.cost for each in used]
    currencies = {each.currency for each in used}
    is_one = len(currencies) == 1 and None not in costs
    return Usage(
        calls=None if None in calls else sum(each or 0 for each in calls),
        cost=sum(each or 0.0 for each in costs) if is_one else None,
        currency=currencies.pop() if is_one else None,
        **{name: sum(getattr(each, name) for each in used) for name in counts},
    )


class AgentSession(Model):
    """A session that was opened with an agent. Any worker process finds the session again by it.

    Written by the agent plane when the session opens. Secrets in the agent's own words are redacted.
    """

    index: int
    """Index of the session in the rollout, from 0 (`Step.session`)."""

    id: str
    """Id that the agent gave the session: ACP's `sessionId`. For a Python function the same as `directory`."""

    directory: str
    """Name of the session's directory, in the sandbox's run directory and on its host: `<index>.<start attempt>`, with
    the rollout namespace as a prefix in a sandbox that several rollouts use.
    """

    user: str
    """User of the sandbox that the agent acts as."""

    uid: int
    """Numeric id of that user."""

    gid: int
    """Numeric id of that user's group."""

    home: str
    """Home directory of that user, absolute. A session is loaded only where it is the same: agents store paths."""

    cwd: str
    """Working directory of the session in the sandbox, absolute: the workspace. It must stay the same, like `home`."""

    agent: str | None = None
    """Name that an ACP agent reports in `initialize`, None if it reports none. Registry name of any other agent."""

    version: str | None = None
    """Version that an ACP agent reports likewise. Of any other agent, the version in its registry record, if any."""

    capabilities: dict[str, Any] = {}
    """Capabilities that an ACP agent advertised in `initialize`; they decide whether a session can be loaded. Empty for
    any other agent, and if they are too long for a workflow.
    """

    model_access: ModelAccess = "none"
    """How the agent reaches its model."""


class Option(Model):
    """One of the answers that an agent offers with a question."""

    id: str
    """Id of the option: ACP's `optionId`; `<field>:<value>` for a choice of a form."""

    name: str
    """Text of the option, for users; at most 200 characters in a workflow."""

    kind: str | None = None
    """ACP's kind of a permission option (`allow_once`, `allow_always`, `reject_once`, …); None for a form's choice."""


class Question(Model):
    """A question that an agent asks its user. Its turn waits for the answer."""

    id: str
    """Id of the question, the same in every process that reads the session's journal."""

    kind: Literal["permission", "form"]
    """`permission`: ACP's `session/request_permission`. `form`: ACP's elicitation, or `ask_user` of a Python agent."""

    text: str
    """Text of the question, for users; at most 4000 characters in a workflow."""

    options: list[Option] = []
    """Options to choose from, at most 50 in a workflow. Empty for a form that is more than a single choice: its answer
    needs a `content`.
    """

    form: dict[str, Any] | None = None
    """JSON Schema of the form's content. None for a permission, and for a form too long for a workflow."""


class UserQuestion(Question):
    """A question with its origin, as the user's `on_ask_user` handler gets it."""

    rollout: str
    """Id of the workflow whose agent asks: a rollout's, or a child's. The answer is signalled to it."""

    chain: str = ""
    """Branch path of that child in its tree; empty for the root."""


class Answer(Model):
    """A user's answer to a question. Without `option` and `content` it refuses."""

    question: str
    """Id of the question that it answers."""

    option: str | None = None
    """Id of the chosen option; None if none is chosen."""

    content: dict[str, Any] | None = None
    """Content of the form, by field; None if none is filled in. Only for a question of kind `form`."""


class TurnResult(Model):
    """Result of an agent's turn in a step."""

    stop_reason: str
    """Reason of the end, as ACP has it (`end_turn`, `max_tokens`, `refusal`, …) or as the agent spells it. Of the
    engine: `timeout`, `error`, `paused` for a question, or the category of a failure of the model calls.
    """

    n_tool_calls: int = 0
    """Tool calls of the turn."""

    events: int = 0
    """Lines that the turn added to the trajectory."""

    usage: Usage | None = None
    """Model usage of the turn; None if nothing is known of it."""

    turn_end: Literal["observed", "inferred"] | None = None
    """How it is known that a turn which the agent ended makes no more model calls. `observed`: the gateway had none in
    flight. `inferred`: from the agent's silence. None for any other turn, and for an agent without sessions.
    """

    question: Question | None = None
    """Question that the turn waits for, so that it is not over; None once it is."""

    replay: ReplayStatus | None = None
    """How far the model calls were answered from a record; None where they are not replayed."""

    prefix: PrefixState | None = None
    """Whether the first model call of a resumed session began with the parent's last one: `equal`, `different`, or
    `unchecked` before that call. None if there is no call of a parent to compare with.
    """

    failure: Failure | None = None
    """How the agent, its model or its world failed in the turn; None if nothing did."""

    warnings: list[str] = []
    """Facts about the turn that its score does not show, such as processes killed for want of memory."""


class StepOutcome(Model):
    """A step that was run: the agent's turn, and the score of the state that it led to."""

    step: Step
    """Step of the plan that was run."""

    turn: TurnResult
    """Result of its turn."""

    verify: VerifyResult | None = None
    """Result of the verifier; None if it was not run, or failed."""

    verifier_error: Failure | None = None
    """How the verifier failed; None if it did not."""


class RolloutOutcome(Model):
    """Outcome of a rollout: returned by its workflow, and signalled to the job. Rewards and references only, no bulk.

    With neither `directory` nor `pack` it has no result, and the job has a row written for it as a lost rollout.
    """

    id: str
    """Workflow id of the rollout."""

    index: int
    """Index of the rollout in its job."""

    attempt: int
    """Number of the attempt, from 1. A retry of the rollout has the next one."""

    status: Status
    """How the rollout ended."""

    rewards: dict[str, float] | None = None
    """Rewards by key, `reward` for the scalar; None if nothing was measured."""

    reward_kind: RewardKind = "measured"
    """Source of the rewards."""

    error: Failure | None = None
    """How the agent or the engine failed; None if neither did. An agent's failure may stand beside rewards."""

    verifier_error: Failure | None = None
    """How the verifier failed; None if it did not."""

    is_truncated: bool = False
    """Whether `error` cut the trajectory off (`TRUNCATING`)."""

    n_tool_calls: int = 0
    """Tool calls of its steps and of all its children."""

    directory: str | None = None
    """Directory of the results on the submitting host; None if they are not there."""

    pack: ArtifactRef | None = None
    """Results in the artifact store, written where the rollout ran on another host; else None."""

    seconds: float = 0.0
    """Seconds from the start of its workflow to its end, waiting included."""


class Rollback(Model):
    """A roll-back of a rollout to a checkpoint, which was carried out."""

    node: str
    """Id of the node that it was rolled back to."""

    undone: list[str] = []
    """Ids of the nodes that were reverted, in their order. The last may be one that was not reached, of the step under
    way. After the rollout's end also those of the children that were reverted.
    """

    used: Usage | None = None
    """Model usage of what was reverted; None if nothing is known of it. The rollout's totals include it."""

    directory: str | None = None
    """Directory of what was reverted, `rollbacks/<label>` in the rollout's own; None if it is lost with the host that
    had it.
    """


class RolloutResult(Model):
    """Result of one rollout, as `result.json` holds it and the Python API returns it (there also as `RunResult`).

    Each child in a tree has a result of its own, in which `rollout_name` is the root's.
    """

    rollout_name: str
    """Name of the rollout's results directory in the job's: `<task>__<id>`."""

    task_name: str
    """Name of the task; `unknown` if the job's specification cannot be read."""

    job_name: str
    """Name of the job."""

    workflow_id: str
    """Workflow id of the rollout."""

    run_id: str | None = None
    """Run id of the first run of that workflow; None if the rollout never started, or its run is not known."""

    task_digest: str
    """Digest of the task as it was submitted; empty if the job's specification cannot be read."""

    agent: str
    """Registry name of the agent; `unknown` if the job's specification cannot be read."""

    model: str | None = None
    """Model of the agent, as the job spells it; None if it names none."""

    repeat: int = 0
    """Number of the repeat of this task with this agent, from 0."""

    attempt: int = 1
    """Number of the attempt, from 1. Results of earlier attempts lie in `attempts/`."""

    status: Status
    """How the rollout ended."""

    rewards: dict[str, float] | None = None
    """Rewards by key, `reward` for the scalar; without it where the verifier reported several keys and no scalar. None
    if nothing was measured: never a 0 in its place.
    """

    reward_kind: RewardKind = "measured"
    """Source of the rewards."""

    error: Failure | None = None
    """How the agent or the engine failed; None if neither did. An agent's failure may stand beside rewards."""

    error_category: str | None = None
    """Category of `error`, else of `verifier_error`; None without both."""

    verifier_error: Failure | None = None
    """How the verifier failed; None if it did not."""

    warnings: list[str] = []
    """Warnings of all parts: the task, the sandbox, the sessions, the tree, each turn and each verifier."""

    is_truncated: bool = False
    """Whether `error` cut the trajectory off (`TRUNCATING`)."""

    n_tool_calls: int = 0
    """Tool calls of its steps and of all its children."""

    n_prompts: int = 0
    """Turns of its own, each with one prompt; those that led to a child's start are the parent's."""

    steps: list[StepOutcome] = []
    """Outcomes of the steps in their order; in a child's result, those that led to its start come first."""

    findings: list[StepFinding] = []
    """Findings of the verifier's hardening, step by step: up to 50 of each step, tampering first."""

    findings_left_out: int = 0
    """Number of findings that are not listed."""

    n_tampering: int = 0
    """Number of listed findings whose weight is `tampering`."""

    sessions: list[AgentSession] = []
    """Agent sessions in the order in which they were opened, without those that a roll-back reverted."""

    started_at: datetime
    """Start of the rollout's workflow, UTC. For a rollout that never reported: the time of this result."""

    finished_at: datetime
    """Time at which this result was made, UTC."""

    timing: dict[str, float] = {}
    """Seconds of work by phase, for the phases that ended before the report. `wait`: seconds of waiting for a slot, a
    user or children, which count in no phase.
    """

    sandbox: dict[str, Any] = {}
    """Facts of the sandbox: `provider`, `provisions` (how often one was started), and of the last one `name`, `host`,
    `workdir`, `isolation`, `image`, `has_workdir`, if there was one. Empty for a rollout that never ran.
    """

    environment: dict[str, Any] = {}
    """Environment of the task: `name`, `source` and `digest`, and, once it was ready, the fields of `Readied`. Empty
    for a task without one.
    """

    n_input_tokens: int | None = None
    """Input tokens of its own steps, of its children and of reverted work; None if no usage is known."""

    n_output_tokens: int | None = None
    """Output tokens, likewise."""

    n_estimated_calls: int = 0
    """Model calls, likewise, whose endpoint did not report tokens; these are estimated from the length of the text."""

    cost_usd: float | None = None
    """Cost, likewise, in USD. Turns whose cost is not known in USD are left out; None if it is known of no turn."""

    tree: dict[str, Any] = {}
    """Size of the rollout's tree: the number of `nodes` and of `leaves`."""

    session_rung: StoredRung = None
    """Resume mode of the agent session that the rollout resumed from a checkpoint, as a child or after a roll-back:
    `load`, `replay` or `fresh`. None if there was none to resume.
    """

    rollbacks: list[Rollback] = []
    """Roll-backs of the rollout, in their order."""

    stored: str | None = None
    """Name of the stored rollout's directory, in that of its own job, if this rollout scores a stored one again; else
    None.
    """

    directory: str | None = None
    """Directory of the results on this host, set by the functions that read them. In the file it is None if the
    rollout ran on another host than the submitting one.
    """

    trajectory: list[dict[str, Any]] = Field(default_factory=list)
    """Lines of `acp_trajectory.jsonl`, set by the Python API; empty in the file itself."""

    @property
    def is_scored(self) -> bool:
        """Return whether the rewards count, with or without a scalar among them."""
        return self.status in ("passed", "failed", "scored")

    @property
    def reward(self) -> float | None:
        """Return the scalar reward; None if none was measured."""
        return None if self.rewards is None else self.rewards.get("reward")
