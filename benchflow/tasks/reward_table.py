"""The `reward` table of a task: normalise its rows to the shape of `RewardFuncSpec`, and check their names.

The types of functions, and the options of each, are known to the reward plane, not here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from benchflow.contracts.reward import AggregatePolicy, RewardFuncSpec, RewardTable, Space
from benchflow.contracts.task import Task
from benchflow.tasks.layout import is_file
from benchflow.tasks.rubric_file import read_rubric
from benchflow.tasks.task_spellings import Spelling, Table
from benchflow.user_files.problems import KeyPath, Problems, suggest_known

SPACES: tuple[str, ...] = get_args(Space)
_AT: KeyPath = ("reward",)
_OWN = ("type", "name", "weight")
"""Keys of a row that are no options of its function."""

_JUDGE = "llm-judge"
"""The type of function whose option `rubric` may name a file of the task."""


def normalise_reward(raw: Table, spelling: Spelling) -> None:
    """Move the options of each row of `reward.funcs` into its `options`, and name it by its type if it has no name.

    Every key but `type`, `name` and `weight` is an option. A row may also have `options` itself: for an option with the
    name of one of these keys.

    Args:
        raw: Root mapping of a task file; changed in place.
        spelling: Receives errors, and the renamed keys.
    """
    reward = raw.get("reward")
    if not isinstance(reward, dict):
        return
    _drop_unset(reward, tuple(reward))
    funcs = reward.get("funcs")
    for index, row in enumerate(funcs if isinstance(funcs, list) else []):
        if isinstance(row, dict):
            _normalise_row(row, (*_AT, "funcs", index), spelling)
    aggregate = reward.get("aggregate")
    if isinstance(aggregate, dict):
        _drop_unset(aggregate, tuple(aggregate))
        weights = aggregate.get("weights")
        for name, value in weights.items() if isinstance(weights, dict) else ():
            if isinstance(value, bool):
                spelling.error((*_AT, "aggregate", "weights"), str(name), "must be a number, not true or false")


def _drop_unset(table: Table, keys: tuple[str, ...]) -> None:
    """Remove those of `keys` that are None: an empty YAML value means unset. Options are kept, None being a value."""
    for key in keys:
        if key in table and table[key] is None:
            del table[key]


def _normalise_row(row: Table, at: KeyPath, spelling: Spelling) -> None:
    _drop_unset(row, _OWN)
    options: Any = row.pop("options", {})
    if not isinstance(options, dict):
        spelling.error(at, "options", f"must be a mapping, not {options!r}", "write options beside `type`")
        options = {}
    for key in [key for key in row if key not in _OWN]:
        if key in options:
            spelling.error(at, str(key), f"contradicts `options.{key}`", "keep one of them")
        options[key] = row.pop(key)
    if options:
        row["options"] = options
    if "name" not in row and "type" in row:
        row["name"] = row["type"]
        spelling.record((*at, "name"), (*at, "type"))


def check_reward(table: RewardTable | None, spelling: Spelling) -> None:
    """Report empty or duplicate names, and an aggregate that can't be computed from the functions of the table."""
    if table is None:
        return
    seen: set[str] = set()
    for index, spec in enumerate(table.funcs):
        at: KeyPath = (*_AT, "funcs", index)
        for key in ("type", "name"):
            if not getattr(spec, key).strip():
                _report_error(spelling, (*at, key), "is empty")
        if spec.name in seen:
            _report_error(
                spelling, (*at, "name"), f"{spec.name!r} is there twice", "give each function a `name` of its own"
            )
        seen.add(spec.name)
    if table.aggregate is not None:
        _check_aggregate(table.aggregate, seen, spelling)


def _check_aggregate(aggregate: AggregatePolicy, names: set[str], spelling: Spelling) -> None:
    at: KeyPath = (*_AT, "aggregate", "weights")
    for metric, weight in aggregate.weights.items():
        if weight < 0:
            _report_error(spelling, (*at, metric), f"must be 0 or more, not {weight:g}")
        _check_metric(metric, names, at, spelling)
    needs_sum = aggregate.method in ("weighted_mean", "threshold")
    if needs_sum and aggregate.weights and not any(aggregate.weights.values()):
        _report_error(spelling, at, "the weights sum to 0", "give at least one a positive weight")


def _check_metric(metric: str, names: set[str], at: KeyPath, spelling: Spelling) -> None:
    """Report a metric that no declared function can produce. One outside of the spaces may come from the verifier."""
    space, _, name = metric.partition(".")
    if metric == "reward":
        _report_error(
            spelling, (*at, metric), "is what the aggregate makes", "write `output` for the verifier's reward"
        )
    elif metric == "output" or space not in SPACES:
        return
    elif not names:
        _report_error(
            spelling, (*at, metric), "no function is declared that could report it", "add it to `reward.funcs`"
        )
    # A function's further items are called `<space>.<name>.<item>`.
    elif metric != space and name not in names and not any(name.startswith(f"{known}.") for known in names):
        known = suggest_known(metric, [f"{space}.{known}" for known in names])
        _report_error(spelling, (*at, metric), f"there is no function {name!r} in `reward.funcs`", known)


# --- rubrics --------------------------------------------------------------------------------------------


def embed_rubrics(task: Task, root: Path, problems: Problems) -> RewardTable | None:
    """Return the reward table of a task with the rubric files that it names read into it; None without a table.

    A path is relative to the verifier's directory, or else to `root`, the task's. A missing file is reported.
    """
    if task.reward is None:
        return None
    funcs = [_embed_rubric(spec, index, task, root, problems) for index, spec in enumerate(task.reward.funcs)]
    return task.reward.model_copy(update={"funcs": funcs})


def _embed_rubric(spec: RewardFuncSpec, index: int, task: Task, root: Path, problems: Problems) -> RewardFuncSpec:
    """Return the row with its rubric file read; unchanged if it names none, or one that is missing."""
    named = spec.options.get("rubric")
    if spec.type != _JUDGE or not isinstance(named, str):
        return spec
    places = [root / task.verifier_dir / named] if task.verifier_dir else []
    for path in (*places, root / named):
        if is_file(path) and path.resolve().is_relative_to(root.resolve()):
            rubric = read_rubric(path, problems, strict=True)
            told = rubric.model_dump(mode="json", exclude_defaults=True) if rubric else {}
            return spec.model_copy(update={"options": spec.options | {"rubric": told}})
    problems.error(
        "not-found",
        root / task.config_file,
        f"there is no {named!r} in the task",
        key=f"reward.funcs[{index}].rubric",
        suggestion="name a file relative to the verifier's directory, or write the criteria there: rubric: [...]",
    )
    return spec


def _report_error(spelling: Spelling, at: KeyPath, message: str, suggestion: str | None = None) -> None:
    spelling.problems.error("value", spelling.file, message, key=spelling.key(at), suggestion=suggestion)
