"""Stored rollouts as read from disk: specification, result, and the paths of their evidence."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import JobNotFoundError, ResultFileError
from benchflow.paths import RolloutPaths
from benchflow.stored_files import open_stored, read_stored, require_directory
from benchflow.trajectories.growth import make_node_id


@dataclass(frozen=True)
class StoredRollout:
    """A rollout that has a result."""

    paths: RolloutPaths
    spec: RolloutSpec
    """Specification that it was run from."""

    result: RolloutResult

    @property
    def branched_at(self) -> str:
        """Return the id of the node from which its children start, if it has any: the last of its own branch path."""
        start, begun = self.spec.begins_at
        done = len(self.result.steps)
        return start if done == begun else make_node_id(self.spec.chain, done)

    def workspace(self, step: str | None) -> Path | None:
        """Return the archive of the workspace after a step; None if it was not retained.

        Raises:
            ResultFileError: It is a link or no regular file.
        """
        kept = self.paths.workspace(step)
        if not kept.is_file():
            return None
        open_stored(kept).close()
        return kept

    def state(self, step: str | None) -> Path | None:
        """Return the directory of the world's state that a step's verifier was given; None if there is none."""
        kept = self.paths.state(step)
        return kept if kept.is_dir() else None


def read_rollout(directory: Path) -> StoredRollout:
    """Return the rollout whose results are in a directory.

    Raises:
        JobNotFoundError: There is no result.
        ResultFileError: A file cannot be parsed, or a directory that scorers are given is a link.
    """
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
        raise _make_invalid_file_error(paths.result, error) from error
    result = result.model_copy(update={"directory": str(directory)})
    return check_directories(StoredRollout(paths, read_rollout_spec(paths), result))


def check_directories(rollout: StoredRollout) -> StoredRollout:
    """Return the rollout unchanged. Raise `ResultFileError` if a directory that scorers and judges are given is a link.

    The content of these directories reaches sandboxes and the endpoint of a judge.
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
    """Return the children of a rollout that have a result, in the order of their numbers.

    Task, agent and run of each are taken from the parent's specification, except for the child's model and sampling.
    """
    found = []
    for file in rollout.paths.root.glob("children/*/result.json"):
        require_directory(rollout.paths.root, f"children/{file.parent.name}")
        found.append(apply_job_spec(read_rollout(file.parent), rollout.spec))
    return sorted(found, key=lambda child: int(child.spec.chain.rpartition(".")[2]))


def read_rollout_spec(paths: RolloutPaths) -> RolloutSpec:
    """Return the specification that a rollout was run from. Raise `ResultFileError` if it is missing or unreadable."""
    try:
        content = json.loads(read_stored(paths.config))
        # These two identify the run of its workflow, and are no fields of the specification.
        return RolloutSpec.model_validate({k: v for k, v in content.items() if k not in ("run_id", "generation")})
    except (OSError, ValueError, AttributeError) as error:
        raise _make_invalid_file_error(paths.config, error) from error


def _make_invalid_file_error(file: Path, error: Exception) -> ResultFileError:
    """Return the error for a file that BenchFlow cannot have written."""
    said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return ResultFileError(
        f"this is not what BenchFlow wrote: {said}", file=str(file), remedy="restore the file, or leave the rollout out"
    )


def apply_job_spec(stored: StoredRollout, spec: RolloutSpec) -> StoredRollout:
    """Return a rollout with the task, agent and run of another specification in place of those that it recorded.

    It keeps its own model and sampling: a child's may differ from those of its job and of its parent.

    Args:
        stored: The stored rollout.
        spec: Specification by the job that scores the rollout again, or that of the rollout's parent.
    """
    own = stored.spec
    agent = spec.agent.model_copy(update={"model": own.agent.model})
    run = spec.run.model_copy(update={"sampling": own.run.sampling})
    return replace(stored, spec=own.model_copy(update={"task": spec.task, "agent": agent, "run": run}))
