"""Errors as data and back, and the type of errors that come from the operating system."""

from __future__ import annotations

import errno

from benchflow import errors
from benchflow.contracts.rollout import Failure, Phase

MAX_TEXT = 4000
"""Longest message or log tail that a failure carries, in characters; the end of a log is what matters."""

MAX_LINE = 300
"""Most characters of a failure that are shown in a line."""


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Error numbers that no later attempt changes. EIO, ESTALE, EMFILE, ENOMEM and the like pass."""


def storage_error(error: OSError, what: str) -> errors.StoreError:
    """Return the typed error for a file of the store, the results or the state that could not be written or read.

    Args:
        error: What the operating system said.
        what: The file, where `error` does not name it.
    """
    if error.errno in _DISK_FULL:
        return errors.DiskFullError(
            f"no space left: {error.strerror}", file=what, remedy="free some space there, or choose another directory"
        )
    kind = errors.StoreAccessError if error.errno in _REFUSED else errors.StoreError
    return kind(
        f"cannot write: {error.strerror or error}",
        file=str(error.filename or what),
        remedy="check that the directory exists and may be written",
    )


def typed_error(error: BaseException) -> BaseException:
    """Return the type that tells more about an exception; the exception itself where there is none.

    Only a full disk can be told from an `OSError` that nobody has translated: the rest may be anything, such as a
    connection that a program of the sandbox has refused.
    """
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        full = storage_error(error, str(error.filename or "a file of this host"))
        return full.with_traceback(error.__traceback__)
    return error


def failure_of(error: BaseException, phase: Phase | None = None) -> Failure:
    """Return an exception as data.

    One that is not ours is a fault of the engine: category `internal`. As nobody knows what it is, it may pass.
    """
    error = typed_error(error)
    if isinstance(error, errors.BenchFlowError):
        return Failure(
            type=type(error).__name__,
            category=error.category,
            message=error.message[:MAX_TEXT],
            phase=phase,
            file=error.file,
            key=error.key,
            remedy=error.remedy,
            log_tail=error.log_tail[-MAX_TEXT:] if error.log_tail else None,
            retryable=error.retryable,
        )
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(type=type(error).__name__, category="internal", message=text[:MAX_TEXT], phase=phase, retryable=True)


def error_type(name: str | None) -> type[errors.BenchFlowError]:
    """Return the type of errors that a failure names; `BenchFlowError` where it is none of ours."""
    kind = getattr(errors, name or "", None)
    return kind if isinstance(kind, type) and issubclass(kind, errors.BenchFlowError) else errors.BenchFlowError


def error_of(failure: Failure) -> errors.BenchFlowError:
    """The typed error that a failure was made from; `BenchFlowError` for one that was not ours."""
    return error_type(failure.type)(
        failure.message,
        file=failure.file,
        key=failure.key,
        remedy=failure.remedy,
        log_tail=failure.log_tail,
    )
