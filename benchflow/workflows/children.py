"""Children of a rollout: origin, specification, workflow, and the outcome that goes to the parent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import ids, temporal_names
    from benchflow.contracts.branch import BranchOrigin, ChildOutcome, ChildSpec
    from benchflow.contracts.checkpoint import Checkpoint
    from benchflow.contracts.failures import failure_of
    from benchflow.contracts.fixed_durations import EARLIER_RUN_SEC
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rewards import scalar_of
    from benchflow.contracts.rollout_records import Failure, RolloutOutcome, StepOutcome, total
    from benchflow.errors import BranchError
    from benchflow.trajectories.growth import make_branch_path
    from benchflow.workflows.clock import pause_deadline
    from benchflow.workflows.rollout_state import RolloutState
    from benchflow.workflows.workflow_failures import make_failure


def make_origin(
    parent: RolloutSpec,
    checkpoint: Checkpoint,
    node: str,
    number: int,
    child: ChildSpec,
    before: Sequence[StepOutcome],
    siblings: int,
) -> BranchOrigin:
    """Return the origin of a child: its place in the tree, its checkpoint, and its difference from its siblings.

    Args:
        parent: The rollout that branches.
        checkpoint: The checkpoint from which the child's sandbox starts.
        node: The node at which its branch path begins.
        number: Number of the child among the children of that node.
        child: Overrides by which the child differs from its siblings: seed, model, answer, role.
        before: Outcomes of the steps that led to the node.
        siblings: Number of children that start together, itself included, and share the budget.
    """
    config, above = parent.run.branch, parent.branch
    assert config is not None
    budget = above.budget if above is not None else config.max_children
    if child.role is None and above is not None:
        child = child.model_copy(update={"role": above.child.role})
    return BranchOrigin(
        root=above.root if above is not None else parent.id,
        run_id=above.run_id if above is not None else workflow.info().first_execution_run_id,
        parent=parent.id,
        chain=make_branch_path(node, number),
        node=node,
        number=number,
        depth=(above.depth if above is not None else 0) + 1,
        budget=(budget - siblings) // siblings,
        checkpoint=checkpoint,
        child=child,
        before=list(before),
    )


def make_child_spec(parent: RolloutSpec, origin: BranchOrigin) -> RolloutSpec:
    """Return a child's specification: its parent's, with the id, origin, seed and model of the child.

    Args:
        parent: Specification of the parent.
        origin: Origin of the child, with its overrides.
    """
    child, run, agent = origin.child, parent.run, parent.agent
    if child.seed is not None:
        run = run.model_copy(update={"sampling": run.sampling.model_copy(update={"seed": child.seed})})
    if child.model is not None:
        agent = agent.model_copy(update={"model": child.model})
    return parent.model_copy(
        update={
            "id": ids.child_id(origin.root, origin.chain),
            "run": run,
            "agent": agent,
            "branch": origin,
            "restart": None,
        }
    )


async def run_child(parent: RolloutSpec, origin: BranchOrigin, starts: asyncio.Semaphore) -> ChildOutcome:
    """Run a child to its end, and return its outcome. If it fails, or can't be started, the outcome has the failure.

    Args:
        parent: Specification of the parent.
        origin: Origin of the child.
        starts: Semaphore that is held until the server has started the child's workflow.

    Raises:
        ChildWorkflowError: The parent was cancelled, and the child with it. May also be a `CancelledError`.
    """
    try:
        spec = make_child_spec(parent, origin)
        # The parent's clock stands still: a child has a deadline of its own.
        with pause_deadline("children"):
            async with starts:
                child = await _start_child(spec, origin)
            outcome: ChildOutcome = await child
            return outcome
    except Exception as error:
        if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
            raise
        if not isinstance(error, ChildWorkflowError):
            workflow.logger.exception("a child failed by a fault of the engine")
        return ChildOutcome(chain=origin.chain, number=origin.number, failure=make_failure(error, "execute"))


async def _start_child(spec: RolloutSpec, origin: BranchOrigin) -> workflow.ChildWorkflowHandle[Any, ChildOutcome]:
    """Start a child, and return its handle. If its workflow of an earlier run of the tree still runs, wait for its end.

    Raises:
        WorkflowAlreadyStartedError: The earlier workflow does not end.
    """
    # A number of tries, and no time limit: in an outage, the earlier run can't end either. It may report four times.
    tries = math.ceil(4 * spec.options.report_total_sec / EARLIER_RUN_SEC)
    while True:
        try:
            return await workflow.start_child_workflow(
                temporal_names.ROLLOUT_WORKFLOW,
                spec,
                id=spec.id,
                result_type=ChildOutcome,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                run_timeout=spec.run_timeout,
                static_summary=f"{spec.name} {origin.chain}",
            )
        except WorkflowAlreadyStartedError:
            # The earlier run was cancelled when its parent ended: it still reports and tears down.
            if (tries := tries - 1) < 0:
                raise
            await workflow.sleep(EARLIER_RUN_SEC)


def make_minimal_outcome(origin: BranchOrigin, outcome: RolloutOutcome, retained: list[Checkpoint]) -> ChildOutcome:
    """Return the outcome of a child without its nodes and steps, for an end in which these could not be computed.

    Args:
        origin: Origin of the child.
        outcome: Outcome of the child as a rollout.
        retained: Checkpoints that the root is to release.
    """
    return ChildOutcome(
        chain=origin.chain,
        number=origin.number,
        reward=scalar_of(outcome.rewards),
        failure=outcome.error or outcome.verifier_error,
        kept=retained,
        n_tool_calls=outcome.n_tool_calls,
        pack=outcome.pack,
    )


def make_child_outcome(
    origin: BranchOrigin, state: RolloutState, outcome: RolloutOutcome, retained: list[Checkpoint], *, has_steps: bool
) -> ChildOutcome:
    """Return the outcome that a child returns to its parent, with its nodes, checkpoints and usage.

    Args:
        origin: Origin of the child.
        state: State of the child at its end.
        outcome: Outcome of the child as a rollout.
        retained: Checkpoints of the child that the root is to release; those of its descendants are added.
        has_steps: Whether to include the child's steps, because other rollouts may continue from its nodes.
    """
    nodes = state.list_own_nodes()[1:]
    return make_minimal_outcome(origin, outcome, [*retained, *state.retained_below]).model_copy(
        update={
            "value": state.value,
            "rung": state.resume_mode or origin.checkpoint.rung,
            "leaf": nodes[-1].id if nodes else None,
            "nodes": state.list_nodes_below_origin(),
            "checkpoint": state.leaf,
            "steps": state.own_steps if has_steps else [],
            "adopted": state.adopted,
            "children": state.n_children,
            "used": total([*state.own_usage, *state.usage_below]),
            "warnings": state.differences,
        }
    )


def make_no_return_failure(outcomes: Sequence[ChildOutcome]) -> Failure:
    """Return the failure of a node without a value, because no child has a return.

    Args:
        outcomes: Outcomes of the children. The failure has category, message and remedy of the first that failed.
    """
    message = f"none of {len(outcomes)} children could be measured"
    first = next((outcome.failure for outcome in outcomes if outcome.failure is not None), None)
    if first is None:
        return failure_of(BranchError(message), "execute")
    error = BranchError(f"{message}: {first.message}", file=first.file, key=first.key, remedy=first.remedy)
    return failure_of(error, "execute").model_copy(update={"category": first.category})
