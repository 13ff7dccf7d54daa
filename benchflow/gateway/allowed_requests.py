"""Which requests of agents are passed on: the list in `allowed_requests.toml`, and paths brought into one form.

And with which headers: the list in `allowed_headers.toml`.

An agent may spell a path in many ways that a server takes for the same one: percent-encoded letters, `..`, doubled and
trailing slashes. Here it is brought into one form once, that form is compared, and that form is what the endpoint gets.
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
"""The names of models in paths: no separator, no escape, nothing that begins like `..`."""

_PATH = re.compile(r"/[A-Za-z0-9._~:/-]*")
"""A path in its one form. What is encoded twice has a percent sign left and is none."""


class AllowedRequest(Model):
    """One row of `allowed_requests.toml`; the file says what its keys are."""

    api: Api
    """The wire format of the endpoint for which the row holds."""
    method: Literal["GET", "POST"]
    """The method, exactly."""
    path: str
    """The path below the agent's base URL, with `{model}` where a model's name stands."""
    query: dict[str, tuple[str, ...]] = {}
    """The query parameters that pass, each with the values that it may have."""
    counts_as: CountsAs
    """Against which limit the request counts."""
    agents: tuple[str, ...]
    """The registry's agents that were recorded to make it."""

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The paths that the row means."""
        return re.compile(re.escape(self.path).replace(re.escape(_MODEL), _MODEL_NAME))


class AllowedHeader(Model):
    """One row of `allowed_headers.toml`; the file says what its keys are."""

    names: tuple[str, ...]
    """Names in small letters; one that ends in `*` stands for all that begin so."""
    agents: tuple[str, ...]
    """The registry's agents that were seen to send them."""


@dataclass(frozen=True)
class Passed:
    """A request that is passed on.

    path: what the endpoint is asked for, in its one form and with its query. is_generation: whether it is one of the
    dialect's own calls of a model. counts_as: against which limit it counts.
    """

    path: str
    is_generation: bool
    counts_as: CountsAs


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
    """Return whether a header is passed on. name: in small letters."""
    return any(
        name == allowed or (allowed.endswith("*") and name.startswith(allowed[:-1]))
        for row in allowed_headers()
        for allowed in row.names
    )


def find_allowed(registration: Registration, method: str, raw_path: str, raw_query: str) -> Passed | None:
    """Return how a rollout's request is passed on; None for one that is not.

    Args:
        registration: The rollout, whose endpoint's api and additional requests decide.
        method: The method, as the agent sent it.
        raw_path: The path, as the agent sent it, without its query.
        raw_query: The query, as the agent sent it.
    """
    path = canonical_path(raw_path)
    if path is None:
        return None
    for row in allowed_requests():
        if row.api == registration.api and row.method == method and row.pattern.fullmatch(path):
            query = _passing(row, raw_query)
            return Passed(path + query, row.counts_as == "call", row.counts_as)
    if f"{method} {path}" in registration.requests:
        return Passed(path, is_generation=False, counts_as="call")
    return None


def canonical_path(raw: str) -> str | None:
    """Return a path in its one form; None for one that has none, and is no path of an endpoint.

    Percent-encoding is resolved once, `.` and `..` are, repeated and trailing slashes are left out. Letters keep their
    case, which endpoints tell apart.
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


def _passing(row: AllowedRequest, raw_query: str) -> str:
    """Return what of a query passes, with its question mark: each parameter once, in the row's order."""
    given = dict(parse_qsl(raw_query))
    passing = [f"{name}={quote(given[name])}" for name, values in row.query.items() if given.get(name) in values]
    return "?" + "&".join(passing) if passing else ""
