"""Requests and headers of agents that are forwarded: the lists in `allowed_requests.toml` and `allowed_headers.toml`.

An agent may spell a path in many ways that a server takes for the same one: percent-encoded letters, `..`, doubled and
trailing slashes. A path is brought into canonical form once; that form is compared, and is sent to the endpoint.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from benchflow.contracts.base import Model
from benchflow.contracts.gateway import Api, Registration

CountsAs = Literal["call", "token_count"]

_MODEL = "{model}"
_MODEL_NAME = r"(?P<model>[A-Za-z0-9][A-Za-z0-9._-]{0,127})"
"""Pattern of model names in paths: no separator, no escape, no beginning like `..`."""

_PATH = re.compile(r"/[A-Za-z0-9._~:/-]*")
"""Pattern of a canonical path. Double encoding leaves a percent sign, which does not match."""


class AllowedRequest(Model):
    """One row of `allowed_requests.toml`, which documents its keys."""

    api: Api
    """Dialect of the endpoints for which the row holds."""
    method: Literal["GET", "POST"]
    """Method, compared exactly."""
    path: str
    """Path below the agent's base URL, with `{model}` in place of a model's name."""
    query: dict[str, tuple[str, ...]] = {}
    """Query parameters that are forwarded, each with its allowed values."""
    counts_as: CountsAs
    """Limit against which the request counts."""
    agents: tuple[str, ...]
    """Agents of the registry that were seen to send it."""

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return the pattern of the row's paths."""
        return re.compile(re.escape(self.path).replace(re.escape(_MODEL), _MODEL_NAME))


class AllowedHeader(Model):
    """One row of `allowed_headers.toml`, which documents its keys."""

    names: tuple[str, ...]
    """Names in lower case; one that ends in `*` is a prefix."""
    agents: tuple[str, ...]
    """Agents of the registry that were seen to send them."""


@dataclass(frozen=True)
class Forwarding:
    """How a request is forwarded."""

    path: str
    """Canonical path for the endpoint, with its query."""

    is_generation: bool
    """Whether it is a generation call of the dialect."""

    counts_as: CountsAs
    """Limit against which it counts."""


@functools.cache
def allowed_requests() -> tuple[AllowedRequest, ...]:
    """Return the rows of `allowed_requests.toml`."""
    data = tomllib.loads(resources.files(__package__).joinpath("allowed_requests.toml").read_text(encoding="utf-8"))
    return tuple(AllowedRequest.model_validate(row) for row in data["request"])


@functools.cache
def allowed_headers() -> tuple[AllowedHeader, ...]:
    """Return the rows of `allowed_headers.toml`."""
    data = tomllib.loads(resources.files(__package__).joinpath("allowed_headers.toml").read_text(encoding="utf-8"))
    return tuple(AllowedHeader.model_validate(row) for row in data["header"])


@functools.lru_cache(maxsize=1024)
def is_allowed_header(name: str) -> bool:
    """Return whether a header is forwarded. `name` is in lower case."""
    return any(
        name == allowed or (allowed.endswith("*") and name.startswith(allowed[:-1]))
        for row in allowed_headers()
        for allowed in row.names
    )


def find_allowed(registration: Registration, method: str, raw_path: str, raw_query: str) -> Forwarding | None:
    """Return how a rollout's request is forwarded; None if it is refused.

    Args:
        registration: The rollout, whose dialect and additional requests decide.
        method: The method, as the agent sent it.
        raw_path: The path, as the agent sent it, without its query.
        raw_query: The query, as the agent sent it.
    """
    path = canonical_path(raw_path)
    if path is None:
        return None
    for row in allowed_requests():
        if row.api == registration.api and row.method == method and row.pattern.fullmatch(path):
            query = _filter_query(row, raw_query)
            return Forwarding(path + query, row.counts_as == "call", row.counts_as)
    if f"{method} {path}" in registration.requests:
        return Forwarding(path, is_generation=False, counts_as="call")
    return None


def canonical_path(raw: str) -> str | None:
    """Return a path in canonical form; None if it has none, so that it is no path of an endpoint.

    Percent-encoding is decoded once, `.` and `..` are resolved, repeated and trailing slashes are removed. Letters keep
    their case, which endpoints distinguish.
    """
    try:
        decoded = unquote_to_bytes(raw).decode("ascii")
    except UnicodeError:
        return None
    if not _PATH.fullmatch(decoded):
        return None
    parts: list[str] = []
    for part in decoded.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _filter_query(row: AllowedRequest, raw_query: str) -> str:
    """Return the allowed part of a query, with its question mark: each parameter once, in the row's order."""
    given = dict(parse_qsl(raw_query))
    passing = [f"{name}={quote(given[name])}" for name, values in row.query.items() if given.get(name) in values]
    return "?" + "&".join(passing) if passing else ""
