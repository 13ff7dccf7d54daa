"""A child of a rollout: what it begins with, what it runs, and that it fails, which is an outcome too."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import ids, names
    from benchflow.contracts.branch import BranchOrigin, ChildOutcome, ChildSpec
    from benchflow.contracts.checkpoint import Checkpoint
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rewards import scalar_of
    from benchflow.contracts.rollout import Failure, RolloutOutcome, StepOutcome
    from benchflow.trajectories.growth import child_chain
    from benchflow.workflows.deadline import waiting
    from benchflow.workflows.failures import failure_from

EARLIER_RUN_SEC = 2.0
"""Seconds between tries to start a child whose workflow of an earlier run has not ended yet."""


def origin_of(
    parent: RolloutSpec,
    checkpoint: Checkpoint,
    node: str,
    number: int,
    child: ChildSpec,
    before: Sequence[StepOutcome],
    siblings: int,
) -> BranchOrigin:
    """What makes a rollout a child of another. siblings: how many begin with it."""
    config, own = parent.run.branch, parent.branch
    assert config is not None
    budget = own.budget if own is not None else config.max_children
    if child.role is None and own is not None:
        child = child.model_copy(update={"role": own.child.role})
    return BranchOrigin(
        root=own.root if own is not None else parent.id,
        run_id=own.run_id if own is not None else workflow.info().first_execution_run_id,
        parent=parent.id,
        chain=child_chain(node, number),
        node=node,
        number=number,
        depth=(own.depth if own is not None else 0) + 1,
        budget=(budget - siblings) // siblings,
        checkpoint=checkpoint,
        child=child,
        before=list(before),
    )


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


async def run_child(parent: RolloutSpec, origin: BranchOrigin, starts: asyncio.Semaphore) -> ChildOutcome:
    """Run a child to its end. That it failed is an outcome, too. starts: held until the server has started it."""
    try:
        spec = child_spec(parent, origin)
        # It has a deadline of its own.
        with waiting("children"):
            async with starts:
                child = await _start(spec, origin)
            outcome: ChildOutcome = await child
            return outcome
    except Exception as error:
        if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
            raise
        if not isinstance(error, ChildWorkflowError):
            workflow.logger.exception("a child failed by a fault of the engine")
        return ChildOutcome(chain=origin.chain, number=origin.number, failure=failure_from(error, "execute"))


async def _start(spec: RolloutSpec, origin: BranchOrigin) -> workflow.ChildWorkflowHandle[Any, ChildOutcome]:
    """Start a child. One of an earlier run of its tree, which is about to be over, is waited for."""
    # Times that it was waited, and not time: in an outage, the earlier run can't end either. It may report four times.
    tries = math.ceil(4 * spec.options.report_total_sec / EARLIER_RUN_SEC)
    while True:
        try:
            return await workflow.start_child_workflow(
                names.ROLLOUT_WORKFLOW,
                spec,
                id=spec.id,
                result_type=ChildOutcome,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                run_timeout=spec.run_timeout,
                static_summary=f"{spec.name} {origin.chain}",
            )
        except WorkflowAlreadyStartedError:
            # It was cancelled when its parent ended: it reports, and is torn down.
            if (tries := tries - 1) < 0:
                raise
            await workflow.sleep(EARLIER_RUN_SEC)


def bare_outcome(origin: BranchOrigin, outcome: RolloutOutcome, kept: list[Checkpoint]) -> ChildOutcome:
    """Return what a child hands up of which no more can be told than how it ended."""
    return ChildOutcome(
        chain=origin.chain,
        number=origin.number,
        reward=scalar_of(outcome.rewards),
        failure=outcome.error or outcome.verifier_error,
        kept=kept,
        n_tool_calls=outcome.n_tool_calls,
        pack=outcome.pack,
    )


def failed(outcomes: Sequence[ChildOutcome]) -> Failure:
    """Return why a state has no value, none of its children having a return, with the remedy for the first one."""
    message = f"none of {len(outcomes)} children could be measured"
    said = next((outcome.failure for outcome in outcomes if outcome.failure is not None), None)
    if said is None:
        return Failure(type="BranchError", category="checkpoint", message=message, phase="execute")
    return Failure(
        type="BranchError",
        category=said.category,
        message=f"{message}: {said.message}",
        phase="execute",
        file=said.file,
        key=said.key,
        remedy=said.remedy,
    )
