"""The engine's side of the gateway's control socket."""

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
    Hold,
    Info,
    Named,
    Nothing,
    Problem,
    Quiet,
    QuietAnswer,
    Statuses,
)
from benchflow.paths import StatePaths

M = TypeVar("M", bound=Model)

PATIENCE_SEC = 20.0
"""How long a gateway may take to come back: it is started again when it has ended."""

_ANSWER_SEC = 30.0
_LOOK_EVERY = 0.05


def make_token() -> str:
    """A new rollout's token."""
    return TOKEN_PREFIX + secrets.token_hex(24)


class GatewayClient:
    """Asks the gateway of a state directory.

    Every method may be repeated, and is while the gateway is being started again; patience: for how many seconds. All
    raise `GatewayUnavailableError` when it does not answer, and, if they name a rollout, `UnknownRolloutError`.
    """

    def __init__(self, paths: StatePaths, *, patience: float = PATIENCE_SEC) -> None:
        self._paths = paths.gateway
        self._patience = patience

    async def register(self, registration: Registration) -> GatewayStatus:
        """Take a rollout on, or its new settings. Raises `ConfigError` for what cannot be done for it."""
        return await self._ask("register", registration, GatewayStatus)

    async def forget(self, id: str) -> None:
        """From now on the rollout's token is nobody's. A rollout that is not known is forgotten already."""
        await self._ask("forget", Named(id=id), Nothing)

    async def attribute(
        self, id: str, *, node: str | None = None, role: str | None = None, turn: int | None = None
    ) -> GatewayStatus:
        """Whose calls come from now on."""
        attribution = Attribution(node=node, role=role, turn=turn)
        return await self._ask("attribute", Attribute(id=id, attribution=attribution), GatewayStatus)

    async def hold(self, id: str) -> GatewayStatus:
        """Hold new calls back. Calls under way go on: see `until_quiet`."""
        return await self._ask("hold", Hold(id=id, held=True), GatewayStatus)

    async def release(self, id: str) -> GatewayStatus:
        """Let calls go that were held back, and all new ones."""
        return await self._ask("hold", Hold(id=id, held=False), GatewayStatus)

    async def status(self, id: str) -> GatewayStatus:
        return await self._ask("status", Named(id=id), GatewayStatus)

    async def statuses(self) -> list[GatewayStatus]:
        """Of all rollouts that the gateway knows."""
        return (await self._ask("statuses", Nothing(), Statuses)).rollouts

    async def until_quiet(self, id: str, *, quiet_for: float = 0.0, timeout: float = 30.0) -> bool:
        """Whether, within the time, no call was under way for `quiet_for` seconds, counted from now."""
        asked = Quiet(id=id, quiet_for=quiet_for, timeout=timeout)
        return (await self._ask("quiet", asked, QuietAnswer, timeout)).quiet

    async def ping(self) -> Info:
        """Return who answers."""
        body, protocol = await self._post_until_answered("ping", Nothing())
        info = Info.model_validate_json(body, extra="ignore")
        return info.model_copy(update={"protocol": protocol})

    async def _ask(self, path: str, question: Model, answer: type[M], extra: float = 0.0) -> M:
        body, _ = await self._post_until_answered(path, question, extra)
        # A newer gateway may have more to tell.
        return answer.model_validate_json(body, extra="ignore")

    async def _post_until_answered(self, path: str, question: Model, extra: float = 0.0) -> tuple[bytes, int]:
        """Return the answer to a question, and the number of the gateway's protocol."""
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
            raise _error(Problem.model_validate_json(body, extra="ignore"))
        return body, protocol

    async def _post(self, path: str, body: bytes, timeout: float) -> tuple[int, bytes, int]:
        # A connection each: a question is rare, and one that was kept open may be of a gateway that has ended.
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
    """An open directory: the address of a socket below it is short, however long its path is."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        os.close(self.fd)


def _error(problem: Problem) -> BenchFlowError:
    kind = getattr(errors, problem.type, GatewayError)
    if not (isinstance(kind, type) and issubclass(kind, BenchFlowError)):
        kind = GatewayError
    error: BenchFlowError = kind(problem.message, file=problem.file, key=problem.key, remedy=problem.remedy)
    return error
