"""Checks at submit whether a job's branches are possible with its tasks, agents, sandbox and worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow.branching.branch_checks import check
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.resuming import RUNGS, Rung
from benchflow.contracts.sandbox import Capabilities
from benchflow.contracts.task import Task
from benchflow.errors import ConfigError, UnprovenStateError, UnsupportedFeatureError
from benchflow.jobs.job_worlds import TaskWorld, compute_image_digest
from benchflow.paths import StatePaths
from benchflow.planes.agent.child import check_child
from benchflow.planes.agent.registry import find_record
from benchflow.planes.environment.proofs import explain_unproven, read_proofs
from benchflow.planes.environment.verifier_urls import find_verifier_urls


def check_branch(
    config: JobConfig,
    tasks: Sequence[Task],
    agents: Sequence[AgentSpec],
    capabilities: Capabilities,
    shared: TaskWorld | None,
) -> None:
    """Raise an error if the job's rollouts cannot branch as configured; return if they can, or do not branch.

    Args:
        config: Configuration of the job.
        tasks: Its tasks.
        agents: Its prepared agents.
        capabilities: Capabilities of its sandbox provider.
        shared: Persistent world that all rollouts share, if any.

    Raises:
        UnsupportedFeatureError: Sandbox, world or replay does not allow branches.
        ConfigError: The branches do not fit an agent or a task.
    """
    branch = config.branch
    if branch is None:
        return
    if not capabilities.snapshot:
        raise UnsupportedFeatureError(
            f"the sandbox {capabilities.provider!r} takes no snapshots, and children begin from one",
            key="branch",
            remedy="use --sandbox docker or local",
        )
    if branch.portable and not capabilities.portable:
        raise UnsupportedFeatureError(
            f"snapshots of the sandbox {capabilities.provider!r} cannot be had by other hosts",
            key="branch.portable",
            remedy="leave it out, or use --sandbox docker or local",
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
            check_child(agent, child, f"branch.children[{number}]")
    for task in tasks:
        for agent in agents:
            try:
                check(branch, total_steps=task.n_turns, rungs=_list_resume_modes(agent, mounted=capabilities.mounts))
            except ConfigError as error:
                error.file = error.file or f"{task.name} · {agent.label}"
                raise


def find_unproven_worlds(
    config: JobConfig, tasks: Sequence[tuple[Path, Task]], worlds: Mapping[str, TaskWorld]
) -> dict[str, str]:
    """Return, by task, the reason why a copy of its world is not proven to answer as the original does.

    Args:
        config: Configuration of the job. If its rollouts do not branch, no world is copied, and the result is empty.
        tasks: Tasks with their directories, which contain their verifiers.
        worlds: Worlds by task name, for tasks that have one.

    Raises:
        UnprovenStateError: A world is not proven, and the job requires proofs.
    """
    if config.branch is None or not config.branch.has_children:
        return {}
    found: dict[str, str] = {}
    for path, task in tasks:
        world = worlds.get(task.name)
        reason = _explain_unproven(world, path, task) if world is not None else None
        if world is None or reason is None:
            continue
        if config.require_proven_state:
            raise UnprovenStateError(
                f"services of {world.manifest.name} start anew in each child of {task.name}, and are not proven to "
                f"hold no state in memory: {reason}",
                file=str(world.source),
                key="environment.state.observe",
                remedy=f"prove it: bench env check {world.source} --task {path}"
                if world.code is None
                else "have the class capture and restore its state",
            )
        found[task.name] = reason
    return found


def _explain_unproven(world: TaskWorld, path: Path, task: Task) -> str | None:
    """Return the reason why copies of one world are not proven; None if they are."""
    if world.code is not None:
        # If it has state, that is compared in each copy, when the copy is made.
        return None if world.manifest.is_stateful else "it declares no state (is_stateful = False)"
    declared = world.manifest.state.observe if world.manifest.state is not None else ()
    urls = declared or find_verifier_urls(world.manifest, task, path)
    proofs = read_proofs(StatePaths.default(), world.ref(None).digest)
    image = compute_image_digest(path, task)
    return explain_unproven(urls, proofs, are_declared=bool(declared), task=task.name, task_image=image)


def _list_resume_modes(agent: AgentSpec, *, mounted: bool) -> tuple[Rung, ...]:
    """Return the modes in which a session of this agent can be resumed in a copy of its world, best first.

    Engine agents have no session to lose, so every mode fits them.

    Args:
        agent: The prepared agent.
        mounted: Whether the sandbox mounts directories of this host, without which the gateway cannot be reached.
    """
    record = find_record(agent)
    if record.is_engine:
        return RUNGS
    logs_in = any(name.startswith("~/") for name in agent.credentials)
    # An agent without a model repeats itself anyway; any other needs a record of its calls, made by the gateway.
    is_heard = mounted and not logs_in and bool(record.endpoints)
    replay: tuple[Rung, ...] = ("replay",) if is_heard or not record.takes_model else ()
    known: tuple[Rung, ...] = (record.session.rung,) if record.session.rung != "replay" else ()
    return (*known, *replay, "fresh")
