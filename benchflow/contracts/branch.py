"""Branching: from one state N children go on, and what they earn is what the state is worth.

When that is done is data: a policy. A state's value V(s) is an aggregate of its children's returns; a child's return is
its reward, or its own value if it branched. A child that failed has no return, and is never counted as 0.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.checkpoint import Checkpoint, SessionBegin
from benchflow.contracts.resuming import LeastRung, StoredRung
from benchflow.contracts.rollout import Answer, Failure, Node, StepOutcome, Usage

Keep = Literal["none", "branch", "every_n", "per_turn"]
"""Of which nodes a checkpoint is kept, until the root has ended: none, those that branch, every n-th, each. With `none`
a node that branches has one until its children have ended.
"""


class ChildSpec(Model):
    """In what a child differs from the others; None: in nothing. prompt: in place of the next step's. role: that its
    steps carry. answer: to the question at which its parent paused.
    """

    prompt: str | None = None
    model: str | None = None
    role: str | None = Field(default=None, min_length=1)
    seed: int | None = None
    answer: Answer | None = None


Count = Annotated[int, Field(ge=1)]

COUNT_KINDS = ("a number", "numbers")
"""What an error of `Counts` has in its place, after the field."""

Counts = Annotated[
    Annotated[Count, Tag(COUNT_KINDS[0])] | Annotated[tuple[Count, ...], Tag(COUNT_KINDS[1])],
    Discriminator(lambda given: COUNT_KINDS[isinstance(given, list | tuple)]),
]


class AfterSteps(Model):
    """Branch where so many steps were done; 0 is before the first. n: children at each, or one number for each."""

    kind: Literal["after_steps"] = "after_steps"
    steps: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    n: Counts = 2

    @property
    def counts(self) -> dict[int, int]:
        """How many children begin after so many steps."""
        numbers = (self.n,) * len(self.steps) if isinstance(self.n, int) else self.n
        return dict(zip(self.steps, numbers, strict=False))


class EverySteps(Model):
    """Branch whenever `every` steps were done, and not at the end."""

    kind: Literal["every_n"] = "every_n"
    every: int = Field(ge=1)
    n: int = Field(default=2, ge=1)


class OnAskUser(Model):
    """Branch where the agent asks its user and gives options: a child for each, at most `most`."""

    kind: Literal["ask_user"] = "ask_user"
    most: int = Field(default=8, ge=1)


class Group(Model):
    """GRPO: one shared prefix of `at` steps, then a group of n children."""

    kind: Literal["group"] = "group"
    n: int = Field(default=8, ge=2)
    at: int = Field(default=0, ge=0)


class TreeGrpo(Model):
    """Tree-GRPO (arXiv 2509.21240): `m` chains from the root; then `l` times, in each tree, `n` nodes are drawn
    uniformly from its root and those that are no leaves, and each grows a new chain; a tree has at most `k` leaves.
    """

    kind: Literal["tree_grpo"] = "tree_grpo"
    m: int = Field(default=2, ge=1)
    n: int = Field(default=2, ge=1)
    l: int = Field(default=1, ge=1)  # noqa: E741
    k: int = Field(default=3, ge=1)


class CustomPolicy(Model):
    """A user's own (`benchflow.branching.policies.BranchPolicy`): the name of an entry point of
    `benchflow.branch_policies`, or `module:Class`. options: its keyword arguments.
    """

    kind: Literal["custom"] = "custom"
    policy: str
    options: dict[str, Any] = {}


class Unbranched(Model):
    """Do not branch: keep checkpoints to go back to."""

    kind: Literal["none"] = "none"


Policy = Annotated[
    AfterSteps | EverySteps | OnAskUser | Group | TreeGrpo | CustomPolicy | Unbranched, Field(discriminator="kind")
]

Then = Literal["stop", "best", "sample", "itself"]
"""What the parent does with its children's returns: stop, so that its own reward is V(s); or go on from the best child,
or from one drawn at random; or by `itself`, as if it had no children. A child may also be named: `child:<number>`.
"""


class BranchConfig(Model):
    """How a rollout branches.

    aggregate: `mean`, `max`, or `module:function` of a list of returns. concurrency: children of one node that run at a
    time. horizon: steps that a child runs before it is scored, None for all. max_depth: of branches below each other;
    max_children: of the whole tree. min_session_rung: less is refused. checkpoint, every, portable: which nodes keep a
    checkpoint, and whether other hosts can restore it.
    """

    policy: Policy
    children: tuple[ChildSpec, ...] = ()
    aggregate: str = "mean"
    then: str = Field(default="stop", pattern=r"^(stop|best|sample|itself|child:\d+)$")
    concurrency: int = Field(default=8, ge=1, le=500)
    horizon: int | None = Field(default=None, ge=1)
    max_depth: int = Field(default=1, ge=1, le=64)
    max_children: int = Field(default=64, ge=1, le=1000)
    min_session_rung: LeastRung = "fresh"
    checkpoint: Keep = "branch"
    every: int = Field(default=1, ge=1)
    portable: bool = False

    @property
    def has_children(self) -> bool:
        """Return whether rollouts may have children; else they only keep checkpoints."""
        return not isinstance(self.policy, Unbranched)


class BranchOrigin(Model):
    """What makes a rollout a child. root: the workflow id of its tree's root; run_id: of that one's first run; parent:
    the workflow id of its parent. chain: its own name in the tree.

    node: where it begins. number: among its siblings. depth: 1 for a child of the root. budget: how many children there
    may be below it. checkpoint: its world; before: what was run until there. tree: which one of Tree-GRPO it grows.
    path: the nodes until there, where a user's policy may ask for them. replays: while it is at that, from where a
    session is driven to where its parent's was.
    """

    root: str
    run_id: str
    parent: str
    chain: str
    node: str
    number: int
    depth: int
    budget: int
    checkpoint: Checkpoint
    child: ChildSpec = ChildSpec()
    before: list[StepOutcome] = []
    tree: str | None = None
    path: list[Node] = []
    replays: SessionBegin | None = None


class ChildOutcome(Model):
    """What came of a child. reward: None when nothing was measured. rung: how its session went on. nodes: its own and
    those of all below it. leaf: the last of its own chain; checkpoint: of that, before it was
    verified, where its parent may go on from it; kept: of the nodes before, where new chains may begin there; steps:
    that were run from where it begins, before: until there. used, n_tool_calls: of all
    of them. tree: which of the
    trees of Tree-GRPO its chain belongs to, None: to that of the chain where it begins. pack: its results in the store,
    where it may have run on another host than its parent.
    """

    chain: str
    number: int
    reward: float | None = None
    value: StateValue | None = None
    failure: Failure | None = None
    rung: StoredRung = None
    leaf: str | None = None
    checkpoint: Checkpoint | None = None
    kept: list[Checkpoint] = []
    before: list[StepOutcome] = []
    steps: list[StepOutcome] = []
    nodes: list[Node] = []
    children: int = 0
    used: Usage | None = None
    n_tool_calls: int = 0
    tree: str | None = None
    pack: ArtifactRef | None = None
    warnings: tuple[str, ...] = ()
    """In what its world, and those of the children below it, differed from the world where they began."""

    @property
    def returns(self) -> float | None:
        """Its reward, or its own value if it branched. None where it failed before anything of its own was measured; an
        agent that only ran out of time has its reward all the same.
        """
        if self.failure is not None and self.reward is None:
            return None
        return self.value.value if self.value is not None else self.reward


class StateValue(Model):
    """V(s). value: None while no child has finished. variance: of the returns (n - 1 below the line), stderr: of their
    mean; None for fewer than two. returns, failed: by chain. pending: children that have not ended.
    """

    node: str
    aggregate: str
    value: float | None = None
    n: int = 0
    variance: float | None = None
    stderr: float | None = None
    returns: dict[str, float] = {}
    failed: dict[str, Failure] = {}
    pending: tuple[str, ...] = ()


ChildOutcome.model_rebuild()
