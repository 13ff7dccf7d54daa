"""Identity of a job: who owns a results directory, how two specifications differ, which rollouts are still to run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.job import JobSpec, Origin
from benchflow.errors import ConfigError, DiskFullError, JobConflictError
from benchflow.host import require_own_place
from benchflow.host_files import make_private_directory, raise_storage_errors
from benchflow.paths import JobPaths
from benchflow.provenance import is_own, write_config
from benchflow.results.summary import read_results, read_spec
from benchflow.stored_files import open_stored, require_directory

MIN_FREE_BYTES = 32 * 1024 * 1024
"""Minimum free space in the jobs directory; with less, results could not be written."""


def compute_spec_digest(spec: JobSpec) -> str:
    """Return the digest of a specification. Equal digests mean the same job, wherever the packs are stored."""
    return hashlib.sha256(json.dumps(_flatten(spec), sort_keys=True).encode()).hexdigest()


def _flatten(spec: JobSpec) -> dict[str, Any]:
    """Return the parts of a specification that define the job, flat, by the names that `list_differences` prints."""
    if spec.rescoring is not None:
        return {"what scores": spec.rescoring.digest}
    flat: dict[str, Any] = {}
    for task in spec.tasks:
        flat[f"task {task.name}"] = task.digest
        if task.context is not None:
            flat[f"build context of {task.name}"] = task.context.sha256
        if task.environment is not None:
            flat[f"world of {task.name}"] = task.environment.digest
    flat["agents"] = [agent.label for agent in spec.agents]
    for agent in spec.agents:
        about = agent.model_dump(mode="json", exclude={"name", "model", "record"})
        flat |= {f"agent {agent.label}: {key}": value for key, value in about.items()}
        if agent.record is not None:
            flat[f"agent {agent.label}: record"] = agent.record.model_dump(mode="json", exclude={"source"})
    flat["repeats"] = spec.repeats
    flat |= {f"run.{key}": value for key, value in spec.run.model_dump(mode="json").items()}
    # Its value is a random name, which is new at each submit.
    flat["run.rebuild"] = spec.run.rebuild is not None
    flat |= {f"retry.{key}": value for key, value in spec.retry.model_dump(mode="json").items()}
    return flat


def list_differences(old: JobSpec, new: JobSpec) -> list[str]:
    """Return the differences between two specifications, one line per key: `KEY: OLD → NEW`."""
    before, after = _flatten(old), _flatten(new)
    lines = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            lines.append(f"{key}: {_shorten(before.get(key))} → {_shorten(after.get(key))}")
    return lines


def _shorten(value: Any) -> str:
    if value is None:
        return "absent"
    text = str(value)
    return text[:12] if len(text) == 64 and isinstance(value, str) else text


def check_jobs_dir(paths: JobPaths, given: Path) -> None:
    """Create the jobs directory, if need be, and check that no other user can replace it or the job's directory.

    Args:
        paths: Files of the job, with links resolved.
        given: Jobs directory as the user names it; links on the way to it are checked, too.

    Raises:
        ConfigError: Another user could replace a directory on the way.
        StoreError: The directory cannot be created.
    """
    root = paths.root
    require_own_place(given.expanduser() / root.name, key="jobs_dir")
    require_own_place(root, key="jobs_dir")
    with raise_storage_errors(root.parent):
        make_private_directory(root.parent)


def require_space(paths: JobPaths) -> None:
    """Raise `DiskFullError` if a job that is about to start has no space for its results."""
    root = paths.root
    free = shutil.disk_usage(root.parent).free
    if free < MIN_FREE_BYTES:
        raise DiskFullError(
            f"only {free // 1024} KiB are free; results need at least {MIN_FREE_BYTES // 1024 // 1024} MiB",
            file=str(root.parent),
            key="jobs_dir",
            remedy="free some space there, or choose another --jobs-dir",
        )


def claim(paths: JobPaths, spec: JobSpec) -> None:
    """Claim a results directory for a job: create it and write `config.json`, or check that it is this job's already.

    Raises:
        JobConflictError: It belongs to a job with another specification.
        DiskFullError: There is no space for a new job's results.
    """
    with raise_storage_errors(paths.root):
        make_private_directory(paths.root.parent)
        if not paths.config.exists():
            require_space(paths)
        make_private_directory(paths.root, durable=True)
    if paths.config.exists():
        changed = list_differences(read_spec(paths), spec)
        if changed:
            raise JobConflictError(
                "a job of this name exists with another specification:\n" + "\n".join(f"  {c}" for c in changed),
                file=str(paths.config),
                key="job_name",
                remedy="choose another --job-name, or undo the change to go on with the old job",
            )
        if is_own(paths):
            return
    # Fields that make no difference are still read from the file later: paths of the tasks, how agents are started.
    write_config(paths, spec)


def unclaim(paths: JobPaths) -> None:
    """Release a directory that was claimed for a job which could not start."""
    with raise_storage_errors(paths.root):
        paths.config.unlink(missing_ok=True)
        paths.config_mac.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            # Fails if other files are in it; they stay.
            paths.root.rmdir()


def record_options(paths: JobPaths, spec: JobSpec) -> None:
    """Update `config.json` with the parts that may change at each start, if they did.

    These are the options, the concurrency, and the stored rollouts of a rescoring job.
    """
    before = read_spec(paths)
    if _select_options(before) != _select_options(spec):
        write_config(paths, spec.model_copy(update={"restarts": {}}))


def _select_options(spec: JobSpec) -> tuple[Any, ...]:
    """Return the parts of a specification that may change from start to start."""
    return spec.options, spec.concurrency, spec.rescoring


def check_results(spec: JobSpec, job: str, paths: JobPaths, pending: Sequence[tuple[int, int]]) -> None:
    """Raise `ResultFileError` if results would be written, or moved, through a link in the job's directory.

    Args:
        spec: Specification of the job.
        job: Workflow id of the job.
        paths: Files of the job.
        pending: Half-open ranges of the indices of rollouts to run.
    """
    for name in (paths.results.name, paths.groups.name, paths.values.name):
        with contextlib.suppress(FileNotFoundError):
            open_stored(paths.root / name).close()
    for index in (index for first, end in pending for index in range(first, end)):
        rollout = paths.rollout(spec.rollout_name(job, index))
        require_directory(paths.root, rollout.root.name)
        require_directory(paths.root, f"{rollout.root.name}/attempts")


def require_fitting(spec: JobSpec, job: str, origin: Origin, limit: int) -> None:
    """Raise `ConfigError` if the input of a rollout does not fit into a message of the server.

    Args:
        spec: Specification of the job.
        job: Workflow id of the job.
        origin: Host and directory of the results.
        limit: Maximum number of bytes of a message.

    Raises:
        ConfigError: It does not fit; names the largest part: configuration, agent or task.
    """
    for index in spec.indices[: len(spec.tasks) * len(spec.agents)]:
        rollout = spec.rollout(job, origin, index)
        size = len(rollout.model_dump_json().encode())
        if size > limit:
            parts = {"run": rollout.run, "agent": rollout.agent, "task": rollout.task}
            largest = max(parts, key=lambda part: len(parts[part].model_dump_json()))
            raise ConfigError(
                f"the rollout of task {rollout.task.name!r} takes {size} bytes; a message holds at most {limit}",
                file=rollout.task.source,
                key=largest,
                remedy="shorten prompts, agent settings or the manifest; put long texts into files of the task",
            )


def list_pending_indices(
    spec: JobSpec, job: str, paths: JobPaths, *, again: Sequence[str] = (), only: Collection[int] | None = None
) -> list[tuple[int, int]]:
    """Return the indices of rollouts that are still to run, as half-open ranges.

    Args:
        spec: Specification of the job.
        job: Workflow id of the job.
        paths: Files of the job.
        again: Statuses and error categories whose results do not count, so that these rollouts run again.
        only: Indices to consider; None for all.
    """
    done = {
        result.workflow_id
        for result in read_results(paths)
        if result.status not in again and result.error_category not in again
    }
    ranges: list[tuple[int, int]] = []
    for index in spec.indices if only is None else sorted(only):
        if spec.rollout_id(job, index) in done:
            continue
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges
