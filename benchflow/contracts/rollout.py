"""A rollout: its steps, the tree they grow into, how it can fail, and what it results in."""

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
Status = Literal["passed", "failed", "scored", "errored", "cancelled", "not_started"]
"""How a rollout ended. `scored`: by several keys, of which none is the scalar, so that it neither passed nor failed."""

RewardKind = Literal["measured", "value"]
"""What a rollout's reward is: what its verifier has measured, or the V(s) of the state where it has branched."""

Permissions = Literal["auto", "deny", "ask"]
"""Who answers what an agent asks of its user: `auto` allows, by the kind of the options and never by their order;
`deny` rejects; `ask` waits, however long, for somebody to answer.
"""


def _check_parts(name: str | None) -> str | None:
    """Refuse what leads out of a directory: results lie in directories of these names, and are read from files."""
    if name is not None and ("\0" in name or {"", ".", ".."} & set(name.split("/"))):
        raise ValueError("must be a name of directories below that of the rollout")
    return name


def _check_part(name: str | None) -> str | None:
    if name is not None and "/" in name:
        raise ValueError("must be the name of one directory")
    return _check_parts(name)


NodeId = Annotated[str, AfterValidator(_check_parts)]
StepName = Annotated[str | None, AfterValidator(_check_part)]


class Failure(Model):
    """A typed error as data: what `BenchFlowError` carries, and the phase it was recorded in."""

    type: str
    category: str
    message: str
    phase: Phase | None = None
    file: str | None = None
    key: str | None = None
    remedy: str | None = None
    log_tail: str | None = None
    retryable: bool = False


class Step(Model):
    """One turn of one role. name: of the task's step, None for a task without steps.

    session: which of the rollout's sessions it belongs to; a step of another session than the one before it begins that
    session. prompt: what is said, None for the task's own. scored: whether its state is verified; the agent goes on in
    its session after one that is not. timeout_sec: of the agent's turn; idle_timeout_sec: how long it may be silent;
    verify_timeout_sec: of the verifier.
    """

    index: int
    name: StepName = None
    role: str = "agent"
    agent: str
    model: str | None = None
    session: int = 0
    prompt: str | None = None
    scored: bool = True
    timeout_sec: float | None = None
    idle_timeout_sec: float | None = None
    verify_timeout_sec: float = 600.0
    min_reward: float | dict[str, float] | None = None
    healthcheck: bool = False


class Node(Model):
    """A state of the world: where a step led. events: [first, last) sequence numbers in the trajectory.

    scores: the rewards of granularity `step` that belong to the step, without what they were found by. chain: of a
    child's node, None for the root's own. tree: which of the trees of Tree-GRPO it belongs to. checkpoint: its id,
    where one was kept. given: which of its rewards nobody here has measured, but somebody gave it afterwards. rung: of
    a child's first node, how its agent's session went on. returns: what the trajectory that ends here has earned.
    advantages: by how they are estimated, of the trajectories that end at or below it. value, n, variance, stderr,
    failed, pending: its V(s), where it branched (`benchflow.contracts.branch.StateValue`).
    """

    id: NodeId
    parent: str | None = None
    step: int | None = None
    role: str | None = None
    events: tuple[int, int] = (0, 0)
    rewards: dict[str, float] | None = None
    value: float | None = None
    scores: list[RewardEvent] = []
    chain: str | None = None
    tree: str | None = None
    checkpoint: str | None = None
    given: tuple[str, ...] = ()
    rung: str | None = None
    returns: float | None = None
    advantages: dict[str, float] = {}
    n: int = 0
    variance: float | None = None
    stderr: float | None = None
    failed: dict[str, Failure] = {}
    pending: tuple[str, ...] = ()


class RolloutTree(Model):
    """All nodes of a rollout, root first, parents before children."""

    rollout: str
    root: str
    nodes: list[Node]
    warnings: list[str] = []
    """Why its values may be wrong: worlds of children that are not, or not provably, copies of their parent's."""

    def path(self, node_id: str) -> list[Node]:
        """Return the nodes from the root to `node_id`.

        Raises:
            KeyError: It, or a node above it, is not in the tree.
            ResultFileError: A node is its own ancestor, in a file that the engine has not written.
        """
        by_id = {node.id: node for node in self.nodes}
        path = [by_id[node_id]]
        while path[-1].parent is not None:
            if len(path) > len(by_id):
                raise ResultFileError(f"node {node_id} of the tree of {self.rollout} is its own ancestor", key="nodes")
            path.append(by_id[path[-1].parent])
        return path[::-1]

    def without_checkpoints(self) -> RolloutTree:
        """The same tree, when nothing is kept of its states any more."""
        return self.model_copy(update={"nodes": [node.model_copy(update={"checkpoint": None}) for node in self.nodes]})

    @property
    def leaves(self) -> list[Node]:
        parents = {node.parent for node in self.nodes}
        return [node for node in self.nodes if node.id not in parents]


TRUNCATING = frozenset({"agent_timeout", "budget_exhausted", "deadline", "cancelled"})
"""Categories of errors that end a trajectory which would have gone on."""

ModelAccess = Literal["gateway", "direct", "none"]
"""How an agent reaches its model: by way of the gateway, by itself, or not at all, since it needs none."""


class Usage(Model):
    """Tokens and money of a turn, as the gateway counted them, else as far as the agent told. cost: in `currency`.

    calls: of the model; None where nobody has counted them. estimated_calls: of these, the ones whose endpoint did not
    tell its tokens, so that they are guessed.
    """

    calls: int | None = None
    estimated_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    currency: str | None = None


def total(used: Sequence[Usage]) -> Usage | None:
    """What several turns used together; None where nothing is known. A sum is not known if a part of it is not."""
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
    """A session that was opened with an agent, as any process finds it again.

    index: which of the rollout's. id: as the agent names it. directory: of its files, below the sandbox's own.
    user, uid, gid, home: who the agent is in its sandbox. agent, version: what it says that it is; capabilities: what
    it advertised. model_access: how it reaches its model.
    """

    index: int
    id: str
    directory: str
    user: str
    uid: int
    gid: int
    home: str
    cwd: str
    agent: str | None = None
    version: str | None = None
    capabilities: dict[str, Any] = {}
    model_access: ModelAccess = "none"


class Option(Model):
    """One of the answers that an agent offers. kind: as in ACP (`allow_once`, …), None for a form's choice."""

    id: str
    name: str
    kind: str | None = None


class Question(Model):
    """What an agent asked of its user, and waits for. id: the same whoever looks. form: the schema of a form."""

    id: str
    kind: Literal["permission", "form"]
    text: str
    options: list[Option] = []
    form: dict[str, Any] | None = None


class UserQuestion(Question):
    """A question to a user's own handler. rollout: the workflow of whose agent asks; chain: its name in the tree, empty
    for a root.
    """

    rollout: str
    chain: str = ""


class Answer(Model):
    """A user's answer to a question: the id of an option, or a form's content; neither of them is a refusal."""

    question: str
    option: str | None = None
    content: dict[str, Any] | None = None


class TurnResult(Model):
    """What one step did. stop_reason as in ACP; events: number of trajectory lines it added.

    turn_end: `observed` when no call of a model was under way any more; `inferred` when it was taken from the agent's
    silence that nothing more would come. question: the turn is not over, it waits for an answer. replay: how far its
    calls were answered from a record. prefix: whether the first call of a session that was loaded had what was said
    before in front of it. warnings: what happened in it that its score does not show.
    """

    stop_reason: str
    n_tool_calls: int = 0
    events: int = 0
    usage: Usage | None = None
    turn_end: Literal["observed", "inferred"] | None = None
    question: Question | None = None
    replay: ReplayStatus | None = None
    prefix: PrefixState | None = None
    failure: Failure | None = None
    warnings: list[str] = []


class StepOutcome(Model):
    """A step that was run: its turn and what the verifier said of the state it led to."""

    step: Step
    turn: TurnResult
    verify: VerifyResult | None = None
    verifier_error: Failure | None = None


class RolloutOutcome(Model):
    """What a RolloutWorkflow returns and tells its job: small, references and rewards only.

    directory: where the results lie on the submitting host; pack: where they lie in the store, otherwise.
    """

    id: str
    index: int
    attempt: int
    status: Status
    rewards: dict[str, float] | None = None
    reward_kind: RewardKind = "measured"
    error: Failure | None = None
    verifier_error: Failure | None = None
    is_truncated: bool = False
    n_tool_calls: int = 0
    directory: str | None = None
    pack: ArtifactRef | None = None
    seconds: float = 0.0


class Rollback(Model):
    """That a rollout was put back. node: whose state it went on from. undone: the nodes that are its own no more, in
    their order; the last may be one that it was on its way to. used: by models, on the way there.

    directory: of what was written meanwhile, in the rollout's own; None where nothing of that is left.
    """

    node: str
    undone: list[str] = []
    used: Usage | None = None
    directory: str | None = None


class RolloutResult(Model):
    """One scored rollout, as `result.json` holds it and the Python API returns it. Alias: `RunResult`.

    rewards: `{"reward": x, …}`, without `reward` where the verifier reported several keys and no scalar, None when
    nothing was measured (never a 0 that nobody measured). error: how the
    agent or the engine failed; verifier_error: how the verifier failed. timing: seconds a phase. environment: the
    manifest's name, source and digest, and what its world was; empty for a task without one. rollbacks: that it was put
    back to states that it had been in.
    session_rung: how a child's agent went on with its parent's session.
    trajectory: the lines of `acp_trajectory.jsonl`; empty in the file itself.
    """

    rollout_name: str
    task_name: str
    job_name: str
    workflow_id: str
    run_id: str | None = None
    task_digest: str
    agent: str
    model: str | None = None
    repeat: int = 0
    attempt: int = 1
    status: Status
    rewards: dict[str, float] | None = None
    reward_kind: RewardKind = "measured"
    error: Failure | None = None
    error_category: str | None = None
    verifier_error: Failure | None = None
    warnings: list[str] = []
    is_truncated: bool = False
    n_tool_calls: int = 0
    n_prompts: int = 0
    steps: list[StepOutcome] = []

    findings: list[StepFinding] = []
    """What the hardening found, step by step: up to 50 of each step, tampering first."""

    findings_left_out: int = 0
    """Findings that are not listed."""

    n_tampering: int = 0
    """Listed findings whose weight is `tampering`."""

    sessions: list[AgentSession] = []
    started_at: datetime
    finished_at: datetime
    timing: dict[str, float] = {}
    sandbox: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    n_input_tokens: int | None = None
    n_output_tokens: int | None = None

    n_estimated_calls: int = 0
    """Model calls whose endpoint did not tell its tokens, so that these are guessed by the length of what was said."""

    cost_usd: float | None = None
    tree: dict[str, Any] = {}
    session_rung: StoredRung = None
    rollbacks: list[Rollback] = []
    stored: str | None = None
    """Of a rollout that was scored again: the directory of the stored one, in the directory of its own job."""

    directory: str | None = None
    trajectory: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def is_scored(self) -> bool:
        """Return whether its rewards count, with or without a scalar among them."""
        return self.status in ("passed", "failed", "scored")

    @property
    def reward(self) -> float | None:
        """The scalar reward, None when none was measured."""
        return None if self.rewards is None else self.rewards.get("reward")
