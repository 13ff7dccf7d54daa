"""Models of the keys of task.toml and task.md, and checks of a mapping against a model.

Most tables are models of `benchflow.contracts`; the ones that surround them in a file are here.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.reward import RewardTable
from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.task import (
    AgentConfig,
    ArtifactSpec,
    OracleConfig,
    RoleSpec,
    StepConfig,
    TaskInfo,
    TurnSpec,
    UserSpec,
)
from benchflow.contracts.verifier import VerifierConfig
from benchflow.tasks.problems import KeyPath


class TaskTables(Model):
    """The root of task.toml, under the names that task.md uses (`sandbox`, `oracle`)."""

    schema_version: str | None = None
    task: TaskInfo = TaskInfo()
    metadata: dict[str, Any] = {}
    agent: AgentConfig = AgentConfig()
    verifier: VerifierConfig = VerifierConfig()
    sandbox: SandboxConfig = SandboxConfig()
    oracle: OracleConfig = OracleConfig()
    source: str | None = None
    artifacts: list[ArtifactSpec] = []
    steps: list[StepConfig] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    reward: RewardTable | None = None
    context_root: str | None = None


class AgentsTable(Model):
    """The table `agents` of task.md."""

    roles: dict[str, RoleSpec] = {}


class SceneTable(Model):
    """A scene as written in task.md; `complete_scenes` fills in what is left out."""

    name: str | None = None
    roles: list[str] | None = None
    turns: list[TurnSpec] = []
    skills_dir: str | None = None


class DocumentTables(TaskTables):
    """The frontmatter of task.md."""

    agents: AgentsTable = AgentsTable()
    scenes: list[SceneTable] = []
    user: UserSpec | None = None
    benchflow: dict[str, Any] = {}


Take = Callable[[KeyPath, str, Any, list[str]], None]
"""Receives a removed key: the path of its table, the key, its value, and the keys that are known there."""


def take_unknown(model: type[BaseModel], table: dict[str, Any], at: KeyPath, take: Take) -> None:
    """Remove every key that `model` doesn't know from `table` and the tables in it, in place.

    Args:
        model: Model of the table.
        table: The raw mapping.
        at: Path of the table.
        take: Called for each removed key.
    """
    known = list(model.model_fields)
    for key in [key for key in table if key not in known]:
        take(at, key, table.pop(key), known)
    for path, inner, part in _inner_tables(model, table, at):
        take_unknown(inner, part, path, take)


def booleans_as_numbers(model: type[BaseModel], table: dict[str, Any], at: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths at which `true` or `false` is given for a number: pydantic would take them for 1 and 0."""
    for key, value in table.items():
        if isinstance(value, bool) and key in model.model_fields:
            annotation = model.model_fields[key].annotation
            members = typing.get_args(annotation) or (annotation,)
            if (int in members or float in members) and bool not in members:
                yield (*at, key)
    for path, inner, part in _inner_tables(model, table, at):
        yield from booleans_as_numbers(inner, part, path)


def _inner_tables(
    model: type[BaseModel], table: dict[str, Any], at: KeyPath
) -> Iterator[tuple[KeyPath, type[BaseModel], dict[str, Any]]]:
    """Yield the mappings in `table` that have a model of their own: path, model and mapping."""
    for key, value in table.items():
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        inner = _model_in(annotation)
        if inner is None:
            continue
        parts: list[tuple[KeyPath, Any]]
        if isinstance(value, list):
            parts = [((*at, key, index), item) for index, item in enumerate(value)]
        elif isinstance(value, dict) and _is_dict_of_models(annotation):
            parts = [((*at, key, name), item) for name, item in value.items()]
        else:
            parts = [((*at, key), value)]
        yield from ((path, inner, part) for path, part in parts if isinstance(part, dict))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a field's annotation: itself, or in an optional, a list or a dict; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _is_dict_of_models(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_dict_of_models(argument) for argument in typing.get_args(annotation))
    return typing.get_origin(annotation) is dict and _model_in(annotation) is not None


def value_errors(error: ValidationError, table: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path in `table` and the message of each validation error; several of one path are joined by "or"."""
    found: dict[KeyPath, list[str]] = {}
    for detail in error.errors(include_url=False):
        path = _within(table, detail["loc"], missing=detail["type"] == "missing")
        found.setdefault(path, []).append(_words(detail))
    for path, messages in found.items():
        yield path, " or ".join(dict.fromkeys(messages))


def _within(table: Any, location: tuple[int | str, ...], *, missing: bool) -> KeyPath:
    """Return the part of an error's location that exists in the data: pydantic adds the names of union members.

    Args:
        table: The data.
        location: `loc` of the error.
        missing: Whether the error is a missing key, which is kept as the last part.
    """
    path: KeyPath = ()
    for part in location:
        inside = (isinstance(table, dict) and part in table) or (
            isinstance(table, list) and isinstance(part, int) and part < len(table)
        )
        if not inside:
            return (*path, part) if missing and part == location[-1] else path
        path, table = (*path, part), table[part]
    return path


def _words(detail: Any) -> str:
    """Return the message of a pydantic error, with the input unless it is long."""
    if detail["type"] == "missing":
        return "is required"
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "must be")
    shown = repr(detail["input"])
    return message if len(shown) > 80 else f"{message}, not {shown}"
