"""The children of a rollout: workflows of their own, from one checkpoint, of which the state's value is made.

A parent awaits its children. What becomes of one is data; when the parent ends early, they are told to, and tear down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from benchflow.branching.policies import children_at
    from benchflow.contracts import ids, names
    from benchflow.contracts.branch import (
        BranchConfig,
        BranchOrigin,
        ChildOutcome,
        ChildSpec,
        CustomPolicy,
        StateValue,
    )
    from benchflow.contracts.checkpoint import Checkpoint, Rung
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import Failure, Node, RolloutOutcome, RolloutTree, StepOutcome
    from benchflow.trajectories.growth import child_chain, grow, merge, node_in
    from benchflow.trajectories.values import state_value
    from benchflow.workflows.failures import failure_from


class Branches:
    """What a rollout's nodes have for children. spec: the rollout's."""

    def __init__(self, spec: RolloutSpec) -> None:
        self._spec = spec
        self._own = spec.branch
        self.start, self.begun = spec.begins_at
        self.chain = spec.branch.chain if spec.branch is not None else ""
        self.outcomes: list[ChildOutcome] = []
        self.pending: list[str] = []
        self.value: StateValue | None = None

    @property
    def config(self) -> BranchConfig | None:
        return self._spec.run.branch

    @property
    def count(self) -> int:
        """How many children there are, and below them."""
        return len(self.pending) + sum(1 + outcome.children for outcome in self.outcomes)

    def node(self, steps_done: int) -> str:
        """The node of this rollout's chain to which so many steps have led."""
        return self.start if steps_done == self.begun else node_in(self.chain, steps_done)

    def due(self, steps_done: int, total: int) -> tuple[ChildSpec, ...]:
        """The children that begin here; none where the tree may grow no deeper, or no larger."""
        config = self.config
        if config is None or isinstance(config.policy, CustomPolicy):
            return ()
        begun_at, depth, budget = None, 0, config.max_children
        if self._own is not None:
            begun_at, depth, budget = self.begun, self._own.depth, self._own.budget
        if depth >= config.max_depth:
            return ()
        wanted = children_at(config.policy, steps_done, total, children=config.children, begun_at=begun_at)
        return wanted if len(wanted) <= budget else ()

    def ends_at(self, total: int) -> int:
        """How many steps are done, counted from the root, where this rollout is scored."""
        config = self.config
        if self._own is None or config is None or config.horizon is None:
            return total
        return min(total, self.begun + config.horizon)

    async def grow(
        self,
        checkpoint: Checkpoint,
        children: Sequence[ChildSpec],
        before: Sequence[StepOutcome],
        told: Callable[[], None],
    ) -> StateValue:
        """Run children from a checkpoint to their ends, and say what it is worth. told: is called whenever one ends."""
        config = self.config
        assert config is not None
        origins = [self._origin(checkpoint, number, child, before, children) for number, child in enumerate(children)]
        self.pending = [origin.chain for origin in origins]
        room = asyncio.Semaphore(config.concurrency)

        async def one(origin: BranchOrigin) -> None:
            async with room:
                outcome = await self._run(origin)
            self.pending.remove(origin.chain)
            self.outcomes.append(outcome)
            self.value = self._valued(checkpoint.node)
            told()

        running = [asyncio.create_task(one(origin)) for origin in origins]
        try:
            await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        self.value = self._valued(checkpoint.node)
        return self.value

    def _valued(self, node: str) -> StateValue:
        assert self.config is not None
        mine = [outcome for outcome in self.outcomes if outcome.chain.rpartition(".")[0] == node]
        return state_value(node, self.config.aggregate, mine, self.pending)

    def _origin(
        self,
        checkpoint: Checkpoint,
        number: int,
        child: ChildSpec,
        before: Sequence[StepOutcome],
        siblings: Sequence[ChildSpec],
    ) -> BranchOrigin:
        config, own = self.config, self._own
        assert config is not None
        budget = own.budget if own is not None else config.max_children
        return BranchOrigin(
            root=own.root if own is not None else self._spec.id,
            run_id=own.run_id if own is not None else workflow.info().first_execution_run_id,
            parent=self._spec.id,
            chain=child_chain(checkpoint.node, number),
            node=checkpoint.node,
            number=number,
            depth=(own.depth if own is not None else 0) + 1,
            budget=(budget - len(siblings)) // len(siblings),
            checkpoint=checkpoint,
            child=child,
            before=list(before),
        )

    async def _run(self, origin: BranchOrigin) -> ChildOutcome:
        """A child to its end; that it failed is an outcome, too."""
        spec = child_spec(self._spec, origin)
        try:
            outcome: ChildOutcome = await workflow.execute_child_workflow(
                names.ROLLOUT_WORKFLOW,
                spec,
                id=spec.id,
                result_type=ChildOutcome,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                static_summary=f"{spec.name} {origin.chain}",
            )
            return outcome
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                raise
            return ChildOutcome(chain=origin.chain, number=origin.number, failure=failure_from(error, "execute"))

    # --- what has grown --------------------------------------------------------------------------------------

    def nodes(self, own: Sequence[Node]) -> list[Node]:
        """The nodes of this rollout and of all below it. own: of its chain."""
        aggregate = self.config.aggregate if self.config is not None else "mean"
        return merge(own, self.outcomes, aggregate, pending=self.pending)

    def tree(self, own: Sequence[Node], returns: float | None = None) -> RolloutTree:
        """The tree from where this rollout begins, as far as it has grown."""
        aggregate = self.config.aggregate if self.config is not None else "mean"
        return grow(self._spec.id, own, self.outcomes, aggregate, pending=self.pending, returns=returns)


def child_spec(parent: RolloutSpec, origin: BranchOrigin) -> RolloutSpec:
    """What a child runs: what its parent runs, but for what it is told to do otherwise."""
    child, run, agent = origin.child, parent.run, parent.agent
    if child.seed is not None:
        run = run.model_copy(update={"sampling": run.sampling.model_copy(update={"seed": child.seed})})
    if child.model is not None:
        agent = agent.model_copy(update={"model": child.model})
    return parent.model_copy(
        update={"id": ids.child_id(origin.root, origin.chain), "run": run, "agent": agent, "branch": origin}
    )


def chain_nodes(branches: Branches, steps: Sequence[StepOutcome]) -> list[Node]:
    """The nodes of a rollout's own chain, with what was measured there, from the one where it begins."""
    nodes = [Node(id=branches.start)]
    for outcome in steps[branches.begun :]:
        nodes.append(
            Node(
                id=branches.node(outcome.step.index + 1),
                parent=nodes[-1].id,
                step=outcome.step.index,
                role=outcome.step.role,
                rewards=outcome.verify.rewards if outcome.verify is not None else None,
            )
        )
    return nodes


def child_outcome(
    origin: BranchOrigin,
    branches: Branches,
    steps: Sequence[StepOutcome],
    outcome: RolloutOutcome,
    rung: Rung | None,
) -> ChildOutcome:
    """What a child hands up to its parent. rung: by which its session went on, if it had one."""
    own = chain_nodes(branches, steps)[1:]
    return ChildOutcome(
        chain=origin.chain,
        number=origin.number,
        reward=outcome.rewards["reward"] if outcome.rewards is not None else None,
        value=branches.value,
        failure=outcome.error or outcome.verifier_error,
        rung=rung or origin.checkpoint.rung,
        leaf=own[-1].id if own else None,
        nodes=branches.nodes(own),
        children=branches.count,
    )


def failed(outcomes: Sequence[ChildOutcome]) -> Failure:
    """Why a state has no value: none of its children has a return."""
    said = next((outcome.failure for outcome in outcomes if outcome.failure is not None), None)
    message = f"none of {len(outcomes)} children could be measured"
    return Failure(
        type="BranchError",
        category=said.category if said is not None else "checkpoint",
        message=f"{message}: {said.message}" if said is not None else message,
        phase="execute",
    )
