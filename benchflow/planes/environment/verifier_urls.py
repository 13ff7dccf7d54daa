"""Search of a verifier's files for the URLs of a world's services that it reads.

The text of the files is searched and no verifier is run: its requests at run time depend on the agent that it judges.
Found are literal URLs, and paths behind a variable that the same file sets to the address of a service:
`f"{BASE}/log"`, `BASE + "/log"`, `"$BASE/log"`. If only the beginning of a URL is literal, the rest is `{…}`, and the
URL cannot be requested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from benchflow.confined import ConfinedDirectory
from benchflow.contracts.environment import Manifest
from benchflow.contracts.task import Task
from benchflow.errors import UnsafePathError

OPEN_END = "{…}"
"""Placeholder for the part of a URL that is known only when the verifier runs."""

MAX_FILE_BYTES = 1024 * 1024
"""Maximum size, in bytes, of files that are searched: a larger one is data, not a program."""

_PLACE = r"[A-Za-z0-9._~%/?&=+,:@!-]*"
_URL = re.compile(rf"https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):(\d+)({_PLACE})")
_SET = re.compile(r"(\w+)\s*(?::\s*\w+\s*)?=\s*[rf]?[\"']?$")
_OPENS = re.compile(r"[\"'`]?(?:[{$]|\s*\+)")


def find_verifier_urls(manifest: Manifest, task: Task, directory: Path) -> tuple[str, ...]:
    """Return the URLs at the manifest's ports in the files of a task's verifiers, sorted.

    Args:
        manifest: Manifest of the task's world.
        task: The task.
        directory: Directory of the task.
    """
    found: set[str] = set()
    ports = _list_ports(manifest)
    own = [task.verifier_dir, *(files.verifier_dir for files in task.step_files.values())]
    for name in dict.fromkeys(name for name in own if name is not None):
        # A directory that is reached through a link, or of too many files, is not searched.
        with suppress(UnsafePathError):
            for text in _iterate_texts(directory, name):
                found |= set(_find_urls(text, ports))
    return tuple(sorted(found))


def _iterate_texts(directory: Path, below: str) -> Iterator[str]:
    """Yield the contents of the text files below a directory of a task. Links are not followed."""
    with ConfinedDirectory(directory) as root:
        for entry in root.entries(below):
            if entry.is_file and entry.status.st_size <= MAX_FILE_BYTES:
                # A file that is not UTF-8 is no program.
                with suppress(UnicodeDecodeError):
                    yield root.read(entry.name, MAX_FILE_BYTES).decode()


def _list_ports(manifest: Manifest) -> frozenset[int]:
    """Return all ports that the manifest names: of services, readiness probes and `ports`."""
    probed = (urlsplit(url).port for url in manifest.readiness.http)
    services = (service.port for service in manifest.services)
    named = (*services, *manifest.ports, *manifest.readiness.tcp, *probed)
    return frozenset(port for port in named if port is not None)


def _find_urls(text: str, ports: frozenset[int]) -> Iterator[str]:
    """Yield the URLs at these ports of localhost in a text."""
    for match in _URL.finditer(text):
        if int(match.group(1)) not in ports:
            continue
        address = f"http{'s' if match.group().startswith('https') else ''}://localhost:{match.group(1)}"
        place = match.group(2).rstrip(".,:")
        name = _SET.search(text[max(0, match.start() - 100) : match.start()])
        if name is not None and place in ("", "/"):
            yield from _find_joined_urls(name.group(1), address, text)
        else:
            yield f"{address}{place or '/'}{OPEN_END if _OPENS.match(text, match.end()) else ''}"


def _find_joined_urls(name: str, address: str, text: str) -> Iterator[str]:
    """Yield the URLs that are put together from the variable `name`, which holds the address of a service."""
    # {NAME}/path, ${NAME}/path, $NAME/path, NAME + "/path", "${NAME}"/path
    use = re.compile(rf"\b{re.escape(name)}\b(?!\s*(?::\s*\w+\s*)?=[^=])\}}?[\"'`]?(?:\s*\+\s*[rf]?[\"'`])?({_PLACE})")
    for match in use.finditer(text):
        place = match.group(1).rstrip(".,:")
        is_open = not place.startswith("/") or _OPENS.match(text, match.end()) is not None
        yield f"{address}{place if place.startswith('/') else ''}{OPEN_END if is_open else ''}"
