"""Configurations in YAML files: a job's for `bench submit --config`, one rollout's for the Python API.

Keys are the fields of `JobConfig` and `RolloutConfig`, and a few other spellings of them. Relative paths in a file
are relative to that file. A key that nothing knows, or that nothing carries out yet, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from benchflow.contracts.base import Model
from benchflow.contracts.config import JobConfig, Role, RolloutConfig, Scene, Turn
from benchflow.contracts.gateway import ModelLimits, Replay, Sampling
from benchflow.contracts.job import AgentSpec, RetryConfig
from benchflow.contracts.reward import JudgeSettings
from benchflow.errors import ConfigError, UnsupportedFeatureError
from benchflow.tasks.problems import ProblemError, did_you_mean, dotted
from benchflow.tasks.text import parse_yaml_mapping, read_text

M = TypeVar("M", bound=Model)

NOT_CARRIED_OUT = {
    "user": "a simulated user",
    "max_user_rounds": "a simulated user",
    "oracle_access": "a simulated user",
    "skill_mode": "skills",
    "skills_dir": "skills",
    "branch": "branching",
}
"""Keys that are valid, with what they ask for, and that this release refuses."""

_JOB_SPELLINGS = {"tasks_dir": "paths", "agent": "agents", "environment": "sandbox"}
_ROLLOUT_SPELLINGS = {"sandbox": "environment"}
_JOB_PATHS = ("paths", "jobs_dir", "context_root", "environment_manifest")
_ROLLOUT_PATHS = ("task_path", "jobs_dir", "context_root", "environment_manifest")
_FIELDS_OF: dict[str, Sequence[str]] = {
    "limits": list(ModelLimits.model_fields),
    "sampling": list(Sampling.model_fields),
    "replay": list(Replay.model_fields),
    "judge": list(JudgeSettings.model_fields),
    "retry": list(RetryConfig.model_fields),
    "agents": list(AgentSpec.model_fields),
    "scenes": ["name", "roles", "turns"],
    "roles": ["name", "agent", "model"],
    "turns": ["role", "prompt"],
}


def read_job_file(file: Path) -> dict[str, Any]:
    """The values that a file gives, by the names of `JobConfig`, and `model`: for its agents that name none."""
    values = _read(file, [*JobConfig.model_fields, *_JOB_SPELLINGS, "model"])
    values = _normal(values, _JOB_SPELLINGS, file)
    for key in ("paths", "agents"):
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
    if "model" in values and not isinstance(values["model"], str | None):
        raise ConfigError("must be a text", file=str(file), key="model", remedy="model: NAME")
    return _beside(values, _JOB_PATHS, file)


def rollout_config_from_yaml(path: Path | str) -> RolloutConfig:
    """The rollout that a file asks for. Raises `ConfigError` or `UnsupportedFeatureError`, naming file and key.

    Keys: the fields of `RolloutConfig`; `sandbox` for `environment`; `agent` and `model` for a scene of one role.
    """
    file = Path(path)
    values = _read(file, [*RolloutConfig.model_fields, *_ROLLOUT_SPELLINGS, "agent", "model"])
    values = _normal(values, _ROLLOUT_SPELLINGS, file)
    agent, model = values.pop("agent", None), values.pop("model", None)
    if agent is not None and "scenes" in values:
        raise ConfigError("says the same as `scenes`", file=str(file), key="agent", remedy="give one of the two")
    if model is not None and agent is None:
        raise ConfigError("belongs to no agent", file=str(file), key="model", remedy="name it with `agent: NAME`")
    if agent is not None:
        spec = AgentSpec.parse(str(agent))
        values["scenes"] = [Scene.single(agent=spec.name, model=spec.model or model)]
    elif isinstance(values.get("scenes"), list):
        values["scenes"] = [_scene(scene) for scene in values["scenes"]]
    return validated(
        RolloutConfig, _beside(values, _ROLLOUT_PATHS, file), dict.fromkeys(RolloutConfig.model_fields, str(file))
    )


def validated(model: type[M], values: Mapping[str, Any], files: Mapping[str, str]) -> M:
    """The model made from values. Raises `ConfigError` with the key, and the file that gave it (see `files`)."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _config_error(error.errors()[0], values, files) from error


def refuse(key: str, file: str | None = None) -> UnsupportedFeatureError:
    """The error for a key that is valid and not carried out."""
    return UnsupportedFeatureError(
        f"{NOT_CARRIED_OUT[key]} cannot be carried out in this release", file=file, key=key, remedy=f"remove `{key}`"
    )


def _read(file: Path, known: Sequence[str]) -> dict[str, Any]:
    try:
        values = parse_yaml_mapping(read_text(file), file)
    except ProblemError as error:
        problem = error.problem
        raise ConfigError(problem.message, file=str(file), key=problem.key, remedy=problem.suggestion) from error
    for key in values:
        if key not in known:
            if key in NOT_CARRIED_OUT:
                raise refuse(key, str(file))
            raise ConfigError("is not a known key", file=str(file), key=key, remedy=did_you_mean(key, known))
    return values


def _normal(values: dict[str, Any], spellings: Mapping[str, str], file: Path) -> dict[str, Any]:
    """The values under the names of the model's fields."""
    for other, name in spellings.items():
        if other in values and name in values:
            raise ConfigError(f"says the same as `{name}`", file=str(file), key=other, remedy="give one of the two")
    return {spellings.get(key, key): value for key, value in values.items()}


def _beside(values: dict[str, Any], keys: Sequence[str], file: Path) -> dict[str, Any]:
    """Relative paths made relative to the file's directory."""

    def resolve(value: Any) -> Any:
        return file.parent / Path(value).expanduser() if isinstance(value, str) else value

    for key in keys:
        if key in values:
            value = values[key]
            values[key] = [resolve(item) for item in value] if isinstance(value, list) else resolve(value)
    return values


def _scene(scene: Any) -> Any:
    """A scene's turns may be just the names of their roles."""
    if not isinstance(scene, dict) or not isinstance(scene.get("turns"), list):
        return scene
    return scene | {"turns": [{"role": turn} if isinstance(turn, str) else turn for turn in scene["turns"]]}


def _config_error(details: ErrorDetails, values: Mapping[str, Any], files: Mapping[str, str]) -> ConfigError:
    # Dataclasses put a marker between a field and its own keys.
    at = tuple(part for part in details["loc"] if part not in _MARKERS)
    file = files.get(str(at[0])) if at else None
    key = dotted(at) or None
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        table = next((part for part in reversed(at[:-1]) if isinstance(part, str)), "")
        remedy = did_you_mean(str(at[-1]), _FIELDS_OF.get(table, [])) if table in _FIELDS_OF else None
        return ConfigError("is not a known key", file=file, key=key, remedy=remedy)
    if details["type"] in ("missing", "missing_argument"):
        return ConfigError("is missing", file=file, key=key, remedy=f"add `{at[-1]}`")
    message = details["msg"].removeprefix("Value error, ")
    return ConfigError(f"{message[:1].lower()}{message[1:]}", file=file, key=key, remedy=_remedy(details))


_MARKERS = {kind.__name__ for kind in (Role, Scene, Turn)}


def _remedy(details: ErrorDetails) -> str | None:
    given = details["input"]
    return f"change {given!r}" if isinstance(given, str | int | float | bool) else None
