"""Rollouts as they lie on disk: what was run, what came of it, and where their evidence is. Nothing is changed here."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from benchflow.contracts.job import JobSpec, RolloutSpec
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import ConfigError, JobNotFoundError, ResultFileError, UntrustedJobError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.planes.reward.capture import WORKSPACE
from benchflow.provenance import read_own_spec
from benchflow.results.summary import read_results
from benchflow.stored_files import open_stored, read_stored, require_directory
from benchflow.trajectories.growth import node_in


@dataclass(frozen=True)
class StoredRollout:
    """A rollout that has a result."""

    paths: RolloutPaths
    spec: RolloutSpec
    result: RolloutResult

    @property
    def branched_at(self) -> str:
        """The node where its children begin, if it has any: the last of its own chain."""
        start, begun = self.spec.begins_at
        done = len(self.result.steps)
        return start if done == begun else node_in(self.spec.chain, done)

    def workspace(self, step: str | None) -> Path | None:
        """The workspace that was kept after a step, if it was. Raises `ResultFileError` for a link to another."""
        kept = self.paths.evidence(step) / WORKSPACE
        if not kept.is_file():
            return None
        open_stored(kept).close()
        return kept

    def state(self, step: str | None) -> Path | None:
        """What the verifier of a step was shown of the world's state, if it was."""
        kept = self.paths.state(step)
        return kept if kept.is_dir() else None


def read_rollout(directory: Path) -> StoredRollout:
    """The rollout whose results lie in a directory. Raises `JobNotFoundError` where there is none."""
    paths = RolloutPaths(directory)
    try:
        result = RolloutResult.model_validate_json(read_stored(paths.result))
    except FileNotFoundError as error:
        raise JobNotFoundError(
            "this is not the directory of a rollout that has ended: it has no result.json",
            file=str(directory),
            remedy="give <jobs_dir>/<job>/<task>__<id>",
        ) from error
    except ValidationError as error:
        raise _spoilt(paths.result, error) from error
    result = result.model_copy(update={"directory": str(directory)})
    return _checked(StoredRollout(paths, read_rollout_spec(paths), result))


def _checked(rollout: StoredRollout) -> StoredRollout:
    """Return a rollout. Raise `ResultFileError` where a directory that scorers and judges are shown is a link.

    What they are shown reaches sandboxes, and the endpoint of a judge.
    """
    paths, steps = rollout.paths, {None, *(outcome.step.name for outcome in rollout.result.steps)}
    shown = [paths.agent, paths.artifacts, paths.trajectory.parent]
    for step in steps:
        evidence = paths.evidence(step)
        shown += [
            evidence / "inputs",
            evidence / "memory",
            paths.judge(step),
            paths.verifier_of(step),
            paths.state(step),
        ]
    for directory in shown:
        require_directory(paths.root, directory.relative_to(paths.root).as_posix())
    return rollout


def read_children(rollout: StoredRollout) -> list[StoredRollout]:
    """The children of a rollout that have a result, by their numbers."""
    found = []
    for file in rollout.paths.root.glob("children/*/result.json"):
        require_directory(rollout.paths.root, f"children/{file.parent.name}")
        found.append(_as_its_parent(read_rollout(file.parent), rollout.spec))
    return sorted(found, key=lambda child: int(child.spec.chain.rpartition(".")[2]))


def _as_its_parent(child: StoredRollout, parent: RolloutSpec) -> StoredRollout:
    """Return a child with what its parent was run from, but for the model and the seed that it may have of its own."""
    agent = parent.agent.model_copy(update={"model": child.spec.agent.model})
    run = parent.run.model_copy(update={"sampling": child.spec.run.sampling})
    return replace(child, spec=child.spec.model_copy(update={"task": parent.task, "agent": agent, "run": run}))


def read_rollouts(job: JobPaths, include: Sequence[str] = (), *, trust: bool = False) -> list[StoredRollout]:
    """The rollouts of a job that have a result, of the tasks whose names match one of the patterns.

    trust: as of `read_own_rollout`. Raises `ConfigError` when none is left.
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
        assert result.directory is not None  # `read_results` says where it found it
        paths = RolloutPaths(Path(result.directory))
        rollout = _checked(StoredRollout(paths, read_rollout_spec(paths), result))
        stored.append(rollout if trust else _as_submitted(rollout, spec))
    return stored


def read_own_rollout(directory: Path, *, trust: bool = False) -> StoredRollout:
    """Return the rollout whose results lie in a directory, to act on it.

    What it was run from is taken from the configuration of its job, which this user has submitted: its own is not known
    to be what the engine wrote.

    Args:
        directory: `<jobs_dir>/<job>/<task>__<id>`, or that of a child.
        trust: Take what the rollout's own configuration says, whoever wrote it.

    Raises:
        UntrustedJobError: Its job is not this user's, or it is no rollout of that job.
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
        raise _not_of_a_job(rollout.paths) from error
    return _as_submitted(rollout, spec)


def _as_submitted(rollout: StoredRollout, job: JobSpec) -> StoredRollout:
    """Return a rollout with what its job says of its task, agent and run."""
    own = rollout.spec
    task = next((task for task in job.tasks if (task.name, task.digest) == (own.task.name, own.task.digest)), None)
    agents = sorted((a for a in job.agents if a.name == own.agent.name), key=lambda a: a.label != own.agent.label)
    if task is None or not agents:
        raise _not_of_a_job(rollout.paths)
    # A child may have another model and another seed than its job.
    agent = agents[0].model_copy(update={"model": own.agent.model})
    run = job.run.model_copy(update={"sampling": own.run.sampling})
    return replace(rollout, spec=own.model_copy(update={"task": task, "agent": agent, "run": run}))


def _not_of_a_job(paths: RolloutPaths) -> UntrustedJobError:
    return UntrustedJobError(
        "this is no rollout of the job in whose directory it lies",
        file=str(paths.config),
        remedy="read the file; if you trust whoever wrote it, give --trust (in Python: trust=True)",
    )


def read_rollout_spec(paths: RolloutPaths) -> RolloutSpec:
    """What a rollout was run from. Raises `ResultFileError`."""
    try:
        content = json.loads(read_stored(paths.config))
        # Of which run of its workflow it was, is no part of it.
        return RolloutSpec.model_validate({k: v for k, v in content.items() if k not in ("run_id", "generation")})
    except (OSError, ValueError, AttributeError) as error:
        raise _spoilt(paths.config, error) from error


def _spoilt(file: Path, error: Exception) -> ResultFileError:
    said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return ResultFileError(
        f"this is not what BenchFlow wrote: {said}", file=str(file), remedy="restore the file, or leave the rollout out"
    )
