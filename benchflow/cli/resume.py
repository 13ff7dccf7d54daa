"""What was submitted before, planned again from what its directory says of it: a job, or one rollout of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchflow.cli.rollout import Chosen
    from benchflow.contracts.job import JobSpec
    from benchflow.jobs import JobPlan


def plan_again(
    name: str, jobs_dir: Path, *, concurrency: int, context_root: Path | None, allow_code: Sequence[str] = ()
) -> JobPlan:
    """The plan of a job of before, with its tasks as they are now; `submit` compares the two.

    allow_code: modules that its config may name. Raises `JobNotFoundError`, `ConfigError`, or what is wrong with a task
    now.
    """
    from benchflow.contracts.config import JobConfig
    from benchflow.errors import ConfigError
    from benchflow.jobs import plan_job
    from benchflow.paths import JobPaths
    from benchflow.results.summary import read_spec

    paths = JobPaths(jobs_dir.expanduser().absolute() / name)
    spec = read_spec(paths)
    _require_allowed(spec, paths.config, allow_code)
    sources = [Path(task.source) for task in spec.tasks if task.source]
    if len(sources) < len(spec.tasks):
        raise ConfigError(
            "does not say where its tasks were",
            file=str(paths.config),
            key="tasks",
            remedy=f"submit them again under the same name: bench submit PATH --job-name {name}",
        )
    return plan_job(
        JobConfig(
            paths=sources,
            agents=spec.agents,
            repeats=spec.repeats,
            retry=spec.retry,
            jobs_dir=jobs_dir,
            job_name=name,
            concurrency=concurrency,
            context_root=context_root or (Path(spec.context_root) if spec.context_root else None),
            environment_manifest=Path(spec.environment_manifest) if spec.environment_manifest else None,
            **dict(spec.run),
        )
    )


def plan_replay(
    chosen: Chosen, *, until: str | None, strict: bool, job_name: str | None, allow_code: Sequence[str] = ()
) -> JobPlan:
    """The plan of one rollout of before, whose model answers from its record.

    Raises `ConfigError` when there is no record, or nobody knows where the task was.
    """
    from datetime import UTC, datetime

    from benchflow.contracts.config import JobConfig
    from benchflow.contracts.gateway import Replay
    from benchflow.errors import ConfigError
    from benchflow.jobs import plan_job

    spec = chosen.spec
    _require_allowed(spec, chosen.job.config, allow_code)
    task, agent, _ = spec.coordinates(chosen.index)
    source, record = spec.tasks[task].source, chosen.paths.model_calls
    if source is None or not record.is_file():
        raise ConfigError(
            "has no record of its model's calls" if source else "does not say where its task was",
            file=str(chosen.paths.root),
            key="ROLLOUT",
            remedy="replay a rollout whose agent called a model through the gateway",
        )
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    replay = Replay(record=str(record.absolute()), until=until, strict=strict)
    return plan_job(
        JobConfig(
            paths=[Path(source)],
            # Its key was left with the job of before.
            agents=[spec.agents[agent].model_copy(update={"credentials": ()})],
            retry=spec.retry,
            jobs_dir=chosen.job.root.parent,
            job_name=job_name or f"{chosen.job.root.name[:55]}-replay-{stamp}",
            concurrency=1,
            context_root=Path(spec.context_root) if spec.context_root else None,
            environment_manifest=Path(spec.environment_manifest) if spec.environment_manifest else None,
            # What is replayed is one chain, which ends where the record does.
            **{**dict(spec.run), "replay": replay, "branch": None, "mode": None},
        )
    )


def _require_allowed(spec: JobSpec, file: Path, allowed: Sequence[str]) -> None:
    """Raise `ConfigError` for code that a job's config names and the user does not: results may be another's."""
    from benchflow.contracts.code import allowing, is_allowed
    from benchflow.errors import ConfigError

    for key, target in _code_of(spec):
        if not is_allowed(target, allowed):
            raise ConfigError(
                f"names code of this host, {target!r}, which is not imported on the word of a file",
                file=str(file),
                key=key,
                remedy=allowing(target),
            )


def _code_of(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of all code that a job's config has imported."""
    from benchflow.contracts.branch import CustomPolicy

    for module in spec.run.allow_code:
        yield "run.allow_code", module
    for agent in spec.agents:
        if ":" in agent.name:
            yield "agents.name", agent.name.rpartition("/")[2]
    branch = spec.run.branch
    if branch is not None and isinstance(branch.policy, CustomPolicy) and ":" in branch.policy.policy:
        yield "run.branch.policy.policy", branch.policy.policy
    if branch is not None and ":" in branch.aggregate:
        yield "run.branch.aggregate", branch.aggregate
