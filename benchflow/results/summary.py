"""A job's results read back and summed up: counts, and each agent's mean reward, pass@k, phase times and cost."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.job import JobSpec
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import JobNotFoundError, ResultFileError
from benchflow.paths import JobPaths
from benchflow.results.intervals import Interval, Sample, estimate
from benchflow.results.modes import write_rows
from benchflow.results.write import result_row, write_json
from benchflow.store import write_atomic
from benchflow.stored_files import read_stored, require_directory

N = TypeVar("N", int, float)
M = TypeVar("M", bound=Model)

KS = (1, 2, 4, 8, 16, 32, 64)
"""The k of pass@k, as far as there are repeats; and the number of the repeats itself."""


class KeyMean(Model):
    """The mean of one of the rewards that a verifier gives beside, or instead of, the scalar one."""

    mean: float
    """Over rollouts; the key's scale is the verifier's own, so there is no interval."""

    n: int
    """Rollouts whose rewards have the key."""


class AgentSummary(Model):
    """How one agent did, with one model."""

    total: int
    """Its rollouts in the job; those that have ended, where nothing says how many there are."""

    passed: int = 0
    """Rollouts whose reward is 1 or more, be it measured or a V(s)."""

    failed: int = 0
    """Rollouts that were scored and did not pass."""

    errored: int = 0
    """Rollouts without a reward: nothing was measured, so they are in no mean and no pass@k."""

    cancelled: int = 0
    """Rollouts that somebody stopped; in no mean either."""

    not_started: int = 0
    """Rollouts that the job did not start, since others had failed alike."""

    not_run: int = 0
    """Rollouts without a result."""

    n_values: int = 0
    """How many of the rewards are the V(s) of a rollout that branched; these are in `value`, and not in `reward`."""

    scored: int = 0
    """Rollouts whose rewards have several keys and no scalar `reward`: in `by_key` only."""

    reward: Interval = Interval()
    """Of the rewards that verifiers have measured."""

    value: Interval | None = None
    """Of the V(s); None if no rollout branched."""

    by_key: dict[str, KeyMean] = {}
    """Of the other keys of measured rewards."""

    pass_at_k: dict[str, float] = {}
    """For each k, the probability that one of k attempts passes, averaged over tasks: the unbiased estimator of Chen et
    al. 2021, arXiv 2107.03374, of the measured rollouts of a task. No k exceeds what each of the tasks has of them.
    """

    n_pass_tasks: int = 0
    """Tasks that pass@k is averaged over: those with a measured rollout."""

    errors: dict[str, int] = {}
    """Rollouts that were not scored, by the category of their error."""

    errors_of_scored: dict[str, int] = {}
    """Rollouts that were scored in spite of an error, such as `agent_timeout`, by its category."""

    phase_seconds: dict[str, float] = {}
    """Median of each phase."""

    n_input_tokens: int | None = None
    """Of all its rollouts, as far as they are known."""

    n_output_tokens: int | None = None
    """As `n_input_tokens`."""

    n_estimated_calls: int = 0
    """Model calls whose endpoint did not tell its tokens, so that these are guessed."""

    cost_usd: float | None = None
    """As `n_input_tokens`."""


class Summary(Model):
    """What `summary.json` holds: counts of the job, and figures of each agent. No figure is of several agents."""

    job: str
    """The job's name."""

    total: int
    """Rollouts of the job."""

    finished: int
    """Rollouts with a result."""

    passed: int
    """As of an agent; likewise the other counts below."""

    failed: int
    """Scored, not passed."""

    errored: int
    """Without a reward."""

    cancelled: int
    """Stopped by somebody."""

    not_started: int = 0
    """Not started, since others had failed alike."""

    not_run: int
    """Without a result."""

    run_again: int = 0
    """Rollouts of more than one attempt."""

    n_values: int = 0
    """How many of the rewards are a V(s)."""

    scored: int = 0
    """Rollouts whose rewards have no scalar `reward`."""

    errors: dict[str, int] = {}
    """Rollouts that were not scored, by the category of their error."""

    errors_of_scored: dict[str, int] = {}
    """Rollouts that were scored in spite of an error, such as `agent_timeout`, by its category."""

    agents: dict[str, AgentSummary] = {}
    """By agent, or `agent:model`, in the order of the job's specification."""

    mean_reward: float | None = None
    """`reward.mean` of the only agent; None in a job of several, like the other figures below."""

    reward_interval: Interval | None = None
    """`reward` of the only agent."""

    pass_at_k: dict[str, float] | None = None
    """`pass_at_k` of the only agent."""

    phase_seconds: dict[str, float] | None = None
    """`phase_seconds` of the only agent."""

    n_input_tokens: int | None = None
    """Sum over the job, as far as they are known."""

    n_output_tokens: int | None = None
    """As `n_input_tokens`."""

    n_estimated_calls: int = 0
    """Model calls whose endpoint did not tell its tokens, so that these are guessed."""

    cost_usd: float | None = None
    """As `n_input_tokens`."""


def pass_at_k(passed: int, n: int, k: int) -> float:
    """The probability that at least one of k attempts, drawn from n of which `passed` passed, passes."""
    if n - passed < k:
        return 1.0
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def read_results(paths: JobPaths) -> list[RolloutResult]:
    """Every rollout that has a result, sorted by task, agent and repeat."""
    results = []
    for file in paths.root.glob("*/result.json"):
        require_directory(paths.root, file.parent.name)
        result = _read(RolloutResult, file)
        results.append(result.model_copy(update={"directory": str(file.parent)}))
    return sorted(results, key=lambda r: (r.task_name, r.agent, r.model or "", r.repeat))


def _read(kind: type[M], file: Path) -> M:
    return _parse(kind, file, read_stored(file))


def _parse(kind: type[M], file: Path, content: bytes) -> M:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ResultFileError(
            f"this is not what BenchFlow wrote: {first['msg']}",
            file=str(file),
            key=".".join(str(part) for part in first["loc"]) or None,
            remedy="restore the file, or remove its directory to have the rollout run again",
        ) from error


def _number(total: int, results: Sequence[RolloutResult], spec: JobSpec | None) -> int:
    """Return the number of a job's rollouts: of one that scores others, those that it was asked to score."""
    if spec is None or spec.rescoring is None or not spec.rescoring.chosen:
        return total
    asked = {Path(spec.rescoring.rollouts[index]).name for index in spec.rescoring.chosen}
    return len(asked | {result.stored for result in results if result.stored is not None})


def summarize(name: str, total: int, results: Sequence[RolloutResult], spec: JobSpec | None = None) -> Summary:
    """Return the summary of a job.

    Args:
        name: Of the job.
        total: Its rollouts.
        results: Of those that have ended.
        spec: Which agents there are, how many rollouts each of them has, and the range of each task's rewards. Without
            it the agents are those of `results`, and rewards are taken to be between 0 and 1 unless one is not.
    """
    total = _number(total, results, spec)
    status = Counter(result.status for result in results)
    agents = _summarize_agents(results, spec)
    only = next(iter(agents.values())) if len(agents) == 1 else None
    return Summary(
        job=name,
        total=total,
        finished=len(results),
        passed=status["passed"],
        failed=status["failed"],
        errored=status["errored"],
        cancelled=status["cancelled"],
        not_started=status["not_started"],
        not_run=total - len(results),
        run_again=sum(result.attempt > 1 for result in results),
        n_values=sum(agent.n_values for agent in agents.values()),
        scored=status["scored"],
        errors=_errors(results, scored=False),
        errors_of_scored=_errors(results, scored=True),
        agents=agents,
        mean_reward=only.reward.mean if only else None,
        reward_interval=only.reward if only else None,
        pass_at_k=only.pass_at_k if only else None,
        phase_seconds=only.phase_seconds if only else None,
        n_input_tokens=_total([r.n_input_tokens for r in results]),
        n_output_tokens=_total([r.n_output_tokens for r in results]),
        n_estimated_calls=sum(r.n_estimated_calls for r in results),
        cost_usd=_total([r.cost_usd for r in results]),
    )


def agent_label(result: RolloutResult) -> str:
    """Return `agent` or `agent:model`, the key of a rollout's agent among those of its job."""
    return f"{result.agent}:{result.model}" if result.model else result.agent


def _summarize_agents(results: Sequence[RolloutResult], spec: JobSpec | None) -> dict[str, AgentSummary]:
    by_agent: dict[str, list[RolloutResult]] = {agent.label: [] for agent in spec.agents} if spec else {}
    for result in sorted(results, key=agent_label):
        by_agent.setdefault(agent_label(result), []).append(result)
    allowed = {task.name: task.reward_range for task in spec.tasks} if spec else {}
    each = len(spec.tasks) * spec.repeats if spec and spec.rescoring is None else None
    return {agent: _summarize_agent(mine, each or len(mine), allowed) for agent, mine in by_agent.items()}


def _summarize_agent(
    results: Sequence[RolloutResult], total: int, allowed: Mapping[str, tuple[float, float]]
) -> AgentSummary:
    status = Counter(result.status for result in results)
    measured = [result for result in results if result.reward_kind == "measured" and result.rewards is not None]
    values = [result for result in results if result.reward_kind == "value" and _scalar(result) is not None]
    passes = _passes(measured)
    return AgentSummary(
        total=total,
        passed=status["passed"],
        failed=status["failed"],
        errored=status["errored"],
        cancelled=status["cancelled"],
        not_started=status["not_started"],
        not_run=total - len(results),
        n_values=len(values),
        scored=status["scored"],
        reward=estimate(_samples(measured, allowed)),
        value=estimate(_samples(values, allowed), is_trial=False) if values else None,
        by_key=_means_by_key(measured),
        pass_at_k=_pass_at_ks(passes),
        n_pass_tasks=len(passes),
        errors=_errors(results, scored=False),
        errors_of_scored=_errors(results, scored=True),
        phase_seconds=_phase_medians(results),
        n_input_tokens=_total([r.n_input_tokens for r in results]),
        n_output_tokens=_total([r.n_output_tokens for r in results]),
        n_estimated_calls=sum(r.n_estimated_calls for r in results),
        cost_usd=_total([r.cost_usd for r in results]),
    )


def _scalar(result: RolloutResult) -> float | None:
    """Return a rollout's reward; None where there is none, or no finite one in a file that somebody else wrote."""
    return result.reward if result.reward is not None and math.isfinite(result.reward) else None


def _samples(results: Sequence[RolloutResult], allowed: Mapping[str, tuple[float, float]]) -> list[Sample]:
    return [
        Sample(result.task_name, reward, allowed.get(result.task_name, (0.0, 1.0)))
        for result in results
        if (reward := _scalar(result)) is not None
    ]


def _means_by_key(measured: Sequence[RolloutResult]) -> dict[str, KeyMean]:
    by_key: dict[str, list[float]] = defaultdict(list)
    for result in measured:
        for key, value in (result.rewards or {}).items():
            if key != "reward" and math.isfinite(value):
                by_key[key].append(value)
    return {key: KeyMean(mean=statistics.fmean(each), n=len(each)) for key, each in sorted(by_key.items())}


def _passes(measured: Sequence[RolloutResult]) -> dict[str, list[bool]]:
    """Return, by task, which of the measured rollouts passed."""
    tasks: dict[str, list[bool]] = defaultdict(list)
    for result in measured:
        if (reward := _scalar(result)) is not None:
            tasks[result.task_name].append(reward >= 1.0)
    return tasks


def _pass_at_ks(tasks: Mapping[str, list[bool]]) -> dict[str, float]:
    fewest = min(map(len, tasks.values()), default=0)
    ks = sorted({k for k in (*KS, fewest) if 0 < k <= fewest})
    return {str(k): statistics.fmean(pass_at_k(sum(each), len(each), k) for each in tasks.values()) for k in ks}


def _errors(results: Sequence[RolloutResult], *, scored: bool) -> dict[str, int]:
    """Return how many rollouts have an error, by category: of those that were not scored, or of those that were."""
    told = (r.error_category for r in results if r.is_scored == scored)
    return dict(Counter(category for category in told if category).most_common())


def _phase_medians(results: Sequence[RolloutResult]) -> dict[str, float]:
    phases: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for phase, seconds in result.timing.items():
            phases[phase].append(seconds)
    return {phase: statistics.median(values) for phase, values in phases.items()}


def _total(values: Sequence[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def read_spec(paths: JobPaths) -> JobSpec:
    """The specification of the job whose directory this is, to look at it. Raises `JobNotFoundError`.

    Whoever acts on it takes `benchflow.provenance.read_own_spec`.
    """
    return parse_spec(paths, read_config(paths))


def parse_spec(paths: JobPaths, content: bytes) -> JobSpec:
    """Return the specification that a job's configuration holds. Raise `ResultFileError` where that is none."""
    return _parse(JobSpec, paths.config, content)


def read_config(paths: JobPaths) -> bytes:
    """Return a job's configuration as it is stored. Raise `JobNotFoundError` where there is none."""
    try:
        return read_stored(paths.config)
    except FileNotFoundError as error:
        raise JobNotFoundError(
            "this is not a job's directory: it has no config.json",
            file=str(paths.root),
            remedy="bench job list; --jobs-dir names the directory that holds the jobs",
        ) from error


def write_summary(paths: JobPaths, name: str, total: int, spec: JobSpec | None = None) -> Summary:
    """Write `summary.json` and, once more and without repetitions, `results.jsonl` and the rows of the job's mode.

    spec: None where the store no longer has it.
    """
    results = read_results(paths)
    summary = summarize(name, total, results, spec)
    rows = "".join(json.dumps(result_row(result), ensure_ascii=False) + "\n" for result in results)
    write_atomic(paths.results, rows.encode())
    if spec is not None and spec.run.mode is not None:
        write_rows(paths, spec.run.mode, results)
    write_json(paths.summary, summary.model_dump(mode="json"))
    return summary
