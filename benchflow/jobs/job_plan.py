"""A job planned from a configuration: everything in a request is checked here, before anything starts."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

from benchflow import secrets
from benchflow.contracts import ids
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.config import JobConfig
from benchflow.contracts.environment import EnvironmentRef, unproven_warning
from benchflow.contracts.job import AgentSpec, JobSpec, RunConfig, TaskRef
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.contracts.task import Task
from benchflow.errors import ConfigError, TaskError
from benchflow.jobs.agents import apply_defaults, prepare_agent, require_reachable
from benchflow.jobs.branches import check_branch, find_unproven_worlds
from benchflow.jobs.job_worlds import TaskWorld, TaskWorlds, load_given_world
from benchflow.jobs.mode_lowering import lower_mode
from benchflow.paths import JobPaths
from benchflow.planes.reward.needs import check_scoring, list_own_judges
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.sandbox_choice import AUTO, SandboxChoice, choose_sandbox
from benchflow.provenance import is_own
from benchflow.results.summary import read_spec
from benchflow.store import Store
from benchflow.tasks import (
    apply_verifier_options,
    digest_tree,
    find_ignored_files,
    find_tasks,
    load_task,
    require_supported,
    write_pack,
)
from benchflow.temporal import find_cluster_target


@dataclass(frozen=True)
class JobPlan:
    """A checked job, of which nothing has been started or written."""

    config: JobConfig
    name: str
    directory: JobPaths
    tasks: list[tuple[Path, Task]]
    """Tasks with their directories."""
    worlds: dict[str, TaskWorld]
    """Worlds by task name, for tasks that have one."""
    warnings: list[str]
    variables: set[str]
    """Names of values that are taken from this process's environment."""
    options: WorkflowOptions
    """Timing of its workflows, from this process's environment."""
    values: dict[str, str] = field(default_factory=dict, repr=False)
    """Literal values of the request, by the names that the specification has for them."""
    sandbox_reason: str | None = None
    """Reason for the choice of the sandbox; None if it was requested by name."""
    unproven: Mapping[str, str] = field(default_factory=dict)
    """Reasons why copies of a task's world are not proven to answer as it does, by task name."""

    @property
    def id(self) -> str:
        """Return the workflow id of the job."""
        return ids.job_id(self.name, str(self.directory.root.parent))

    @property
    def total(self) -> int:
        """Return the number of its rollouts."""
        return len(self.tasks) * len(self.config.agents) * self.config.repeats


def plan_job(config: JobConfig) -> JobPlan:
    """Read and check everything that a job needs. Raise the typed error of the first problem."""
    name = ids.check_job_name(config.job_name) if config.job_name else make_default_name(config.paths[0].resolve().name)
    directory = JobPaths.of(config.jobs_dir, name)
    options = WorkflowOptions.from_environment(os.environ)
    agents, values = _prepare(apply_defaults(config), str(directory.root))
    _refuse_duplicates([agent.label for agent in agents], "agent")
    chosen = _choose_sandbox(config, directory)
    provider = get_provider(chosen.sandbox)
    found = [path for given in config.paths for path in find_tasks(given)]
    paths = _select(found, config)
    _refuse_duplicates([path.name for path in paths], "task name")
    tasks, warnings, variables = [], [], set()
    worlds = TaskWorlds(config.environment_manifest, load_given_world(config))
    for path in paths:
        task = load_task(path, context_root=config.context_root, has_manifest=worlds.has_image)
        variables |= worlds.add(path, task)
        as_run = apply_verifier_options(task, config.verify_in, config.reward_key)
        warnings += [f"{task.name}: {note}" for note in require_supported(as_run, provider.capabilities())]
        if any(agent.name == "oracle" for agent in agents):
            _require_oracle(task)
        for agent in agents:
            require_reachable(task, agent, mounted=provider.capabilities().mounts)
        variables |= {*secrets.list_task_variables(task), *check_scoring(task, config.judge, config.allow_code)}
        variables |= {name for name, _ in list_own_judges(task)}
        tasks.append((path, task))
    for agent in agents:
        variables |= secrets.list_agent_references(agent)
        warnings += [] if provider.capabilities().mounts else _warn_of_local_address(agent)
    config = lower_mode(config, [task for _, task in tasks])
    checked = config.model_copy(update={"agents": agents, "sandbox": chosen.sandbox})
    shared = worlds.shared(agents)
    check_branch(config, [task for _, task in tasks], agents, provider.capabilities(), shared)
    unproven = find_unproven_worlds(config, tasks, worlds.found)
    warnings += _unproven_warnings(worlds.found, unproven)
    if shared is not None and config.concurrency > 1:
        checked = checked.model_copy(update={"concurrency": 1})
        warnings.append(f"{shared.manifest.name} is persistent: its rollouts share a sandbox, one after another")
    return JobPlan(
        config=checked,
        name=name,
        directory=directory,
        tasks=tasks,
        worlds=worlds.found,
        warnings=warnings,
        variables=variables - set(values),
        options=options,
        values=values,
        sandbox_reason=chosen.reason or None,
        unproven=unproven,
    )


def _unproven_warnings(worlds: Mapping[str, TaskWorld], unproven: Mapping[str, str]) -> list[str]:
    """Return one warning per world and reason, however many tasks have it."""
    refs = (worlds[name].ref(None).model_copy(update={"unproven": reason}) for name, reason in unproven.items())
    return [*dict.fromkeys(unproven_warning(ref) for ref in refs)]


def _prepare(agents: Sequence[AgentSpec], salt: str) -> tuple[list[AgentSpec], dict[str, str]]:
    """Return the prepared agents, and the literal values that they are given, by name.

    Args:
        agents: Agents of the request.
        salt: Salt of the values' hashed names.
    """
    cluster = find_cluster_target() is not None
    prepared: list[AgentSpec] = []
    values: dict[str, str] = {}
    for agent in agents:
        spec, given = prepare_agent(agent, salt=salt, cluster=cluster)
        prepared.append(spec)
        values |= given
    return prepared, values


def _warn_of_local_address(agent: AgentSpec) -> list[str]:
    host = urlsplit(agent.base_url).hostname if agent.base_url else None
    if host in ("localhost", "::1") or (host or "").startswith("127."):
        return [f"{agent.label}: in a sandbox, {host} is the sandbox itself, not this host"]
    return []


def _choose_sandbox(config: JobConfig, directory: JobPaths) -> SandboxChoice:
    """Return the requested sandbox; for `auto`, that of an earlier start of this job, else one that fits the host."""
    if config.sandbox != AUTO:
        return SandboxChoice(config.sandbox, "")
    if directory.config.exists() and is_own(directory):
        return SandboxChoice(read_spec(directory).run.sandbox, "as this job began")
    if find_cluster_target() is not None:
        return SandboxChoice("docker", "the workers of a cluster have Docker")
    return choose_sandbox()


def _select(found: list[Path], config: JobConfig) -> list[Path]:
    def matches(path: Path, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)

    chosen = [
        path
        for path in dict.fromkeys(found)
        if (not config.include or matches(path, config.include)) and not matches(path, config.exclude)
    ]
    if not chosen:
        available = ", ".join(path.name for path in found[:10])
        raise ConfigError("no task is left", key="include/exclude", remedy=f"the tasks are: {available}")
    return chosen


def _refuse_duplicates(names_: Sequence[str], what: str) -> None:
    """Raise `ConfigError` if a name is given twice."""
    for name in names_:
        if names_.count(name) > 1:
            raise ConfigError(f"{what} {name!r} is given twice", remedy="give it once; --repeats runs it more often")


def _require_oracle(task: Task) -> None:
    """Raise `TaskError` if the task, or one of its steps, has no oracle."""
    missing = [step.name for step in task.steps if task.oracle_dir_of(step.name) is None]
    if missing or (not task.steps and task.oracle_dir is None):
        where = f" for step {missing[0]!r}" if missing else ""
        raise TaskError(
            f"the task has no oracle{where}",
            file=task.name,
            key="agent",
            remedy="add oracle/solve.sh (solution/solve.sh in the split layout), or run it with another agent",
        )


def make_default_name(stem: str) -> str:
    """Return `<stem>-<UTC stamp>-<8 random hex digits>`, the name of a job that was given none.

    Without the random digits, two jobs of the same second would have one name, and the second submit would attach to
    the first job.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{ids.cut(ids.slug(stem), 55)}-{stamp}-{token_hex(4)}"


async def freeze(plan: JobPlan, store: Store) -> JobSpec:
    """Return the specification of a planned job, after packing its tasks and build contexts into the store."""
    context = await pack_directory(plan.config.context_root, store) if plan.config.context_root else None
    worlds: dict[Path, EnvironmentRef] = {}
    refs = []
    for path, task in plan.tasks:
        left_out = await asyncio.to_thread(find_ignored_files, path)
        digest = await asyncio.to_thread(digest_tree, path, exclude=left_out)
        external = context
        if external is None and task.context_root is not None:
            external = await pack_directory(Path(task.context_root), store)
        pack, source = await pack_directory(path, store, left_out), str(path.absolute())
        world = plan.worlds.get(task.name)
        if world is not None and world.source not in worlds:
            image = await pack_directory(world.image, store) if world.image else None
            worlds[world.source] = world.ref(image)
        environment = worlds[world.source] if world is not None else None
        if environment is not None and task.name in plan.unproven:
            environment = environment.model_copy(update={"unproven": plan.unproven[task.name]})
        refs.append(
            TaskRef(
                name=task.name,
                digest=digest,
                pack=pack,
                context=external,
                source=source,
                environment=environment,
                reward_range=_compute_reward_range(task),
            )
        )
    config = {key: str(value.absolute()) if isinstance(value, Path) else value for key, value in plan.config}
    config["rebuild"] = _choose_rebuild_id(plan)
    spec = {key: config[key] for key in JobSpec.model_fields if key in config}
    return JobSpec(
        **spec,
        name=plan.name,
        tasks=refs,
        run=RunConfig(**{key: config[key] for key in RunConfig.model_fields}),
        options=plan.options,
    )


def _compute_reward_range(task: Task) -> tuple[float, float]:
    """Return the range of the rewards of a task and of its steps together."""
    ranges = [verifier.reward_range for verifier in (task.verifier, *(step.verifier for step in task.steps))]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _choose_rebuild_id(plan: JobPlan) -> str | None:
    """Return the random name of the job's request to rebuild images, reused on resume; None without a request."""
    if not plan.config.rebuild:
        return None
    before = (
        read_spec(plan.directory).run.rebuild if plan.directory.config.exists() and is_own(plan.directory) else None
    )
    return before or uuid.uuid4().hex


async def pack_directory(directory: Path, store: Store, left_out: Sequence[str] = ()) -> ArtifactRef:
    """Pack the files of a directory into the store, except those in `left_out`, and return the reference."""
    with tempfile.TemporaryDirectory() as scratch:
        pack = Path(scratch) / "pack.tar"
        await asyncio.to_thread(write_pack, directory, pack, exclude=left_out)
        return await store.put_file(pack)
