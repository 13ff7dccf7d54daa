"""Read a task's compose file for what can be done without Compose: settings of the main container alone.

That is little, on purpose: variables, a working directory, and keys that repeat the sandbox's own behaviour. The task
is refused for the first other key, which is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.verifier import VerifierConfig
from benchflow.references import is_reference
from benchflow.tasks.text import parse_yaml
from benchflow.user_files.problems import ProblemError
from benchflow.user_files.user_document import read_text

COMPOSE_FILE = "docker-compose.yaml"
"""The only name that Harbor reads."""

_MAIN = "services.main"
_CONTEXTS = (None, ".", "./", "${CONTEXT_DIR}")
_DOCKERFILES = (None, "Dockerfile", "./Dockerfile")
_KEEP_ALIVE = (
    "sleep infinity",
    ["sleep", "infinity"],
    ["sh", "-c", "sleep infinity"],
    "tail -f /dev/null",
    ["tail", "-f", "/dev/null"],
)
_LOGS = tuple(f"${{HOST_{name}_PATH}}:${{ENV_{name}_PATH}}" for name in ("VERIFIER_LOGS", "AGENT_LOGS", "ARTIFACTS"))
_LIMITS = {"cpus": "${CPUS}", "memory": "${MEMORY}"}
"""Log mounts and limits in older templates of Harbor. It now makes them itself, and here the sandbox has them."""


class ComposeReading(NamedTuple):
    """Effect of a compose file."""

    sandbox: SandboxConfig
    """The task's sandbox with the compose file's settings; without them if the file is refused."""

    refused: str | None = None
    """The first key that is not supported; None if all are."""


def read_compose(
    file: Path, sandbox: SandboxConfig, verifiers: list[VerifierConfig], *, has_dockerfile: bool
) -> ComposeReading:
    """Return a task's sandbox with the settings of its compose file, or the key for which the file is refused.

    Args:
        file: The compose file.
        sandbox: The task's sandbox table, which goes before the compose file.
        verifiers: Verifier tables of the task and its steps.
        has_dockerfile: Whether the task's environment has a Dockerfile.
    """
    try:
        document = parse_yaml(read_text(file), file)
    except ProblemError:
        return ComposeReading(sandbox, "services")
    is_built = has_dockerfile and sandbox.docker_image is None
    if file.name != COMPOSE_FILE or not (is_built or sandbox.docker_image):
        return ComposeReading(sandbox, "services")
    found: dict[str, Any] = {}
    refused = next(_find_refused(document, found, is_built=is_built), None)
    # Compose interpolates `$NAME` in the task's own table as well, from variables of the host and of the table itself.
    interpolated = (name for name, value in sandbox.env.items() if "$" in value and not is_reference(value))
    refused = refused or next((f"sandbox.env.{name}" for name in interpolated), None)
    if refused is None and found and any(verifier.sandbox_mode == "separate" for verifier in verifiers):
        # A clean room is not built from the compose file, so that it would lack these settings.
        refused = f"{_MAIN}.{next(iter(found))}"
    if refused is not None:
        return ComposeReading(sandbox, refused)
    changed: dict[str, Any] = {"env": found.get("environment", {}) | sandbox.env}
    if sandbox.workdir is None:
        changed["workdir"] = found.get("working_dir")
    return ComposeReading(sandbox.model_copy(update=changed))


def _find_refused(document: dict[str, Any], found: dict[str, Any], *, is_built: bool) -> Iterator[str]:
    """Yield the keys that are not supported, and put the values of those that are into `found`."""
    yield from (key for key in document if key not in ("services", "version"))
    services = document.get("services") or {}
    if not isinstance(services, dict):
        yield "services"
        return
    yield from (f"services.{name}" for name in services if name != "main")
    main = services.get("main") or {}
    if not isinstance(main, dict):
        yield _MAIN
        return
    for key, value in main.items():
        if key == "environment":
            found[key] = _parse_variables(value)
            if found[key] is None:
                yield f"{_MAIN}.{key}"
        elif key == "working_dir" and _is_text(value) and value.startswith("/"):
            found[key] = value
        elif not _is_done_anyway(key, value, is_built=is_built):
            yield f"{_MAIN}.{key}"


def _is_done_anyway(key: str, value: Any, *, is_built: bool) -> bool:
    """Return whether a key of the main container asks only for what the sandbox does without it."""
    match key:
        case "build":
            build = value if isinstance(value, dict) else {"context": value}
            known = build.get("context") in _CONTEXTS and build.get("dockerfile") in _DOCKERFILES
            return is_built and known and build.keys() <= {"context", "dockerfile"}
        case "image":
            # Beside a Dockerfile, it is the tag of the built image.
            return is_built and isinstance(value, str)
        case "pull_policy":
            return is_built and value == "build"
        case "command":
            return value in _KEEP_ALIVE
        case "volumes":
            return isinstance(value, list) and all(mount in _LOGS for mount in value)
        case "deploy":
            limits = value.get("resources", {}).get("limits", {}) if isinstance(value, dict) else {}
            return bool(limits) and value == {"resources": {"limits": limits}} and limits.items() <= _LIMITS.items()
    return False


def _parse_variables(value: Any) -> dict[str, str] | None:
    """Return the variables of a mapping or a list; None if one is no text, or takes its value from the host."""
    if isinstance(value, list):
        if not all(_is_text(item) and "=" in item for item in value):
            return None
        return dict(item.split("=", 1) for item in value)
    if not isinstance(value, dict) or not all(_is_text(item) for item in value.values()):
        return None
    return dict(value)


def _is_text(value: Any) -> bool:
    # Compose interpolates `$NAME` from the host's variables.
    return isinstance(value, str) and "$" not in value
