"""Translation of acpx's output in a turn to trajectory lines: the messages of both sides, in order.

acpx does not tell which side a message is from. A request is classified by its method. A response is the client's if
the agent has an open request of its id, since each side numbers its own. The same output gives the same lines.
"""

from __future__ import annotations

import json
from typing import Any

from benchflow.contracts.agent import Line
from benchflow.errors import ACPError, AgentExitError, BenchFlowError
from benchflow.planes.agent.acp.events import Reading, omit_content, parse_noise, truncate
from benchflow.planes.agent.acp.wire import OutputLine
from benchflow.planes.agent.notes import Message

_BY_THE_AGENT = ("fs/", "terminal/", "session/request_permission", "elicitation/", "_")
"""Prefixes of the methods that the agent requests."""
_PERMISSION = "session/request_permission"
_ENDED = (
    "AGENT_DISCONNECTED",
    "AGENT_SPAWN_ENOENT",
    "AGENT_STARTUP_FAILED",
    "QUEUE_DISCONNECTED_BEFORE_ACK",
    "QUEUE_DISCONNECTED_BEFORE_COMPLETION",
)
"""acpx's error codes for the end of the agent's process, and of its own that holds it."""


class AcpxStream:
    """The state of one turn that is read."""

    def __init__(self, reading: Reading) -> None:
        """Make it. reading: object for the turn's counts."""
        self._reading = reading
        self._asked: dict[str, str] = {}
        self._prompt: str | None = None
        self.result: Message | None = None
        """Result of the prompt; None before it came."""
        self.failure: BenchFlowError | None = None
        """Error that ended the turn, as acpx reports it."""
        self.began_anew = False
        """Whether acpx has opened a new session for the agent."""

    @property
    def is_over(self) -> bool:
        """Whether the end of the turn was reported."""
        return self.result is not None or self.failure is not None

    def read_line(self, heard: OutputLine) -> list[Line]:
        """Return the trajectory lines of one line of output. Raise `ACPError` if it is no message."""
        message = heard.message
        if message is None:
            return [parse_noise(heard.raw, lambda what: ACPError(f"acpx wrote {what}"))]
        if "method" in message:
            return self._read_message(str(message["method"]), message)
        if "id" in message and ("result" in message or "error" in message):
            return self._read_response(json.dumps(message["id"]), message)
        raise ACPError(f"acpx wrote something that is not JSON-RPC: {truncate(heard.raw)}")

    def _read_message(self, method: str, message: Message) -> list[Line]:
        """Return the lines of a request or notification."""
        params = message.get("params")
        if method == "session/update":
            update = params.get("update") if isinstance(params, dict) else None
            # Updates before the prompt are about the session, or repeat earlier turns.
            return self._reading.read_update(update) if self._prompt else [{"type": "update", "update": update}]
        if "id" not in message:
            return [{"type": "notification", "method": method, "params": params}]
        if method.startswith(_BY_THE_AGENT):
            self._asked[json.dumps(message["id"])] = method
            if method == _PERMISSION:
                return [{"type": "permission_request", "params": params}]
            return [
                {
                    "type": "client_request",
                    "method": method,
                    "params": omit_content(params) if isinstance(params, dict) else params,
                }
            ]
        if method == "session/prompt":
            self._prompt = json.dumps(message["id"])
            return []
        self.began_anew = self.began_anew or method == "session/new"
        return [{"type": "client_message", "message": message}]

    def _read_response(self, request: str, message: Message) -> list[Line]:
        """Return the lines of a response, or keep it as the end of the turn."""
        result = message.get("result")
        ends = isinstance(result, dict) and "stopReason" in result
        if request in self._asked and not ends:
            method = self._asked.pop(request)
            return [{"type": "permission_answer", "result": result}] if method == _PERMISSION else []
        if request == self._prompt and isinstance(result, dict):
            self.result = result
            self._reading.read_result(result)
            return []
        if request in (self._prompt, "null") and "error" in message:
            by = "the agent refused session/prompt" if request == self._prompt else "acpx ended the turn"
            self.failure = self.failure or parse_failure(message["error"], by)
            return []
        return [{"type": "client_message", "message": message}]


def parse_failure(error: Any, by: str) -> BenchFlowError:
    """Return the error for an error object of acpx: `AgentExitError` if the agent has ended, else `ACPError`.

    Args:
        error: The object, or another value if it is malformed.
        by: Beginning of the message of an `ACPError`, such as "acpx ended the turn".
    """
    table = error if isinstance(error, dict) else {}
    said = str(table.get("message", "no reason given"))
    data = table.get("data")
    if isinstance(data, dict) and data.get("detailCode") in _ENDED:
        return AgentExitError(f"the agent ended: {said}")
    code = f" (code {table['code']})" if "code" in table else ""
    # Errors of acpx itself have all details in their message.
    more = f": {truncate(str(data).encode())}" if data and "acpxCode" not in data else ""
    return ACPError(f"{by}: {said}{code}{more}")
