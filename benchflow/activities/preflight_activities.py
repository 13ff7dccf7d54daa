"""The activity that checks a job's models with a request for one token each."""

from __future__ import annotations

import asyncio

from temporalio import activity

from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts import temporal_names
from benchflow.contracts.failures import failure_of
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.preflight import ModelProblem, Preflight, PreflightInput
from benchflow.gateway.endpoint_errors import endpoint_error
from benchflow.gateway.model_probe import probe
from benchflow.planes.agent.agent_settings import choose_credentials, find_endpoint
from benchflow.planes.agent.registry import find_record
from benchflow.secrets import Secrets

REMEDY = "check that the endpoint runs, and --base-url"


class PreflightActivities:
    """The activity that checks a job's models before its rollouts start.

    Args:
        context: Host and client of this worker process.
    """

    def __init__(self, context: WorkerContext) -> None:
        """Make it."""
        self._context = context

    @activity.defn(name=temporal_names.PREFLIGHT)
    async def preflight(self, wanted: PreflightInput) -> Preflight:
        """Request one token from each agent's model, and return the problems found. A retry makes the requests again.

        Args:
            wanted: The job and its agents.
        """
        found = await asyncio.gather(*(self._check(wanted.job_id, agent) for agent in wanted.agents))
        return Preflight(problems=[problem for problem in found if problem is not None])

    async def _check(self, job_id: str, agent: AgentSpec) -> ModelProblem | None:
        """Request one token from an agent's model. Return the problem; None if there is none, or no model."""
        endpoint, model = find_endpoint(find_record(agent), agent.model, agent.base_url)
        if endpoint is None or model is None:
            return None
        paths, base_url = self._context.paths, agent.base_url or endpoint.upstream
        problem = await probe(paths, job_id, endpoint.api, base_url, agent.credentials, model)
        if problem is None:
            return None
        error = endpoint_error(problem, base_url, choose_credentials(endpoint, agent.credentials), remedy=REMEDY)
        error.message = Secrets.of_job(paths, job_id).redactor(agent.credentials)(error.message)
        return ModelProblem(agent=agent.label, failure=failure_of(error, "plan"), is_refusal=problem.is_refusal)
