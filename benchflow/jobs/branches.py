"""Whether what a job asks of its rollouts' branches can be: held against its tasks, agents and sandbox at submit."""

from __future__ import annotations

from collections.abc import Sequence

from benchflow.branching.checks import check
from benchflow.branching.support import require_carried_out
from benchflow.contracts.branch import ChildSpec
from benchflow.contracts.checkpoint import RUNGS, Rung
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.sandbox import Capabilities
from benchflow.contracts.task import Task
from benchflow.errors import ConfigError, UnsupportedFeatureError
from benchflow.jobs.agents import OURS
from benchflow.jobs.worlds import World
from benchflow.planes.agent.registry import record_for
from benchflow.planes.agent.settings import credentials_of, settings_for


def check_branch(
    config: JobConfig,
    tasks: Sequence[Task],
    agents: Sequence[AgentSpec],
    capabilities: Capabilities,
    shared: World | None,
) -> None:
    """Raises `ConfigError` or `UnsupportedFeatureError`. shared: the world that all rollouts have together, if any."""
    branch = config.branch
    if branch is None:
        return
    require_carried_out(branch)
    if not capabilities.snapshot:
        raise UnsupportedFeatureError(
            f"the sandbox {capabilities.provider!r} takes no snapshots, and children begin from one",
            key="branch",
            remedy="use --sandbox docker or local",
        )
    if shared is not None:
        raise UnsupportedFeatureError(
            "a persistent world is one for the whole job, and each child needs its own",
            file=str(shared.source),
            key="environment.isolation",
            remedy='write isolation = "per_task", or do not branch',
        )
    if config.replay is not None:
        raise UnsupportedFeatureError(
            "a rollout whose model answers from a record goes the one way that was recorded",
            key="branch",
            remedy="leave out `branch`, or `replay`",
        )
    for agent in agents:
        for number, child in enumerate(branch.children):
            _check_child(agent, child, f"branch.children[{number}]")
    for task in tasks:
        for agent in agents:
            try:
                check(branch, total_steps=task.n_turns, rungs=_rungs(agent))
            except ConfigError as error:
                error.file = error.file or f"{task.name} · {agent.label}"
                raise


def _check_child(agent: AgentSpec, child: ChildSpec, key: str) -> None:
    """What a child is to do otherwise must mean something to its agent."""
    record = record_for(agent)
    for name in ("prompt", "model", "seed"):
        if getattr(child, name) is not None and record.protocol in OURS:
            raise ConfigError(f"agent {agent.name!r} uses no {name}", key=f"{key}.{name}", remedy="leave it away")
    if child.model is None:
        return
    try:
        settings_for(record, home="/", workspace="/", model=child.model, base_url=agent.base_url, effort=agent.effort)
        keys = [credentials_of(record, model, agent.base_url) for model in (agent.model, child.model)]
    except ConfigError as error:
        error.key = f"{key}.model"
        raise
    if keys[0] != keys[1]:
        raise ConfigError(
            f"{child.model!r} needs another key than the model of its parent: {' or '.join(keys[1])}",
            key=f"{key}.model",
            remedy="name a model of the same provider, or submit another job",
        )


def _rungs(agent: AgentSpec) -> tuple[Rung, ...]:
    """How a session of this agent can go on in a copy of its world; one that has none loses none."""
    record = record_for(agent)
    if record.protocol in OURS:
        return RUNGS
    # One without a model does the same again by itself.
    return (record.session.rung, "fresh") if record.takes_model else (record.session.rung, "replay", "fresh")
