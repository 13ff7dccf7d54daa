"""Sampling parameters of a rollout: set in its calls, or refused where the dialect does not have them."""

from __future__ import annotations

import copy
import json
from typing import Any

from benchflow.contracts.gateway import Registration
from benchflow.errors import ConfigError
from benchflow.llm_apis import DIALECTS, Dialect


def check_sampling(registration: Registration) -> None:
    """Raise `ConfigError` for a sampling parameter that the registered dialect does not have."""
    dialect = DIALECTS[registration.api]
    for name in registration.sampling.given:
        if name in dialect.unsupported:
            raise ConfigError(
                f"an endpoint of the kind {registration.api} has no such parameter",
                key=f"sampling.{name}",
                remedy="leave it out, or use an endpoint of another kind",
            )


def changes_calls(registration: Registration) -> bool:
    """Return whether calls are changed: sampling parameters are set, or usage must be requested."""
    return bool(registration.sampling.given) or needs_usage(registration)


def needs_usage(registration: Registration) -> bool:
    """Return whether tokens or cost are limited, which are known only when a call has ended."""
    limits = registration.limits.model_dump(exclude_none=True)
    return bool(limits.keys() - {"calls"})


def set_sampling(
    registration: Registration, dialect: Dialect, body: dict[str, Any]
) -> tuple[bytes, dict[str, Any]] | None:
    """Return a body with the sampling parameters set, and the changed values by place; None if nothing changes.

    If tokens or cost are limited, a stream that would not report its usage is asked to.

    Args:
        registration: The rollout.
        dialect: The call's dialect.
        body: The parsed body, which is not changed.
    """
    changed = copy.deepcopy(body)
    # A path may be of another dialect than the registered one, and lack parameters that the registration was not
    # checked for.
    lacking = dict.fromkeys(dialect.unsupported)
    new = dialect.apply_sampling(changed, registration.sampling.model_copy(update=lacking), registration.base_url)
    if needs_usage(registration):
        new |= dialect.request_usage(changed)
    if not new:
        return None
    # ASCII escapes, because a lone surrogate in a text cannot be encoded.
    return json.dumps(changed, separators=(",", ":")).encode("ascii"), new
