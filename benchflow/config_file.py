"""Parser of configurations: a job's, a rollout's, branches, and their short forms such as `group:n=8`.

Keys are the fields of `JobConfig`, `RolloutConfig` and `BranchConfig`, and a few aliases of them. A file is YAML, which
includes JSON, or TOML if its name says so. Relative paths in a file are relative to that file. A key that is unknown,
or not supported yet, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from benchflow.contracts.base import Model
from benchflow.contracts.branch import BranchConfig, Policy
from benchflow.contracts.config import JobConfig, RolloutConfig, Scene
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.job_modes import GrpoMode, ValueMode
from benchflow.errors import ConfigError, UnsupportedFeatureError
from benchflow.user_files.problems import ProblemError, suggest_known
from benchflow.user_files.user_document import UserDocument, decode_text
from benchflow.user_files.user_model import KeyFault, require_model

M = TypeVar("M", bound=Model)

REFUSED_KEYS = {
    "user": "a simulated user",
    "max_user_rounds": "a simulated user",
    "oracle_access": "a simulated user",
    "skill_mode": "skills",
    "skills_dir": "skills",
}
"""Valid keys that this release refuses, with the feature that each asks for."""

_JOB_SPELLINGS = {"tasks_dir": "paths", "agent": "agents", "environment": "sandbox"}
_ROLLOUT_SPELLINGS = {"sandbox": "environment"}
_JOB_PATHS = ("paths", "jobs_dir", "context_root", "environment_manifest", "environment_root")
_ROLLOUT_PATHS = ("task_path", "jobs_dir", "context_root", "environment_manifest", "environment_root")
_POLICIES: dict[str, type[Model]] = {kind.model_fields["kind"].default: kind for kind in get_args(get_args(Policy)[0])}
_MODES: dict[str, type[GrpoMode] | type[ValueMode]] = {"grpo": GrpoMode, "value": ValueMode}
_BRANCH_FILES = (".yaml", ".yml", ".json", ".toml")
_NOT_IN_SHORT = ("policy", "children", "options")


def read_job_file(file: Path) -> dict[str, Any]:
    """Return the values in a job's file, under the field names of `JobConfig`, with relative paths resolved.

    A further key, `model`, is for those of its agents that name no model.

    Raises:
        ConfigError: The file cannot be read, or has an unknown or invalid key.
        UnsupportedFeatureError: It has a key that this release refuses.
    """
    values = _read(file, [*JobConfig.model_fields, *_JOB_SPELLINGS, "model"])
    values = _replace_aliases(values, _JOB_SPELLINGS, file)
    for key in ("paths", "agents"):
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
    if "model" in values and not isinstance(values["model"], str | None):
        raise ConfigError("must be a text", file=str(file), key="model", remedy="model: NAME")
    for index, agent in enumerate(values["agents"] if isinstance(values.get("agents"), list) else []):
        # A record in the file would replace the registry's, including the address of the agent's provider.
        if isinstance(agent, dict) and "record" in agent:
            raise ConfigError(
                "is not a key of a file", file=str(file), key=f"agents[{index}].record", remedy="remove `record`"
            )
    return _resolve_paths(_expand_mode(_expand_branch(values, file), file), _JOB_PATHS, file)


def rollout_config_from_yaml(path: Path | str) -> RolloutConfig:
    """Return the rollout's configuration in a file.

    Keys are the fields of `RolloutConfig`, `sandbox` as an alias of `environment`, and `agent` and `model` for a scene
    with one role.

    Raises:
        ConfigError: The file cannot be read, or a key is wrong; names file and key.
        UnsupportedFeatureError: It has a key that this release refuses.
    """
    file = Path(path)
    values = _read(file, [*RolloutConfig.model_fields, *_ROLLOUT_SPELLINGS, "agent", "model"])
    values = _replace_aliases(values, _ROLLOUT_SPELLINGS, file)
    agent, model = values.pop("agent", None), values.pop("model", None)
    if agent is not None and "scenes" in values:
        raise ConfigError("says the same as `scenes`", file=str(file), key="agent", remedy="give one of the two")
    if model is not None and agent is None:
        raise ConfigError("belongs to no agent", file=str(file), key="model", remedy="name it with `agent: NAME`")
    if agent is not None:
        spec = AgentSpec.parse(str(agent))
        values["scenes"] = [Scene.single(agent=spec.name, model=spec.model or model)]
    elif isinstance(values.get("scenes"), list):
        values["scenes"] = [_expand_turns(scene) for scene in values["scenes"]]
    values = _resolve_paths(_expand_branch(values, file), _ROLLOUT_PATHS, file)
    return validate(RolloutConfig, values, dict.fromkeys(RolloutConfig.model_fields, str(file)))


def parse_branch(given: str, *, beside: Path = Path()) -> BranchConfig:
    """Return the branch configuration in `POLICY:KEY=VALUE,…`, or in a file with the keys of `BranchConfig`.

    A key in the short form is the policy's, if it has that key, else the table's. Several `steps`, and their `n`, are
    joined by `+`.

    Args:
        given: The short form, or a file name.
        beside: Directory that a relative file name is resolved against.

    Raises:
        ConfigError: It is invalid; without a key if it is in the short form.
    """
    kind, _, rest = given.partition(":")
    if kind not in _POLICIES:
        if Path(given).suffix in _BRANCH_FILES:
            file = beside / Path(given).expanduser()
            table = _read(file, list(BranchConfig.model_fields))
            return validate(BranchConfig, table, dict.fromkeys(BranchConfig.model_fields, str(file)))
        close = suggest_known(kind, _POLICIES)
        raise ConfigError(
            f"there is no branch policy {kind!r}", remedy=f"{close}; a file ends in {', '.join(_BRANCH_FILES)}"
        )
    table = _parse_short_form(kind, rest)
    try:
        return validate(BranchConfig, table, {})
    except ConfigError as error:
        error.message, error.key = f"{error.key}: {error.message}", None
        raise


def _parse_short_form(kind: str, rest: str) -> dict[str, Any]:
    """Return the table that the short form of a branch configuration stands for."""
    policy: dict[str, Any] = {"kind": kind}
    table: dict[str, Any] = {"policy": policy}
    of_policy = [name for name in _POLICIES[kind].model_fields if name not in ("kind", "options")]
    known = [*of_policy, *(name for name in BranchConfig.model_fields if name not in _NOT_IN_SHORT)]
    for name, value in _parse_pairs(kind, rest, known, "POLICY:KEY=VALUE,… as in group:n=8,at=0").items():
        where = policy if name in of_policy else table
        where[name] = value.split("+") if name == "steps" or (name == "n" and "+" in value) else value
    return table


def parse_mode(given: str) -> GrpoMode | ValueMode:
    """Return the mode in `MODE:KEY=VALUE,…`; several depths are joined by `+`. Raise `ConfigError`, without a key."""
    kind, _, rest = given.partition(":")
    if kind not in _MODES:
        raise ConfigError(f"there is no mode {kind!r}", remedy=suggest_known(kind, _MODES))
    model = _MODES[kind]
    known = [name for name in model.model_fields if name != "kind"]
    pairs = _parse_pairs(kind, rest, known, "MODE:KEY=VALUE,… as in value:depths=0+2,n=4")
    table = {name: value.split("+") if name == "depths" else value for name, value in pairs.items()}
    try:
        return validate(model, table, {})
    except ConfigError as error:
        error.message, error.key = f"{error.key}: {error.message}" if error.key else error.message, None
        raise


def _parse_pairs(kind: str, rest: str, known: Sequence[str], form: str) -> dict[str, str]:
    """Return the pairs in `KEY=VALUE,…`.

    Args:
        kind: Name of the policy or mode, for errors.
        rest: The text.
        known: Keys that are allowed.
        form: Correct form, for the remedy of an error.
    """
    pairs: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{part!r} is no KEY=VALUE", remedy=f"write {form}")
        if name not in known:
            raise ConfigError(f"{kind} has no {name!r}", remedy=suggest_known(name, known))
        if name in pairs:
            raise ConfigError(f"{name!r} is given twice", remedy="give it once; several are joined by +: 1+2")
        pairs[name] = value
    return pairs


def _expand_branch(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the values with the short form of `branch`, if any, replaced by the configuration."""
    given = values.get("branch")
    if not isinstance(given, str):
        return values
    try:
        return values | {"branch": parse_branch(given, beside=file.parent)}
    except ConfigError as error:
        if error.file is None:
            error.file, error.key = str(file), "branch"
        raise


def _expand_mode(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the values with the short form of `mode`, if any, replaced by the mode."""
    given = values.get("mode")
    if not isinstance(given, str):
        return values
    try:
        return values | {"mode": parse_mode(given)}
    except ConfigError as error:
        error.file, error.key = str(file), "mode"
        raise


def validate(model: type[M], values: Mapping[str, Any], files: Mapping[str, str]) -> M:
    """Return a model made from values.

    Args:
        model: Class of the model.
        values: Values by field.
        files: Name of the file that set a field, by field, for errors.

    Raises:
        ConfigError: A value is invalid; names its key and file.
    """

    def error(fault: KeyFault) -> ConfigError:
        return fault.as_error(ConfigError, files.get(str(fault.at[0])) if fault.at else None)

    return require_model(model, dict(values), error)


def make_refusal(key: str, file: str | None = None) -> UnsupportedFeatureError:
    """Return the error for a valid key that this release refuses."""
    return UnsupportedFeatureError(
        f"{REFUSED_KEYS[key]} cannot be carried out in this release", file=file, key=key, remedy=f"remove `{key}`"
    )


def _read(file: Path, known: Sequence[str]) -> dict[str, Any]:
    """Return the table in a file. Raise `ConfigError` for unknown keys, `UnsupportedFeatureError` for refused ones."""
    try:
        # The user's own file, which may be a pipe.
        text = decode_text(file.read_bytes(), file)
        values = UserDocument(file, text, "toml" if file.suffix == ".toml" else "yaml").table
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(file)) from error
    except ProblemError as error:
        raise error.as_error(ConfigError) from error
    for key in values:
        if key not in known:
            if key in REFUSED_KEYS:
                raise make_refusal(key, str(file))
            raise ConfigError("is not a known key", file=str(file), key=key, remedy=suggest_known(key, known))
    return values


def _replace_aliases(values: dict[str, Any], spellings: Mapping[str, str], file: Path) -> dict[str, Any]:
    """Return the values with aliases replaced by field names."""
    for other, name in spellings.items():
        if other in values and name in values:
            raise ConfigError(f"says the same as `{name}`", file=str(file), key=other, remedy="give one of the two")
    return {spellings.get(key, key): value for key, value in values.items()}


def _resolve_paths(values: dict[str, Any], keys: Sequence[str], file: Path) -> dict[str, Any]:
    """Resolve relative paths under these keys against the file's directory, and return the values."""

    def resolve(value: Any) -> Any:
        return file.parent / Path(value).expanduser() if isinstance(value, str) else value

    for key in keys:
        if key in values:
            value = values[key]
            values[key] = [resolve(item) for item in value] if isinstance(value, list) else resolve(value)
    return values


def _expand_turns(scene: Any) -> Any:
    """Return a scene with turns that are just a role's name replaced by tables."""
    if not isinstance(scene, dict) or not isinstance(scene.get("turns"), list):
        return scene
    return scene | {"turns": [{"role": turn} if isinstance(turn, str) else turn for turn in scene["turns"]]}
