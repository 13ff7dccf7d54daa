"""The control API that the engine calls: one JSON object to a path each, on a socket that no sandbox sees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import Field, ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.gateway import Attribution, GatewayStatus, Registration
from benchflow.errors import BenchFlowError, ConfigError
from benchflow.gateway.blockage import AbsenceWatch
from benchflow.gateway.rollouts import Rollouts


class Named(Model):
    """Request about one rollout."""

    id: str
    """Workflow id of the rollout."""


class Attribute(Model):
    """Request to attribute a rollout's calls to a turn from now on."""

    id: str
    attribution: Attribution


class Hold(Model):
    """Request to hold a rollout's new calls, or to let them go."""

    id: str
    held: bool


class Quiet(Model):
    """Request that is answered when no call was in flight for `quiet_for` seconds, or after `timeout` seconds."""

    id: str
    quiet_for: float = Field(default=0.0, ge=0)
    timeout: float = Field(default=30.0, ge=0)


class QuietAnswer(Model):
    """Response to `Quiet`."""

    quiet: bool
    """Whether no call was in flight for long enough."""

    status: GatewayStatus


class Statuses(Model):
    """Statuses of all registered rollouts."""

    rollouts: list[GatewayStatus]


class Nothing(Model):
    """A message without content."""


PROTOCOL = 1
"""Version of this protocol, one higher with every change that an older gateway does not understand.

Gateways that are older than this number have 0.
"""

PROTOCOL_HEADER = "Gateway-Protocol"
"""Response header with `PROTOCOL`. It is no key of the body, since older engines refuse unknown keys."""


class Info(Model):
    """Response to a ping: the gateway's process."""

    pid: int
    """Process id."""
    stopping: bool = False
    """Whether it is about to end, and accepts no new calls."""
    protocol: int = Field(default=0, exclude=True)
    """Version of its protocol, which is sent in a header."""


class ErrorResponse(Model):
    """An error response: an error of `benchflow.errors`."""

    type: str
    """Name of the error's class."""

    message: str
    file: str | None = None
    key: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: BenchFlowError) -> ErrorResponse:
        """Return the response for an error."""
        named = {name: getattr(error, name) for name in ("message", "file", "key", "remedy")}
        return cls(type=type(error).__name__, **named)


class ControlApp:
    """The HTTP application of the control socket."""

    def __init__(self, rollouts: Rollouts, info: Callable[[], Info], absence: AbsenceWatch) -> None:
        """Make it.

        Args:
            rollouts: The registered rollouts.
            info: Returns the response to a ping.
            absence: Watch that adds the gateway's absences to the rollouts' blockages.
        """
        self._rollouts = rollouts
        self._info = info
        self._absence = absence

    def app(self) -> web.Application:
        """Return the application: one path for each kind of request."""
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_post("/register", _make_handler(Registration, self._register))
        app.router.add_post("/forget", _make_handler(Named, self._forget))
        app.router.add_post("/attribute", _make_handler(Attribute, self._attribute))
        app.router.add_post("/hold", _make_handler(Hold, self._hold))
        app.router.add_post("/status", _make_handler(Named, self._status))
        app.router.add_post("/statuses", _make_handler(Nothing, self._statuses))
        app.router.add_post("/quiet", _make_handler(Quiet, self._quiet))
        app.router.add_post("/ping", _make_handler(Nothing, self._ping))
        return app

    async def _register(self, request: Registration) -> Model:
        return (await self._rollouts.register(request)).status()

    async def _forget(self, request: Named) -> Model:
        self._rollouts.forget(request.id)
        return Nothing()

    async def _attribute(self, request: Attribute) -> Model:
        return self._rollouts.attribute(request.id, request.attribution).status()

    async def _hold(self, request: Hold) -> Model:
        return self._rollouts.hold(request.id, request.held).status()

    async def _status(self, request: Named) -> Model:
        # Right after a freeze, this request may be handled before the watch notices the freeze.
        self._absence.check()
        return self._rollouts.get(request.id).status()

    async def _statuses(self, request: Nothing) -> Model:
        return Statuses(rollouts=[rollout.status() for rollout in self._rollouts.all()])

    async def _quiet(self, request: Quiet) -> Model:
        rollout = self._rollouts.get(request.id)
        quiet = await rollout.until_quiet(request.quiet_for, request.timeout)
        return QuietAnswer(quiet=quiet, status=rollout.status())

    async def _ping(self, request: Nothing) -> Model:
        return self._info()


def _make_handler(
    request_type: type[Model], answer: Callable[[Any], Awaitable[Model]]
) -> Callable[..., Awaitable[web.Response]]:
    """Return the handler of a path, which validates the request and sends the response or a `ErrorResponse`.

    Args:
        request_type: Model of the request.
        answer: Returns the response. A `BenchFlowError` that it raises becomes a `ErrorResponse` with status 400.
    """

    async def handle(request: web.Request) -> web.Response:
        try:
            try:
                question = request_type.model_validate_json(await request.read())
            except ValidationError as error:
                first = error.errors(include_input=False)[0]
                key = ".".join(str(part) for part in first["loc"])
                raise ConfigError(first["msg"], file="gateway", key=key) from error
            return _json(await answer(question))
        except BenchFlowError as error:
            return _json(ErrorResponse.of(error), 400)

    return handle


def _json(model: Model, status: int = 200) -> web.Response:
    # An older engine refuses unknown keys: newer ones are left out while they have their defaults.
    body = model.model_dump_json(exclude_defaults=True).encode()
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}
    return web.Response(body=body, content_type="application/json", status=status, headers=headers)
