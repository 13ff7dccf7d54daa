"""Reward functions by their type in a task: built-ins, entry points of `benchflow.rewards`, and `module:Class`.

A built-in is imported at its first use; `module:Class` only if an installed package declares it, or the user allows it
(see `benchflow.contracts.allowed_code`). They are run in `score`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass
from functools import reduce
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

from pydantic import ValidationError

from benchflow.contracts.allowed_code import allowing, is_allowed
from benchflow.contracts.reward import RewardFunc, RewardFuncSpec, RewardTable, Space
from benchflow.errors import TaskError
from benchflow.user_files.problems import format_path, suggest_known
from benchflow.user_files.user_model import find_booleans_as_numbers, list_faults, take_unknown

GROUP = "benchflow.rewards"
SPACES: tuple[str, ...] = get_args(Space)

BUILT_IN: dict[str, str] = {
    "tests": "benchflow.planes.reward.output:TestRewardFunc",
    "string-match": "benchflow.planes.reward.output:StringMatchRewardFunc",
    "code-exec": "benchflow.planes.reward.output:CodeExecRewardFunc",
    "llm-judge": "benchflow.planes.reward.output:ModelJudgeRewardFunc",
    "forbidden-tools": "benchflow.planes.reward.action:ForbiddenTools",
    "known-tools": "benchflow.planes.reward.action:KnownTools",
    "required-calls": "benchflow.planes.reward.action:RequiredCalls",
    "call-order": "benchflow.planes.reward.action:CallOrder",
    "call-budget": "benchflow.planes.reward.action:CallBudget",
    "asked": "benchflow.planes.reward.action:Asked",
    "no-reward-hacking": "benchflow.planes.reward.action:NoRewardHacking",
    "tampering": "benchflow.planes.reward.action:Tampering",
    "reasoning-judge": "benchflow.planes.reward.reasoning:ReasoningJudge",
    "reasoning-checks": "benchflow.planes.reward.reasoning:ReasoningChecks",
    "skills": "benchflow.planes.reward.memory:Skills",
    "memory-files": "benchflow.planes.reward.memory:MemoryFiles",
}
"""Import paths (`module:Class`) of the built-in reward functions, by type."""

_CLAIMS = ("claimed_files", "claimed_success")
"""Options that `reasoning-checks` once had. Regular expressions found less than a quarter of the claims in answers."""


def make_function(spec: RewardFuncSpec, *, file: str, index: int = 0, allowed: Collection[str] = ()) -> RewardFunc:
    """Construct the reward function that a row of `reward.funcs` declares.

    Args:
        spec: The row.
        file: File that declares it, for errors.
        index: Index of the row, for errors.
        allowed: Modules that the user allows tasks to name.

    Raises:
        TaskError: The type is unknown, not allowed or no reward function, or an option is unknown or has a wrong value.
    """
    at = ("reward", "funcs", index)
    make = _find(spec.type, file, format_path((*at, "type")), allowed)
    kind: Any = make
    for fault, _ in take_unknown(kind, dict(spec.options), at):
        refusal = fault.as_error(TaskError, file)
        if fault.at[-1] in _CLAIMS:
            refusal.remedy = "remove it: only a judge reads claims (`type: reasoning-judge`)"
        raise refusal
    for fault in find_booleans_as_numbers(kind, spec.options, at):
        raise fault.as_error(TaskError, file)
    # A function with an option `name` gets the row's name.
    has_name = is_dataclass(make) and "name" in (field.name for field in fields(make))
    try:
        function = make(**({"name": spec.name} if has_name else {}) | spec.options)
    except ValidationError as error:
        fault = next(list_faults(error, spec.options))
        raise fault._replace(at=(*at, *fault.at)).as_error(TaskError, file) from error
    except TaskError:
        raise
    except Exception as error:
        message = f"{spec.type!r} cannot be made with these options: {type(error).__name__}: {error}"
        raise TaskError(message, file=file, key=format_path(at)) from error
    _expect_space(function, spec, file, format_path((*at, "type")))
    return function


def check_functions(table: RewardTable, *, file: str, allowed: Collection[str] = ()) -> None:
    """Raise the `TaskError` of the first invalid row, or of an aggregate with a weight for a metric that none reports.

    Only metrics named after a space are checked: `<space>` and `<space>.<name>`.

    Args:
        table: The task's reward table.
        file: File that declares it, for errors.
        allowed: Modules that the user allows tasks to name.
    """
    functions = {
        spec.name: make_function(spec, file=file, index=i, allowed=allowed) for i, spec in enumerate(table.funcs)
    }
    _check_aggregate(table, functions, file)


def check_declared(table: RewardTable, *, file: str) -> Iterator[tuple[str, str]]:
    """Check a table like `check_functions`, without importing any code but our own.

    The options and spaces of third-party functions stay unchecked.

    Yields:
        The key, and the `module:Class`, of each row whose code is imported only if the user allows it.
    """
    functions: dict[str, object] = {}
    for index, spec in enumerate(table.funcs):
        at = f"reward.funcs[{index}]"
        origin, _ = _locate(spec.type, file, f"{at}.type")
        own = origin == "built-in"
        functions[spec.name] = make_function(spec, file=file, index=index) if own else None
        if origin == "named":
            yield f"{at}.type", spec.type
    _check_aggregate(table, functions, file)


def _check_aggregate(table: RewardTable, functions: dict[str, Any], file: str) -> None:
    """Raise `TaskError` if the aggregate has a weight for a metric of a space that no function reports."""
    # A function without a declared space may score any: then nothing can be checked.
    if table.aggregate is None or not all(hasattr(function, "space") for function in functions.values()):
        return
    known = {"output"} | {space_of(function) for function in functions.values()}
    known |= {f"{space_of(function)}.{name}" for name, function in functions.items()}
    for metric in table.aggregate.weights:
        of_a_space = metric.partition(".")[0] in SPACES
        if of_a_space and metric not in known and not any(metric.startswith(f"{one}.") for one in known if "." in one):
            raise TaskError(
                "no function of `reward.funcs` reports it",
                file=file,
                key=f"reward.aggregate.weights.{metric}",
                remedy=suggest_known(metric, known),
            )


def space_of(function: RewardFunc) -> Space:
    """Return the space that a function declares; `output` if it declares none."""
    space: Space = getattr(function, "space", "output")
    return space


# --- lookup ---------------------------------------------------------------------------------------------


Origin = Literal["built-in", "installed", "named"]
"""Origin of a function: this package, an entry point of an installed one, or an import path that a task names."""


def _locate(kind: str, file: str, key: str) -> tuple[Origin, str]:
    """Return the origin and the `module:Class` of a function, without an import.

    Raise `TaskError` for an unknown type.
    """
    if kind in BUILT_IN:
        return "built-in", BUILT_IN[kind]
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    if kind in points:
        return "installed", points[kind]
    if ":" in kind:
        return "installed" if kind in points.values() else "named", kind
    raise TaskError(
        f"there is no reward function {kind!r}", file=file, key=key, remedy=suggest_known(kind, {*BUILT_IN, *points})
    )


def _find(kind: str, file: str, key: str, allowed: Collection[str]) -> Callable[..., RewardFunc]:
    """Return the class of a type. Raise `TaskError` if it is unknown, not allowed or cannot be imported."""
    origin, target = _locate(kind, file, key)
    if origin == "named" and not is_allowed(target, allowed):
        raise TaskError(
            f"{kind!r} is code of this host that no installed package declares for tasks: it is not imported",
            file=file,
            key=key,
            remedy=allowing(target),
        )
    return _load(target, kind, file, key)


def _load(target: str, kind: str, file: str, key: str) -> Callable[..., RewardFunc]:
    module, _, path = target.partition(":")
    try:
        found = reduce(getattr, path.split("."), importlib.import_module(module))
    # A user's module may fail in any way while it is imported, and may end the process, if it is a program.
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"{kind!r} cannot be imported: {type(error).__name__}: {error}",
            file=file,
            key=key,
            remedy="install its package where the task is submitted and where it is scored, and write `module:Class`",
        ) from error
    # Checked before it is called: the task chooses this name, and must not call any installed function.
    if not isinstance(found, type) or not callable(getattr(found, "score", None)):
        raise TaskError(
            f"{kind!r} is no class of reward functions: it has no method `score`",
            file=file,
            key=key,
            remedy="name a class with `async def score(self, node) -> RewardEvent`, as `module:Class`",
        )
    made: Callable[..., RewardFunc] = found
    return made


def _expect_space(function: object, spec: RewardFuncSpec, file: str, key: str) -> None:
    space = getattr(function, "space", "output")
    if space not in SPACES:
        raise TaskError(
            f"{spec.type!r} says that its space is {space!r}",
            file=file,
            key=key,
            remedy=suggest_known(str(space), SPACES),
        )
