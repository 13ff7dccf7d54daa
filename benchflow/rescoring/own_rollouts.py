"""Stored rollouts for use in commands that act on them, with the specifications that this user has submitted."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from benchflow.contracts.job import JobSpec
from benchflow.errors import ConfigError, JobNotFoundError, ResultFileError, UntrustedJobError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.provenance import read_own_spec
from benchflow.results.stored_rollouts import StoredRollout, check_directories, read_rollout, read_rollout_spec
from benchflow.results.summary import read_results


def read_rollouts(
    job: JobPaths, include: Sequence[str] = (), *, trust: bool = False, skips_damaged: bool = False
) -> list[StoredRollout]:
    """Return the rollouts of a job that have a result.

    Args:
        job: Files of the job.
        include: Patterns of task names; empty for all tasks.
        trust: Use the stored specifications, whoever wrote them.
        skips_damaged: Skip unreadable and untrusted rollouts in place of raising.

    Raises:
        ConfigError: No rollout is left.
        ResultFileError: The files of a rollout cannot be read.
        UntrustedJobError: The job is not this user's, or a rollout is not one of that job.
    """
    spec = read_own_spec(job, trust=trust)
    results = read_results(job)
    chosen = [r for r in results if not include or any(fnmatch.fnmatch(r.task_name, pattern) for pattern in include)]
    if not chosen:
        names = ", ".join(sorted({result.task_name for result in results})[:10])
        remedy = f"the tasks are: {names}" if names else f"let it run: bench job resume {job.root.name}"
        raise ConfigError("no rollout with a result is left", key="--include", file=str(job.root), remedy=remedy)
    stored = []
    for result in chosen:
        assert result.directory is not None  # `read_results` sets it
        paths = RolloutPaths(Path(result.directory))
        with suppress(ResultFileError, UntrustedJobError) if skips_damaged else nullcontext():
            rollout = check_directories(StoredRollout(paths, read_rollout_spec(paths), result))
            stored.append(rollout if trust else apply_submitted_spec(rollout, spec))
    return stored


def read_own_rollout(directory: Path, *, trust: bool = False) -> StoredRollout:
    """Return the rollout whose results are in a directory, in order to act on it.

    Its task, agent and run come from the configuration of its job, which this user has submitted: the rollout's own
    configuration is not authenticated.

    Args:
        directory: `<jobs_dir>/<job>/<task>__<id>`, or the directory of a child.
        trust: Use the rollout's own configuration, whoever wrote it.

    Raises:
        UntrustedJobError: Its job is not this user's, or it is not a rollout of that job.
    """
    rollout = read_rollout(directory)
    if trust:
        return rollout
    root = directory.absolute()
    while root.parent.name == "children":
        root = root.parent.parent
    try:
        spec = read_own_spec(JobPaths(root.parent))
    except (JobNotFoundError, ResultFileError) as error:
        raise _make_foreign_error(rollout.paths) from error
    return apply_submitted_spec(rollout, spec)


def apply_submitted_spec(rollout: StoredRollout, job: JobSpec) -> StoredRollout:
    """Return a rollout with task, agent and run from its job's specification. A child keeps its model and sampling.

    Raises:
        UntrustedJobError: The job has no such task or agent.
    """
    own = rollout.spec
    task = next((task for task in job.tasks if (task.name, task.digest) == (own.task.name, own.task.digest)), None)
    agents = sorted((a for a in job.agents if a.name == own.agent.name), key=lambda a: a.label != own.agent.label)
    if task is None or not agents:
        raise _make_foreign_error(rollout.paths)
    # A child may have another model and other sampling than its job.
    agent = agents[0].model_copy(update={"model": own.agent.model})
    run = job.run.model_copy(update={"sampling": own.run.sampling})
    return replace(rollout, spec=own.model_copy(update={"task": task, "agent": agent, "run": run}))


def _make_foreign_error(paths: RolloutPaths) -> UntrustedJobError:
    return UntrustedJobError(
        "this is no rollout of the job in whose directory it lies",
        file=str(paths.config),
        remedy="read the file; if you trust whoever wrote it, give --trust (in Python: trust=True)",
    )
