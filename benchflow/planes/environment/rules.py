"""Validation of a manifest's values beyond their types: each on its own, and against each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from benchflow.contracts.environment import Manifest
from benchflow.user_files.problems import KeyPath

Problem = tuple[KeyPath, str, str]
"""Key within the table `environment`; message; remedy."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_SIDE_FILES = ("-wal", "-shm", "-journal")

_KERNEL = ("/proc", "/sys", "/dev")
_ENGINE = ("/run/benchflow", "/var/run/benchflow", "/var/lib/benchflow", "/opt/benchflow", "/logs")


def find_problems(manifest: Manifest, written: dict[str, Any]) -> Iterator[Problem]:
    """Yield all problems of a manifest whose types are right.

    Args:
        manifest: The parsed manifest.
        written: Its table `environment` as written in the file, which tells defaults from given values.
    """
    yield from _check_names(manifest)
    yield from _check_lifecycle(manifest)
    yield from _check_task_selection(manifest, written.get("task_selection", {}))
    yield from _check_services(manifest)
    yield from _check_readiness(manifest)
    yield from _check_forward_env(manifest)
    if manifest.state is not None:
        yield from _check_state(manifest.state.paths)
        yield from _check_urls(manifest.state.observe, ("state", "observe"))


def _check_names(manifest: Manifest) -> Iterator[Problem]:
    """Yield problems of `name`, `image` and `base_image`."""
    if not manifest.name.strip() or _UNPRINTABLE.search(manifest.name):
        yield ("name",), f"must be a name on one line, not {manifest.name!r}", "name the benchmark"
    if manifest.image is not None and manifest.base_image is not None:
        yield (
            ("base_image",),
            "`image` is given as well, and only one of the two may be",
            "keep `image` if it is the whole world, `base_image` if the tasks' Dockerfiles build FROM it",
        )
    elif manifest.image is None and manifest.base_image is None:
        yield (
            ("image",),
            "neither `image` nor `base_image` is given",
            "write `image` for a world that is ready to run, `base_image` for one that tasks build FROM",
        )
    for key, image in (("image", manifest.image), ("base_image", manifest.base_image)):
        if image is not None and _IMAGE.fullmatch(image) is None:
            yield (key,), f"{image!r} cannot be an image's name", "write it like name:tag"


def _check_lifecycle(manifest: Manifest) -> Iterator[Problem]:
    """Yield contradictions between `owns_lifecycle` and `services`, and between `isolation` and `task_selection`."""
    if manifest.owns_lifecycle and manifest.services:
        yield (
            ("services",),
            "has no effect where the image's entrypoint starts the services (owns_lifecycle = true)",
            "write owns_lifecycle = false, or remove the services and name their `ports` and `readiness`",
        )
    if not manifest.owns_lifecycle and not manifest.services:
        yield (
            ("owns_lifecycle",),
            "false means that the framework starts the services, and none is declared",
            "add an [[environment.services]] for each, or remove `owns_lifecycle`",
        )
    if manifest.isolation == "persistent" and manifest.task_selection.mechanism == "image":
        yield (
            ("isolation",),
            'the episodes of a "persistent" world share one image, and mechanism "image" means one for each task',
            'write isolation = "per_task", or tell the task by mechanism = "env_var"',
        )


def _check_task_selection(manifest: Manifest, written: dict[str, Any]) -> Iterator[Problem]:
    chosen = manifest.task_selection
    if chosen.mechanism == "image":
        for key in ("key", "inject_into"):
            if key in written:
                yield ("task_selection", key), 'has no effect with mechanism "image"', "remove one of the two"
    if _VARIABLE.fullmatch(chosen.key) is None:
        yield ("task_selection", "key"), *_format_variable_problem(chosen.key)


def _check_services(manifest: Manifest) -> Iterator[Problem]:
    for index, service in enumerate(manifest.services):
        at: KeyPath = ("services", index)
        if _SERVICE.fullmatch(service.name) is None:
            yield (
                (*at, "name"),
                f"{service.name!r} cannot be a service's name",
                "use letters, digits, '.', '_' and '-', beginning with a letter or digit: it names files",
            )
        if not service.command.strip() or "\0" in service.command:
            yield (*at, "command"), "is no command", "give the full command that starts the service"
        yield from _check_port(service.port, (*at, "port"))
        if not service.health_path.startswith("/") or _UNPRINTABLE.search(service.health_path.replace(" ", "\0")):
            yield (*at, "health_path"), f"must be a path like /health, not {service.health_path!r}", "begin it with /"
    names = [service.name for service in manifest.services]
    for index, first in _find_duplicates(names):
        yield ("services", index, "name"), f"{names[index]!r} is the name of services[{first}], too", "rename one"
    ports = [service.port for service in manifest.services]
    for index, first in _find_duplicates(ports):
        yield (
            ("services", index, "port"),
            f"{ports[index]} is the port of {names[first]!r}, too",
            "give each service a port of its own",
        )


def _check_readiness(manifest: Manifest) -> Iterator[Problem]:
    """Yield problems of `ports` and `readiness`."""
    for index, port in enumerate(manifest.ports):
        yield from _check_port(port, ("ports", index))
    yield from _check_duplicates(manifest.ports, ("ports",))
    yield from _check_urls(manifest.readiness.http, ("readiness", "http"))
    for index, port in enumerate(manifest.readiness.tcp):
        yield from _check_port(port, ("readiness", "tcp", index))
    yield from _check_duplicates(manifest.readiness.tcp, ("readiness", "tcp"))


def _check_urls(urls: Sequence[str], at: KeyPath) -> Iterator[Problem]:
    for index, url in enumerate(urls):
        problem = _find_url_problem(url)
        if problem:
            yield (*at, index), f"{url!r} {problem}", "write it like http://localhost:8000/health"
    yield from _check_duplicates(urls, at)


def _find_url_problem(url: str) -> str | None:
    """Return why a text cannot be the URL of a service, as a predicate; None if it can."""
    if _UNPRINTABLE.search(url) or " " in url:
        return "is no URL"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("http", "https"):
        return "is not an http or https URL"
    if not parts.hostname:
        return "names no host"
    return "has the port 0" if port == 0 else None


def _check_forward_env(manifest: Manifest) -> Iterator[Problem]:
    chosen = manifest.task_selection
    for index, key in enumerate(manifest.forward_env.keys):
        at: KeyPath = ("forward_env", "keys", index)
        if _VARIABLE.fullmatch(key) is None:
            yield at, *_format_variable_problem(key)
        elif chosen.mechanism == "env_var" and key == chosen.key:
            yield at, f"{key} tells the world its task, and cannot be forwarded", "remove it here, or rename that key"
    yield from _check_duplicates(manifest.forward_env.keys, ("forward_env", "keys"))


def _check_state(paths: Sequence[str]) -> Iterator[Problem]:
    for index, path in enumerate(paths):
        problem = _find_path_problem(path)
        if problem:
            yield ("state", "paths", index), f"{path!r} {problem[0]}", problem[1]
    yield from _check_duplicates(paths, ("state", "paths"))


def _find_path_problem(path: str) -> tuple[str, str] | None:
    """Return why a text cannot be the path of a database in the sandbox, and the remedy; None if it can."""
    if not path.startswith("/"):
        home = "; `~` is not expanded" if path.startswith("~") else ""
        return f"is not an absolute path in the sandbox{home}", "begin it with /"
    if _UNPRINTABLE.search(path):
        return "has a control character", "name the file"
    if any(character in path for character in "*?["):
        return "is a pattern, and patterns are not expanded", "name each file"
    normal = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    if ".." in path.split("/") or "~" in path.split("/"):
        return "leads out of its own directories", "write the path without `..` and `~`"
    if path != normal:
        return ("is a directory" if path.endswith("/") else "is not a normal path"), f"write {normal}"
    if path == "/":
        return "is a directory", "name the file"
    if path.endswith(_SIDE_FILES):
        return "belongs to a database, and is captured with it", f"write {path.rpartition('-')[0]}"
    if path == "/dev/shm" or (_is_below(path, _KERNEL) and not _is_below(path, ("/dev/shm",))):
        return "is the kernel's, and no file that can be put back", "name a file of the world's own"
    if _is_below(path, _ENGINE):
        return "is a place of the engine's own, and no part of the world", "keep the database elsewhere, as in /data"
    return None


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(place) for place in places)


def _check_port(port: int, at: KeyPath) -> Iterator[Problem]:
    if not 1 <= port <= 65535:
        yield at, f"{port} is not a port", "give a number from 1 to 65535"


def _format_variable_problem(key: str) -> tuple[str, str]:
    return f"{key!r} cannot be a variable's name", "use letters, digits and _, not beginning with a digit"


def _check_duplicates(values: Sequence[str | int], at: KeyPath) -> Iterator[Problem]:
    for index, _ in _find_duplicates(values):
        yield (*at, index), f"{values[index]!r} is given twice", "give it once"


def _find_duplicates(values: Sequence[str | int]) -> Iterator[tuple[int, int]]:
    """Yield the index of each duplicate, with the index of its first occurrence."""
    for index, value in enumerate(values):
        first = values.index(value)
        if first < index:
            yield index, first
