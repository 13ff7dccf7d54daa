"""What users' own code says of a rollout's tree: a policy, where children begin; an aggregate, what a state is worth.

It may do anything, so it runs in activities. What it has said is in the history, and is never asked for again.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import Aggregated, AggregateInput, DecideInput, Decision
    from benchflow.contracts.branch import ChildSpec, CustomPolicy, StateValue
    from benchflow.contracts.job import AgentSpec
    from benchflow.contracts.rollout import RolloutTree
    from benchflow.workflows import options


async def decided(
    policy: CustomPolicy, agent: AgentSpec, tree: RolloutTree, node: str, steps_left: int, most: int
) -> tuple[ChildSpec, ...]:
    """The children that begin at a node by a user's policy; none: it goes on without. most: that there may ever be."""
    asks = DecideInput(policy=policy, agent=agent, tree=tree, node=node, steps_left=steps_left, most=most)
    decision: Decision = await workflow.execute_activity(
        names.DECIDE, asks, result_type=Decision, summary=node, **options.shared()
    )
    return tuple(decision.children)


class OwnAggregate:
    """A user's function of returns, asked once for each list of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: dict[tuple[float, ...], float] = {}
        self._failed: dict[tuple[float, ...], ActivityError] = {}

    async def ask(self, value: StateValue) -> None:
        """Have it say what the returns make of a value. That it fails with some of them matters once they are all."""
        key = tuple(value.returns.values())
        if not key or key in self._said:
            return
        asks = AggregateInput(aggregate=self._name, returns=list(key))
        try:
            found: Aggregated = await workflow.execute_activity(
                names.AGGREGATE, asks, result_type=Aggregated, summary=value.node, **options.shared()
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._failed[key] = error
        else:
            self._said[key] = found.value

    def complete(self, value: StateValue) -> StateValue:
        """The value with what was said of its returns, if anything was."""
        return value.model_copy(update={"value": self._said.get(tuple(value.returns.values()))})

    def require(self, value: StateValue) -> None:
        """Raise what it has failed with, if nothing was said of these returns."""
        failure = self._failed.get(tuple(value.returns.values()))
        if failure is not None:
            raise failure
