"""The children of a rollout: workflows of their own, from one checkpoint, of which the state's value is made.

A parent awaits its children. What becomes of one is data; when the parent ends early, they are told to, and tear down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.branching.policies import children_at, draw
    from benchflow.contracts.branch import (
        BranchConfig,
        BranchOrigin,
        ChildOutcome,
        ChildSpec,
        CustomPolicy,
        OnAskUser,
        StateValue,
        TreeGrpo,
        Unbranched,
    )
    from benchflow.contracts.checkpoint import Checkpoint, Rung
    from benchflow.contracts.environment import unproven_warning
    from benchflow.contracts.ids import child_id
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rewards import scalar_of
    from benchflow.contracts.rollout import (
        Node,
        Question,
        RolloutOutcome,
        RolloutTree,
        StepOutcome,
        Usage,
        total,
    )
    from benchflow.trajectories.growth import chain_of, grow, merge, node_in, start_of, state_values
    from benchflow.trajectories.values import is_own, state_value
    from benchflow.workflows import slots
    from benchflow.workflows.children import origin_of, run_child
    from benchflow.workflows.deciding import OwnAggregate, decided


MAX_STARTS = 64
"""Most children that one workflow task starts: its completion, a message to the server, may have 4 MiB."""


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
        self.undone: list[Usage] = []
        self.differences: tuple[str, ...] = ()
        """In what the world of this rollout's sandbox differs from the one that it is a copy of."""

        aggregate = spec.run.branch.aggregate if spec.run.branch is not None else ""
        self._aggregate = OwnAggregate(aggregate) if is_own(aggregate) else None
        self._counting = asyncio.Lock()

    @property
    def config(self) -> BranchConfig | None:
        return self._spec.run.branch

    @property
    def count(self) -> int:
        """How many children there are, and below them."""
        return len(self.pending) + sum(1 + outcome.children for outcome in self.outcomes)

    @property
    def used(self) -> list[Usage]:
        """What the models of all children, and below them, have used, and of what was undone."""
        return [*self.undone, *(outcome.used for outcome in self.outcomes if outcome.used is not None)]

    @property
    def kept(self) -> list[Checkpoint]:
        """What is kept of the states of all children, and below them."""
        return [checkpoint for outcome in self.outcomes for checkpoint in outcome.kept]

    @property
    def warnings(self) -> tuple[str, ...]:
        """In what the worlds of this rollout, and of all below it, differ from those that they are copies of."""
        own = [f"{self.chain}: {text}" if self.chain else text for text in self.differences]
        return (*own, *(text for outcome in self.outcomes for text in outcome.warnings))

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
        return self.config is not None and self.config.then not in ("stop", "itself") and self.asked is None

    @property
    def goes_on_itself(self) -> bool:
        """Whether it goes on where it has branched, when its children have ended."""
        return self.config is not None and self.config.then == "itself"

    @property
    def _is_of_a_grown_tree(self) -> bool:
        """Whether each of its nodes may be gone on from, once it has ended."""
        return self._own is not None and self.config is not None and isinstance(self.config.policy, TreeGrpo)

    @property
    def may_be_gone_on_from(self) -> bool:
        return self._is_of_a_grown_tree or self.may_be_adopted

    def keeps(self, steps_done: int, *, branches: bool = False) -> bool:
        """Whether a checkpoint is kept of where so many steps are done. branches: it has one anyway, for children."""
        config = self.config
        if config is None or (self._own is not None and steps_done == self.begun):
            # What a child begins with is its parent's.
            return False
        match config.checkpoint:
            case "branch":
                return branches or self._is_of_a_grown_tree
            case "every_n":
                return steps_done % config.every == 0
            case kept:
                return kept == "per_turn"

    @property
    def may_be_adopted(self) -> bool:
        """Whether its parent may go on from its end."""
        return self._own is not None and self.config is not None and self.config.then not in ("stop", "itself")

    def _room(self) -> int:
        """How many children may begin at the next node; none where the tree may grow no deeper."""
        config, own = self.config, self._own
        assert config is not None
        if (own.depth if own is not None else 0) >= config.max_depth:
            return 0
        return (own.budget if own is not None else config.max_children) - self.count

    async def due(
        self, steps: Sequence[StepOutcome], total: int, question: Question | None = None
    ) -> tuple[ChildSpec, ...]:
        """The children that begin here; none where the tree may grow no deeper, or no larger. steps: that are done."""
        config, steps_done = self.config, len(steps)
        if config is None or isinstance(config.policy, Unbranched):
            return ()
        if self.goes_on_itself and any(start_of(each.chain) == self.node(steps_done) for each in self.outcomes):
            # It goes on from here, where its children have begun before.
            return ()
        begun_at = self.begun if self._own is not None else None
        if isinstance(config.policy, CustomPolicy):
            left = self.ends_at(total) - steps_done
            if question is not None or steps_done == begun_at or left <= 0 or self._room() <= 0:
                return ()
            tree, node = self._known(steps), self.node(steps_done)
            wanted = await decided(config.policy, self._spec.agent, tree, node, left, config.max_children)
        else:
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
            origin_of(self._spec, checkpoint, node, number, child, before, len(children))
            for number, child in enumerate(children)
        ]
        if of_trees:
            origins = [origin.model_copy(update={"tree": origin.chain}) for origin in origins]
        if isinstance(self.config.policy, CustomPolicy):
            path = self._known(before).path(node)
            origins = [origin.model_copy(update={"path": path}) for origin in origins]
        await self._run_all(origins, node, told)
        if isinstance(self.config.policy, TreeGrpo):
            await self._grow_trees(self.config.policy, checkpoint, before, told)
        self.value = self._valued(node)
        if self._aggregate is not None:
            for value in self._values():
                self._aggregate.require(value)
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
                origin = origin_of(
                    self._spec, checkpoint, node, len(begun), ChildSpec(), steps[: checkpoint.steps_done], 1
                )
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
        room, starts = asyncio.Semaphore(self.config.concurrency), asyncio.Semaphore(MAX_STARTS)
        n_left = len(origins)

        async def one(origin: BranchOrigin) -> None:
            nonlocal n_left
            child = child_id(origin.root, origin.chain)
            try:
                async with room:
                    await slots.current().take(child)
                    outcome = await run_child(self._spec, origin, starts)
            finally:
                n_left -= 1
                slots.current().give_back(child, is_last=n_left == 0)
            outcome = outcome.model_copy(update={"tree": origin.tree, "before": origin.before})
            # One after another, so that what its start is worth is known of each that is there.
            async with self._counting:
                if self._aggregate is not None:
                    start = start_of(outcome.chain) or ""
                    await self._aggregate.ask(self._valued(start, outcome))
                self.pending.remove(origin.chain)
                self.outcomes.append(outcome)
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

    def go_on(self) -> None:
        """Where it goes on by itself, what that state is worth is no value of this rollout's, however it ends."""
        if self.goes_on_itself:
            self.value = None

    def undo(self, steps_done: int, *, is_lost: bool = False) -> list[ChildOutcome]:
        """Forget what came of so many steps, and return the children that are its own no more. is_lost: nobody wanted
        it; then those stay that have begun where it goes on.
        """
        stays = {self.node(done) for done in range(self.begun, steps_done + (is_lost and self.goes_on_itself))}
        gone = [outcome for outcome in self.outcomes if self._begins_below(outcome.chain) not in stays]
        self.outcomes = [outcome for outcome in self.outcomes if outcome not in gone]
        self.adopted = {index: node for index, node in self.adopted.items() if index < steps_done}
        self.pending, self.value, self.asked = [], None, None
        return gone

    def _begins_below(self, chain: str) -> str:
        """The node of this rollout's own from which a chain comes, by way of whatever chains."""
        own = set(self.adopted.values())
        node = start_of(chain) or ""
        while node not in own and chain_of(node) != self.chain and node != self.start:
            node = start_of(chain_of(node)) or ""
        return node

    def _valued(self, node: str, *ended: ChildOutcome) -> StateValue:
        """V(s) of a node where children of its own begin. ended: some that are not counted yet."""
        assert self.config is not None
        mine = [outcome for outcome in (*self.outcomes, *ended) if start_of(outcome.chain) == node]
        pending = [chain for chain in self.pending if start_of(chain) == node]
        return self._complete(state_value(node, self.config.aggregate, mine, pending))

    def _values(self) -> list[StateValue]:
        """V(s) of all nodes where its children begin."""
        aggregate = self.config.aggregate if self.config is not None else "mean"
        return [self._complete(value) for value in state_values(self.outcomes, aggregate, self.pending)]

    def _complete(self, value: StateValue) -> StateValue:
        return value if self._aggregate is None else self._aggregate.complete(value)

    # --- what has grown --------------------------------------------------------------------------------------

    def nodes(self, own: Sequence[Node]) -> list[Node]:
        """The nodes of this rollout and of all below it. own: of its chain."""
        return merge(own, self.outcomes, self._values())

    def tree(self, own: Sequence[Node], returns: float | None = None) -> RolloutTree:
        """The tree from where this rollout begins, as far as it has grown."""
        environment = self._spec.task.environment
        unproven = [unproven_warning(environment)] if environment is not None and environment.unproven else []
        grown = grow(self._spec.id, own, self.outcomes, self._values(), returns=returns)
        return grown.model_copy(update={"warnings": [*unproven, *self.warnings]})

    def _known(self, steps: Sequence[StepOutcome]) -> RolloutTree:
        """The tree as far as this rollout knows it: what led to it, its own nodes, and all below."""
        path, own = self._own.path if self._own is not None else [], chain_nodes(self, steps)
        return self.tree([*path, *own[1:]] if path else own)


def chain_nodes(branches: Branches, steps: Sequence[StepOutcome], kept: Sequence[Checkpoint] = ()) -> list[Node]:
    """The nodes of a rollout's own chain, with what was measured there, from the one where it begins. kept: of them."""
    ids = {checkpoint.node: checkpoint.id for checkpoint in kept}
    nodes = [Node(id=branches.start, checkpoint=ids.get(branches.start))]
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
                checkpoint=ids.get(branches.node(outcome.step.index + 1)),
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
    own = chain_nodes(branches, steps, kept)[1:]
    rung = rung or origin.checkpoint.rung
    own[:1] = [node.model_copy(update={"rung": rung}) for node in own[:1]]
    return ChildOutcome(
        chain=origin.chain,
        number=origin.number,
        reward=scalar_of(outcome.rewards),
        value=branches.value,
        failure=outcome.error or outcome.verifier_error,
        rung=rung,
        leaf=own[-1].id if own else None,
        nodes=branches.nodes(own),
        checkpoint=checkpoint,
        steps=list(steps[branches.begun :]) if branches.may_be_gone_on_from else [],
        kept=[*kept, *branches.kept],
        children=branches.count,
        used=total([*_used(steps[branches.begun :]), *branches.used]),
        n_tool_calls=outcome.n_tool_calls,
        pack=outcome.pack,
        warnings=branches.warnings,
    )


def _used(steps: Sequence[StepOutcome]) -> list[Usage]:
    return [outcome.turn.usage for outcome in steps if outcome.turn.usage is not None]
