"""Preflight of a job: a one-token call to each of its models, so that a wrong key fails the submit, not rollouts."""

from __future__ import annotations

import secrets
from datetime import timedelta

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from benchflow.contracts import temporal_names
from benchflow.contracts.failures import error_of
from benchflow.contracts.ids import short_hash
from benchflow.contracts.preflight import Preflight, PreflightInput
from benchflow.errors import ServerUnavailableError
from benchflow.jobs.engine_connection import Engine
from benchflow.jobs.job_plan import JobPlan
from benchflow.planes.agent.registry import find_record
from benchflow.workflows.activity_options import SHARED_QUEUE

TIMEOUT = timedelta(minutes=4)
"""Timeout of the whole check; all models are called at the same time."""


async def check_models(engine: Engine, plan: JobPlan) -> list[str]:
    """Call each model of a job for one token, from a worker.

    Returns:
        Warnings about models that did not answer.

    Raises:
        ModelEndpointError: An endpoint refuses the key, the model or the address; or it fails otherwise and
            `endpoint_policy` is `fail`.
        ServerUnavailableError: The Temporal server became unavailable.
    """
    config = plan.config
    if not config.preflight or config.replay is not None:
        return []
    agents = [
        agent
        for agent in config.agents
        if agent.model is not None
        and find_record(agent).takes_model
        # An agent that logs in with files of its own has no key that a call could be made with.
        and not any(name.startswith("~/") for name in agent.credentials)
    ]
    if not agents:
        return []
    workflow_id = f"preflight/{short_hash(plan.id, 16)}-{secrets.token_hex(4)}"
    try:
        checked: Preflight = await engine.client.execute_workflow(
            temporal_names.PREFLIGHT_WORKFLOW,
            PreflightInput(job_id=plan.id, agents=agents, options=plan.options),
            id=workflow_id,
            task_queue=SHARED_QUEUE,
            result_type=Preflight,
            execution_timeout=TIMEOUT,
            static_summary=f"models of {plan.name}",
        )
    except WorkflowFailureError as error:
        # No worker could run the check. Whatever the reason is, the rollouts will report it.
        return [f"the models could not be checked: {error.cause}"]
    except RPCError as error:
        raise ServerUnavailableError(f"the models could not be checked: {error.message}") from error
    waits = config.endpoint_policy != "fail"
    for problem in checked.problems:
        if problem.is_refusal or not waits:
            error_ = error_of(problem.failure)
            error_.message = f"{problem.agent}: {error_.message}"
            error_.remedy = f"{error_.remedy or ''}; --no-preflight starts the job all the same".removeprefix("; ")
            raise error_
    return [f"{problem.agent}: {problem.failure.message}; it is waited for" for problem in checked.problems]
