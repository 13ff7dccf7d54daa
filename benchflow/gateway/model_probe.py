"""One call of a model before a job starts, with the key, dialect and proxy that its rollouts will have."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import ClientResponse
from multidict import CIMultiDict, CIMultiDictProxy

from benchflow.contracts.gateway import Api, Registration, RetryPolicy, Sampling
from benchflow.gateway.endpoint_errors import CallProblem, endpoint_words
from benchflow.gateway.gateway_client import make_token
from benchflow.gateway.key_cutter import key_forms
from benchflow.gateway.upstream import (
    Attempts,
    NoAnswerError,
    Outage,
    RetryContext,
    Upstream,
    find_key,
    read_beginning,
    read_words,
    upstream_headers,
    upstream_url,
)
from benchflow.llm_apis import DIALECTS, documents, is_answer
from benchflow.paths import StatePaths

ANSWER_SEC = 60.0
"""Seconds within which a model must begin to answer. Some models are loaded at the first call."""

ANSWER_BYTES = 1024 * 1024
"""Maximum of bytes of a response that are read: one of a single token is shorter."""

FIRST_WAIT_SEC = 1.0
"""Seconds before the second of three attempts."""

MAX_TOKENS: dict[Api, int] = {"openai-chat": 1, "openai-responses": 16, "anthropic-messages": 1, "gemini": 1}
"""Requested maximum of tokens, by dialect. OpenAI's responses refuse fewer than 16."""

_OF_PARAMETERS = frozenset({400, 413, 422})
"""Statuses of endpoints that accept the key and the model, and refuse other parts of the request."""


async def probe(
    paths: StatePaths, job_id: str, api: Api, base_url: str, credentials: Sequence[str], model: str
) -> CallProblem | None:
    """Ask a model for one token. Return the reason why it does not serve calls; None if it does.

    A refusal of the request's parameters alone is no such reason.

    Args:
        paths: State directory, with the job's secrets.
        job_id: Workflow id of the job.
        api: The dialect.
        base_url: The endpoint's address.
        credentials: Names of the secrets that may hold the key; empty for an endpoint without keys.
        model: The model, as the endpoint spells it.
    """
    registration = Registration(
        id=f"{job_id}/preflight",
        token=make_token(),
        job_id=job_id,
        agent="preflight",
        api=api,
        base_url=base_url,
        credentials=tuple(credentials),
        model=model,
        record="/dev/null",
        retries=RetryPolicy(max_retries=2, first_wait_sec=FIRST_WAIT_SEC, total_sec=20.0),
        stall_sec=ANSWER_SEC,
    )
    key = find_key(paths, registration)
    if registration.credentials and key is None:
        names = " or ".join(registration.credentials)
        return CallProblem("missing_secret", f"{names} is not set where the workers run", model=model)
    given: CIMultiDict[str] = CIMultiDict({"Content-Type": "application/json"})
    if api == "anthropic-messages":
        given["anthropic-version"] = "2023-06-01"
    headers = upstream_headers(CIMultiDictProxy(given), registration, key)
    url = upstream_url(registration, DIALECTS[api].path.format(model=model))
    body = json.dumps(_question(api, base_url, model)).encode()
    retry_context = RetryContext(Outage(lambda sent: None), key_forms(*(key or ("", ""))).cover_text, model)
    upstream = Upstream()
    try:
        response = await upstream.ask(
            registration, "POST", url, headers, body, Attempts(time.monotonic()), retry_context
        )
        if response.status < 300:
            return await _read_problem(response, api, retry_context, model)
        words = await read_words(response, retry_context.cover)
        problem = CallProblem("upstream_status", words, status=response.status, words=words, model=model)
        return None if response.status in _OF_PARAMETERS and not problem.is_refusal else problem
    except NoAnswerError as error:
        return CallProblem(error.kind, endpoint_words(error.message), model=model)
    finally:
        await upstream.close()


async def _read_problem(
    response: ClientResponse, api: Api, retry_context: RetryContext, model: str
) -> CallProblem | None:
    """Return why a response with a good status is no model's response, such as a login page; None if it is one."""
    body = await read_beginning(response, ANSWER_BYTES, ANSWER_SEC)
    if len(body) >= ANSWER_BYTES or response.headers.get("Content-Encoding", "identity") != "identity":
        return None
    found = list(documents(body))
    answered = DIALECTS[api].parse_response(found)
    if answered.finish != "error" and (answered.finish or any(is_answer(document) for document in found)):
        return None
    words = endpoint_words(retry_context.cover(body.decode("utf-8", "replace")))
    what = f"it answered {response.status} with what is no answer of a model"
    return CallProblem("told_error", f"{what}: {words}" if words else what, model=model)


def _question(api: Api, base_url: str, model: str) -> dict[str, Any]:
    """Return the body of a request for one token."""
    if api == "gemini":
        body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    elif api == "openai-responses":
        body = {"model": model, "input": "Hi", "store": False}
    else:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    DIALECTS[api].apply_sampling(body, Sampling(max_tokens=MAX_TOKENS[api]), base_url)
    return body
