"""Branching: where a rollout starts children from one state, and the value of that state by their returns.

Where a rollout branches is data: a policy. The value V(s) of a state is an aggregate of its children's returns; the
return of a child is its reward, or its own V(s) if it branched. A child that failed has no return; it never counts
as 0.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.checkpoint import Checkpoint, SessionBegin
from benchflow.contracts.resuming import LeastRung, StoredRung
from benchflow.contracts.rollout_records import Answer, Failure, Node, StepOutcome, Usage

Keep = Literal["none", "branch", "every_n", "per_turn"]
"""Nodes whose checkpoints are retained until the root ends: none, those that branch, every n-th, or each.

With `none`, a node that branches has a checkpoint until its children have ended. `RunSettings.keep` may retain those of
a root beyond its end.
"""


class ChildSpec(Model):
    """Overrides of one child, by which it differs from its siblings. A field that is None overrides nothing."""

    prompt: str | None = None
    """Prompt of the child's first step, instead of that step's own."""

    model: str | None = None
    """Model of the child's agent, as its provider spells it; it must take the same API key as the parent's model."""

    role: str | None = Field(default=None, min_length=1)
    """Role that is recorded with all steps of the child; None: the role of its parent's own `ChildSpec`, if the parent
    is a child that has one, else that of each step.
    """

    seed: int | None = None
    """Sampling seed that the gateway puts into each model call of the child."""

    answer: Answer | None = None
    """Answer to the question at which the parent's turn paused. Only the policy `ask_user` sets it."""


Count = Annotated[int, Field(ge=1)]
"""Number of children that start at one node."""

_COUNT_KINDS = ("a number", "numbers")
"""Tags of the two shapes of `Counts`. A validation error names one of them after the field."""

Counts = Annotated[
    Annotated[Count, Tag(_COUNT_KINDS[0])] | Annotated[tuple[Count, ...], Tag(_COUNT_KINDS[1])],
    Discriminator(lambda given: _COUNT_KINDS[isinstance(given, list | tuple)]),
]
"""One number of children for all places, or one number for each place."""


class AfterSteps(Model):
    """Policy that branches after given numbers of steps."""

    kind: Literal["after_steps"] = "after_steps"
    """Discriminator of `Policy`."""

    steps: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """Numbers of steps, counted from the root, after which children start; 0 is before the first step."""

    n: Counts = 2
    """Number of children at each place, or one number for each entry of `steps`, in their order."""

    @property
    def counts(self) -> dict[int, int]:
        """Return the number of children by the number of steps after which they start."""
        numbers = (self.n,) * len(self.steps) if isinstance(self.n, int) else self.n
        return dict(zip(self.steps, numbers, strict=False))


class EverySteps(Model):
    """Policy that branches after every `every` steps, but neither before the first step nor after the last."""

    kind: Literal["every_n"] = "every_n"
    """Discriminator of `Policy`."""

    every: int = Field(ge=1)
    """Steps between two branches, counted from the root."""

    n: int = Field(default=2, ge=1)
    """Number of children at each branch."""


class OnAskUser(Model):
    """Policy that branches where the agent asks its user and offers options: one child for each option."""

    kind: Literal["ask_user"] = "ask_user"
    """Discriminator of `Policy`."""

    most: int = Field(default=8, ge=1)
    """Most children at one question. Where the agent offers more options, only the first ones have a child."""


class Group(Model):
    """Policy of GRPO: one group of children that share a prefix of steps."""

    kind: Literal["group"] = "group"
    """Discriminator of `Policy`."""

    n: int = Field(default=8, ge=2)
    """Number of children in the group."""

    at: int = Field(default=0, ge=0)
    """Number of steps in the shared prefix, counted from the root; 0 branches before the first step."""


class TreeGrpo(Model):
    """Policy of Tree-GRPO (arXiv 2509.21240): trees grow new branch paths from nodes that are drawn at random.

    `m` branch paths start at the root, and each is the first of a tree. Then, in each of `l` rounds, `n` nodes of each
    tree are drawn, uniformly and with replacement, from its root and the nodes that are no leaves. A new branch path
    starts at each drawn node.
    """

    kind: Literal["tree_grpo"] = "tree_grpo"
    """Discriminator of `Policy`."""

    m: int = Field(default=2, ge=1)
    """Number of trees."""

    n: int = Field(default=2, ge=1)
    """Number of nodes drawn in each tree in each round; fewer where the tree would get more than `k` leaves."""

    l: int = Field(default=1, ge=1)  # noqa: E741
    """Number of rounds."""

    k: int = Field(default=3, ge=1)
    """Most leaves of one tree."""


class CustomPolicy(Model):
    """Policy in a user's own code: a class like `benchflow.branching.policies.BranchPolicy`."""

    kind: Literal["custom"] = "custom"
    """Discriminator of `Policy`."""

    policy: str
    """Name of the class: an entry point of the group `benchflow.branch_policies`, or `module:Class`."""

    options: dict[str, Any] = {}
    """Keyword arguments of the class."""


class Unbranched(Model):
    """Policy that never branches: the rollout only retains checkpoints, to which it can be rolled back."""

    kind: Literal["none"] = "none"
    """Discriminator of `Policy`."""


Policy = Annotated[
    AfterSteps | EverySteps | OnAskUser | Group | TreeGrpo | CustomPolicy | Unbranched, Field(discriminator="kind")
]
"""Any branch policy, discriminated by `kind`."""

Then = Literal["stop", "best", "sample", "itself"]
"""Actions of a parent once its children have ended.

`stop`: the parent ends, and its reward is V(s). `best`, `sample`: it continues from the child with the highest return,
or from one drawn at random among those that have a return. `itself`: it continues in its own sandbox and session, as if
it had no children. `BranchConfig.then` also accepts `child:<number>`: it continues from that child.
"""


class BranchConfig(Model):
    """Configuration of how the rollouts of a job branch."""

    policy: Policy
    """Policy that decides at which nodes children start, and how many."""

    children: tuple[ChildSpec, ...] = ()
    """Overrides of the children, by their number at a node; empty: all children are alike. There are as many as the
    policy's number of children, or as the largest of its numbers, of which a node with fewer children uses the first.
    """

    aggregate: str = "mean"
    """Aggregate that makes V(s) of the children's returns: `mean`, `max`, or `module:function`, which gets a list of
    floats and returns one.
    """

    then: str = Field(default="stop", pattern=r"^(stop|best|sample|itself|child:\d+)$")
    """Action of the parent once its children have ended: one of `Then`, or `child:<number>`. It stops where there is no
    such child with a return, and where its children have answered a question.
    """

    concurrency: int = Field(default=8, ge=1, le=500)
    """Most children of one node that run at a time, as far as the job has slots."""

    horizon: int | None = Field(default=None, ge=1)
    """Steps that a child runs before it is scored; None: to the end of the task."""

    max_depth: int = Field(default=1, ge=1, le=64)
    """Most branches below each other: with 1, only the root branches."""

    max_children: int = Field(default=64, ge=1, le=1000)
    """Most children in the whole tree. A branch that needs more than are left does not take place."""

    min_session_rung: LeastRung = "fresh"
    """Worst resume mode that is accepted for the agent's session in a child: `load`, `replay` or `fresh`. An agent that
    has no such mode is refused at submit; a child whose session cannot be resumed in one fails.
    """

    checkpoint: Keep = "branch"
    """Nodes whose checkpoints are retained until the root ends. In Tree-GRPO, `branch` also retains all nodes of
    children, since each may be drawn.
    """

    every: int = Field(default=1, ge=1)
    """Number of steps, counted from the root, between two retained checkpoints. Only with `checkpoint` = `every_n`."""

    portable: bool = False
    """Whether each checkpoint is also packed into the artifact store, from which other hosts can restore it."""

    @property
    def has_children(self) -> bool:
        """Return whether rollouts may have children; else they only retain checkpoints."""
        return not isinstance(self.policy, Unbranched)


class BranchOrigin(Model):
    """The place of a child in its tree, and the state from which it starts.

    The parent makes it, as a part of the child's `RolloutSpec`. The root of a tree has none.
    """

    root: str
    """Workflow id of the tree's root."""

    run_id: str
    """Run id of the first run of the root's workflow. Ids of checkpoints derive from it."""

    parent: str
    """Workflow id of the parent."""

    chain: str
    """Branch path of the child, its name in the tree: `<node>.<number>`."""

    node: str
    """Node of the tree at which the child starts; of a child that answers a question, the node of that question."""

    number: int
    """Number of the child among the children of `node`, from 0."""

    depth: int
    """Depth of the child in the tree: 1 for a child of the root."""

    budget: int
    """Most children that may start below it: its share of `BranchConfig.max_children`."""

    checkpoint: Checkpoint
    """Checkpoint from which its sandbox starts; of a child that answers a question, the one before that turn."""

    child: ChildSpec = ChildSpec()
    """Overrides by which the child differs from its siblings."""

    before: list[StepOutcome] = []
    """Outcomes of the steps that led from the root to its start."""

    tree: str | None = None
    """Tree of Tree-GRPO that it grows, named by the first branch path of that tree; None with other policies."""

    path: list[Node] = []
    """Nodes from the root to its start, for a user's own policy; empty with other policies."""

    replays: SessionBegin | None = None
    """Origin of the parent's session, in the spec of a sandbox in which that session is replayed; None in any other."""


class ChildOutcome(Model):
    """The outcome of a child, which its workflow returns to its parent. A rescoring makes it anew."""

    chain: str
    """Branch path of the child."""

    number: int
    """Number of the child among the children of the node where it started."""

    reward: float | None = None
    """Scalar reward; None if nothing was measured."""

    value: StateValue | None = None
    """V(s) of the node where it branched; None if it did not branch, or continued after its children had ended."""

    failure: Failure | None = None
    """Error of the child, or of its verifier. A child may have a reward as well: one whose agent ran out of time."""

    rung: StoredRung = None
    """Resume mode by which the parent's agent session was resumed; None if there was none."""

    leaf: str | None = None
    """Last node of its own branch path; None if it reached no node."""

    checkpoint: Checkpoint | None = None
    """Checkpoint of its leaf, taken before verification; None unless its parent may continue from there."""

    kept: list[Checkpoint] = []
    """Checkpoints that the root is to release, its own and those of children below it: of retained nodes, and portable
    ones that are not needed any more. In Tree-GRPO, new branch paths may start from them.
    """

    before: list[StepOutcome] = []
    """Outcomes of the steps that led from the root to its start. Its parent adds them."""

    steps: list[StepOutcome] = []
    """Outcomes of the steps after its start; empty unless other rollouts may continue from its nodes."""

    adopted: dict[int, str] = {}
    """Nodes of those `steps` that children of its own ran, from which it continued, by the index of the step."""

    nodes: list[Node] = []
    """Nodes of its own branch path, and of all branch paths below it."""

    children: int = 0
    """Number of children below it, at any depth."""

    used: Usage | None = None
    """Model usage of the child and of all children below it; None if it is not known."""

    n_tool_calls: int = 0
    """Number of tool calls of the child and of all children below it."""

    tree: str | None = None
    """Tree of Tree-GRPO to which its branch path belongs, added by its parent. None: the tree of the branch path where
    it starts, if that has one.
    """

    pack: ArtifactRef | None = None
    """Results in the artifact store; None where they were written on the submitting host, or could not be written."""

    warnings: tuple[str, ...] = ()
    """Differences of its world, and of the worlds of children below it, from the worlds that they are copies of."""

    @property
    def returns(self) -> float | None:
        """Return its return: its reward, or its own V(s) if it branched.

        None for a child that failed before anything of its own was measured. A child whose agent only ran out of time
        has its reward.
        """
        if self.failure is not None and self.reward is None:
            return None
        return self.value.value if self.value is not None else self.reward


class StateValue(Model):
    """V(s), the value of a node: an aggregate of the returns of the children that started there."""

    node: str
    """The node of the tree."""

    aggregate: str
    """Aggregate by which `value` is made, as in `BranchConfig`."""

    value: float | None = None
    """V(s); None while no child has a return, or a user's own aggregate was not called for these returns."""

    n: int = 0
    """Number of children that have a return."""

    variance: float | None = None
    """Sample variance of the returns, with the divisor n - 1; None for fewer than two."""

    stderr: float | None = None
    """Standard error of the mean of the returns; None for fewer than two."""

    returns: dict[str, float] = {}
    """Returns of the children that have one, by branch path."""

    failed: dict[str, Failure] = {}
    """Errors of the children that have ended without a return, by branch path. They do not count towards the value."""

    pending: tuple[str, ...] = ()
    """Branch paths of the children that have not ended."""


ChildOutcome.model_rebuild()
