"""Conversion of errors to data (`Failure`) and back, and typed errors for those of the operating system."""

from __future__ import annotations

import errno

from benchflow import errors
from benchflow.contracts.rollout_records import Failure, Phase

MAX_TEXT = 4000
"""Maximum number of characters of a failure's message (from its start) and of its log tail (from its end)."""

MAX_LINE = 300
"""Maximum number of characters of a failure that are shown in one line."""


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Error numbers that a retry does not change. EIO, ESTALE, EMFILE, ENOMEM and the like are transient."""


def storage_error(error: OSError, what: str) -> errors.StoreError:
    """Return the typed error for a file of the store, the results or the state that could not be written or read.

    Args:
        error: Error of the operating system.
        what: Name of the file, used where `error` has none. A full disk is always reported under this name.

    Returns:
        `DiskFullError` if there is no space left, `StoreAccessError` if no retry can succeed, else `StoreError`.
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
    """Return a typed error in place of an exception that means a full disk; any other exception as it is.

    Other exceptions of type `OSError` have no certain cause: it may be a connection that a program of the sandbox has
    refused.
    """
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        full = storage_error(error, str(error.filename or "a file of this host"))
        return full.with_traceback(error.__traceback__)
    return error


def failure_of(error: BaseException, phase: Phase | None = None) -> Failure:
    """Return an exception as data.

    An exception that is no `BenchFlowError` is a fault of the engine: category `internal`. It is retryable, because
    its cause is not known. A subclass that a module of the engine has for itself is named by its base in the tree.

    Args:
        error: The exception.
        phase: Phase of the rollout in which it was raised; None outside of phases.
    """
    error = typed_error(error)
    if isinstance(error, errors.BenchFlowError):
        own = errors.__name__.partition(".")[0] + "."
        return Failure(
            type=next(
                kind.__name__
                for kind in type(error).__mro__
                if kind.__module__ == errors.__name__ or not kind.__module__.startswith(own)
            ),
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
    """Return the `BenchFlowError` subclass of this name; `BenchFlowError` itself if there is none."""
    kind = getattr(errors, name or "", None)
    return kind if isinstance(kind, type) and issubclass(kind, errors.BenchFlowError) else errors.BenchFlowError


def error_of(failure: Failure) -> errors.BenchFlowError:
    """Return the typed error that a failure was made from; `BenchFlowError` if it was made from another exception."""
    return error_type(failure.type)(
        failure.message,
        file=failure.file,
        key=failure.key,
        remedy=failure.remedy,
        log_tail=failure.log_tail,
    )
