"""The activity that asks a job's models for one token each."""

from __future__ import annotations

import asyncio

from temporalio import activity

from benchflow.activities.context import WorkerContext
from benchflow.contracts import names
from benchflow.contracts.failures import failure_of
from benchflow.contracts.preflight import ModelProblem, Preflight, PreflightInput
from benchflow.gateway.preflight import probe
from benchflow.planes.agent.registry import record_for
from benchflow.planes.agent.settings import credential_names, endpoint_of
from benchflow.secrets import Secrets

REMEDY = "check that the endpoint runs, and --base-url"


class PreflightActivities:
    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    @activity.defn(name=names.PREFLIGHT)
    async def preflight(self, wanted: PreflightInput) -> Preflight:
        """Return the models that serve no call."""
        from benchflow.gateway.endpoint_errors import endpoint_error

        secrets = Secrets.of_job(self._context.paths, wanted.job_id)
        redact = secrets.redactor(name for agent in wanted.agents for name in agent.credentials)
        problems = []
        targets = []
        for agent in wanted.agents:
            record = record_for(agent)
            endpoint, model = endpoint_of(record, agent.model, agent.base_url)
            if endpoint is None or model is None:
                continue
            base_url = agent.base_url or endpoint.upstream
            targets.append((agent, endpoint, base_url, model))
        found = await asyncio.gather(
            *(
                probe(self._context.paths, wanted.job_id, endpoint.api, base_url, agent.credentials, model)
                for agent, endpoint, base_url, model in targets
            )
        )
        for (agent, endpoint, base_url, _), problem in zip(targets, found, strict=True):
            if problem is None:
                continue
            error = endpoint_error(problem, base_url, credential_names(endpoint, agent.credentials), remedy=REMEDY)
            failure = failure_of(error, "plan")
            failure = failure.model_copy(update={"message": redact(failure.message)})
            problems.append(ModelProblem(agent=agent.label, failure=failure, is_refusal=problem.is_refusal))
        return Preflight(problems=problems)
