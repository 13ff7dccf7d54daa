"""The choice of a rollout by the name that a user gives: `JOB/ROLLOUT`, `JOB/TASK`, `JOB` or a workflow id."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from benchflow.contracts import ids
from benchflow.contracts.job import JobSpec
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import JobNotFoundError, ResultFileError, UsageError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.summary import read_spec
from benchflow.stored_files import read_stored, require_directory

MAX_CHOICES = 20
"""Maximum number of rollouts that are listed for the user to choose from."""


@dataclass(frozen=True)
class Chosen:
    """A rollout that the user names, with its job."""

    job: JobPaths
    """Paths of the job."""

    spec: JobSpec
    """Specification of the job."""

    index: int
    """Index of the rollout."""

    origin: str | None = None
    """Workflow id of the job of which this one is a copy; None for an original."""

    @property
    def job_id(self) -> str:
        """Return the workflow id of the job."""
        return ids.job_id(self.job.root.name, str(self.job.root.parent))

    @property
    def id(self) -> str:
        """Return the workflow id of the rollout."""
        return self.spec.rollout_id(self.job_id, self.index)

    @property
    def paths(self) -> RolloutPaths:
        """Return the paths of the rollout's results."""
        here = self.job.rollout(self.spec.rollout_name(self.job_id, self.index))
        # A rollout that was run after the job was copied has a directory named by the copy's id.
        if self.origin is None or here.root.is_dir():
            return here
        return self.job.rollout(self.spec.rollout_name(self.origin, self.index))

    @property
    def task(self) -> str:
        """Return the name of the task."""
        return self.spec.tasks[self.spec.coordinates(self.index)[0]].name

    @property
    def label(self) -> str:
        """Return `task · agent`, with the number of the repeat in a job of several repeats."""
        _, agent, repeat = self.spec.coordinates(self.index)
        number = f" #{repeat}" if self.spec.repeats > 1 else ""
        return f"{self.task}{number} · {self.spec.agents[agent].label}"

    def result(self) -> RolloutResult | None:
        """Return the rollout's result; None if there is none yet."""
        try:
            return RolloutResult.model_validate_json(read_stored(self.paths.result))
        except (FileNotFoundError, ValidationError):
            return None


def choose(name: str, jobs_dir: Path) -> Chosen:
    """Return the rollout that `JOB/ROLLOUT`, `JOB/TASK`, `JOB` or a workflow id names.

    Raises:
        UsageError: No rollout, or more than one, has the name; the remedy lists them.
        JobNotFoundError: The job is not in `jobs_dir`.
    """
    is_id = name.startswith("job/") and "/r/" in name
    job, _, wanted = name.partition("/") if not is_id else (_find_job(name, jobs_dir), "", name)
    paths = JobPaths.of(jobs_dir, job)
    spec = read_spec(paths)
    origin = _find_origin(paths, spec)
    every = [Chosen(paths, spec, index, origin) for index in spec.indices]
    wanted = wanted.strip("/")
    found = [one for one in every if wanted in ("", one.id, one.paths.root.name)]
    found = found or [one for one in every if wanted == one.task]
    if len(found) == 1:
        # Files below it are read later: a link would lead elsewhere.
        require_directory(paths.root, found[0].paths.root.name)
        return found[0]
    problem = f"there are {len(found)} rollouts of that name" if found else f"there is no rollout {wanted!r}"
    raise UsageError(f"{problem} in job {job}", key="ROLLOUT", remedy=_format_choices(job, found or every))


def _find_origin(job: JobPaths, spec: JobSpec) -> str | None:
    """Return the id of the job of which this directory is a moved or copied one; None if it was submitted here.

    The names of the rollouts' directories are made of that id, which their own configurations hold.
    """
    from benchflow.results.stored_rollouts import read_rollout_spec

    job_id = ids.job_id(job.root.name, str(job.root.parent))
    own = {spec.rollout_name(job_id, index) for index in spec.indices}
    for directory in sorted(job.root.iterdir()):
        if directory.name in own or "__" not in directory.name or directory.is_symlink():
            continue
        with contextlib.suppress(ResultFileError):
            rollout = read_rollout_spec(RolloutPaths(directory))
            if rollout.index in spec.indices and spec.rollout_name(rollout.job_id, rollout.index) == directory.name:
                return rollout.job_id
    return None


def _find_job(rollout: str, jobs_dir: Path) -> str:
    """Return the name of the job of a workflow id. Raise `JobNotFoundError` if its hash is of another directory."""
    job_id = rollout.partition("/r/")[0]
    name = job_id.removeprefix("job/").rpartition("-")[0]
    root = JobPaths.of(jobs_dir, name).root
    if ids.job_id(name, str(root.parent)) != job_id:
        raise JobNotFoundError(
            f"{rollout} is of a job in another directory than {root.parent}",
            key="ROLLOUT",
            remedy="name the directory that holds the job with --jobs-dir",
        )
    return name


def _format_choices(job: str, found: list[Chosen]) -> str:
    shown = found[:MAX_CHOICES]
    lines = [f"    {job}/{one.paths.root.name}   {one.label}" for one in shown]
    if len(found) > len(shown):
        lines.append(f"    and {len(found) - len(shown)} more")
    return "choose one of them:\n" + "\n".join(lines)
