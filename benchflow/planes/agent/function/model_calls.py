"""Model calls of a Python agent, through the gateway of the worker's host."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from benchflow.contracts.agent import ModelRoute
from benchflow.errors import AgentExitError, ModelEndpointError

_RETRY_SEC = 1.0
"""Seconds between two attempts to reach a gateway that does not answer."""

_QUOTED = 500
"""Maximum characters of a response in an error message."""


async def call_model(model: ModelRoute, body: dict[str, Any]) -> dict[str, Any]:
    """Make a chat completion call and return its status and text, whatever they are. Retry until the gateway answers.

    The limits of the turn stand still while the gateway is away; the retries end with the turn.

    Args:
        model: Route to the model.
        body: Body of the request, without the model's name.

    Raises:
        AgentExitError: There is no model.
    """
    # aiohttp takes long to import, and most agents call no model.
    import aiohttp

    if model.socket is None or model.base_url is None:
        raise AgentExitError("the agent calls a model, and the job names none", key="model", remedy="add --model MODEL")
    headers = {"authorization": f"Bearer {model.api_key}"}
    named = {"model": (model.name or "").rpartition("/")[2], **body}
    while True:
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(model.socket)), timeout=aiohttp.ClientTimeout(total=None)
                ) as client,
                client.post(f"{model.base_url}/chat/completions", json=named, headers=headers) as response,
            ):
                status, text = response.status, (await response.read()).decode(errors="replace")
        except (aiohttp.ClientError, OSError):
            await asyncio.sleep(_RETRY_SEC)
            continue
        return {"status": status, "text": text}


def parse_completion(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the parsed response of a call.

    Raise `ModelEndpointError` if its status is not 200, or it is no JSON object.
    """
    status, text = outcome["status"], outcome["text"]
    try:
        answer = json.loads(text) if status == 200 else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ModelEndpointError(f"the model answered with {status}: {text[:_QUOTED]}")
    return answer
