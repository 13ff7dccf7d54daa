"""Putting a rollout's sampling parameters into its calls, or refusing those that its dialect has no place for."""

from __future__ import annotations

import copy
import json
from typing import Any

from benchflow.contracts.gateway import Registration
from benchflow.errors import ConfigError
from benchflow.gateway.dialects import DIALECTS, Dialect


def check_sampling(registration: Registration) -> None:
    """Raise `ConfigError` for a parameter that the dialect does not have."""
    dialect = DIALECTS[registration.api]
    for name in registration.sampling.given:
        if name in dialect.unsupported:
            raise ConfigError(
                f"an endpoint of the kind {registration.api} has no such parameter",
                key=f"sampling.{name}",
                remedy="leave it out, or use an endpoint of another kind",
            )


def changes_calls(registration: Registration) -> bool:
    """Whether anything is put into calls."""
    return bool(registration.sampling.given) or needs_usage(registration)


def needs_usage(registration: Registration) -> bool:
    """Return whether tokens or money are limited, which are known when a call has ended."""
    limits = registration.limits.model_dump(exclude_none=True)
    return bool(limits.keys() - {"calls"})


def applied(registration: Registration, dialect: Dialect, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]] | None:
    """The body with the parameters in it, and what is new in it; None when it has them all already.

    Where tokens or money are limited, a stream that would not tell its usage is asked to.
    """
    changed = copy.deepcopy(body)
    # A path may be of another dialect than the one that was registered: what that one lacks was not promised for it.
    lacking = dict.fromkeys(dialect.unsupported)
    new = dialect.sample(changed, registration.sampling.model_copy(update=lacking), registration.base_url)
    if needs_usage(registration):
        new |= dialect.ask_for_usage(changed)
    if not new:
        return None
    # Escapes, because half a character in a text has no bytes.
    return json.dumps(changed, separators=(",", ":")).encode("ascii"), new
