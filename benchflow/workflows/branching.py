"""The children of a rollout: workflows of their own, from one checkpoint, of which the state's value is made.

A parent awaits its children. What becomes of one is data; when the parent ends early, they are told to, and tear down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from benchflow.branching.policies import children_at, draw
    from benchflow.contracts import ids, names
    from benchflow.contracts.branch import (
        BranchConfig,
        BranchOrigin,
        ChildOutcome,
        ChildSpec,
        CustomPolicy,
        OnAskUser,
        StateValue,
        TreeGrpo,
    )
    from benchflow.contracts.checkpoint import Checkpoint, Rung
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import (
        Failure,
        Node,
        Question,
        RolloutOutcome,
        RolloutTree,
        StepOutcome,
        Usage,
        total,
    )
    from benchflow.trajectories.growth import chain_of, child_chain, grow, merge, node_in, start_of
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
        self.asked: str | None = None
        self.adopted: dict[int, str] = {}

    @property
    def config(self) -> BranchConfig | None:
        return self._spec.run.branch

    @property
    def count(self) -> int:
        """How many children there are, and below them."""
        return len(self.pending) + sum(1 + outcome.children for outcome in self.outcomes)

    @property
    def used(self) -> list[Usage]:
        """What the models of all children, and below them, have used."""
        return [outcome.used for outcome in self.outcomes if outcome.used is not None]

    @property
    def n_tool_calls(self) -> int:
        return sum(outcome.n_tool_calls for outcome in self.outcomes)

    def node(self, steps_done: int) -> str:
        """The node to which so many steps have led, of this rollout's chain or of a child's that it went on from."""
        if steps_done == self.begun:
            return self.start
        return self.adopted.get(steps_done - 1) or node_in(self.chain, steps_done)

    @property
    def watches_questions(self) -> bool:
        """Whether it branches where its agent asks."""
        return self.config is not None and isinstance(self.config.policy, OnAskUser) and self._room() > 0

    @property
    def goes_on(self) -> bool:
        """Whether it goes on from one of its children, when they have ended, and not to answer what they did."""
        return self.config is not None and self.config.then != "stop" and self.asked is None

    @property
    def keeps_all(self) -> bool:
        """Whether each of its nodes may be gone on from, once it has ended."""
        return self._own is not None and self.config is not None and isinstance(self.config.policy, TreeGrpo)

    @property
    def may_be_gone_on_from(self) -> bool:
        return self.keeps_all or self.may_be_adopted

    @property
    def may_be_adopted(self) -> bool:
        """Whether its parent may go on from its end."""
        return self._own is not None and self.config is not None and self.config.then != "stop"

    def _room(self) -> int:
        """How many children may begin at the next node; none where the tree may grow no deeper."""
        config, own = self.config, self._own
        assert config is not None
        if (own.depth if own is not None else 0) >= config.max_depth:
            return 0
        return (own.budget if own is not None else config.max_children) - self.count

    def due(self, steps_done: int, total: int, question: Question | None = None) -> tuple[ChildSpec, ...]:
        """The children that begin here; none where the tree may grow no deeper, or no larger."""
        config = self.config
        if config is None or isinstance(config.policy, CustomPolicy):
            return ()
        begun_at = self.begun if self._own is not None else None
        wanted = children_at(config.policy, steps_done, total, question, config.children, begun_at=begun_at)
        return wanted if len(wanted) <= self._room() else ()

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
        assert self.config is not None
        node = checkpoint.node if self.asked is None else self.asked
        of_trees = isinstance(self.config.policy, TreeGrpo)
        origins = [
            self._origin(checkpoint, node, number, child, before, len(children))
            for number, child in enumerate(children)
        ]
        if of_trees:
            origins = [origin.model_copy(update={"tree": origin.chain}) for origin in origins]
        await self._run_all(origins, node, told)
        if isinstance(self.config.policy, TreeGrpo):
            await self._grow_trees(self.config.policy, checkpoint, before, told)
        self.value = self._valued(node)
        return self.value

    async def _grow_trees(
        self, policy: TreeGrpo, root: Checkpoint, before: Sequence[StepOutcome], told: Callable[[], None]
    ) -> None:
        """Have new chains begin at nodes of the trees that are there, round after round."""
        for _ in range(policy.l):
            kept = {one.node: one for outcome in self.outcomes for one in outcome.kept}
            origins: list[BranchOrigin] = []
            for tree, node in draw(policy, self._trees(root.node), workflow.random()):
                chains = [each.chain for each in self.outcomes] + [each.chain for each in origins]
                begun = [chain for chain in chains if start_of(chain) == node]
                above = next((each for each in self.outcomes if each.chain == chain_of(node)), None)
                steps = [*above.before, *above.steps] if above is not None else list(before)
                checkpoint = kept[node] if node != root.node else root
                origin = self._origin(checkpoint, node, len(begun), ChildSpec(), steps[: checkpoint.steps_done], 1)
                origins.append(origin.model_copy(update={"tree": tree}))
            await self._run_all(origins, root.node, told)

    def _trees(self, root: str) -> dict[str, list[Node]]:
        """The nodes of each tree, by its name; a chain that was begun and reached nothing has none."""
        trees: dict[str, list[Node]] = {}
        for outcome in sorted(self.outcomes, key=lambda outcome: outcome.chain):
            if outcome.tree is not None and outcome.nodes:
                trees.setdefault(outcome.tree, [Node(id=root)]).extend(outcome.nodes)
        return trees

    async def _run_all(self, origins: Sequence[BranchOrigin], node: str, told: Callable[[], None]) -> None:
        """Run children to their ends, so many at a time as may be. node: what their returns are the value of."""
        assert self.config is not None
        self.pending = [origin.chain for origin in origins]
        room = asyncio.Semaphore(self.config.concurrency)

        async def one(origin: BranchOrigin) -> None:
            async with room:
                outcome = await self._run(origin)
            self.pending.remove(origin.chain)
            self.outcomes.append(outcome.model_copy(update={"tree": origin.tree, "before": origin.before}))
            self.value = self._valued(node)
            told()

        running = [asyncio.create_task(one(origin)) for origin in origins]
        try:
            await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    def choose(self, value: StateValue, random: Random) -> ChildOutcome | None:
        """The child from which its parent goes on, None where there is none to go on from. random: the workflow's."""
        assert self.config is not None
        then, _, number = self.config.then.partition(":")
        ended = {outcome.chain: outcome for outcome in self.outcomes}
        known = sorted(value.returns, key=lambda chain: ended[chain].number)
        if then == "child":
            return next((ended[chain] for chain in known if ended[chain].number == int(number)), None)
        if not known:
            return None
        chosen = random.choice(known) if then == "sample" else max(known, key=lambda chain: value.returns[chain])
        return ended[chosen]

    def adopt(self, outcome: ChildOutcome) -> None:
        """Go on where a child has ended: what it was worth is what is gone on from, and no value of this rollout's."""
        self.value = None
        own = [node for node in outcome.nodes if chain_of(node.id) == outcome.chain]
        self.adopted |= {node.step: node.id for node in own if node.step is not None}

    def _valued(self, node: str) -> StateValue:
        assert self.config is not None
        mine = [outcome for outcome in self.outcomes if start_of(outcome.chain) == node]
        return state_value(node, self.config.aggregate, mine, self.pending)

    def _origin(
        self,
        checkpoint: Checkpoint,
        node: str,
        number: int,
        child: ChildSpec,
        before: Sequence[StepOutcome],
        siblings: int,
    ) -> BranchOrigin:
        config, own = self.config, self._own
        assert config is not None
        budget = own.budget if own is not None else config.max_children
        return BranchOrigin(
            root=own.root if own is not None else self._spec.id,
            run_id=own.run_id if own is not None else workflow.info().first_execution_run_id,
            parent=self._spec.id,
            chain=child_chain(node, number),
            node=node,
            number=number,
            depth=(own.depth if own is not None else 0) + 1,
            budget=(budget - siblings) // siblings,
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
        if outcome.step.index in branches.adopted:
            continue
        nodes.append(
            Node(
                id=branches.node(outcome.step.index + 1),
                parent=branches.node(outcome.step.index),
                step=outcome.step.index,
                role=outcome.step.role,
                rewards=outcome.verify.rewards if outcome.verify is not None else None,
            )
        )
    if branches.asked is not None:
        nodes.append(Node(id=branches.asked, parent=nodes[-1].id))
    return nodes


def child_outcome(
    origin: BranchOrigin,
    branches: Branches,
    steps: Sequence[StepOutcome],
    outcome: RolloutOutcome,
    rung: Rung | None,
    checkpoint: Checkpoint | None,
    kept: list[Checkpoint],
) -> ChildOutcome:
    """What a child hands up to its parent. rung: by which its session went on; checkpoint: of its end, if one is.

    kept: of the nodes before.
    """
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
        checkpoint=checkpoint,
        steps=list(steps[branches.begun :]) if branches.may_be_gone_on_from else [],
        kept=kept,
        children=branches.count,
        used=total([*_used(steps[branches.begun :]), *branches.used]),
        n_tool_calls=outcome.n_tool_calls,
    )


def _used(steps: Sequence[StepOutcome]) -> list[Usage]:
    return [outcome.turn.usage for outcome in steps if outcome.turn.usage is not None]


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
