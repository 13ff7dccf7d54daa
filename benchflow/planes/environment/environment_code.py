"""Environments in code: classes of installed packages, by entry point, and in the user's modules, by import path."""

from __future__ import annotations

import hashlib
import inspect
import json
from importlib.metadata import entry_points
from pathlib import Path

from benchflow.contracts.environment import EnvironmentRef, Manifest, StateTable, TaskSelection
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import ConfigError
from benchflow.planes.environment.rules import find_problems
from benchflow.user_code import import_anew, import_for_job
from benchflow.user_files.user_model import KeyFault, require_model

GROUP = "benchflow.environments"
"""Entry points by which installed packages declare environments."""

NAME_KEY, PATH_KEY = "environment_name", "environment_import_path"
"""Keys of configurations that name an environment in code: an entry point, and an import path."""


def load_environment(code: str, root: str = ".", *, job: str | None = None) -> type[StatefulEnvironment]:
    """Import an environment.

    Args:
        code: `module:Class`, or the name of an entry point.
        root: Directory in which the module is looked for after the installed ones.
        job: Id of the job, for which it is imported once; None to import the module's file as it is now.

    Raises:
        ConfigError: It cannot be imported, is no subclass of `StatefulEnvironment`, or leaves methods abstract.
    """
    if ":" not in code:
        key, found = NAME_KEY, _load_entry_point(code)
    elif job is None:
        key, found = PATH_KEY, import_anew(code, root, key=PATH_KEY)
    else:
        key, found = PATH_KEY, import_for_job(code, root, job, key=PATH_KEY)
    if not (isinstance(found, type) and issubclass(found, StatefulEnvironment)):
        raise ConfigError(
            f"{code} is no subclass of benchflow.contracts.world.StatefulEnvironment",
            key=key,
            remedy="name the class, not an object of it; see docs/custom-environment.md",
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(
            f"{code} does not define {', '.join(missing)}",
            key=key,
            remedy="define all of provision, readiness, query, snapshot, restore, reset, teardown",
        )
    return found


def _load_entry_point(name: str) -> object:
    """Load and return the object of an entry point. Raise `ConfigError` if it is unknown or cannot be loaded."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        known = ", ".join(sorted(points)) or "none is installed"
        raise ConfigError(
            f"there is no environment {name!r}",
            key=NAME_KEY,
            remedy=f"known entry points of the group {GROUP}: {known}; for a class of your own: module:Class",
        )
    try:
        found: object = points[name].load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the environment {name!r} ({points[name].value}) cannot be loaded: {type(error).__name__}: {error}",
            key=NAME_KEY,
            remedy="reinstall the package that declares it",
        ) from error
    return found


def describe_environment(environment: type[StatefulEnvironment], code: str) -> Manifest:
    """Return the declarations of a class as a manifest.

    Args:
        environment: The class.
        code: Its import path or entry point, as the configuration has it, for errors.

    Raises:
        ConfigError: An attribute has an invalid value.
    """
    key = PATH_KEY if ":" in code else NAME_KEY
    values = {
        "name": getattr(environment, "name", None),
        "image": environment.image,
        "ports": environment.ports,
        "owns_lifecycle": False,
        "keep_alive": environment.keep_alive,
        "isolation": environment.isolation,
        # Rollouts that share a sandbox have different tasks: the id goes into each command's environment.
        "task_selection": TaskSelection(inject_into="exec"),
        "readiness": {"timeout_sec": environment.readiness_timeout_sec},
        "forward_env": {"keys": environment.forward_env},
        "state": StateTable() if environment.is_stateful else None,
    }

    def error(fault: KeyFault) -> ConfigError:
        return ConfigError(f"{code} has a wrong attribute: {fault}", key=key, remedy="correct the class")

    declared = require_model(Manifest, values, error)
    # The rules require an image, and services if the entrypoint does not start them; a class need declare neither.
    as_manifest = declared.model_copy(update={"owns_lifecycle": True, "image": declared.image or "task"})
    for at, message, remedy in find_problems(as_manifest, {}):
        raise ConfigError(f"{code}: {'.'.join(str(part) for part in at)} {message}", key=key, remedy=remedy)
    return declared


def digest_environment(environment: type[StatefulEnvironment], declared: Manifest) -> str:
    """Return the SHA-256, in hex, of a class's name, its declarations, and the content of its file."""
    try:
        file = hashlib.sha256(Path(inspect.getfile(environment)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        file = None
    said = {
        "code": f"{environment.__module__}:{environment.__qualname__}",
        "declared": declared.model_dump(mode="json", exclude_defaults=True),
        "file": file,
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def load_code(ref: EnvironmentRef, job: str) -> type[StatefulEnvironment] | None:
    """Return the class of an environment in code, imported once for the job; None for a manifest.

    Args:
        ref: Reference to the environment.
        job: Id of the job.

    Raises:
        ConfigError: It cannot be imported, or is no environment.
    """
    return load_environment(ref.code, ref.code_root or ".", job=job) if ref.code is not None else None
