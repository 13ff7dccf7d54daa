"""Result rows of rollouts that cannot report by themselves: found if an earlier report wrote them, else written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow.contracts import ids
from benchflow.contracts.job import JobSpec, Origin, RolloutSpec
from benchflow.contracts.lost_rollouts import LostRollout
from benchflow.contracts.rollout_records import Failure, RolloutOutcome, RolloutResult
from benchflow.errors import ResultFileError, StoreError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.write import append_row, archive_run, write_json, write_rollout
from benchflow.stored_files import read_stored, require_directory
from benchflow.trajectories.rollout_tree import build_tree


def make_lost_spec(spec: JobSpec, job_id: str, origin: Origin, lost: LostRollout, *, run_id: str) -> RolloutSpec:
    """Return the specification of a lost rollout, in the attempt in which it was lost.

    Args:
        spec: Specification of the job.
        job_id: Workflow id of the job.
        origin: Host and directory of the results.
        lost: The lost rollout.
        run_id: Run id of the first run of the job's workflow.
    """
    rollout = spec.rollout(job_id, origin, lost.index, run_id=run_id)
    return rollout.model_copy(update={"attempt": max(1, lost.attempt)})


def find_result(
    paths: RolloutPaths, workflow_id: str, lost: LostRollout, *, is_restart: bool = False
) -> RolloutResult | None:
    """Return the result that a lost rollout's workflow wrote for this attempt; None for none, or an unreadable one.

    Args:
        paths: Files of the rollout.
        workflow_id: Workflow id of the rollout.
        lost: The lost rollout.
        is_restart: Whether the rollout had ended and was to be rolled back. A result of any attempt then counts: while
            it is there, nothing was reverted.
    """
    try:
        result = RolloutResult.model_validate_json(read_stored(paths.result))
    except (FileNotFoundError, NotADirectoryError, ValueError, ResultFileError):
        return None
    if is_restart and result.workflow_id == workflow_id:
        return result
    return result if is_same_attempt(result, workflow_id, lost) else None


def require_result(paths: RolloutPaths, workflow_id: str, lost: LostRollout) -> RolloutResult:
    """Return the result that a rollout's workflow wrote at the moment at which its row as a lost rollout was written.

    Raises:
        StoreError: The result is of another attempt; a retry moves that one aside.
    """
    found = find_result(paths, workflow_id, lost)
    if found is None:
        raise StoreError("another attempt has written its result just now", file=str(paths.result))
    return found


def is_same_attempt(result: RolloutResult, workflow_id: str, lost: LostRollout) -> bool:
    """Return whether a result is of this attempt of this rollout.

    The number of the attempt is not enough: an earlier run of the job had an attempt 1, too.
    """
    if result.workflow_id != workflow_id or lost.attempt not in (0, result.attempt):
        return False
    return not lost.run_id or result.run_id in (None, lost.run_id)


def make_outcome(result: RolloutResult, index: int) -> RolloutOutcome:
    """Return the outcome that a rollout with this result would have reported to its job."""
    return RolloutOutcome(
        id=result.workflow_id,
        index=index,
        attempt=result.attempt,
        status=result.status,
        rewards=result.rewards,
        reward_kind=result.reward_kind,
        error=result.error,
        verifier_error=result.verifier_error,
        is_truncated=result.is_truncated,
        n_tool_calls=result.n_tool_calls,
        seconds=(result.finished_at - result.started_at).total_seconds(),
    )


def prepare_row(paths: RolloutPaths, spec: RolloutSpec, lost: LostRollout) -> None:
    """Prepare the directory of a lost rollout for its row: write `config.json`, and move files of other attempts aside.

    Files of the same attempt and run, such as the trajectory up to its loss, stay if there is no result.
    """
    require_directory(paths.root.parent, paths.root.name)
    try:
        before: dict[str, Any] = json.loads(read_stored(paths.config))
        is_own = before.get("attempt") == spec.attempt and before.get("run_id") == lost.run_id != ""
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError, ResultFileError):
        is_own = False
    if is_own and not paths.result.exists():
        return
    if paths.root.is_dir():
        archive_run(paths)
    # Without `parents`: the job's directory may have been moved, and must not be made again.
    paths.root.mkdir(exist_ok=True)
    write_json(paths.config, {"run_id": lost.run_id, "generation": 0} | spec.model_dump(mode="json"))


def find_lost_paths(origin: Origin, job_id: str, index: int, spec: RolloutSpec | None) -> tuple[str, RolloutPaths]:
    """Return the rollout id for the row of a lost rollout, and the rollout's directory.

    Args:
        origin: Host and directory of the results.
        job_id: Workflow id of the job.
        index: Index of the rollout.
        spec: Specification of the rollout; None if that of the job cannot be read, so that id and name are made of the
            index.
    """
    rollout = spec.id if spec is not None else f"{job_id}/r/{index}"
    name = spec.name if spec is not None else ids.rollout_name(f"rollout-{index}", rollout)
    return rollout, JobPaths(Path(origin.job_dir)).rollout(name)


def write_lost_row(
    origin: Origin, job_id: str, job_name: str, lost: LostRollout, failure: Failure, spec: RolloutSpec | None
) -> RolloutResult:
    """Write the result and the row of a lost rollout from what its job knows, unless its workflow has written a result.

    Args:
        origin: Host and directory of the results.
        job_id: Workflow id of the job.
        job_name: Name of the job.
        lost: The lost rollout.
        failure: Why it was lost.
        spec: Specification of the rollout; None if that of the job cannot be read. The row then names no task and no
            agent.

    Returns:
        The result: the one written now, or the one that the rollout's workflow wrote.

    Raises:
        StoreError: The result of another attempt was written at the same time.
    """
    rollout, paths = find_lost_paths(origin, job_id, lost.index, spec)
    found = find_result(paths, rollout, lost, is_restart=spec is not None and spec.restart is not None)
    if found is not None:
        return found
    if spec is not None:
        prepare_row(paths, spec, lost)
    else:
        paths.root.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    result = RolloutResult(
        rollout_name=paths.root.name,
        task_name=spec.task.name if spec is not None else "unknown",
        job_name=job_name,
        workflow_id=rollout,
        run_id=lost.run_id or None,
        task_digest=spec.task.digest if spec is not None else "",
        agent=spec.agent.name if spec is not None else "unknown",
        model=spec.agent.model if spec is not None else None,
        repeat=spec.repeat if spec is not None else 0,
        attempt=max(1, lost.attempt),
        status="not_started" if failure.category == "not_started" else "errored",
        error=failure,
        error_category=failure.category,
        started_at=now,
        finished_at=now,
        tree={"nodes": 1, "leaves": 1},
        directory=str(paths.root),
    )
    if not write_rollout(paths, result, build_tree(rollout, [], [], []), [], is_lost=True):
        return require_result(paths, rollout, lost)
    append_row(JobPaths(Path(origin.job_dir)), result)
    return result
