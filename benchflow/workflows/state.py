"""The state of a rollout as data, and what follows from it: its nodes, its tree, what its children add up to."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from benchflow.contracts.activities import Readied, RolloutPlan
from benchflow.contracts.branch import BranchConfig, BranchOrigin, ChildOutcome, StateValue
from benchflow.contracts.checkpoint import Checkpoint, SessionBegin
from benchflow.contracts.ended import EndedState
from benchflow.contracts.environment import StateSnapshot, unproven_warning
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rescoring import AgentlessScore
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rewards import first_failure, leads_on
from benchflow.contracts.rollout import (
    AgentSession,
    Failure,
    Node,
    Question,
    Rollback,
    RolloutTree,
    StepOutcome,
    Usage,
)
from benchflow.contracts.sandbox import SandboxRef
from benchflow.trajectories.growth import chain_of, grow, merge, node_in, start_of, state_values
from benchflow.trajectories.values import is_own, state_value


@dataclass
class RolloutState:
    """All that is known of a rollout that runs.

    Each field, or the heading above it, names the module that changes it; all others read it. A restore puts them back
    by `rewind`.
    """

    spec: RolloutSpec
    """What the rollout was started with."""

    run_id: str = ""
    """Of the first run of its workflow. Names of sandboxes derive from it, so that no other run finds them."""

    plan: RolloutPlan = field(default_factory=lambda: RolloutPlan(steps=[]))
    """The steps of its task, with their time limits. `rollout` sets it once."""

    steps: list[StepOutcome] = field(default_factory=list)
    """Outcomes of the steps that led to its present node, in a child those of its parent first.

    `rollout` adds those that were run, `branching` those of a child from which the rollout continues.
    """

    agentless: AgentlessScore | None = None
    """What its scoring without an agent returned. Set by `rollout`."""

    agent_failure: Failure | None = None
    """How an agent failed first in its own steps, which need not end it. Changes with `steps`."""

    error: Failure | None = None
    """Why it failed, once it ends. Changed by `rollout` and `ending`."""

    stop: Failure | None = None
    """Why it is to end early: its deadline, or a cancellation. Set by `rollout`."""

    restore_to: Checkpoint | None = None
    """The checkpoint to which it is about to be restored: its work is to stop until then. Changed by `checkpoints`."""

    warnings: list[str] = field(default_factory=list)
    """Warnings for its result, in their order. Every module adds its own."""

    provisions: int = 0
    """How many times it was started: once, and after each restore. Counted by `rollout`."""

    # --- its sandbox, changed by `hosts` -------------------------------------------------------------------

    sandbox: SandboxRef | None = None
    """Its sandbox; None before there is one, and while another one is made after a restore."""

    readied: Readied | None = None
    """Its world, once that was found healthy."""

    # --- the agent's sessions, changed by `turns` -----------------------------------------------------------

    sessions: list[AgentSession] = field(default_factory=list)
    """Sessions that were opened with agents, the present one last."""

    session_begin: SessionBegin | None = None
    """Where the present session began; None where no session can be replayed from there."""

    resume_mode: Rung | None = None
    """How the session of its checkpoint was resumed; None where there was none to resume."""

    question: Question | None = None
    """The agent's question for whose answer a user is waited for."""

    # --- its checkpoints, changed by `checkpoints` ----------------------------------------------------------

    base_checkpoint: Checkpoint | None = None
    """The checkpoint of its own, or of a child, from which its sandbox was started. A provider may need it for the next
    capture, so that it is released after the work.
    """

    retained: list[Checkpoint] = field(default_factory=list)
    """Checkpoints of its own nodes that are retained until the root ends."""

    session_checkpoints: list[Checkpoint] = field(default_factory=list)
    """Checkpoints of where sessions began that may be replayed."""

    release_at_end: list[Checkpoint] = field(default_factory=list)
    """Other checkpoints that are released when the root ends: one in the store may lie below a later one."""

    leaf: Checkpoint | None = None
    """A child's checkpoint of its last step before that was verified, for a parent that continues from there."""

    rollbacks: list[Rollback] = field(default_factory=list)
    """Roll-backs that were carried out."""

    is_restarting: bool = False
    """Whether it had ended, is to be rolled back, and nothing of its results is known to be undone."""

    reverted_usage: list[Usage] = field(default_factory=list)
    """Model usage of what restores have reverted."""

    # --- its children, changed by `branching` ---------------------------------------------------------------

    outcomes: list[ChildOutcome] = field(default_factory=list)
    """Children that have ended, in that order."""

    pending: list[str] = field(default_factory=list)
    """Branch paths of children that run or wait for a slot."""

    value: StateValue | None = None
    """The value of the node where it has branched, which is its reward unless it continues. `ending` drops it with a
    result that can't be written.
    """

    asked: str | None = None
    """The node of the question that children have answered for it."""

    adopted: dict[int, str] = field(default_factory=dict)
    """Nodes of children from which it has continued, by the index of the step that led to each."""

    aggregated: dict[tuple[float, ...], float] = field(default_factory=dict)
    """Values by a user's own aggregate, by the children's returns."""

    def __post_init__(self) -> None:
        """Set the origin, and the steps before it, from the specification."""
        self.origin, self.origin_steps = self.spec.begins_at
        self.is_restarting = self.spec.restart is not None
        if self.spec.branch is not None:
            self.steps = list(self.spec.branch.before)

    def check_stop(self) -> None:
        """Raise `CancelledError` if the work is to stop. An activity may end well although it was cancelled."""
        if self.stop is not None or self.restore_to is not None:
            raise asyncio.CancelledError

    @property
    def branch_origin(self) -> BranchOrigin | None:
        """Return what makes it a child; None for a root."""
        return self.spec.branch

    @property
    def config(self) -> BranchConfig | None:
        """Return how it branches."""
        return self.spec.run.branch

    @property
    def continues_itself(self) -> bool:
        """Return whether it continues by itself where it has branched, and not from one of its children."""
        return self.config is not None and self.config.then == "itself"

    @property
    def is_adoptable(self) -> bool:
        """Return whether its parent may continue from its end."""
        config = self.config if self.branch_origin is not None else None
        return config is not None and config.then not in ("stop", "itself")

    @property
    def is_cancelled(self) -> bool:
        """Return whether it is to end early because somebody cancelled it."""
        return self.stop is not None and self.stop.category == "cancelled"

    @property
    def session(self) -> AgentSession | None:
        """Return the present session."""
        return self.sessions[-1] if self.sessions else None

    @property
    def baseline(self) -> StateSnapshot | None:
        """Return the state of the world that the agent began with."""
        return self.readied.baseline if self.readied is not None else None

    @property
    def keeps_checkpoints(self) -> bool:
        """Return whether its checkpoints outlive it."""
        return self.spec.run.keep == "checkpoints" and self.branch_origin is None

    @property
    def own_steps(self) -> list[StepOutcome]:
        """Return the outcomes after its origin."""
        return self.steps[self.origin_steps :]

    @property
    def last_step(self) -> int:
        """Return how many steps, counted from the root, are done where it is scored."""
        total = len(self.plan.steps)
        if self.branch_origin is None or self.config is None or self.config.horizon is None:
            return total
        return min(total, self.origin_steps + self.config.horizon)

    @property
    def has_ended(self) -> bool:
        """Return whether no step is left: the last one is done, or one that ends the rollout."""
        return bool(self.own_steps) and (len(self.steps) >= self.last_step or not leads_on(self.steps[-1]))

    @property
    def turns(self) -> list[StepOutcome]:
        """Return the outcomes of the steps that it ran itself: those after its origin that no child has run for it."""
        return [outcome for outcome in self.own_steps if outcome.step.index not in self.adopted]

    @property
    def own_usage(self) -> list[Usage]:
        """Return the model usage of the steps that it ran itself."""
        return [outcome.turn.usage for outcome in self.turns if outcome.turn.usage is not None]

    # --- what its children add up to ------------------------------------------------------------------------

    @property
    def n_children(self) -> int:
        """Return how many children there are, and below them."""
        return len(self.pending) + sum(1 + outcome.children for outcome in self.outcomes)

    @property
    def n_tool_calls(self) -> int:
        """Return the tool calls of the steps that it ran itself, and of all children."""
        own = sum(outcome.turn.n_tool_calls for outcome in self.turns)
        return own + sum(outcome.n_tool_calls for outcome in self.outcomes)

    @property
    def usage_below(self) -> list[Usage]:
        """Return the model usage of all children, and of what was reverted."""
        return [*self.reverted_usage, *(outcome.used for outcome in self.outcomes if outcome.used is not None)]

    @property
    def retained_below(self) -> list[Checkpoint]:
        """Return the checkpoints that children have retained, and those below them."""
        return [checkpoint for outcome in self.outcomes for checkpoint in outcome.kept]

    @property
    def differences(self) -> tuple[str, ...]:
        """Return in what its world, and those of all children, differ from those that they are copies of."""
        path, own = self.spec.chain, self.readied.differences if self.readied is not None else ()
        mine = [f"{path}: {text}" if path else text for text in own]
        return (*mine, *(text for outcome in self.outcomes for text in outcome.warnings))

    def value_of(self, node: str, *ended: ChildOutcome) -> StateValue:
        """Return V(s) of a node where children begin. ended: children that are not among the outcomes yet."""
        assert self.config is not None
        children = [outcome for outcome in (*self.outcomes, *ended) if start_of(outcome.chain) == node]
        pending = [path for path in self.pending if start_of(path) == node]
        return self._aggregate(state_value(node, self.config.aggregate, children, pending))

    @property
    def values(self) -> list[StateValue]:
        """Return V(s) of all nodes where its children begin."""
        if self.agentless is not None:
            return self.agentless.values
        aggregate = self.config.aggregate if self.config is not None else "mean"
        return [self._aggregate(value) for value in state_values(self.outcomes, aggregate, self.pending)]

    def _aggregate(self, value: StateValue) -> StateValue:
        """Return a value as the user's own aggregate has it, None until that was asked, if there is one."""
        if self.config is None or not is_own(self.config.aggregate):
            return value
        return value.model_copy(update={"value": self.aggregated.get(tuple(value.returns.values()))})

    # --- its nodes ------------------------------------------------------------------------------------------

    def node(self, steps_done: int) -> str:
        """Return the node to which so many steps have led: its own, or one of a child from which it continued."""
        if steps_done == self.origin_steps:
            return self.origin
        return self.adopted.get(steps_done - 1) or node_in(self.spec.chain, steps_done)

    def path(self, steps_done: int | None = None) -> list[str]:
        """Return its nodes from its origin to the present one, or to that of so many steps."""
        last = len(self.steps) if steps_done is None else steps_done
        return [self.node(done) for done in range(self.origin_steps, last + 1)]

    def own_nodes(self) -> list[Node]:
        """Return the nodes of its branch path, from its origin, with what was measured there."""
        ids = {checkpoint.node: checkpoint.id for checkpoint in self.retained}
        nodes = [Node(id=self.origin, checkpoint=ids.get(self.origin))]
        for outcome in self.turns:
            index = outcome.step.index
            nodes.append(
                Node(
                    id=self.node(index + 1),
                    parent=self.node(index),
                    step=index,
                    role=outcome.step.role,
                    rewards=outcome.verify.rewards if outcome.verify is not None else None,
                    checkpoint=ids.get(self.node(index + 1)),
                )
            )
        if self.asked is not None:
            nodes.append(Node(id=self.asked, parent=nodes[-1].id))
        return nodes

    def tree(self, *, is_from_root: bool = False, returns: float | None = None) -> RolloutTree:
        """Return the tree from its origin, as far as it has grown.

        Args:
            is_from_root: Whether it begins with the nodes that led to a child, where that was given them.
            returns: The reward of its own branch path, if that has an end of its own.
        """
        own = self.own_nodes()
        if is_from_root and self.branch_origin is not None and self.branch_origin.path:
            own = [*self.branch_origin.path, *own[1:]]
        environment = self.spec.task.environment
        unproven = [unproven_warning(environment)] if environment is not None and environment.unproven else []
        grown = grow(self.spec.id, own, self.outcomes, self.values, returns=returns)
        return grown.model_copy(update={"warnings": [*unproven, *self.differences]})

    def nodes_below_origin(self) -> list[Node]:
        """Return its nodes after its origin, and all below them: what a child hands to its parent."""
        own = self.own_nodes()[1:]
        if own and self.branch_origin is not None:
            mode = self.resume_mode or self.branch_origin.checkpoint.rung
            own[0] = own[0].model_copy(update={"rung": mode})
        return merge(own, self.outcomes, self.values)

    # --- its way back ---------------------------------------------------------------------------------------

    @property
    def restorable(self) -> dict[str, Checkpoint]:
        """Return the checkpoints of the nodes that it has come by, in their order."""
        base = [self.base_checkpoint] if self.base_checkpoint is not None else []
        found = {one.node: one for one in (*self.retained_below, *base, *self.retained)}
        if self.branch_origin is not None:
            found[self.origin] = self.branch_origin.checkpoint
        return {node: found[node] for node in self.path() if node in found}

    def children_beside(self, nodes: Collection[str]) -> list[ChildOutcome]:
        """Return the ended children that come, by way of whatever branch paths, from none of these nodes of its own."""
        return [outcome for outcome in self.outcomes if self._own_node_above(outcome.chain) not in nodes]

    def _own_node_above(self, path: str) -> str:
        """Return the node of its own from which a branch path comes."""
        own = set(self.adopted.values())
        node = start_of(path) or ""
        while node not in own and chain_of(node) != self.spec.chain and node != self.origin:
            node = start_of(chain_of(node)) or ""
        return node

    def as_ended(self) -> EndedState:
        """Return what a roll-back after its end needs."""
        return EndedState(
            steps=self.steps,
            sessions=self.sessions,
            session_begin=self.session_begin,
            outcomes=self.outcomes,
            adopted=self.adopted,
            retained=self.retained,
            session_checkpoints=self.session_checkpoints,
            rollbacks=self.rollbacks,
            reverted_usage=self.reverted_usage,
        )

    def recall(self, ended: EndedState) -> None:
        """Be as it was when it ended. Checkpoints of its children were released then."""
        self.steps, self.sessions, self.session_begin = list(ended.steps), list(ended.sessions), ended.session_begin
        self.outcomes = [one.model_copy(update={"kept": [], "checkpoint": None}) for one in ended.outcomes]
        self.adopted, self.retained = dict(ended.adopted), list(ended.retained)
        self.session_checkpoints = list(ended.session_checkpoints)
        self.rollbacks, self.reverted_usage = list(ended.rollbacks), list(ended.reverted_usage)

    def rewind(self, steps_done: int, n_sessions: int, gone: Collection[ChildOutcome]) -> None:
        """Forget all that came after so many steps.

        Args:
            steps_done: Steps, counted from the root, that stay.
            n_sessions: Sessions that stay.
            gone: Children that belong to it no more.
        """
        path = self.path(steps_done)
        self.steps = self.steps[:steps_done]
        self.agent_failure = first_failure(self.own_steps)
        self.leaf = self.question = None
        self.sessions = self.sessions[:n_sessions]
        self.session_begin = self.resume_mode = None
        self.retained = [one for one in self.retained if one.node in path]
        self.outcomes = [outcome for outcome in self.outcomes if outcome not in gone]
        self.adopted = {index: node for index, node in self.adopted.items() if index < steps_done}
        self.pending, self.value, self.asked = [], None, None
