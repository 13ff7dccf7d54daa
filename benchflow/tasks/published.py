"""Keys of published task files for which this project has no field.

They are known, so they are never reported as unknown: each is kept in `compat_extra` and listed by a check. Where
leaving one out would change what a task does, the task is refused; the others only describe it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from benchflow.contracts.base import Model


class PublishedKey(NamedTuple):
    """A row of `PUBLISHED_KEYS`."""

    pattern: re.Pattern[str]
    """Matches the whole path of the key, in normal spelling."""

    changes: Callable[[Any], bool]
    """Returns whether the key with this value changes what the task does."""

    what: str
    """The feature that the key asks for, as a noun phrase for messages."""

    remedy: str
    """Advice to the author, as an imperative."""


def _set(value: Any) -> bool:
    return bool(value)


def _never(_: Any) -> bool:
    return False


def _not_main(value: Any) -> bool:
    return value not in (None, "", "main")


_SANDBOX = r"(?:.*\.)?sandbox\."


def _has_other_entrypoint(value: Any) -> bool:
    entrypoint = value.get("entrypoint") if isinstance(value, dict) else None
    return entrypoint is not None and not str(entrypoint).endswith("test.sh")


_BENCHFLOW = r"benchflow\."

PUBLISHED_KEYS: tuple[PublishedKey, ...] = tuple(
    PublishedKey(re.compile(pattern), changes, what, remedy)
    for pattern, changes, what, remedy in (
        (_SANDBOX + r"tpu", _set, "TPUs", "remove `tpu`, or run the task where there are TPUs"),
        (
            _SANDBOX + r"setup_commands\[\d+\]\.service",
            _not_main,
            "setup commands in another service",
            "only the main container exists: remove `service`",
        ),
        (
            _SANDBOX + r"setup_commands\[\d+\]\.host_lock",
            _set,
            "setup commands that exclude each other on a host",
            "remove `host_lock`, and let the command itself lock what it shares",
        ),
        (
            _SANDBOX + r"setup_commands\[\d+\]\.capture_dir\w*",
            _set,
            "captured results of setup commands",
            "do this step in environment/Dockerfile, where its result is cached",
        ),
        (
            _SANDBOX + r"mcp_servers\[\d+\]\.(?:cwd|tools|include_tags|exclude_tags)",
            _set,
            "limits of an MCP server",
            "remove the key, or start the server with the limit in its command",
        ),
        (r"profile", _set, "profiles", "write the profile's values into the tables themselves"),
        (r"profiles", _never, "profiles, none of them chosen", "remove `profiles`"),
        (
            r"agents\.roles\..+\.capabilities",
            _set,
            "capabilities of a role",
            "remove `capabilities`: every role may do what its agent can",
        ),
        (
            r"(?:.*\.)?verifier\.judge\.context_file",
            _set,
            "a file as the judge's context",
            "put the text into `context`",
        ),
        (_BENCHFLOW + r"agent_policy", _set, "an agent policy", "remove `benchflow.agent_policy`"),
        (_BENCHFLOW + r"runtime_policy", _set, "a runtime policy", "remove `benchflow.runtime_policy`"),
        (
            _BENCHFLOW + r"verifier",
            _has_other_entrypoint,
            "another entrypoint of the verifier than test.sh",
            "name its command in verifier/verifier.md",
        ),
        (_BENCHFLOW + r"teams", _set, "teams", "declare `scenes` with roles"),
        (r"multi_step_reward_mode", _never, "an older name that had no effect", "remove it"),
    )
)


class CarriedKey(Model):
    """A published key that was found in a file."""

    changes: bool
    """Whether its value changes what the task does."""

    what: str
    """The feature that it asks for, as a noun phrase for messages."""

    remedy: str
    """Advice to the author, as an imperative."""


def find_published_key(path: str, value: Any) -> CarriedKey | None:
    """Return the row for a key and its value; None if the key at `path` (in normal spelling) is no published one."""
    for known in PUBLISHED_KEYS:
        if known.pattern.fullmatch(path):
            return CarriedKey(changes=known.changes(value), what=known.what, remedy=known.remedy)
    return None
