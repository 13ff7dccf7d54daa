"""Plan of a rescoring: which rollouts are scored, by what, and under which name."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow.contracts import ids
from benchflow.contracts.ids import short_hash
from benchflow.contracts.job import JobSpec
from benchflow.contracts.rescoring import GivenRubric, RescoredRollout
from benchflow.contracts.rescoring_request import RescoringRequest
from benchflow.errors import ConfigError, JobConflictError, ResultFileError
from benchflow.paths import RESCORED, JobPaths, StatePaths
from benchflow.planes.sandbox import get_provider
from benchflow.provenance import read_own_spec
from benchflow.rescoring.found_tasks import Tasks
from benchflow.rescoring.own_rollouts import read_rollouts
from benchflow.rescoring.rubrics import load_given_rubric
from benchflow.results import rescored as records
from benchflow.results.stored_rollouts import StoredRollout
from benchflow.store import Store

_NO_NAME = frozenset({"result"})
"""Names that a scoring may not have: `<job>/*/result.json` are the results of a job's rollouts."""


@dataclass(frozen=True)
class RescoringPlan:
    """A checked scoring, of which nothing has been started."""

    request: RescoringRequest
    job: JobPaths
    """Files of the job that is scored."""
    spec: JobSpec
    """Specification of the job that is scored."""

    rollouts: dict[int, StoredRollout]
    """All rollouts of the job that have a result, by index."""

    chosen: dict[int, StoredRollout]
    """Rollouts that are to be scored, by index."""

    tasks: Tasks
    """Source of the tasks to score by."""
    digests: dict[str, str | None]
    """Digests of the tasks to score by, by name; None for a task that is missing."""
    rubric: GivenRubric | None
    """Rubric that replaces the tasks' verifiers, if one was given."""
    digest: str
    """Digest of everything that a score depends on, except the rollout."""

    name: str

    @property
    def directory(self) -> JobPaths:
        """Return the paths of the scoring job."""
        return JobPaths.of(self.job.root / RESCORED, self.name)

    def record(self, rollout: StoredRollout) -> RescoredRollout | None:
        """Return a rollout's new score; None if there is none, or if it scores a result from before a rollback.

        Raises:
            JobConflictError: The name belongs to another scoring.
            ResultFileError: The path to the score leads through a link.
        """
        place = records.get_rescored_paths(rollout.paths, self.name)
        records.check_rescored_paths(rollout.paths, place)
        found = records.read_record(place)
        if found is not None and not found.is_of(rollout.result):
            return None
        if found is not None and found.scoring != self.digest:
            raise JobConflictError(
                f"{self.name!r} is the name of another scoring of this job",
                file=str(rollout.paths.root),
                key="--name",
                remedy="give another name, or none",
            )
        return found

    def complete(self) -> dict[int, RescoredRollout]:
        """Return the complete scores of the chosen rollouts, by index."""
        found = {index: self.record(rollout) for index, rollout in self.chosen.items()}
        return {index: record for index, record in found.items() if record is not None and record.is_complete}


async def plan_rescoring(job_dir: Path, request: RescoringRequest) -> RescoringPlan:
    """Check a request, read the rollouts of the job, and return the plan. Start nothing.

    Args:
        job_dir: `<jobs_dir>/<job>`.
        request: How to score.

    Raises:
        ConfigError: The request is invalid.
        JobNotFoundError: There is no such job.
        UntrustedJobError: Another user's job, which the request does not trust.
    """
    job = JobPaths(job_dir.expanduser().absolute())
    spec = read_own_spec(job, trust=request.trust)
    if spec.rescoring is not None:
        raise ConfigError(
            "this is a scoring of a job, and no job",
            file=str(job.root),
            remedy=f"score the job again: bench rescore {job.root.parent.parent.name}",
        )
    rollouts = matching = await asyncio.to_thread(read_rollouts, job, request.include, trust=request.trust)
    if request.include:
        rollouts = await asyncio.to_thread(read_rollouts, job, trust=request.trust, skips_damaged=True)
    names = {rollout.paths.root for rollout in matching}
    # Rollouts that are not chosen are in the summary, but must not make the request fail.
    indexed = _index_rollouts(spec, rollouts, names)
    rubric = await asyncio.to_thread(load_given_rubric, request.rubric)
    if request.sandbox is not None:
        get_provider(request.sandbox)
    allowed = [*spec.run.allow_code, *request.allow_code]
    state, store = StatePaths.default(), Store.open()
    tasks = Tasks(store, state, request.tasks, take_variables=request.take_variables, allow_code=allowed)
    digests = {ref.name: await asyncio.to_thread(tasks.digest, ref) for ref in spec.tasks}
    digest = short_hash(repr(_list_inputs(request, rubric, digests, spec)), 16)
    records.check_rescored_paths(job, JobPaths(job.root / RESCORED))
    name = _check_name(request.name) if request.name is not None else _make_default_name(request, rubric, digest, job)
    chosen = {index: rollout for index, rollout in indexed.items() if rollout.paths.root in names}
    return RescoringPlan(request, job, spec, indexed, chosen, tasks, digests, rubric, digest, name)


def _index_rollouts(
    spec: JobSpec, rollouts: Sequence[StoredRollout], chosen: Collection[Path]
) -> dict[int, StoredRollout]:
    """Return stored rollouts by their index in their job; rollouts that are not of this job are skipped.

    Raises:
        ResultFileError: One that is not of this job is among `chosen`.
    """
    tasks = {task.name: place for place, task in enumerate(spec.tasks)}
    agents = {agent.label: place for place, agent in enumerate(spec.agents)}
    found = {}
    for rollout in rollouts:
        result = rollout.result
        label = f"{result.agent}:{result.model}" if result.model else result.agent
        if result.task_name not in tasks or label not in agents or result.repeat not in range(spec.repeats):
            if rollout.paths.root not in chosen:
                continue
            raise ResultFileError(
                f"there is no rollout of {result.task_name} with {label}, repeat {result.repeat}, in this job",
                file=str(rollout.paths.result),
                remedy="restore the file, or leave the rollout out",
            )
        per_repeat = len(spec.tasks) * len(spec.agents)
        found[result.repeat * per_repeat + tasks[result.task_name] * len(spec.agents) + agents[label]] = rollout
    return dict(sorted(found.items()))


# --- names ------------------------------------------------------------------------------------------------------


def _list_inputs(
    request: RescoringRequest, rubric: GivenRubric | None, digests: dict[str, str | None], spec: JobSpec
) -> list[object]:
    """Return everything that a score may depend on, except the rollout itself."""
    worlds = [task.environment.digest if task.environment else None for task in spec.tasks]
    tasks = sorted(digests.items())
    options = [request.sandbox, sorted(request.judge_settings.items()), request.ask_again, request.trust_workspace]
    return [rubric.digest if rubric else None, tasks, worlds, *options]


def _make_default_name(request: RescoringRequest, rubric: GivenRubric | None, digest: str, job: JobPaths) -> str:
    """Return a name made from what scores; if judges are called again, with the first number not yet complete."""
    about = rubric.label if rubric is not None else "tasks" if request.tasks is not None else "same"
    name = f"{ids.cut(ids.slug(about), 40)}-{digest[:8]}"
    if not request.ask_again:
        return name
    number = 1
    while (before := records.read_rescoring(job, f"{name}-again-{number}")) is not None and before.is_complete:
        number += 1
    return f"{name}-again-{number}"


def _check_name(name: str) -> str:
    """Return the name of a scoring. Raise `ConfigError` if it cannot name a directory, or is reserved."""
    try:
        ids.check_job_name(name)
    except ConfigError as error:
        raise ConfigError(
            f"{name!r} cannot name a scoring: it names a directory", key="--name", remedy="use letters and digits"
        ) from error
    # The summary `<name>.json` is beside the scoring's directory.
    if name in _NO_NAME or name.endswith(".json"):
        raise ConfigError(f"{name!r} has a meaning of its own", key="--name", remedy="give another name")
    return name
