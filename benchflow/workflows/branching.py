"""Branching of a rollout: children start from a checkpoint, their returns make V(s), and the rollout may continue.

The children are child workflows, which their parent awaits. The failure of a child is data in its outcome. If the
parent ends early, its children are cancelled, and tear down their sandboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.branching.policies import choose_children, draw
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import Aggregated, AggregateInput, BranchDecision, DecideInput, TreeInput
    from benchflow.contracts.branch import (
        BranchOrigin,
        ChildOutcome,
        ChildSpec,
        CustomPolicy,
        OnAskUser,
        StateValue,
        TreeGrpo,
        Unbranched,
    )
    from benchflow.contracts.checkpoint import Checkpoint
    from benchflow.contracts.ids import child_id
    from benchflow.contracts.rewards import first_failure
    from benchflow.contracts.rollout_records import Node, Question
    from benchflow.trajectories.growth import get_branch_path, get_start_node, make_question_id
    from benchflow.trajectories.state_values import is_user_function
    from benchflow.workflows import activity_options, rollout_slots
    from benchflow.workflows.agent_turns import AgentTurns
    from benchflow.workflows.children import make_origin, run_child
    from benchflow.workflows.clock import Phases
    from benchflow.workflows.hosts import HostGoneError, RolloutSandbox
    from benchflow.workflows.rollout_checkpoints import Checkpoints
    from benchflow.workflows.rollout_state import RolloutState

MAX_STARTS = 64
"""Maximum number of children that one workflow task starts: its completion, a message to the server, may have 4 MiB."""


class Branching:
    """The branches of one rollout: where children start, their runs, and the continuation from one of them."""

    def __init__(
        self, state: RolloutState, phases: Phases, sandbox: RolloutSandbox, checkpoints: Checkpoints, turns: AgentTurns
    ) -> None:
        """Make it for one rollout.

        Args:
            state: State of the rollout, shared by its modules; the fields about children are set here.
            phases: Phases of the rollout.
            sandbox: Sandbox of the rollout.
            checkpoints: Checkpoints of the rollout, from which children start.
            turns: Turns of the rollout's agent, which continue from a child.
        """
        self._state = state
        self._phases = phases
        self._sandbox = sandbox
        self._checkpoints = checkpoints
        self._turns = turns
        self._counting = asyncio.Lock()
        self._unaggregated: dict[tuple[float, ...], ActivityError] = {}
        """Errors of the user's own aggregate, by the returns that it was called with."""

    # --- where it branches ----------------------------------------------------------------------------------

    @property
    def watches_questions(self) -> bool:
        """Return whether children may answer the agent's questions, so that a checkpoint is needed before each turn."""
        config = self._state.config
        return config is not None and isinstance(config.policy, OnAskUser) and self._count_capacity() > 0

    @property
    def is_resumable(self) -> bool:
        """Return whether other rollouts may start from the nodes of this one after its end."""
        return self._is_of_tree_grpo or self._state.is_adoptable

    @property
    def _is_of_tree_grpo(self) -> bool:
        config = self._state.config
        return self._state.branch_origin is not None and config is not None and isinstance(config.policy, TreeGrpo)

    def should_retain(self, steps_done: int, *, branches: bool = False) -> bool:
        """Return whether the checkpoint of a node is retained, by `checkpoint` in the branch configuration.

        Args:
            steps_done: Number of steps that led to the node.
            branches: Whether children start at the node, which therefore has a checkpoint anyway.
        """
        state, config = self._state, self._state.config
        if config is None or (state.branch_origin is not None and steps_done == state.origin_steps):
            # A child's base checkpoint is its parent's.
            return False
        match config.checkpoint:
            case "branch":
                return branches or self._is_of_tree_grpo
            case "every_n":
                return steps_done % config.every == 0
            case wanted:
                return wanted == "per_turn"

    def _count_capacity(self) -> int:
        """Return how many children may still start; 0 if the tree has reached its maximum depth."""
        config, origin = self._state.config, self._state.branch_origin
        assert config is not None
        if (origin.depth if origin is not None else 0) >= config.max_depth:
            return 0
        return (origin.budget if origin is not None else config.max_children) - self._state.n_children

    async def choose_children(self, question: Question | None = None) -> tuple[ChildSpec, ...]:
        """Return the children that start at the present node; none if the tree would grow too deep or too large.

        Args:
            question: The question that the agent asks in the turn after that node; None between turns.
        """
        state, config = self._state, self._state.config
        done = len(state.steps)
        if config is None or isinstance(config.policy, Unbranched):
            return ()
        if state.continues_itself and state.find_node(done) in {
            get_start_node(outcome.chain) for outcome in state.outcomes
        }:
            # Children have started at this node before, and the rollout now continues from it.
            return ()
        origin_steps = state.origin_steps if state.branch_origin is not None else None
        if isinstance(config.policy, CustomPolicy):
            left = state.last_step - done
            if question is not None or done == origin_steps or left <= 0 or self._count_capacity() <= 0:
                return ()
            wanted = await self._decide(config.policy, left, config.max_children)
        else:
            total = len(state.plan.steps)
            wanted = choose_children(config.policy, done, total, question, config.children, begun_at=origin_steps)
        return wanted if len(wanted) <= self._count_capacity() else ()

    async def _decide(self, policy: CustomPolicy, steps_left: int, max_children: int) -> tuple[ChildSpec, ...]:
        """Run the user's own policy in an activity, and return the children that it wants at the present node.

        Args:
            policy: Name and options of the policy.
            steps_left: Number of steps that the rollout may still run.
            max_children: Maximum number of children in the whole tree.
        """
        state = self._state
        request = DecideInput(
            policy=policy,
            agent=state.spec.agent,
            tree=state.make_tree(is_from_root=True),
            node=state.find_node(len(state.steps)),
            steps_left=steps_left,
            most=max_children,
        )
        decision: BranchDecision = await workflow.execute_activity(
            temporal_names.DECIDE,
            request,
            result_type=BranchDecision,
            summary=request.node,
            **activity_options.make_shared_options(),
        )
        return tuple(decision.children)

    # --- the step that branches -----------------------------------------------------------------------------

    async def branch_at_question(self, before: Checkpoint | None, question: Question) -> bool:
        """Run children that each answer the agent's question differently, if the policy has any.

        Args:
            before: Checkpoint from before the turn; None if users answer questions.
            question: The question.

        Returns:
            Whether children have run. If not, a user is to answer the question.
        """
        if before is None or not (children := await self.choose_children(question)):
            return False
        self._state.asked = make_question_id(self._state.spec.chain, len(self._state.steps))
        # The checkpoint is from before the turn, so it lent no slot: the turn needed it.
        await self._sandbox.lend_slot()
        await self.branch(before, children)
        return True

    async def branch(self, checkpoint: Checkpoint, children: tuple[ChildSpec, ...]) -> bool:
        """Run children from a checkpoint to their ends, set the node's value, and continue by the configuration.

        Args:
            checkpoint: Checkpoint from which the children start.
            children: Overrides of each child.

        Returns:
            Whether the rollout has more to run: in its own sandbox, or in a new one from the end of a child.
        """
        state = self._state
        # The activity that took the checkpoint may have succeeded although it was cancelled, and swallowed that.
        state.check_stop()
        rollout_slots.get_slots().lend()
        if self._phases.phase != "branch":
            self._phases.begin("branch")
        if self.should_retain(checkpoint.steps_done, branches=True) and not self._checkpoints.has_retained(
            checkpoint.node
        ):
            self._checkpoints.retain(checkpoint)
        grown = asyncio.Event()
        writing = asyncio.create_task(self._write_growth(grown))
        try:
            value = await self._grow(checkpoint, children)
        finally:
            if state.continues_itself:
                # The rollout continues, so V(s) of this node is not its reward, however it ends.
                state.value = None
            # A pending write of the tree would overwrite newer ones. The task may end well although cancelled.
            grown.set()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        if state.continues_itself:
            await self._checkpoints.release(checkpoint)
            await self._sandbox.unfreeze()
            return True
        base, chosen = state.base_checkpoint, self._choose(value)
        leaves = [outcome.checkpoint for outcome in state.outcomes]
        if chosen is not None:
            await self._continue_from(chosen)
        await self._checkpoints.release(checkpoint, base, *leaves)
        return chosen is not None and chosen.checkpoint is not None

    def _choose(self, value: StateValue) -> ChildOutcome | None:
        """Return the child from which the rollout continues; None if it stops, or if that child has no return."""
        config = self._state.config
        assert config is not None
        if config.then == "stop" or self._state.asked is not None:
            # Children that answer a question run to the end of the task.
            return None
        then, _, number = config.then.partition(":")
        ended = {outcome.chain: outcome for outcome in self._state.outcomes}
        measured = sorted(value.returns, key=lambda path: ended[path].number)
        if then == "child":
            return next((ended[path] for path in measured if ended[path].number == int(number)), None)
        if not measured:
            return None
        random = workflow.random()
        best = random.choice(measured) if then == "sample" else max(measured, key=lambda path: value.returns[path])
        return ended[best]

    async def _continue_from(self, child: ChildOutcome) -> None:
        """Adopt the steps of a child, and provision a sandbox at its last checkpoint, if steps are left to run."""
        state = self._state
        # V(s) is not the rollout's reward any more: that comes from its further steps.
        state.value = None
        own = [node for node in child.nodes if get_branch_path(node.id) == child.chain]
        state.adopted |= child.adopted | {node.step: node.id for node in own if node.step is not None}
        state.steps += child.steps
        state.agent_failure = state.agent_failure or first_failure(child.steps)
        if child.checkpoint is not None:
            await self._turns.start_at(child.checkpoint)

    # --- the children ---------------------------------------------------------------------------------------

    async def _grow(self, checkpoint: Checkpoint, children: Sequence[ChildSpec]) -> StateValue:
        """Run children from a checkpoint to their ends, and return V(s) of the node where they start.

        Args:
            checkpoint: Checkpoint from which the children start.
            children: Overrides of each child.

        Raises:
            ActivityError: The user's own aggregate has failed for the final returns of a node.
        """
        state, config = self._state, self._state.config
        assert config is not None
        node = checkpoint.node if state.asked is None else state.asked
        origins = [
            make_origin(state.spec, checkpoint, node, number, child, state.steps, len(children))
            for number, child in enumerate(children)
        ]
        if isinstance(config.policy, TreeGrpo):
            origins = [origin.model_copy(update={"tree": origin.chain}) for origin in origins]
        if isinstance(config.policy, CustomPolicy):
            path = state.make_tree(is_from_root=True).path(node)
            origins = [origin.model_copy(update={"path": path}) for origin in origins]
        await self._run_all(origins, node)
        if isinstance(config.policy, TreeGrpo):
            for _ in range(config.policy.l):
                await self._run_all(self._draw_origins(config.policy, checkpoint), node)
        state.value = state.compute_value(node)
        for value in state.values:
            if (failure := self._unaggregated.get(tuple(value.returns.values()))) is not None:
                raise failure
        return state.value

    def _draw_origins(self, policy: TreeGrpo, root: Checkpoint) -> list[BranchOrigin]:
        """Return the origins of the next round of Tree-GRPO: new branch paths at nodes drawn from the trees so far.

        Args:
            policy: Parameters of Tree-GRPO.
            root: Checkpoint of the root of all trees.
        """
        state = self._state
        retained = {one.node: one for one in state.retained_below} | {root.node: root}
        trees: dict[str, list[Node]] = {}
        for outcome in sorted(state.outcomes, key=lambda outcome: outcome.chain):
            # A child that failed before its first node has no nodes.
            if outcome.tree is not None and outcome.nodes:
                trees.setdefault(outcome.tree, [Node(id=root.node)]).extend(outcome.nodes)
        origins: list[BranchOrigin] = []
        for tree, node in draw(policy, trees, workflow.random()):
            paths = [each.chain for each in state.outcomes] + [each.chain for each in origins]
            number = sum(get_start_node(path) == node for path in paths)
            above = next((each for each in state.outcomes if each.chain == get_branch_path(node)), None)
            steps = [*above.before, *above.steps] if above is not None else state.steps
            checkpoint = retained[node]
            before = steps[: checkpoint.steps_done]
            origin = make_origin(state.spec, checkpoint, node, number, ChildSpec(), before, 1)
            origins.append(origin.model_copy(update={"tree": tree}))
        return origins

    async def _run_all(self, origins: Sequence[BranchOrigin], node: str) -> None:
        """Run children to their ends, `concurrency` at a time, and update V(s) of `node` after each end.

        If the work is cancelled or raises meanwhile, all of them are cancelled and awaited.
        """
        state, config = self._state, self._state.config
        assert config is not None
        state.pending = [origin.chain for origin in origins]
        running_at_a_time, starts = asyncio.Semaphore(config.concurrency), asyncio.Semaphore(MAX_STARTS)
        n_left = len(origins)

        async def run_one(origin: BranchOrigin) -> None:
            nonlocal n_left
            child = child_id(origin.root, origin.chain)
            try:
                async with running_at_a_time:
                    await rollout_slots.get_slots().take(child)
                    outcome = await run_child(state.spec, origin, starts)
            finally:
                n_left -= 1
                rollout_slots.get_slots().give_back(child, is_last=n_left == 0)
            outcome = outcome.model_copy(update={"tree": origin.tree, "before": origin.before})
            # Under a lock, so that each V(s) counts all children that have ended before.
            async with self._counting:
                if is_user_function(config.aggregate):
                    await self._ask_aggregate(state.compute_value(get_start_node(outcome.chain) or "", outcome))
                state.pending.remove(origin.chain)
                state.outcomes.append(outcome)
                state.value = state.compute_value(node)
            self._phases.on_update()

        running = [asyncio.create_task(run_one(origin)) for origin in origins]
        try:
            await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    async def _ask_aggregate(self, value: StateValue) -> None:
        """Run the user's own aggregate in an activity, once for each tuple of returns, and store its result.

        An error is stored as well. `_grow` raises it if these are the final returns.
        """
        config, returns = self._state.config, tuple(value.returns.values())
        assert config is not None
        if not returns or returns in self._state.aggregated:
            return
        request = AggregateInput(aggregate=config.aggregate, returns=list(returns))
        try:
            found: Aggregated = await workflow.execute_activity(
                temporal_names.AGGREGATE,
                request,
                result_type=Aggregated,
                summary=value.node,
                **activity_options.make_shared_options(),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._unaggregated[returns] = error
        else:
            self._state.aggregated[returns] = found.value

    # --- the tree as it grows -------------------------------------------------------------------------------

    async def _write_growth(self, grown: asyncio.Event) -> None:
        """Write the tree now, and after the end of each child, until `grown` is set."""
        while not grown.is_set():
            n_ended = len(self._state.outcomes)
            try:
                await self.write_tree()
            except HostGoneError:
                # The next activity on that host raises it where it can be handled.
                return
            await workflow.wait_condition(lambda n=n_ended: grown.is_set() or len(self._state.outcomes) > n)  # type: ignore[misc]

    async def write_tree(self) -> None:
        """Write the tree so far to the results, to be read while the rollout runs. A failure is logged.

        Raises:
            HostGoneError: The sandbox's host is lost.
        """
        work = TreeInput(spec=self._state.spec, tree=self._state.make_tree())
        try:
            await self._sandbox.run(temporal_names.WRITE_TREE, work, None)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # The report writes the complete tree in the end.
            workflow.logger.warning("the tree could not be written: %s", error.cause)
