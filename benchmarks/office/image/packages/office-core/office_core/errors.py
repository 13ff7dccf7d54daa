"""How a request, or a world, is refused."""

from __future__ import annotations


class Refused(Exception):
    """A request that is answered with an error. code: a word for programs; status: the HTTP status."""

    code = "invalid_argument"
    status = 400

    @property
    def message(self) -> str:
        return str(self.args[0])

    def as_json(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message}}


class Invalid(Refused):
    """What was asked makes no sense."""


class Forbidden(Refused):
    code = "forbidden"
    status = 403


class NotFound(Refused):
    code = "not_found"
    status = 404


class MethodNotAllowed(Refused):
    code = "method_not_allowed"
    status = 405


class Conflict(Refused):
    code = "conflict"
    status = 409


class TooLarge(Refused):
    code = "too_large"
    status = 413


class Busy(Refused):
    """The database was held by another process for longer than the busy timeout."""

    code = "busy"
    status = 503


class WorldError(Exception):
    """A world, or a command line, that cannot be used. The message names the file and the item."""
