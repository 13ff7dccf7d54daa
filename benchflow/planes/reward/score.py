"""Scoring of a node: reward functions run concurrently, and their results are combined with the verifier's.

Failures are data. The metric of a function that raised is missing, and so is each value that needs it; no default
replaces a value that was not measured.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite

from benchflow.contracts.reward import (
    AggregatePolicy,
    RewardEvent,
    RewardFunc,
    RewardFuncSpec,
    RewardTable,
    RolloutNode,
    Space,
    VerifyResult,
)
from benchflow.errors import BenchFlowError, RewardFuncError, VerifierError
from benchflow.planes.reward.aggregate import aggregate_metrics, compute_weighted_mean
from benchflow.planes.reward.functions import make_function
from benchflow.planes.reward.strict import AGREEMENT

Range = tuple[float, float]
UNIT: Range = (0.0, 1.0)
_MAX_ERROR_TEXT = 4000
"""Maximum number of characters of an error's text."""


@dataclass(frozen=True)
class Scored:
    """Outcome of one reward function: its result, or its error."""

    name: str
    space: Space | None
    """Space of the result; None for a function that failed and declares no space."""

    weight: float = 1.0
    """Weight among the functions of its space."""

    result: VerifyResult | None = None
    error: str = ""
    """Error in words, of a function without a result."""

    retryable: BenchFlowError | None = None
    """The error, if it is retryable."""

    @property
    def value(self) -> float | None:
        """Return the reward; None for a function that failed."""
        return None if self.result is None else self.result.reward


async def score(
    node: RolloutNode,
    output: Callable[[], Awaitable[VerifyResult]],
    table: RewardTable | None,
    *,
    now: datetime,
    reward_range: Range = UNIT,
    file: str = "task",
    allowed: Collection[str] = (),
) -> VerifyResult:
    """Score a node by the verifier, then by the functions of the task's `reward` table, and combine the results.

    The verifier runs first: programs that functions run in the sandbox must not disturb it. Its errors are not caught,
    since without it nothing counts as scored. See `combine` for the result.

    Args:
        node: The node.
        output: Runs the verifier.
        table: The reward table; None for the verifier alone.
        now: Time of the aggregate's event.
        reward_range: Range of the verifier's and the functions' values.
        file: File that declares the table, for errors.
        allowed: Modules that the user allows tasks to name.

    Raises:
        BenchFlowError: The retryable error of a function, if it is an outage or leaves no reward.
    """
    verified = await output()
    if table is None:
        return verified

    async def run(index: int, spec: RewardFuncSpec) -> Scored:
        try:
            function = make_function(spec, file=file, index=index, allowed=allowed)
        except BenchFlowError as error:
            return Scored(spec.name, None, spec.weight, error=_format_error(error))
        return await run_function(function, spec.name, node, weight=spec.weight, reward_range=reward_range)

    scored = await asyncio.gather(*(run(index, spec) for index, spec in enumerate(table.funcs)))
    result = combine(verified, scored, table.aggregate, now=now, reward_range=reward_range)
    for retryable in (one.retryable for one in scored if one.retryable is not None):
        # An outage says nothing about the agent's work. Another retryable error, such as of a judge without an answer,
        # is tolerated if the reward does not depend on its space.
        if retryable.is_outage or not result.is_scored:
            raise retryable
    return result


# --- one function ---------------------------------------------------------------------------------------


async def run_function(
    function: RewardFunc, name: str, node: RolloutNode, *, weight: float = 1.0, reward_range: Range = UNIT
) -> Scored:
    """Run a function on a node and return its outcome, with `name` as the source of its events.

    All exceptions, and an invalid result, become the outcome's error; a cancellation of this task is raised.
    """
    space: Space | None = getattr(function, "space", None)
    try:
        returned = function.score(node)
        if not inspect.isawaitable(returned):
            raise RewardFuncError(
                f"`score` gave {type(returned).__name__}", remedy="write `async def score(self, node)`"
            )
        result = _validate_result(await returned, name, space, reward_range)
        return Scored(name, result.space, weight, result)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # This task was not cancelled, but one that the function awaited.
        return Scored(name, space, weight, error=_format_error(error))
    except (Exception, SystemExit) as error:
        retryable = error if isinstance(error, BenchFlowError) and error.retryable else None
        return Scored(name, space, weight, error=_format_error(error), retryable=retryable)


def _validate_result(returned: object, name: str, space: str | None, allowed: Range) -> VerifyResult:
    """Return a function's return value as a result with a reward. Raise `RewardFuncError` if it is not one.

    Args:
        returned: The return value.
        name: Name of the function, which becomes the source of the events.
        space: Declared space of the function; None if it declares none.
        allowed: Range of rewards and of events' values.
    """
    if isinstance(returned, RewardEvent):
        returned = VerifyResult(
            reward=returned.value, events=[returned], space=returned.space, granularity=returned.granularity
        )
    if not isinstance(returned, VerifyResult):
        raise RewardFuncError(
            f"`score` returned {type(returned).__name__}", remedy="return a RewardEvent, or a VerifyResult"
        )
    if returned.reward is None:
        raise RewardFuncError(
            returned.error or "; ".join(returned.errors.values()) or "it gave no reward, and did not say why"
        )
    if space is not None and returned.space != space:
        raise RewardFuncError(f"it says that it scores {space!r} and scored {returned.space!r}")
    _expect_number(returned.reward, "the reward", allowed)
    for event in returned.events:
        _expect_number(event.value, "the value of an event", allowed)
    for item, value in returned.items.items():
        _expect_number(value, f"the metric {item!r}", None)
    return returned.model_copy(update={"events": [_set_source(event, name) for event in returned.events]})


def _set_source(event: RewardEvent, name: str) -> RewardEvent:
    """Return the event with its function's name as source; another source becomes its tag, if it has none."""
    if event.source == name:
        return event
    return event.model_copy(update={"source": name, "tag": event.tag if event.tag is not None else event.source})


def _expect_number(value: object, what: str, allowed: Range | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise RewardFuncError(f"{what} is {value!r}", remedy="give a finite number")
    if allowed is not None and not _is_within(value, allowed):
        raise RewardFuncError(
            f"{what} is {value!r}, outside the reward range [{allowed[0]:g}, {allowed[1]:g}]",
            remedy="scale it, or widen verifier.reward_range in the task's configuration",
        )


def _is_within(value: float, allowed: Range) -> bool:
    return allowed[0] - AGREEMENT <= value <= allowed[1] + AGREEMENT


def _format_error(error: BaseException) -> str:
    """Return the text of an error, cut to `_MAX_ERROR_TEXT` characters."""
    text = str(error) if isinstance(error, BenchFlowError) else f"{type(error).__name__}: {error}"
    return text if len(text) <= _MAX_ERROR_TEXT else f"{text[:_MAX_ERROR_TEXT]}…"


# --- all of them ----------------------------------------------------------------------------------------


def combine(
    verified: VerifyResult,
    scored: Sequence[Scored],
    aggregate: AggregatePolicy | None,
    *,
    now: datetime,
    reward_range: Range = UNIT,
) -> VerifyResult:
    """Return the verifier's result with the functions' metrics, and with the scalar that the aggregate makes of all.

    The metrics are the verifier's own, `<space>.<name>` of each function, `<space>.<name>.<item>` of its items, and
    `<space>`: the weighted mean of its functions, and of the verifier's reward, at weight 1, in `output`. A function of
    weight 0 is reported and does not count. Without an aggregate the scalar is the verifier's. An aggregate without
    weights weighs all spaces alike; if the verifier has several keys and no scalar, these in place of `output`.

    Args:
        verified: Result of the verifier.
        scored: Outcomes of the functions.
        aggregate: Policy that makes the scalar; None to leave the verifier's.
        now: Time of the scalar's event.
        reward_range: Range of the scalar.
    """
    failed = {one.name: one.error for one in scored if one.result is None}
    if not verified.is_scored:
        failed["output"] = verified.error or "the verifier gave no reward"
    counted = [one for one in (Scored("verifier", "output", 1.0, verified), *scored) if one.weight > 0]
    # A function of unknown space is in all of them: it might belong to each.
    spaces = {
        space: [one for one in counted if one.space in (space, None)]
        for space in dict.fromkeys(one.space for one in counted if one.space is not None)
    }
    results = [(one.name, one.result) for one in scored if one.result is not None]
    partial = ({f"{name}.{part}": error for part, error in result.errors.items()} for name, result in results)
    metadata = {name: result.metadata for name, result in results if result.metadata}
    means = [(space, mean) for space, members in spaces.items() if (mean := compute_mean(members)) is not None]
    own = [metric for one in scored for metric in _list_metrics(one)]
    metrics, clashes = _drop_clashes([*verified.items.items(), *means, *own])
    result = verified.model_copy(
        update={
            "items": metrics,
            "only_key": verified.only_key if verified.only_key in metrics else None,
            "events": [*verified.events, *(event for _, result in results for event in result.events)],
            "warnings": [
                *verified.warnings,
                *(f"{name}: {note}" for name, result in results for note in result.warnings),
            ],
            "errors": _merge_errors(verified.errors, failed, clashes, *partial),
            "metadata": verified.metadata | ({"reward_funcs": metadata} if metadata else {}),
        }
    )
    if aggregate is None:
        return result
    parts = [*verified.items, *(space for space in spaces if space != "output")] if verified.is_keyed else spaces
    policy = aggregate if aggregate.weights else aggregate.model_copy(update={"weights": dict.fromkeys(parts, 1.0)})
    return _set_scalar(result, policy, now, reward_range, keys=list(verified.items) if verified.is_keyed else [])


def _set_scalar(
    result: VerifyResult, policy: AggregatePolicy, now: datetime, allowed: Range, *, keys: Sequence[str] = ()
) -> VerifyResult:
    """Return the result with the scalar that the policy makes of the metrics, or with the error why there is none.

    `keys` are those that the verifier reported in place of a scalar.
    """
    missing = sorted(policy.weights.keys() - result.items.keys())
    try:
        if missing:
            why = "".join(f"\n  {name}: {error}" for name, error in result.errors.items())
            why += f"\n  output: the verifier reported {', '.join(keys)}, and no scalar" if keys else ""
            raise VerifierError(f"the aggregate weighs {', '.join(missing)}, which could not be measured{why}")
        value = aggregate_metrics(result.items, policy)
        if not isfinite(value) or not _is_within(value, allowed):
            raise VerifierError(
                f"the aggregate is {value!r}, outside the reward range [{allowed[0]:g}, {allowed[1]:g}]",
                key="reward.aggregate",
                remedy="choose other weights, or a mean",
            )
    except VerifierError as error:
        return result.model_copy(update={"reward": None, "only_key": None, "error": _format_error(error)})
    event = RewardEvent(value=value, source=f"aggregate:{policy.method}", ts=now)
    made = {"reward": value, "only_key": None, "error": None, "events": [*result.events, event]}
    return result.model_copy(update=made)


def compute_mean(scored: Iterable[Scored]) -> float | None:
    """Return the weighted mean of the outcomes with a positive weight; None if one of them failed, or there is none."""
    counted = [one for one in scored if one.weight > 0]
    values = [one.value for one in counted if one.value is not None]
    if not values or len(values) < len(counted):
        return None
    return compute_weighted_mean((one.weight, value) for one, value in zip(counted, values, strict=True))


def _list_metrics(one: Scored) -> list[tuple[str, float]]:
    """Return the metrics of a function: its reward and its items, by name."""
    if one.result is None or one.result.reward is None:
        return []
    name = f"{one.space}.{one.name}"
    return [(name, one.result.reward), *((f"{name}.{item}", value) for item, value in one.result.items.items())]


def _drop_clashes(metrics: Sequence[tuple[str, float]]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics whose names are unique, and an error for each name that is not."""
    times = Counter(name for name, _ in metrics)
    clashes = {name: "two report a metric of this name; rename one" for name in times if times[name] > 1}
    return {name: value for name, value in metrics if name not in clashes}, clashes


def _merge_errors(*tables: dict[str, str]) -> dict[str, str]:
    """Return tables of errors merged; several errors of one name are joined by `; `."""
    joined: dict[str, str] = {}
    for table in tables:
        for name, error in table.items():
            joined[name] = f"{joined[name]}; {error}" if name in joined else error
    return joined
