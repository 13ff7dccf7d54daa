"""Configurations in files: a job's for `bench submit --config`, one rollout's for the Python API, how rollouts branch.
What is short enough is a text: `group:n=8`.

Keys are the fields of `JobConfig`, `RolloutConfig` and `BranchConfig`, and a few other spellings of them. A file is
YAML, which JSON is too, or by its name TOML. Relative paths in a file are relative to that file. A key that nothing
knows, or that nothing carries out yet, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from benchflow.contracts.base import Model
from benchflow.contracts.branch import COUNT_KINDS, BranchConfig, ChildSpec, Policy
from benchflow.contracts.config import JobConfig, Role, RolloutConfig, Scene, Turn
from benchflow.contracts.gateway import ModelLimits, Replay, Sampling
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.modes import GrpoMode, ValueMode
from benchflow.contracts.retries import RetryConfig
from benchflow.contracts.reward import JudgeSettings
from benchflow.errors import ConfigError, UnsupportedFeatureError
from benchflow.tasks.problems import KeyPath, ProblemError, did_you_mean, dotted
from benchflow.tasks.text import decode_text, parse_toml, parse_yaml_mapping

M = TypeVar("M", bound=Model)

NOT_CARRIED_OUT = {
    "user": "a simulated user",
    "max_user_rounds": "a simulated user",
    "oracle_access": "a simulated user",
    "skill_mode": "skills",
    "skills_dir": "skills",
}
"""Keys that are valid, with what they ask for, and that this release refuses."""

_JOB_SPELLINGS = {"tasks_dir": "paths", "agent": "agents", "environment": "sandbox"}
_ROLLOUT_SPELLINGS = {"sandbox": "environment"}
_JOB_PATHS = ("paths", "jobs_dir", "context_root", "environment_manifest", "environment_root")
_ROLLOUT_PATHS = ("task_path", "jobs_dir", "context_root", "environment_manifest", "environment_root")
_FIELDS_OF: dict[str, Sequence[str]] = {
    "limits": list(ModelLimits.model_fields),
    "sampling": list(Sampling.model_fields),
    "replay": list(Replay.model_fields),
    "judge": list(JudgeSettings.model_fields),
    "retry": list(RetryConfig.model_fields),
    "branch": list(BranchConfig.model_fields),
    "children": list(ChildSpec.model_fields),
    "agents": [name for name in AgentSpec.model_fields if name != "record"],
    "scenes": ["name", "roles", "turns"],
    "roles": ["name", "agent", "model"],
    "turns": ["role", "prompt"],
}
_POLICIES: dict[str, type[Model]] = {kind.model_fields["kind"].default: kind for kind in get_args(get_args(Policy)[0])}
_MODES: dict[str, type[GrpoMode] | type[ValueMode]] = {"grpo": GrpoMode, "value": ValueMode}
_BRANCH_FILES = (".yaml", ".yml", ".json", ".toml")
_NOT_IN_SHORT = ("policy", "children", "options")


def read_job_file(file: Path) -> dict[str, Any]:
    """The values that a file gives, by the names of `JobConfig`, and `model`: for its agents that name none."""
    values = _read(file, [*JobConfig.model_fields, *_JOB_SPELLINGS, "model"])
    values = _normal(values, _JOB_SPELLINGS, file)
    for key in ("paths", "agents"):
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
    if "model" in values and not isinstance(values["model"], str | None):
        raise ConfigError("must be a text", file=str(file), key="model", remedy="model: NAME")
    for index, agent in enumerate(values["agents"] if isinstance(values.get("agents"), list) else []):
        # It would replace what the registry says of an agent, its provider's address included.
        if isinstance(agent, dict) and "record" in agent:
            raise ConfigError(
                "is not a key of a file", file=str(file), key=f"agents[{index}].record", remedy="remove `record`"
            )
    return _beside(_with_mode(_with_branch(values, file), file), _JOB_PATHS, file)


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
    values = _beside(_with_branch(values, file), _ROLLOUT_PATHS, file)
    return validated(RolloutConfig, values, dict.fromkeys(RolloutConfig.model_fields, str(file)))


def branch_config(given: str, *, beside: Path = Path()) -> BranchConfig:
    """How rollouts branch, by `POLICY:KEY=VALUE,…` or a file of all the keys of `BranchConfig`.

    A key is the policy's if that has it, else the table's; several steps, and their `n`, are joined by `+`. beside:
    the directory that a file's name is relative to. Raises `ConfigError`; for what is written in short, without a key.
    """
    kind, _, rest = given.partition(":")
    if kind not in _POLICIES:
        if Path(given).suffix in _BRANCH_FILES:
            file = beside / Path(given).expanduser()
            table = _read(file, list(BranchConfig.model_fields))
            return validated(BranchConfig, table, dict.fromkeys(BranchConfig.model_fields, str(file)))
        close = did_you_mean(kind, _POLICIES)
        raise ConfigError(
            f"there is no branch policy {kind!r}", remedy=f"{close}; a file ends in {', '.join(_BRANCH_FILES)}"
        )
    table = _in_short(kind, rest)
    try:
        return validated(BranchConfig, table, {})
    except ConfigError as error:
        error.message, error.key = f"{error.key}: {error.message}", None
        raise


def _in_short(kind: str, rest: str) -> dict[str, Any]:
    policy: dict[str, Any] = {"kind": kind}
    table: dict[str, Any] = {"policy": policy}
    of_policy = [name for name in _POLICIES[kind].model_fields if name not in ("kind", "options")]
    known = [*of_policy, *(name for name in BranchConfig.model_fields if name not in _NOT_IN_SHORT)]
    for name, value in _pairs(kind, rest, known, "POLICY:KEY=VALUE,… as in group:n=8,at=0").items():
        where = policy if name in of_policy else table
        where[name] = value.split("+") if name == "steps" or (name == "n" and "+" in value) else value
    return table


def mode_config(given: str) -> GrpoMode | ValueMode:
    """What a job is for, by `MODE:KEY=VALUE,…`; depths are joined by `+`. Raises `ConfigError` without a key."""
    kind, _, rest = given.partition(":")
    if kind not in _MODES:
        raise ConfigError(f"there is no mode {kind!r}", remedy=did_you_mean(kind, _MODES))
    model = _MODES[kind]
    known = [name for name in model.model_fields if name != "kind"]
    pairs = _pairs(kind, rest, known, "MODE:KEY=VALUE,… as in value:depths=0+2,n=4")
    table = {name: value.split("+") if name == "depths" else value for name, value in pairs.items()}
    try:
        return validated(model, table, {})
    except ConfigError as error:
        error.message, error.key = f"{error.key}: {error.message}" if error.key else error.message, None
        raise


def _pairs(kind: str, rest: str, known: Sequence[str], form: str) -> dict[str, str]:
    """`KEY=VALUE,…` after the name of what has these keys. form: as it is to be written."""
    pairs: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{part!r} is no KEY=VALUE", remedy=f"write {form}")
        if name not in known:
            raise ConfigError(f"{kind} has no {name!r}", remedy=did_you_mean(name, known))
        if name in pairs:
            raise ConfigError(f"{name!r} is given twice", remedy="give it once; several are joined by +: 1+2")
        pairs[name] = value
    return pairs


def _with_branch(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """What a file says in short of branches, spelt out."""
    given = values.get("branch")
    if not isinstance(given, str):
        return values
    try:
        return values | {"branch": branch_config(given, beside=file.parent)}
    except ConfigError as error:
        if error.file is None:
            error.file, error.key = str(file), "branch"
        raise


def _with_mode(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """What a file says in short of the job's mode, spelt out."""
    given = values.get("mode")
    if not isinstance(given, str):
        return values
    try:
        return values | {"mode": mode_config(given)}
    except ConfigError as error:
        error.file, error.key = str(file), "mode"
        raise


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
        # The user's own file, which may be a pipe.
        text = decode_text(file.read_bytes(), file)
        values = parse_toml(text, file) if file.suffix == ".toml" else parse_yaml_mapping(text, file)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(file)) from error
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
    # Dataclasses and unions put a marker between a field and its own keys.
    at, kind = _without_kind(tuple(part for part in details["loc"] if part not in _MARKERS))
    file = files.get(str(at[0])) if at else None
    key = dotted(at) or None
    if details["type"] in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type") and "policy" in at:
        tag = details.get("ctx", {}).get("tag")
        message = f"there is no branch policy {tag!r}" if tag else "names no branch policy"
        known = did_you_mean(str(tag), _POLICIES) if tag else "policy: {kind: group, n: 8}"
        return ConfigError(message, file=file, key=key, remedy=known)
    if details["type"] in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type") and at == ("mode",):
        tag = details.get("ctx", {}).get("tag")
        message = f"there is no mode {tag!r}" if tag else "names no mode"
        known = did_you_mean(str(tag), _MODES) if tag else "mode: {kind: grpo, n: 8}"
        return ConfigError(message, file=file, key=key, remedy=known)
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        table = next((part for part in reversed(at[:-1]) if isinstance(part, str)), "")
        kinds = _KINDS.get(table)
        fields = list(kinds[kind].model_fields) if kinds and kind else _FIELDS_OF.get(table)
        remedy = did_you_mean(str(at[-1]), fields) if fields else None
        return ConfigError("is not a known key", file=file, key=key, remedy=remedy)
    if details["type"] in ("missing", "missing_argument"):
        return ConfigError("is missing", file=file, key=key, remedy=f"add `{at[-1]}`")
    message = details["msg"].removeprefix("Value error, ")
    return ConfigError(f"{message[:1].lower()}{message[1:]}", file=file, key=key, remedy=_remedy(details))


def _without_kind(at: KeyPath) -> tuple[KeyPath, str | None]:
    """A place without the kind of policy, or mode, that is put after its key; and that kind."""
    for table, kinds in _KINDS.items():
        if table in at[:-1]:
            after = at.index(table) + 1
            kind = at[after]
            return (at[:after] + at[after + 1 :], str(kind)) if kind in kinds else (at, None)
    return at, None


_KINDS: dict[str, Mapping[str, type[Model]]] = {"policy": _POLICIES, "mode": _MODES}


_MARKERS = {*(kind.__name__ for kind in (Role, Scene, Turn)), *COUNT_KINDS}


def _remedy(details: ErrorDetails) -> str | None:
    given = details["input"]
    return f"change {given!r}" if isinstance(given, str | int | float | bool) else None
