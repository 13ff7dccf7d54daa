"""`rescore`: a job that scores the stored rollouts of another job again.

It is a job like any other (durable, can be watched, cancelled and resumed), in `rescored/<name>/` of the job that it
scores. Rollouts that have a complete score of this name are skipped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow.contracts import ids
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.failures import failure_of
from benchflow.contracts.job import RunConfig
from benchflow.contracts.job_retries import RetryConfig
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.contracts.rescoring import RescoredRollout, Rescoring, RescoringSpec
from benchflow.contracts.rescoring_basis import Scoring
from benchflow.contracts.rescoring_request import RescoringRequest
from benchflow.contracts.rollout_records import Failure, RolloutResult
from benchflow.contracts.run_settings import RunSettings
from benchflow.errors import BenchFlowError, JobNotFoundError, NotStartedError, ResultFileError
from benchflow.host import make_state_private
from benchflow.jobs.identity import check_jobs_dir
from benchflow.jobs.job_client import Job
from benchflow.jobs.job_plan import pack_directory
from benchflow.jobs.start import ANY_RESULT, JobStart, start
from benchflow.paths import RESCORED, StatePaths
from benchflow.planes.reward.needs import check_scoring
from benchflow.rescoring.found_tasks import FoundTask, Tasks
from benchflow.rescoring.rescoring_plan import RescoringPlan, plan_rescoring
from benchflow.results import rescored as records
from benchflow.results.stored_rollouts import StoredRollout, read_rollout
from benchflow.results.summary import read_results
from benchflow.secrets import list_agent_references
from benchflow.store import Store, check_reach
from benchflow.temporal import find_cluster_target

OnUpdate = Callable[[RescoredRollout, int, int], None]
"""Called for each scored rollout with its record, the number of scored rollouts, and their total."""

POLL_INTERVAL_SEC = 0.3


async def rescore(
    job_dir: Path,
    request: RescoringRequest | None = None,
    *,
    on_update: OnUpdate = lambda rollout, done, total: None,
    on_start: Callable[[Job], None] = lambda job: None,
) -> Rescoring:
    """Score a job's stored rollouts again, without running an agent; existing files are not changed.

    Args:
        job_dir: `<jobs_dir>/<job>`.
        request: How to score; None for the defaults.
        on_update: Called after each scored rollout.
        on_start: Called with the scoring job, if there is anything to score.

    Returns:
        The scores of the requested rollouts. They are stored in `rescored/<name>/` of each rollout, and their summary
        in `rescored/<name>.json` of the job. A rollout that cannot be scored has an error in its record.

    Raises:
        JobNotFoundError: There is no such job.
        UntrustedJobError: Another user's job, which the request does not trust.
        JobConflictError: The name belongs to another scoring.
        ConfigError: The request is invalid.
    """
    plan = await plan_rescoring(job_dir, request or RescoringRequest())
    done = plan.complete()
    for index in await asyncio.to_thread(_find_cancelled, plan):
        done.pop(index, None)
    for number, record in enumerate(done.values(), 1):
        on_update(record, number, len(plan.chosen))
    failed: dict[int, RescoredRollout] = {}
    while pending := {index: rollout for index, rollout in plan.chosen.items() if index not in done}:
        job = await _start(plan, set(pending))
        on_start(job)
        lost = await _follow(plan, job, pending, on_update)
        if not job.attached or await _was_cancelled(job):
            failed = lost
            break
        # Another request started that job, maybe for fewer rollouts, so the others may be still to score.
        done = plan.complete()
    for number, record in enumerate(failed.values(), len(plan.chosen) - len(failed) + 1):
        on_update(record, number, len(plan.chosen))
    found = await asyncio.to_thread(_write_summary, plan, failed)
    shown = {rollout.result.rollout_name for rollout in plan.chosen.values()}
    return found.model_copy(update=_summarize_records([one for one in found.rollouts if one.rollout_name in shown]))


# --- the job that scores ----------------------------------------------------------------------------------------


async def _start(plan: RescoringPlan, pending: set[int]) -> Job:
    """Start the scoring job for the rollouts with these indices, or attach to it."""
    request, spec, directory = plan.request, plan.spec, plan.directory
    check_jobs_dir(directory, plan.job.root / RESCORED)
    make_state_private(StatePaths.default())
    store, target = Store.open(), find_cluster_target()
    if target is not None:
        check_reach(store, target.is_loopback)
    wanted = {plan.rollouts[index].spec.task.name for index in pending}
    refs = [task for task in spec.tasks if task.name in wanted]
    found = {ref.name: await plan.tasks.find(ref) for ref in refs}
    recorded = found
    if request.tasks is not None:
        first = Tasks(store, StatePaths.default(), None, allow_code=[*spec.run.allow_code, *request.allow_code])
        recorded = {ref.name: await first.find(ref) for ref in refs}
    scoring = Scoring(
        name=plan.name,
        digest=plan.digest,
        tasks={name: task.by for name, task in found.items()},
        recorded={name: task.by for name, task in recorded.items()},
        rubric=plan.rubric,
        judge=request.judge_settings,
        ask_again=request.ask_again,
        trust_workspace=request.trust_workspace,
        allow_code=[*spec.run.allow_code, *request.allow_code],
    )
    packs = {}
    if target is not None:
        left_out = ("attempts", RESCORED)
        for index in pending:
            packs[index] = await pack_directory(plan.rollouts[index].paths.root, store, left_out)
    rescoring = RescoringSpec(
        digest=plan.digest,
        scoring=await store.put_bytes(scoring.model_dump_json().encode()),
        rollouts={index: str(rollout.paths.root) for index, rollout in plan.rollouts.items()},
        packs=packs,
        chosen=sorted(plan.chosen),
    )
    run = spec.run.model_copy(
        update={"sandbox": request.sandbox or spec.run.sandbox, "deadline_sec": _compute_deadline_sec(spec.run)}
    )
    update = {"name": plan.name, "run": run, "retry": RetryConfig(max_retries=0), "concurrency": request.concurrency}
    update |= {"options": WorkflowOptions.from_environment(os.environ), "rescoring": rescoring}
    return await start(
        JobStart(
            spec.model_copy(update=update),
            ids.job_id(plan.name, str(directory.root.parent)),
            directory,
            ErrorLimit(),
            request.concurrency,
            _list_variables(plan, [*found.values(), *recorded.values()]),
            # Rollouts in `pending` have no complete score, even if the scoring job has a result for them.
            again=ANY_RESULT,
            only=pending,
        ),
        store,
    )


def _compute_deadline_sec(run: RunConfig) -> float:
    """Return the deadline for scoring a rollout together with the maximum number of its children, one after another.

    The deadline of the original job is that of an agent, and may be short. There must be a limit, or an outage would be
    retried forever.
    """
    alone_sec = max(run.deadline_sec, RunSettings().deadline_sec)
    return alone_sec * (1 + (run.branch.max_children if run.branch is not None else 0))


def _list_variables(plan: RescoringPlan, tasks: Sequence[FoundTask]) -> set[str]:
    """Return the names of all values that scoring needs, or that must be redacted from its output."""
    spec, request = plan.spec, plan.request
    settings = spec.run.judge.model_copy(update=request.judge_settings)
    names = {name for agent in spec.agents for name in list_agent_references(agent)}
    names |= {name for task in tasks for name in task.variables}
    for ref in spec.tasks:
        names |= set(ref.environment.manifest.forward_env.keys) if ref.environment is not None else set()
    for task in tasks:
        with suppress(BenchFlowError):
            # A wrong judge is reported by the rollouts that use it.
            names |= set(check_scoring(task.task, settings, spec.run.allow_code)) if task.task is not None else set()
    if plan.rubric is not None:
        names |= {settings.credential} if settings.credential else {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    return names


def _find_cancelled(plan: RescoringPlan) -> list[int]:
    """Return indices of rollouts that were cancelled after they were scored.

    The scoring job lacks their results. Scoring them again reuses their records.
    """
    cancelled = {result.stored for result in read_results(plan.directory) if result.status == "cancelled"}
    return [index for index, rollout in plan.chosen.items() if rollout.paths.root.name in cancelled]


async def _was_cancelled(job: Job) -> bool:
    """Return whether an ended job was cancelled; also True if it does not answer any more."""
    progress = await job.progress()
    return progress is None or progress.cancelled


async def _follow(
    plan: RescoringPlan, job: Job, pending: Mapping[int, StoredRollout], on_update: OnUpdate
) -> dict[int, RescoredRollout]:
    """Wait for the job, and call `on_update` for each new record. Return failure records of the others, by index."""
    before = {index: plan.record(rollout) for index, rollout in pending.items()}
    waiting, n_done = dict(pending), len(plan.chosen) - len(pending)

    def look() -> None:
        nonlocal n_done
        for index, rollout in list(waiting.items()):
            record = plan.record(rollout)
            is_new = record != before[index] and not job.attached
            if record is not None and (record.is_complete or is_new):
                del waiting[index]
                n_done += 1
                on_update(record, n_done, len(plan.chosen))

    async for _ in job.watch(POLL_INTERVAL_SEC):
        look()
    results = {result.workflow_id: result for result in await asyncio.to_thread(job.results)}
    for index, rollout in pending.items():
        await asyncio.to_thread(_lay_out_delivered, plan, job, index, rollout)
    look()
    lost = {}
    for index, rollout in waiting.items():
        result = results.get(job.spec.rollout_id(job.id, index))
        lost[index] = _make_failure_record(plan, rollout, result)
    return lost


def _lay_out_delivered(plan: RescoringPlan, job: Job, index: int, rollout: StoredRollout) -> None:
    """Move a score that was made on another host to its stored rollout."""
    delivered = job.directory.root / job.spec.rollout_name(job.id, index) / records.DELIVERED
    # If the stored result is gone or replaced, its score is dropped; the rollout gets a failure record.
    with suppress(JobNotFoundError, ResultFileError):
        records.lay_out_delivered(delivered, read_rollout(rollout.paths.root), plan.name)


def _make_failure_record(plan: RescoringPlan, rollout: StoredRollout, result: RolloutResult | None) -> RescoredRollout:
    """Return the failure record of a rollout whose scoring ended without a record.

    Args:
        plan: The scoring.
        rollout: The stored rollout.
        result: Result of the scoring job for it, if there is one.
    """
    error: Failure | None = (result.error or result.verifier_error) if result is not None else None
    if error is None:
        error = failure_of(NotStartedError("its scoring was ended before it began", remedy="score it again"), "verify")
    stored = rollout.result
    return RescoredRollout(
        rollout_name=stored.rollout_name,
        task_name=stored.task_name,
        agent=stored.agent,
        model=stored.model,
        repeat=stored.repeat,
        scoring=plan.digest,
        recorded_digest=stored.task_digest,
        outcome="failed",
        before=stored.rewards,
        error=error,
        finished_at=datetime.now(UTC),
        stored_finished_at=stored.finished_at,
    )


# --- the summary ------------------------------------------------------------------------------------------------


def _write_summary(plan: RescoringPlan, failed: Mapping[int, RescoredRollout]) -> Rescoring:
    """Write the summary of all rollouts that have a score of this name, and return it.

    Args:
        plan: The scoring.
        failed: Records of the rollouts whose scoring left none, by index.
    """
    known = {}
    for index, rollout in plan.rollouts.items():
        with nullcontext() if index in plan.chosen else suppress(ResultFileError):
            known[index] = failed.get(index) or plan.record(rollout)
    summary = Rescoring(
        job=plan.spec.name,
        name=plan.name,
        directory=str(plan.job.root),
        scoring=plan.digest,
        rubric=plan.rubric.name if plan.rubric else None,
        tasks=plan.digests,
        sandbox=plan.request.sandbox,
        ask_again=plan.request.ask_again,
        **_summarize_records(
            sorted(filter(None, known.values()), key=lambda r: (r.task_name, r.agent, r.model or "", r.repeat))
        ),
    )
    records.write_rescoring(plan.job, summary)
    return summary


def _summarize_records(rollouts: list[RescoredRollout]) -> dict[str, Any]:
    """Return the fields of a summary that are computed from records."""
    means = records.compute_mean_changes(rollouts)
    only = means[0] if len(means) == 1 else None
    return {
        "rollouts": rollouts,
        "counts": records.count_outcomes(rollouts),
        "means": means,
        "mean_before": only.before if only else None,
        "mean_after": only.after if only else None,
    }
