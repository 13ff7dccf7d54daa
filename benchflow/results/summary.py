"""A job's results read back and summed up: totals, mean reward with a confidence interval, pass@k, phase times."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.job import JobSpec
from benchflow.contracts.modes import JobMode
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import JobNotFoundError, ResultFileError
from benchflow.paths import JobPaths
from benchflow.results.modes import write_rows
from benchflow.results.write import result_row, write_json
from benchflow.store import write_atomic
from benchflow.stored_files import read_stored, require_directory

N = TypeVar("N", int, float)
M = TypeVar("M", bound=Model)

Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


class Interval(Model):
    """mean, and a 95 % confidence interval of it by the normal approximation; None below two values."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


class Summary(Model):
    """What `summary.json` holds. total: rollouts of the job; not_run: those without a result; run_again: those of
    more than one attempt. n_values: how many of the rewards are the V(s) of a rollout that branched.

    pass_at_k: for each k up to the repeats, the probability that one of k attempts passes, averaged over task and
    agent (the unbiased estimator of Chen et al. 2021, arXiv 2107.03374). phase_seconds: median a phase.
    """

    job: str
    total: int
    finished: int
    passed: int
    failed: int
    errored: int
    cancelled: int
    not_run: int
    run_again: int = 0
    mean_reward: float | None
    n_values: int = 0
    reward_interval: Interval
    pass_at_k: dict[str, float]
    errors: dict[str, int]
    by_agent: dict[str, Interval]
    phase_seconds: dict[str, float]
    scored: int = 0
    """Rollouts measured by several keys, without a scalar. They are in no mean reward, and in no pass@k."""

    by_key: dict[str, Interval] = {}
    """The mean of each key over those of them that have it."""

    n_input_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None


def interval(values: Sequence[float]) -> Interval:
    """The mean of rewards and how sure it is."""
    if not values:
        return Interval(mean=None)
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean=mean, n=1)
    half = Z95 * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half, n=len(values))


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


def summarize(name: str, total: int, results: Sequence[RolloutResult]) -> Summary:
    """The summary of a job of `total` rollouts, of which `results` have ended."""
    status = Counter(result.status for result in results)
    rewards = [result.reward for result in results if result.reward is not None]
    by_agent: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.reward is not None:
            by_agent[_agent(result)].append(result.reward)
    return Summary(
        job=name,
        total=total,
        finished=len(results),
        passed=status["passed"],
        failed=status["failed"],
        errored=status["errored"],
        cancelled=status["cancelled"],
        not_run=total - len(results),
        run_again=sum(result.attempt > 1 for result in results),
        mean_reward=statistics.fmean(rewards) if rewards else None,
        n_values=sum(result.reward_kind == "value" and result.reward is not None for result in results),
        reward_interval=interval(rewards),
        pass_at_k=_pass_at_ks(results),
        errors=dict(Counter(r.error_category for r in results if r.error_category).most_common()),
        by_agent={agent: interval(values) for agent, values in sorted(by_agent.items())},
        phase_seconds=_phase_medians(results),
        scored=status["scored"],
        by_key=_by_key(results),
        n_input_tokens=_total([r.n_input_tokens for r in results]),
        n_output_tokens=_total([r.n_output_tokens for r in results]),
        cost_usd=_total([r.cost_usd for r in results]),
    )


def _agent(result: RolloutResult) -> str:
    return f"{result.agent}:{result.model}" if result.model else result.agent


def _by_key(results: Sequence[RolloutResult]) -> dict[str, Interval]:
    values: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.reward is None:
            for key, value in (result.rewards or {}).items():
                values[key].append(value)
    return {key: interval(measured) for key, measured in values.items()}


def _pass_at_ks(results: Sequence[RolloutResult]) -> dict[str, float]:
    """An attempt that was not scored did not pass; one that was cancelled was no attempt. Of one that was scored by
    several keys nobody knows whether it passed: it does not count.
    """
    groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for result in results:
        if result.status not in ("cancelled", "scored"):
            groups[result.task_name, _agent(result)].append(result.status == "passed")
    most = min((len(group) for group in groups.values()), default=0)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= most] + ([most] if most else [])
    table = {}
    for k in sorted(set(ks)):
        table[str(k)] = statistics.fmean(pass_at_k(sum(group), len(group), k) for group in groups.values())
    return table


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


def write_summary(paths: JobPaths, name: str, total: int, mode: JobMode | None = None) -> Summary:
    """Write `summary.json` and, once more and without repetitions, `results.jsonl` and the rows of the job's mode."""
    results = read_results(paths)
    summary = summarize(name, total, results)
    rows = "".join(json.dumps(result_row(result), ensure_ascii=False) + "\n" for result in results)
    write_atomic(paths.results, rows.encode())
    if mode is not None:
        write_rows(paths, mode, results)
    write_json(paths.summary, summary.model_dump(mode="json"))
    return summary
