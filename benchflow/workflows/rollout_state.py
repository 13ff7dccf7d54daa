"""The state of a running rollout, and the values derived from it: nodes, tree, and totals over its children."""

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
from benchflow.contracts.rollout_records import (
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
from benchflow.trajectories.growth import (
    compute_state_values,
    get_branch_path,
    get_start_node,
    grow_tree,
    make_node_id,
    merge_nodes,
)
from benchflow.trajectories.state_values import compute_state_value, is_user_function


@dataclass
class RolloutState:
    """State of a running rollout, shared by the modules of its workflow.

    Each field, or the heading above it, names the module that changes it; all others only read it. A restore resets the
    fields by `rewind`.
    """

    spec: RolloutSpec
    """Specification with which the rollout was started."""

    run_id: str = ""
    """Run id of the first run of the workflow. Names of sandboxes derive from it, so that no other run finds them."""

    plan: RolloutPlan = field(default_factory=lambda: RolloutPlan(steps=[]))
    """Steps of the task, and the time limits. `rollout` sets it once."""

    steps: list[StepOutcome] = field(default_factory=list)
    """Outcomes of the steps that led to the present node; a child begins with those of its parent.

    `rollout` adds those that were run, `branching` those of a child from which the rollout continues.
    """

    agentless: AgentlessScore | None = None
    """Result of scoring without an agent, for a rescoring or the trial of a world; else None. Set by `rollout`."""

    agent_failure: Failure | None = None
    """First failure of an agent in the rollout's own steps, after which the rollout may continue. Changes with `steps`.
    """

    error: Failure | None = None
    """Error of the rollout's result; None for none, and until the end. Changed by `rollout` and `ending`."""

    stop: Failure | None = None
    """Why the rollout is to end early: its deadline, a cancellation, or a fault of its clock. Set by `rollout`."""

    restore_to: Checkpoint | None = None
    """Checkpoint to which the rollout is about to be restored; its work stops until then. Changed by `checkpoints`."""

    warnings: list[str] = field(default_factory=list)
    """Warnings for the result, in their order. Every module adds its own."""

    provisions: int = 0
    """Number of times that the rollout was started: once, and after each restore. Counted by `rollout`."""

    # --- its sandbox, changed by `hosts` -------------------------------------------------------------------

    sandbox: SandboxRef | None = None
    """Present sandbox; None before the first is provisioned, and while a new one is provisioned after a restore."""

    readied: Readied | None = None
    """World in the present sandbox, once it is healthy; None for a task without a world."""

    # --- the agent's sessions, changed by `turns` -----------------------------------------------------------

    sessions: list[AgentSession] = field(default_factory=list)
    """Sessions that were opened with agents, the present one last."""

    session_begin: SessionBegin | None = None
    """Origin of the present session; None if the session can't be replayed."""

    resume_mode: Rung | None = None
    """Mode in which the session of the checkpoint was resumed; None if there was no session to resume."""

    question: Question | None = None
    """Question of the agent that waits for a user's answer; None for none."""

    # --- its checkpoints, changed by `checkpoints` ----------------------------------------------------------

    base_checkpoint: Checkpoint | None = None
    """Checkpoint from which the present sandbox was started, of a node of this rollout or of a child's; else None. The
    provider may need it for the next capture, so it is released only after the work.
    """

    retained: list[Checkpoint] = field(default_factory=list)
    """Checkpoints of the rollout's own nodes that are retained until the root ends."""

    session_checkpoints: list[Checkpoint] = field(default_factory=list)
    """Checkpoints at the origins of sessions, from which the sessions may be replayed."""

    release_at_end: list[Checkpoint] = field(default_factory=list)
    """Other checkpoints, released when the root ends: a portable one in the store may be the base of a later one."""

    leaf: Checkpoint | None = None
    """Checkpoint of a child after its last step, before verification, from which its parent may continue; else None."""

    rollbacks: list[Rollback] = field(default_factory=list)
    """Roll-backs that were carried out, in their order."""

    is_restarting: bool = False
    """Whether an ended rollout was started again to be rolled back, and none of its results is known to be reverted."""

    reverted_usage: list[Usage] = field(default_factory=list)
    """Model usage of steps and children that restores have reverted."""

    # --- its children, changed by `branching` ---------------------------------------------------------------

    outcomes: list[ChildOutcome] = field(default_factory=list)
    """Outcomes of children that have ended, in the order of their ends."""

    pending: list[str] = field(default_factory=list)
    """Branch paths of children that run or wait for a slot."""

    value: StateValue | None = None
    """V(s) of the node where the rollout ended in its children, which is its reward; None if it has not branched, or
    has continued. `ending` sets it to None if the result can't be written.
    """

    asked: str | None = None
    """Node of the question that children have answered in place of a user; None for none."""

    adopted: dict[int, str] = field(default_factory=dict)
    """Nodes of children from which the rollout has continued, by the index of the step that led to each."""

    aggregated: dict[tuple[float, ...], float] = field(default_factory=dict)
    """Results of the user's own aggregate, by the children's returns for which it was called."""

    def __post_init__(self) -> None:
        """Set the origin, and the steps before it, from the specification."""
        self.origin, self.origin_steps = self.spec.begins_at
        self.is_restarting = self.spec.restart is not None
        if self.spec.branch is not None:
            self.steps = list(self.spec.branch.before)

    def check_stop(self) -> None:
        """Raise `CancelledError` if the work is to stop.

        Called between activities, since one that was cancelled may still succeed and so swallow the cancellation.

        Raises:
            CancelledError: The rollout ends early, or is to be restored.
        """
        if self.stop is not None or self.restore_to is not None:
            raise asyncio.CancelledError

    @property
    def branch_origin(self) -> BranchOrigin | None:
        """Return the origin of a child in its tree; None for a root."""
        return self.spec.branch

    @property
    def config(self) -> BranchConfig | None:
        """Return the branch configuration of the job; None if it has none."""
        return self.spec.run.branch

    @property
    def continues_itself(self) -> bool:
        """Return whether the rollout, after its children, continues in its own sandbox, and not from one of them."""
        return self.config is not None and self.config.then == "itself"

    @property
    def is_adoptable(self) -> bool:
        """Return whether it is a child from whose end its parent may continue."""
        config = self.config if self.branch_origin is not None else None
        return config is not None and config.then not in ("stop", "itself")

    @property
    def is_cancelled(self) -> bool:
        """Return whether the rollout was cancelled."""
        return self.stop is not None and self.stop.category == "cancelled"

    @property
    def session(self) -> AgentSession | None:
        """Return the agent's present session; None if none was opened."""
        return self.sessions[-1] if self.sessions else None

    @property
    def baseline(self) -> StateSnapshot | None:
        """Return the snapshot of the world's state with which the agent began; None for a world without state."""
        return self.readied.baseline if self.readied is not None else None

    @property
    def keeps_checkpoints(self) -> bool:
        """Return whether the checkpoints outlive the rollout, so that it can be rolled back after its end."""
        return self.spec.run.keep == "checkpoints" and self.branch_origin is None

    @property
    def own_steps(self) -> list[StepOutcome]:
        """Return the outcomes of the steps after the rollout's origin: without those of a child's parent."""
        return self.steps[self.origin_steps :]

    @property
    def last_step(self) -> int:
        """Return the number of the last step to run, counted from the root: the task's last, or a child's horizon."""
        total = len(self.plan.steps)
        if self.branch_origin is None or self.config is None or self.config.horizon is None:
            return total
        return min(total, self.origin_steps + self.config.horizon)

    @property
    def has_ended(self) -> bool:
        """Return whether no step is left: the last one is done, or one whose outcome ends the rollout."""
        return bool(self.own_steps) and (len(self.steps) >= self.last_step or not leads_on(self.steps[-1]))

    @property
    def turns(self) -> list[StepOutcome]:
        """Return the outcomes of the steps that the rollout ran itself: after its origin, without adopted ones."""
        return [outcome for outcome in self.own_steps if outcome.step.index not in self.adopted]

    @property
    def own_usage(self) -> list[Usage]:
        """Return the known model usage of the steps that the rollout ran itself."""
        return [outcome.turn.usage for outcome in self.turns if outcome.turn.usage is not None]

    # --- totals over its children ---------------------------------------------------------------------------

    @property
    def n_children(self) -> int:
        """Return the number of descendants in the tree so far, pending children included."""
        return len(self.pending) + sum(1 + outcome.children for outcome in self.outcomes)

    @property
    def n_tool_calls(self) -> int:
        """Return the number of tool calls in the steps that the rollout ran itself, and of all descendants."""
        own = sum(outcome.turn.n_tool_calls for outcome in self.turns)
        return own + sum(outcome.n_tool_calls for outcome in self.outcomes)

    @property
    def usage_below(self) -> list[Usage]:
        """Return the model usage of all descendants, and of reverted work."""
        return [*self.reverted_usage, *(outcome.used for outcome in self.outcomes if outcome.used is not None)]

    @property
    def retained_below(self) -> list[Checkpoint]:
        """Return the checkpoints of all descendants that the root has to release."""
        return [checkpoint for outcome in self.outcomes for checkpoint in outcome.kept]

    @property
    def differences(self) -> tuple[str, ...]:
        """Return how the worlds of the rollout and its descendants differ from those that they are copies of.

        Each text of a child begins with its branch path.
        """
        path, own = self.spec.chain, self.readied.differences if self.readied is not None else ()
        mine = [f"{path}: {text}" if path else text for text in own]
        return (*mine, *(text for outcome in self.outcomes for text in outcome.warnings))

    def compute_value(self, node: str, *ended: ChildOutcome) -> StateValue:
        """Return V(s) of a node where children start.

        Args:
            node: Id of the node.
            ended: Outcomes of children that are not in `outcomes` yet.
        """
        assert self.config is not None
        children = [outcome for outcome in (*self.outcomes, *ended) if get_start_node(outcome.chain) == node]
        pending = [path for path in self.pending if get_start_node(path) == node]
        return self._aggregate(compute_state_value(node, self.config.aggregate, children, pending))

    @property
    def values(self) -> list[StateValue]:
        """Return V(s) of all nodes where children of this rollout start."""
        if self.agentless is not None:
            return self.agentless.values
        aggregate = self.config.aggregate if self.config is not None else "mean"
        return [self._aggregate(value) for value in compute_state_values(self.outcomes, aggregate, self.pending)]

    def _aggregate(self, value: StateValue) -> StateValue:
        """Return V(s) with the result of the user's own aggregate, if there is one; None if it was not called yet."""
        if self.config is None or not is_user_function(self.config.aggregate):
            return value
        return value.model_copy(update={"value": self.aggregated.get(tuple(value.returns.values()))})

    # --- its nodes ------------------------------------------------------------------------------------------

    def find_node(self, steps_done: int) -> str:
        """Return the id of the rollout's node after a number of steps: its own, or one adopted from a child.

        Args:
            steps_done: Number of steps, counted from the root.
        """
        if steps_done == self.origin_steps:
            return self.origin
        return self.adopted.get(steps_done - 1) or make_node_id(self.spec.chain, steps_done)

    def list_path(self, steps_done: int | None = None) -> list[str]:
        """Return the ids of the rollout's nodes from its origin on, adopted ones included.

        Args:
            steps_done: Number of steps, counted from the root, that led to the last node; None for the present one.
        """
        last = len(self.steps) if steps_done is None else steps_done
        return [self.find_node(done) for done in range(self.origin_steps, last + 1)]

    def list_own_nodes(self) -> list[Node]:
        """Return the nodes of the rollout's own branch path from its origin on, with rewards and checkpoints."""
        ids = {checkpoint.node: checkpoint.id for checkpoint in self.retained}
        nodes = [Node(id=self.origin, checkpoint=ids.get(self.origin))]
        for outcome in self.turns:
            index = outcome.step.index
            nodes.append(
                Node(
                    id=self.find_node(index + 1),
                    parent=self.find_node(index),
                    step=index,
                    role=outcome.step.role,
                    rewards=outcome.verify.rewards if outcome.verify is not None else None,
                    checkpoint=ids.get(self.find_node(index + 1)),
                )
            )
        if self.asked is not None:
            nodes.append(Node(id=self.asked, parent=nodes[-1].id))
        return nodes

    def make_tree(self, *, is_from_root: bool = False, returns: float | None = None) -> RolloutTree:
        """Return the tree below the rollout's origin, as far as it has grown.

        Args:
            is_from_root: Whether to add the nodes from the root to a child's origin, if the child has them
                (`BranchOrigin.path`).
            returns: Return of the rollout's own branch path; None if it ended in its children, or has no rewards.
        """
        own = self.list_own_nodes()
        if is_from_root and self.branch_origin is not None and self.branch_origin.path:
            own = [*self.branch_origin.path, *own[1:]]
        environment = self.spec.task.environment
        unproven = [unproven_warning(environment)] if environment is not None and environment.unproven else []
        grown = grow_tree(self.spec.id, own, self.outcomes, self.values, returns=returns)
        return grown.model_copy(update={"warnings": [*unproven, *self.differences]})

    def list_nodes_below_origin(self) -> list[Node]:
        """Return the nodes after the rollout's origin and all below them, which a child returns to its parent."""
        own = self.list_own_nodes()[1:]
        if own and self.branch_origin is not None:
            mode = self.resume_mode or self.branch_origin.checkpoint.rung
            own[0] = own[0].model_copy(update={"rung": mode})
        return merge_nodes(own, self.outcomes, self.values)

    # --- restores -------------------------------------------------------------------------------------------

    @property
    def restorable(self) -> dict[str, Checkpoint]:
        """Return the checkpoints to which the rollout can be restored, by node, in the order of its nodes."""
        base = [self.base_checkpoint] if self.base_checkpoint is not None else []
        found = {one.node: one for one in (*self.retained_below, *base, *self.retained)}
        if self.branch_origin is not None:
            found[self.origin] = self.branch_origin.checkpoint
        return {node: found[node] for node in self.list_path() if node in found}

    def find_children_beside(self, nodes: Collection[str]) -> list[ChildOutcome]:
        """Return the ended children whose branch paths lead back to none of the given nodes of this rollout.

        Args:
            nodes: Ids of nodes of this rollout that stay after a restore.
        """
        return [outcome for outcome in self.outcomes if self._find_own_node(outcome.chain) not in nodes]

    def _find_own_node(self, path: str) -> str:
        """Return the node of this rollout, adopted ones included, to which a branch path leads back."""
        own = set(self.adopted.values())
        node = get_start_node(path) or ""
        while node not in own and get_branch_path(node) != self.spec.chain and node != self.origin:
            node = get_start_node(get_branch_path(node)) or ""
        return node

    def make_ended_state(self) -> EndedState:
        """Return the part of the state that a roll-back after the rollout's end needs."""
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
        """Load the state with which the rollout had ended. Checkpoints of its children were released then.

        Args:
            ended: The recorded state.
        """
        self.steps, self.sessions, self.session_begin = list(ended.steps), list(ended.sessions), ended.session_begin
        self.outcomes = [one.model_copy(update={"kept": [], "checkpoint": None}) for one in ended.outcomes]
        self.adopted, self.retained = dict(ended.adopted), list(ended.retained)
        self.session_checkpoints = list(ended.session_checkpoints)
        self.rollbacks, self.reverted_usage = list(ended.rollbacks), list(ended.reverted_usage)

    def rewind(self, steps_done: int, n_sessions: int, gone: Collection[ChildOutcome]) -> None:
        """Reset the state to that after a number of steps.

        Args:
            steps_done: Number of steps, counted from the root, that remain.
            n_sessions: Number of sessions that remain.
            gone: Children that are removed.
        """
        path = self.list_path(steps_done)
        self.steps = self.steps[:steps_done]
        self.agent_failure = first_failure(self.own_steps)
        self.leaf = self.question = None
        self.sessions = self.sessions[:n_sessions]
        self.session_begin = self.resume_mode = None
        self.retained = [one for one in self.retained if one.node in path]
        self.outcomes = [outcome for outcome in self.outcomes if outcome not in gone]
        self.adopted = {index: node for index, node in self.adopted.items() if index < steps_done}
        self.pending, self.value, self.asked = [], None, None
