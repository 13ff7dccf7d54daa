"""The check of a job's models before it starts: what its workflow is given, and what it returns."""

from __future__ import annotations

from benchflow.contracts.base import Model
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.contracts.rollout_records import Failure


class PreflightInput(Model):
    """Agents whose models are to be asked for one token each, in their own dialects and with the job's keys."""

    job_id: str
    """Workflow id of the job: names its secrets."""
    agents: list[AgentSpec]
    """The agents, with a model each."""
    options: WorkflowOptions = WorkflowOptions()
    """Timing of the workflow: the job's."""


class ModelProblem(Model):
    """A model that served no call."""

    agent: str
    """Label of the agent."""
    failure: Failure
    """The error that a rollout would end with."""
    is_refusal: bool
    """Whether repeating the call changes nothing: a key, a quota, a name or an address is wrong."""


class Preflight(Model):
    """The result of a check."""

    problems: list[ModelProblem] = []
    """One for each model that served no call."""
