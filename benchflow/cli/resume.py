"""Plans of earlier submits, made again from their directories: of a job, or of one rollout to replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchflow.cli.chosen import Chosen
    from benchflow.contracts.job import JobSpec
    from benchflow.jobs import JobPlan


def plan_again(
    name: str,
    jobs_dir: Path,
    *,
    concurrency: int | None,
    context_root: Path | None,
    trust: bool = False,
    preflight: bool = True,
) -> JobPlan:
    """Return the plan of an earlier job, with its tasks as they are now; `submit` compares them with the earlier ones.

    Args:
        name: Name of the job.
        jobs_dir: Directory of the jobs.
        concurrency: Sandboxes at a time; None for the number of the latest start.
        context_root: Build context; None for that of the job.
        trust: Accept a job that another user has submitted.
        preflight: Ask each model for one token before the start.

    Raises:
        JobNotFoundError: There is no such job.
        UntrustedJobError: It was not submitted with this state directory.
        ConfigError: It runs no agent, or does not name the paths of its tasks.
        BenchFlowError: As from `plan_job`, for a task that has become invalid.
    """
    from benchflow.contracts.config import DEFAULT_CONCURRENCY, JobConfig
    from benchflow.errors import ConfigError
    from benchflow.jobs import plan_job
    from benchflow.paths import JobPaths
    from benchflow.provenance import read_own_spec

    paths = JobPaths.of(jobs_dir, name)
    spec = read_own_spec(paths, trust=trust)
    if spec.rescoring is not None or spec.trial is not None:
        raise ConfigError(
            "is a job that runs no agent: it goes on with the command that started it",
            file=str(paths.config),
            remedy="call that again, as it was: "
            + (f"bench rescore … --name {paths.root.name}" if spec.rescoring is not None else "bench env check …"),
        )
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
            preflight=preflight,
            context_root=context_root or (Path(spec.context_root) if spec.context_root else None),
            environment_manifest=Path(spec.environment_manifest) if spec.environment_manifest else None,
            **_make_environment_options(spec),
            concurrency=concurrency or spec.concurrency or DEFAULT_CONCURRENCY,
            **{**dict(spec.run), "rebuild": spec.run.rebuild is not None},
        )
    )


def plan_replay(
    chosen: Chosen, *, until: str | None, strict: bool, job_name: str | None, trust: bool = False
) -> JobPlan:
    """Return the plan of a job that runs one earlier rollout again, with the model's responses taken from its record.

    Args:
        chosen: The rollout.
        until: Last node whose calls are answered from the record; None for all.
        strict: Fail at the first call that is not in the record.
        job_name: Name of the new job; None for a generated one.
        trust: Accept a job that another user has submitted.

    Raises:
        UntrustedJobError: The job was not submitted with this state directory.
        ConfigError: There is no record, or the job does not name the path of the task.
    """
    from benchflow.contracts import ids
    from benchflow.contracts.config import JobConfig
    from benchflow.contracts.gateway import ReplaySettings
    from benchflow.errors import ConfigError
    from benchflow.jobs import make_default_name, plan_job
    from benchflow.provenance import read_own_spec
    from benchflow.stored_files import open_stored, require_directory

    spec = read_own_spec(chosen.job, trust=trust)
    task, agent, _ = spec.coordinates(chosen.index)
    source, record = spec.tasks[task].source, chosen.paths.model_calls
    if source is None or not record.is_file():
        raise ConfigError(
            "has no record of its model's calls" if source else "does not say where its task was",
            file=str(chosen.paths.root),
            key="ROLLOUT",
            remedy="replay a rollout whose agent called a model through the gateway",
        )
    # The record is read on the host: a link could lead to another file.
    require_directory(chosen.job.root, str(record.parent.relative_to(chosen.job.root)))
    open_stored(record).close()
    replay = ReplaySettings(record=str(record.absolute()), until=until, strict=strict)
    return plan_job(
        JobConfig(
            paths=[Path(source)],
            # Resolved anew: the values of the keys were left with the earlier job.
            agents=[spec.agents[agent].model_copy(update={"credentials": ()})],
            retry=spec.retry,
            jobs_dir=chosen.job.root.parent,
            job_name=job_name or make_default_name(f"{ids.cut(chosen.job.root.name, 48)}-replay"),
            concurrency=1,
            context_root=Path(spec.context_root) if spec.context_root else None,
            environment_manifest=Path(spec.environment_manifest) if spec.environment_manifest else None,
            **_make_environment_options(spec),
            # A replay is one branch path, which ends where the record does. The earlier images are the newest.
            **{**dict(spec.run), "replay": replay, "branch": None, "mode": None, "rebuild": False},
        )
    )


def _make_environment_options(spec: JobSpec) -> dict[str, Any]:
    """Return the options that name a job's environment in code; none for a job without one."""
    world = next((task.environment for task in spec.tasks if task.environment and task.environment.code), None)
    if world is None or world.code is None:
        return {}
    if ":" not in world.code:
        return {"environment_name": world.code}
    return {"environment_import_path": world.code, "environment_root": world.code_root}
