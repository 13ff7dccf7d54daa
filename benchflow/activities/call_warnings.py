"""Warnings of a rollout's result about its model calls, as its gateway tells of them."""

from __future__ import annotations

from benchflow.activities.context import WorkerContext
from benchflow.contracts.job import RolloutSpec
from benchflow.errors import BenchFlowError
from benchflow.planes.agent.registry import record_for


async def call_warnings(context: WorkerContext, spec: RolloutSpec) -> list[str]:
    """Return warnings about a rollout's model calls.

    One for each request that the gateway did not pass on, and those about what is not on record, or only estimated.
    """
    if not record_for(spec.agent).takes_model or not context.paths.gateway.rollouts.is_dir():
        return []
    from benchflow.gateway.client import GatewayClient
    from benchflow.gateway.process import is_running

    if not is_running(context.paths):
        return []
    try:
        status = await GatewayClient(context.paths, patience=2.0).status(spec.id)
    except BenchFlowError:
        # Of a rollout whose agent did not get as far as a session it was never told.
        return []
    warnings = [
        f"the model gateway refused {refused.count} × {refused.method} {refused.path}"
        + (f": the price of {refused.unpriced or 'its model'} is not known" if refused.unpriced is not None else "")
        if refused.path is not None
        else f"the model gateway refused {refused.count} × other requests"
        for refused in status.refused
    ]
    if status.failure is not None:
        warnings.append(f"not all model calls were made or recorded: {status.failure}")
    if status.usage.unmetered:
        warnings.append(
            f"the tokens of {status.usage.unmetered} model calls are estimated: their endpoint did not tell them"
        )
    return warnings
