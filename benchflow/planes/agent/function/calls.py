"""Calls of a Python agent's model, by way of the gateway of the worker's host."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from benchflow.contracts.session import ModelRoute
from benchflow.errors import AgentExitError, ModelEndpointError

_AGAIN_SEC = 1.0
"""Seconds between two attempts to reach a gateway that is away."""

_QUOTED = 500


async def call_model(model: ModelRoute, body: dict[str, Any]) -> dict[str, Any]:
    """Make a call and return its outcome as JSON, whatever the status. Wait for a gateway that is away.

    The limits of the turn end the wait, and stand still meanwhile.

    Raises:
        AgentExitError: There is no model.
    """
    # It takes its time, and most agents call no model.
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
            await asyncio.sleep(_AGAIN_SEC)
            continue
        return {"status": status, "text": text}


def answer_of(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a call. Raises `ModelEndpointError` for an outcome without one."""
    status, text = outcome["status"], outcome["text"]
    try:
        answer = json.loads(text) if status == 200 else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ModelEndpointError(f"the model answered with {status}: {text[:_QUOTED]}")
    return answer
