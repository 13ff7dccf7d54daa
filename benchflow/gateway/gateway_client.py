"""The engine's client of the gateway's control socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from typing import TypeVar

import aiohttp

from benchflow import errors
from benchflow.contracts.base import Model
from benchflow.contracts.gateway import TOKEN_PREFIX, Attribution, GatewayStatus, Registration
from benchflow.errors import BenchFlowError, GatewayError, GatewayUnavailableError
from benchflow.gateway.control import (
    PROTOCOL_HEADER,
    Attribute,
    ErrorResponse,
    Hold,
    Info,
    Named,
    Nothing,
    Quiet,
    QuietAnswer,
    Statuses,
)
from benchflow.paths import StatePaths

M = TypeVar("M", bound=Model)

PATIENCE_SEC = 20.0
"""Seconds for which requests are retried while the gateway does not respond: it is restarted when it has ended."""

_ANSWER_SEC = 30.0
_LOOK_EVERY = 0.05


def make_token() -> str:
    """Return a random token for a rollout."""
    return TOKEN_PREFIX + secrets.token_hex(24)


class GatewayClient:
    """Client of the gateway of a state directory.

    Every request is idempotent, and is retried while the gateway restarts. All methods raise `GatewayUnavailableError`
    if it does not respond; those about a rollout raise `UnknownRolloutError`, except `register` and `forget`.
    """

    def __init__(self, paths: StatePaths, *, patience: float = PATIENCE_SEC) -> None:
        """Make it.

        Args:
            paths: The state directory.
            patience: Seconds for which a request is retried while there is no response.
        """
        self._paths = paths.gateway
        self._patience = patience

    async def register(self, registration: Registration) -> GatewayStatus:
        """Register a rollout, or change its settings, and return its status.

        Raises:
            ConfigError: The gateway cannot carry the registration out.
        """
        return await self._ask("register", registration, GatewayStatus)

    async def forget(self, id: str) -> None:
        """Invalidate the rollout's token. Do nothing if the rollout is not known."""
        await self._ask("forget", Named(id=id), Nothing)

    async def attribute(
        self, id: str, *, node: str | None = None, role: str | None = None, turn: int | None = None
    ) -> GatewayStatus:
        """Attribute the rollout's calls from now on, and return its status.

        Args:
            id: Workflow id of the rollout.
            node: Id of the node to which the turn leads.
            role: Role that acts in the turn.
            turn: Index of the turn's step.
        """
        attribution = Attribution(node=node, role=role, turn=turn)
        return await self._ask("attribute", Attribute(id=id, attribution=attribution), GatewayStatus)

    async def hold(self, id: str) -> GatewayStatus:
        """Hold the rollout's new calls, and return its status. Calls in flight go on: see `until_quiet`."""
        return await self._ask("hold", Hold(id=id, held=True), GatewayStatus)

    async def release(self, id: str) -> GatewayStatus:
        """Let the rollout's held calls go, and all new ones, and return its status."""
        return await self._ask("hold", Hold(id=id, held=False), GatewayStatus)

    async def status(self, id: str) -> GatewayStatus:
        """Return the status of a rollout."""
        return await self._ask("status", Named(id=id), GatewayStatus)

    async def statuses(self) -> list[GatewayStatus]:
        """Return the statuses of all registered rollouts."""
        return (await self._ask("statuses", Nothing(), Statuses)).rollouts

    async def until_quiet(self, id: str, *, quiet_for: float = 0.0, timeout: float = 30.0) -> bool:
        """Wait until the rollout had no call in flight for a time, counted from now. Return whether that was so.

        Args:
            id: Workflow id of the rollout.
            quiet_for: Seconds without a call in flight.
            timeout: Seconds after which to give up and return False.
        """
        asked = Quiet(id=id, quiet_for=quiet_for, timeout=timeout)
        return (await self._ask("quiet", asked, QuietAnswer, timeout)).quiet

    async def ping(self) -> Info:
        """Return the process and the protocol version of the running gateway."""
        body, protocol = await self._post_until_answered("ping", Nothing())
        info = Info.model_validate_json(body, extra="ignore")
        return info.model_copy(update={"protocol": protocol})

    async def _ask(self, path: str, question: Model, answer: type[M], extra: float = 0.0) -> M:
        """Send a request and return the parsed response. `extra` adds seconds to the timeout."""
        body, _ = await self._post_until_answered(path, question, extra)
        # A newer gateway may send keys that are unknown here.
        return answer.model_validate_json(body, extra="ignore")

    async def _post_until_answered(self, path: str, question: Model, extra: float = 0.0) -> tuple[bytes, int]:
        """Send a request until there is a response. Return its body and the gateway's protocol version."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                asked = question.model_dump_json().encode()
                status, body, protocol = await self._post(path, asked, _ANSWER_SEC + extra)
                break
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                if time.monotonic() >= deadline:
                    raise GatewayUnavailableError(
                        f"the model gateway does not answer: {type(error).__name__}",
                        file=str(self._paths.root),
                        remedy="read logs/gateway.log beside it",
                    ) from error
            await asyncio.sleep(_LOOK_EVERY)
        if status != 200:
            raise _error(ErrorResponse.model_validate_json(body, extra="ignore"))
        return body, protocol

    async def _post(self, path: str, body: bytes, timeout: float) -> tuple[int, bytes, int]:
        """Send one request. Return the HTTP status, the body and the gateway's protocol version."""
        # A new connection for each request: requests are rare, and a reused one may lead to a gateway that has ended.
        directory = os.open(self._paths.control.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.closing(_Directory(directory)) as opened:
            connector = aiohttp.UnixConnector(path=f"/proc/self/fd/{opened.fd}/{self._paths.control.name}")
            limits = aiohttp.ClientTimeout(total=timeout)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limits) as session,
                session.post(f"http://gateway/{path}", data=body) as response,
            ):
                protocol = response.headers.get(PROTOCOL_HEADER, "0")
                return response.status, await response.read(), int(protocol) if protocol.isdecimal() else 0


class _Directory:
    """An open directory: by its descriptor a socket in it has a short address, however long its path is."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        os.close(self.fd)


def _error(problem: ErrorResponse) -> BenchFlowError:
    """Return the error that a response describes; `GatewayError` for an unknown type."""
    kind = getattr(errors, problem.type, GatewayError)
    if not (isinstance(kind, type) and issubclass(kind, BenchFlowError)):
        kind = GatewayError
    error: BenchFlowError = kind(problem.message, file=problem.file, key=problem.key, remedy=problem.remedy)
    return error
