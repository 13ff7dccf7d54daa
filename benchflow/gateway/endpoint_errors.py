"""Typed errors for model endpoints that do not serve calls, in a turn or in the check before a job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchflow.errors import BenchFlowError, GatewayError, ModelEndpointError

MAX_WORDS = 300
"""Maximum of characters of an endpoint's own error message that an error quotes."""

WAIT_REMEDY = "`bench job resume` runs it again once the endpoint answers; --endpoint-policy 'wait(1h)' waits for it"

_REFUSED_REQUESTS = frozenset({"not_allowed", "too_large", "too_slow", "unpriced", "unreadable"})
"""Kinds of errors of requests that the gateway refuses because of their content."""

_QUOTA = ("insufficient_quota", "exceeded your current quota", "credit balance", "billing", "out of credits", "payment")
"""Phrases by which endpoints distinguish an exhausted quota from rate limiting. Both often have the status 429."""

_KEY = ("api key", "api_key", "apikey", "unauthorized", "authentication", "invalid token", "access token")
_NO_MODEL = (
    "model_not_found",
    "does not exist",
    "not found",
    "not supported",
    "unknown model",
    "invalid model",
    "no such model",
)


@dataclass(frozen=True)
class CallProblem:
    """The reason why an endpoint did not serve a call."""

    kind: str
    """As in `CallError`; also `unanswered` (the agent has left, or still waits), `empty` (answers without content),
    `told_error` (an error in place of an answer, or at its end) and `no_call` (the agent did not call its model).
    """
    message: str
    """Description, used where the endpoint sent no message."""
    status: int | None = None
    """HTTP status of the endpoint; None if it gave none."""
    words: str = ""
    """The endpoint's own message, shortened."""
    model: str | None = None
    """Requested model, as the endpoint spells it; None if unknown."""
    waited_sec: float = 0.0
    """Seconds without an answer; 0 for a call that ended otherwise."""
    is_of_proxy: bool = False
    """Whether the body of an error is no JSON, unlike the errors of model APIs."""

    @property
    def is_of_request(self) -> bool:
        """Return whether the request itself was at fault, such as a conversation longer than the model accepts."""
        if self.kind in _REFUSED_REQUESTS:
            return True
        return self.status in (400, 404, 405, 413, 415, 422) and not (self.is_key or self.is_quota or self.is_model)

    @property
    def is_key(self) -> bool:
        """Return whether the endpoint refused the key."""
        return self.status in (401, 403) or (self.status == 400 and _names(self.words, _KEY))

    @property
    def is_quota(self) -> bool:
        """Return whether the key's quota is exhausted."""
        return self.status == 402 or (self.status in (400, 403, 429) and _names(self.words, _QUOTA))

    @property
    def is_model(self) -> bool:
        """Return whether the endpoint does not know the model."""
        is_named = "model" in self.words.lower() and _names(self.words, _NO_MODEL)
        return self.status in (400, 404, 422) and is_named

    @property
    def is_refusal(self) -> bool:
        """Return whether a retry changes nothing: the key, the model's name, the address or the quota is at fault."""
        return self.kind == "missing_secret" or self.status == 404 or self.is_key or self.is_quota or self.is_model


def endpoint_words(body: str) -> str:
    """Return the message in the body of an error of any dialect, in one line and shortened; else the body itself."""
    return " ".join((_message(body) or body).split())[:MAX_WORDS]


def _message(body: str) -> str | None:
    """Return the innermost message of a JSON error, with its code; None if there is none."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    # Gemini's streams wrap the error in an array.
    found = found[0] if isinstance(found, list) and found else found
    for _ in range(3):
        if isinstance(found, str) or not isinstance(found, dict):
            break
        code = found.get("code") if isinstance(found.get("code"), str) else ""
        inner = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
        if isinstance(inner, str):
            return f"{inner} ({code})" if code and code not in inner else inner
        found = inner
    return found if isinstance(found, str) else None


def endpoint_error(
    problem: CallProblem, base_url: str, credentials: Sequence[str], *, remedy: str = WAIT_REMEDY
) -> BenchFlowError:
    """Return the typed error for a problem.

    Args:
        problem: The reason why the call was not served.
        base_url: The endpoint's address.
        credentials: Names of the variables that may hold its key.
        remedy: Remedy for a failure that may be transient.
    """
    key_name = " or ".join(credentials) or "the key"
    model = f"the model {problem.model!r}" if problem.model else "the model"
    words = f": {problem.words}" if problem.words else ""
    status = f"{base_url} answered {problem.status}"
    if problem.kind in ("gateway_restarted", "gateway_stopped", "not_recorded"):
        return GatewayError(f"the agent's last model call failed at the gateway: {problem.message}")
    if problem.kind == "missing_secret":
        return ModelEndpointError(problem.message, key="credentials", remedy=f"export {key_name} there")
    if problem.is_quota:
        message = f"the quota of {key_name} is exhausted: {status}{words}"
        return ModelEndpointError(message, key="credentials", remedy="raise the quota, or use another key")
    if problem.is_key:
        message = f"the endpoint refuses {key_name}: {status}{words}"
        return ModelEndpointError(
            message, key="credentials", remedy=f"check {key_name}: is it this endpoint's, and valid?"
        )
    if problem.is_model:
        message = f"the endpoint does not know {model}: {status}{words}"
        return ModelEndpointError(message, key="model", remedy="check --model, as the endpoint spells it")
    if problem.status == 404:
        message = f"the endpoint has nothing at the address that was asked: {status}{words}"
        return ModelEndpointError(message, key="base_url", remedy="check --base-url (with /v1?) and --model")
    if problem.status == 429:
        message = f"the endpoint turns calls away: {status}{words}"
        return ModelEndpointError(message, key="concurrency", remedy=f"lower -n; {remedy}")
    if problem.kind in ("no_call", "not_allowed"):
        look = "see what the agent was doing: its trajectory, and err.log in its directory below agent/"
        return ModelEndpointError(problem.message, key="agent", remedy=look)
    if problem.is_of_request:
        message = f"{model} takes no such request: {status}{words}"
        return ModelEndpointError(message, key="model", remedy="check that the model and the agent fit each other")
    if problem.status is not None and problem.words:
        return ModelEndpointError(f"{model} did not answer: {status}{words}", key="base_url", remedy=remedy)
    words = problem.message if problem.message.startswith(base_url) else f"{base_url}: {problem.message}"
    return ModelEndpointError(f"{model} did not answer: {words}", key="base_url", remedy=remedy)


def _names(words: str, known: Sequence[str]) -> bool:
    """Return whether a message contains one of the known phrases, in any case."""
    lower = words.lower()
    return any(text in lower for text in known)
