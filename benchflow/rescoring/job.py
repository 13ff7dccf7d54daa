"""`rescore`: every stored rollout of a job scored again, some at a time; what is done already is not done twice.

A rollout's new score is complete once its file is there. Whoever ends in the middle, by whatever means, is finished by
the next call under the same name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchflow.contracts import ids
from benchflow.contracts.ids import short_hash
from benchflow.contracts.job import JobSpec
from benchflow.contracts.reward import JudgeSettings
from benchflow.errors import ConfigError, JobConflictError
from benchflow.paths import JobPaths, StatePaths
from benchflow.planes.sandbox import get_provider
from benchflow.provenance import read_own_spec
from benchflow.rescoring import record as records
from benchflow.rescoring.record import RescoredRollout, Rescoring
from benchflow.rescoring.rubrics import GivenRubric, Scorer, given_rubric
from benchflow.rescoring.sandboxes import remove_left
from benchflow.rescoring.scoring import Scoring, score_rollout
from benchflow.rescoring.stored import StoredRollout, read_rollouts
from benchflow.rescoring.tasks import Tasks
from benchflow.secrets import Secrets

Tell = Callable[[RescoredRollout, int, int], None]
"""Is told of each rollout that is done, how many are, and of how many."""

_NO_NAME = frozenset({"result"})
"""`<job>/*/result.json` are the results of a job's rollouts."""


@dataclass(frozen=True)
class Request:
    """How a job is to be scored again.

    rubric: a rubric file, `module:object`, or an object with `score`; it scores instead of the tasks' own verifiers.
    tasks: a directory of tasks that are taken, by name, instead of the recorded ones. include: patterns of task names.
    ask_again: judges are asked anew, though their answers are there. trust_workspace: a changed verifier is run without
    seeing first that the one before still says the same of the kept workspace. sandbox: instead of the job's. judge:
    fields of `JudgeSettings`, over the job's. name: under which the new scores are written. allow_code: modules whose
    code the tasks may name, besides those that the job's configuration allows. trust: a job that was not submitted with
    this user's state directory is scored all the same, by what its configuration says.
    take_variables: whether the tasks may have the variables of this environment that they take; one that takes some and
    may not is an error of its rollouts.
    """

    rubric: str | Path | Scorer | None = None
    tasks: Path | None = None
    include: Sequence[str] = ()
    ask_again: bool = False
    trust_workspace: bool = False
    concurrency: int = 4
    sandbox: str | None = None
    judge: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    allow_code: Sequence[str] = ()
    trust: bool = False
    take_variables: bool = True


async def rescore(
    job_dir: Path, request: Request | None = None, *, tell: Tell = lambda rollout, done, total: None
) -> Rescoring:
    """Score a job's stored rollouts again, without running an agent; nothing that is there is changed.

    job_dir: `<jobs_dir>/<job>`. The new scores lie in `rescored/<name>/` of each rollout, the summary in
    `rescored/<name>.json` of the job. A rollout that cannot be scored has an error in its row. Raises the typed error
    of what is wrong with the request, `JobNotFoundError`, `ResultFileError`, `UntrustedJobError` for a job of somebody
    else, and `JobConflictError` where the name belongs to another scoring.
    """
    asked = request or Request()
    job = JobPaths(job_dir.expanduser().absolute())
    spec = read_own_spec(job, trust=asked.trust)
    chosen = await asyncio.to_thread(read_rollouts, job, asked.include, trust=asked.trust)
    rubric = await asyncio.to_thread(given_rubric, asked.rubric)
    _check_judge(asked.judge)
    state = StatePaths.default()
    allowed = [*spec.run.allow_code, *asked.allow_code]
    tasks = Tasks(asked.tasks, state, asked.take_variables, allowed)
    digests = await asyncio.to_thread(tasks.digests, spec.tasks)
    digest = short_hash(repr(_what_scores(asked, rubric, digests, spec)), 16)
    records.check_place(job, JobPaths(job.root / records.DIRECTORY))
    name = _check_name(asked.name) if asked.name else _default_name(asked, rubric, digest, job)
    providers = {asked.sandbox or rollout.spec.run.sandbox for rollout in chosen}
    for provider in providers:
        await remove_left(get_provider(provider))
    scoring = Scoring(
        name=name,
        digest=digest,
        tasks=tasks,
        recorded=tasks if asked.tasks is None else Tasks(None, state, asked.take_variables, allowed),
        secrets=Secrets(os.environ, "here"),
        state=state,
        rubric=rubric,
        sandbox=asked.sandbox,
        judge=dict(asked.judge),
        ask_again=asked.ask_again,
        trust_workspace=asked.trust_workspace,
        allow_code=allowed,
    )
    await _all(chosen, scoring, asked.concurrency, tell)
    found = Rescoring(
        job=spec.name,
        name=name,
        directory=str(job.root),
        scoring=digest,
        rubric=rubric.name if rubric else None,
        tasks=digests,
        sandbox=asked.sandbox,
        ask_again=asked.ask_again,
        **_summed(await asyncio.to_thread(_read_all, job, name, asked.trust)),
    )
    await asyncio.to_thread(records.write_rescoring, job, found)
    wanted = {rollout.spec.name for rollout in chosen}
    shown = [rollout for rollout in found.rollouts if rollout.rollout_name in wanted]
    return found.model_copy(update=_summed(shown))


async def _all(chosen: Sequence[StoredRollout], scoring: Scoring, concurrency: int, tell: Tell) -> None:
    """Score what has no complete score yet."""
    done = 0
    waiting: list[StoredRollout] = []
    for rollout in chosen:
        place = records.place_of(rollout.paths, scoring.name)
        records.check_place(rollout.paths, place)
        before = records.read_record(place)
        if before is not None and before.scoring != scoring.digest:
            raise JobConflictError(
                f"{scoring.name!r} is the name of another scoring of this job",
                file=str(rollout.paths.root),
                key="--name",
                remedy="give another name, or none",
            )
        if before is not None and before.is_complete:
            done += 1
            tell(before, done, len(chosen))
        else:
            waiting.append(rollout)
    room = asyncio.Semaphore(concurrency)

    async def one(rollout: StoredRollout) -> None:
        nonlocal done
        async with room:
            record = await score_rollout(rollout, scoring)
        done += 1
        tell(record, done, len(chosen))

    async with asyncio.TaskGroup() as group:
        for rollout in waiting:
            group.create_task(one(rollout))


def _read_all(job: JobPaths, name: str, trust: bool) -> list[RescoredRollout]:
    """Every rollout of the job that has a score of this name."""
    places = [records.place_of(rollout.paths, name) for rollout in read_rollouts(job, trust=trust)]
    return [record for place in places if (record := records.read_record(place)) is not None]


def _summed(rollouts: list[RescoredRollout]) -> dict[str, Any]:
    means = records.mean_changes(rollouts)
    only = means[0] if len(means) == 1 else None
    return {
        "rollouts": rollouts,
        "counts": records.count(rollouts),
        "means": means,
        "mean_before": only.before if only else None,
        "mean_after": only.after if only else None,
    }


def _check_judge(fields: Mapping[str, Any]) -> None:
    try:
        JudgeSettings.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in ("judge", *first["loc"]))
        raise ConfigError(first["msg"], key=key, remedy="give fields of JudgeSettings") from error


# --- names ---------------------------------------------------------------------------------------------


def _what_scores(
    asked: Request, rubric: GivenRubric | None, digests: dict[str, str | None], spec: JobSpec
) -> list[object]:
    """All that a score may depend on, but for the rollout itself."""
    worlds = [task.environment.digest if task.environment else None for task in spec.tasks]
    tasks = sorted(digests.items())
    options = [asked.sandbox, sorted(asked.judge.items()), asked.ask_again, asked.trust_workspace]
    return [rubric.digest if rubric else None, tasks, worlds, *options]


def _default_name(asked: Request, rubric: GivenRubric | None, digest: str, job: JobPaths) -> str:
    """Says what scores; of scorings that ask judges again, the first that is not complete."""
    about = rubric.label if rubric is not None else "tasks" if asked.tasks is not None else "same"
    name = f"{ids.cut(ids.slug(about), 40)}-{digest[:8]}"
    if not asked.ask_again:
        return name
    number = 1
    while (before := records.read_rescoring(job, f"{name}-again-{number}")) is not None and before.is_complete:
        number += 1
    return f"{name}-again-{number}"


def _check_name(name: str) -> str:
    try:
        ids.check_job_name(name)
    except ConfigError as error:
        raise ConfigError(
            f"{name!r} cannot name a scoring: it names a directory", key="--name", remedy="use letters and digits"
        ) from error
    if name in _NO_NAME:
        raise ConfigError(f"{name!r} has a meaning of its own", key="--name", remedy="give another name")
    return name
