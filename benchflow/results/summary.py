"""A job's results read back and summarised: counts, and each agent's mean reward, pass@k, phase times and cost."""

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
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import JobNotFoundError, ResultFileError
from benchflow.host_files import write_atomic
from benchflow.paths import JobPaths
from benchflow.results.intervals import Interval, Sample, estimate
from benchflow.results.mode_rows import write_rows
from benchflow.results.write import make_result_row, write_json
from benchflow.stored_files import read_stored, require_directory

N = TypeVar("N", int, float)
M = TypeVar("M", bound=Model)

KS = (1, 2, 4, 8, 16, 32, 64)
"""Values of k for pass@k, up to the smallest number of repeats of a task; that number itself is one more."""


class KeyMean(Model):
    """Mean of one reward key that a verifier reports beside, or instead of, the scalar `reward`."""

    mean: float
    """Mean over rollouts. The key's scale is the verifier's own, so there is no interval."""

    n: int
    """Number of rollouts whose rewards have the key."""


class AgentSummary(Model):
    """Results of one agent with one model."""

    total: int
    """Number of its rollouts in the job; of those that have ended, if the job's specification is not known."""

    passed: int = 0
    """Rollouts whose reward, measured or V(s), is 1 or more."""

    failed: int = 0
    """Rollouts that were scored and did not pass."""

    errored: int = 0
    """Rollouts without a reward; they are in no mean and no pass@k."""

    cancelled: int = 0
    """Cancelled rollouts; in no mean either."""

    not_started: int = 0
    """Rollouts that the job did not start, because others had failed with the same error."""

    not_run: int = 0
    """Rollouts without a result."""

    n_values: int = 0
    """Number of rewards that are the V(s) of a rollout that branched; these are in `value`, not in `reward`."""

    scored: int = 0
    """Rollouts whose rewards have several keys and no scalar `reward`: in `by_key` only."""

    reward: Interval = Interval()
    """Mean and interval of the measured rewards."""

    value: Interval | None = None
    """Mean and interval of the V(s); None if no rollout branched."""

    by_key: dict[str, KeyMean] = {}
    """Means of the other keys of measured rewards."""

    pass_at_k: dict[str, float] = {}
    """Probability by k that at least one of k attempts passes, averaged over tasks: the unbiased estimator of Chen et
    al. 2021, arXiv 2107.03374, over the measured rollouts of each task. k is at most the smallest number of them that a
    task has.
    """

    n_pass_tasks: int = 0
    """Number of tasks that pass@k is averaged over: those with a measured rollout."""

    errors: dict[str, int] = {}
    """Number of rollouts that were not scored, by error category."""

    errors_of_scored: dict[str, int] = {}
    """Number of rollouts that were scored in spite of an error, such as `agent_timeout`, by its category."""

    phase_seconds: dict[str, float] = {}
    """Median duration of each phase."""

    n_input_tokens: int | None = None
    """Input tokens of all its rollouts for which they are known; None if they are known for none."""

    n_output_tokens: int | None = None
    """As `n_input_tokens`."""

    n_estimated_calls: int = 0
    """Model calls whose endpoint did not report token counts, so that these are estimated."""

    cost_usd: float | None = None
    """As `n_input_tokens`."""


class Summary(Model):
    """Content of `summary.json`: counts of the job, and figures of each agent. No mean is taken over several agents."""

    job: str
    """Name of the job."""

    total: int
    """Number of rollouts of the job."""

    finished: int
    """Rollouts with a result."""

    passed: int
    """As in `AgentSummary`; likewise the other counts below."""

    failed: int
    """Scored rollouts that did not pass."""

    errored: int
    """Rollouts without a reward."""

    cancelled: int
    """Cancelled rollouts."""

    not_started: int = 0
    """Rollouts that were not started, because others had failed with the same error."""

    not_run: int
    """Rollouts without a result."""

    run_again: int = 0
    """Rollouts with more than one attempt."""

    n_values: int = 0
    """Number of rewards that are a V(s)."""

    scored: int = 0
    """Rollouts whose rewards have no scalar `reward`."""

    errors: dict[str, int] = {}
    """Number of rollouts that were not scored, by error category."""

    errors_of_scored: dict[str, int] = {}
    """Number of rollouts that were scored in spite of an error, such as `agent_timeout`, by its category."""

    agents: dict[str, AgentSummary] = {}
    """Summaries by `agent` or `agent:model`, in the order of the job's specification."""

    mean_reward: float | None = None
    """`reward.mean` of the only agent; None in a job of several agents, as the next three figures."""

    reward_interval: Interval | None = None
    """`reward` of the only agent."""

    pass_at_k: dict[str, float] | None = None
    """`pass_at_k` of the only agent."""

    phase_seconds: dict[str, float] | None = None
    """`phase_seconds` of the only agent."""

    n_input_tokens: int | None = None
    """Sum over the rollouts for which it is known; None if it is known for none."""

    n_output_tokens: int | None = None
    """As `n_input_tokens`."""

    n_estimated_calls: int = 0
    """Model calls whose endpoint did not report token counts, so that these are estimated."""

    cost_usd: float | None = None
    """As `n_input_tokens`."""


def compute_pass_at_k(passed: int, n: int, k: int) -> float:
    """Return the probability that at least one of `k` attempts passes, if drawn from `n` of which `passed` passed."""
    if n - passed < k:
        return 1.0
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def read_results(paths: JobPaths) -> list[RolloutResult]:
    """Return the results of all rollouts of a job that have one, sorted by task, agent, model and repeat."""
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


def _count_rollouts(total: int, results: Sequence[RolloutResult], spec: JobSpec | None) -> int:
    """Return the number of a job's rollouts; for a rescoring job, of those that were requested or have a result."""
    if spec is None or spec.rescoring is None or not spec.rescoring.chosen:
        return total
    asked = {Path(spec.rescoring.rollouts[index]).name for index in spec.rescoring.chosen}
    return len(asked | {result.stored for result in results if result.stored is not None})


def summarize(name: str, total: int, results: Sequence[RolloutResult], spec: JobSpec | None = None) -> Summary:
    """Return the summary of a job.

    Args:
        name: Name of the job.
        total: Number of its rollouts.
        results: Results of the rollouts that have ended.
        spec: Specification of the job: its agents, the number of rollouts of each, and each task's reward range. If
            None, agents are those of `results`, and rewards count as between 0 and 1.
    """
    total = _count_rollouts(total, results, spec)
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
        errors=_count_errors(results, scored=False),
        errors_of_scored=_count_errors(results, scored=True),
        agents=agents,
        mean_reward=only.reward.mean if only else None,
        reward_interval=only.reward if only else None,
        pass_at_k=only.pass_at_k if only else None,
        phase_seconds=only.phase_seconds if only else None,
        n_input_tokens=_sum_known([r.n_input_tokens for r in results]),
        n_output_tokens=_sum_known([r.n_output_tokens for r in results]),
        n_estimated_calls=sum(r.n_estimated_calls for r in results),
        cost_usd=_sum_known([r.cost_usd for r in results]),
    )


def format_agent_label(result: RolloutResult) -> str:
    """Return `agent` or `agent:model`, the key of a rollout's agent in its job."""
    return f"{result.agent}:{result.model}" if result.model else result.agent


def _summarize_agents(results: Sequence[RolloutResult], spec: JobSpec | None) -> dict[str, AgentSummary]:
    by_agent: dict[str, list[RolloutResult]] = {agent.label: [] for agent in spec.agents} if spec else {}
    for result in sorted(results, key=format_agent_label):
        by_agent.setdefault(format_agent_label(result), []).append(result)
    allowed = {task.name: task.reward_range for task in spec.tasks} if spec else {}
    each = len(spec.tasks) * spec.repeats if spec and spec.rescoring is None else None
    return {agent: _summarize_agent(mine, each or len(mine), allowed) for agent, mine in by_agent.items()}


def _summarize_agent(
    results: Sequence[RolloutResult], total: int, allowed: Mapping[str, tuple[float, float]]
) -> AgentSummary:
    status = Counter(result.status for result in results)
    measured = [result for result in results if result.reward_kind == "measured" and result.rewards is not None]
    values = [result for result in results if result.reward_kind == "value" and _get_finite_reward(result) is not None]
    passes = _list_passes(measured)
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
        reward=estimate(_make_samples(measured, allowed)),
        value=estimate(_make_samples(values, allowed), is_trial=False) if values else None,
        by_key=_compute_key_means(measured),
        pass_at_k=_compute_pass_at_ks(passes),
        n_pass_tasks=len(passes),
        errors=_count_errors(results, scored=False),
        errors_of_scored=_count_errors(results, scored=True),
        phase_seconds=_compute_phase_medians(results),
        n_input_tokens=_sum_known([r.n_input_tokens for r in results]),
        n_output_tokens=_sum_known([r.n_output_tokens for r in results]),
        n_estimated_calls=sum(r.n_estimated_calls for r in results),
        cost_usd=_sum_known([r.cost_usd for r in results]),
    )


def _get_finite_reward(result: RolloutResult) -> float | None:
    """Return a rollout's scalar reward; None if it has none, or, in a file from elsewhere, one that is not finite."""
    return result.reward if result.reward is not None and math.isfinite(result.reward) else None


def _make_samples(results: Sequence[RolloutResult], allowed: Mapping[str, tuple[float, float]]) -> list[Sample]:
    """Return the finite scalar rewards with their tasks and allowed ranges."""
    return [
        Sample(result.task_name, reward, allowed.get(result.task_name, (0.0, 1.0)))
        for result in results
        if (reward := _get_finite_reward(result)) is not None
    ]


def _compute_key_means(measured: Sequence[RolloutResult]) -> dict[str, KeyMean]:
    by_key: dict[str, list[float]] = defaultdict(list)
    for result in measured:
        for key, value in (result.rewards or {}).items():
            if key != "reward" and math.isfinite(value):
                by_key[key].append(value)
    return {key: KeyMean(mean=statistics.fmean(each), n=len(each)) for key, each in sorted(by_key.items())}


def _list_passes(measured: Sequence[RolloutResult]) -> dict[str, list[bool]]:
    """Return, by task, which of the measured rollouts passed."""
    tasks: dict[str, list[bool]] = defaultdict(list)
    for result in measured:
        if (reward := _get_finite_reward(result)) is not None:
            tasks[result.task_name].append(reward >= 1.0)
    return tasks


def _compute_pass_at_ks(tasks: Mapping[str, list[bool]]) -> dict[str, float]:
    fewest = min(map(len, tasks.values()), default=0)
    ks = sorted({k for k in (*KS, fewest) if 0 < k <= fewest})
    return {str(k): statistics.fmean(compute_pass_at_k(sum(each), len(each), k) for each in tasks.values()) for k in ks}


def _count_errors(results: Sequence[RolloutResult], *, scored: bool) -> dict[str, int]:
    """Return the number of rollouts with an error, by category, among those that were scored or those that were not."""
    told = (r.error_category for r in results if r.is_scored == scored)
    return dict(Counter(category for category in told if category).most_common())


def _compute_phase_medians(results: Sequence[RolloutResult]) -> dict[str, float]:
    phases: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for phase, seconds in result.timing.items():
            phases[phase].append(seconds)
    return {phase: statistics.median(values) for phase, values in phases.items()}


def _sum_known(values: Sequence[N | None]) -> N | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def read_spec(paths: JobPaths) -> JobSpec:
    """Return the specification of the job with these paths, for display only.

    Callers that act on it use `benchflow.provenance.read_own_spec`, which checks who wrote it.

    Raises:
        JobNotFoundError: There is no configuration.
        ResultFileError: It cannot be parsed.
    """
    return parse_spec(paths, read_config(paths))


def parse_spec(paths: JobPaths, content: bytes) -> JobSpec:
    """Return the specification in a job's configuration. Raise `ResultFileError` if it cannot be parsed."""
    return _parse(JobSpec, paths.config, content)


def read_config(paths: JobPaths) -> bytes:
    """Return the bytes of a job's configuration. Raise `JobNotFoundError` if there is none."""
    try:
        return read_stored(paths.config)
    except FileNotFoundError as error:
        raise JobNotFoundError(
            "this is not a job's directory: it has no config.json",
            file=str(paths.root),
            remedy="bench job list; --jobs-dir names the directory that holds the jobs",
        ) from error


def write_summary(paths: JobPaths, name: str, total: int, spec: JobSpec | None = None) -> Summary:
    """Write `summary.json`; rewrite `results.jsonl` without duplicates, and the rows of the job's mode.

    Args:
        paths: Files of the job.
        name: Name of the job.
        total: Number of its rollouts.
        spec: Specification of the job; None if the store no longer has it.
    """
    results = read_results(paths)
    summary = summarize(name, total, results, spec)
    rows = "".join(json.dumps(make_result_row(result), ensure_ascii=False) + "\n" for result in results)
    write_atomic(paths.results, rows.encode())
    if spec is not None and spec.run.mode is not None:
        write_rows(paths, spec.run.mode, results)
    write_json(paths.summary, summary.model_dump(mode="json"))
    return summary
