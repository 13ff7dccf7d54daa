"""Logging: structlog for our own events, the standard library's logging for other packages, one format for both.

Messages quote output of sandboxes, models and task sets. Every record is sanitised, whichever package logged it, so
that none can control the terminal that shows the log, or contain text that looks like another record.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, TextIO, cast

from benchflow.sanitise import sanitise, sanitise_line

PLAIN = "%(levelname)s %(name)s: %(message)s"

_TEXTS = ("exception", "stack")
"""Keys of an event whose values have several lines."""


class GuardedStream(io.TextIOBase):
    """Text stream that sanitises everything written to it."""

    def __init__(self, unguarded: TextIO) -> None:
        """Wrap a stream.

        Consoles find it as `rich_proxied_file` and write to it directly: their text was sanitised before our colours
        were added.
        """
        self.unguarded = self.rich_proxied_file = unguarded

    def write(self, text: str) -> int:
        """Sanitise a text and write it. Return its length, as given."""
        self.unguarded.write(sanitise(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self.unguarded.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream below."""
        return self.unguarded.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the stream below."""
        return self.unguarded.encoding


def guard_stderr() -> None:
    """Replace `sys.stderr` by a stream that sanitises what is written, tracebacks and warnings included."""
    sys.stderr = _guard(sys.stderr)


def _guard(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, GuardedStream) else cast(TextIO, GuardedStream(stream))


class SanitisedFormatter(logging.Formatter):
    """Formatter of sanitised records: one line each, as in `PLAIN`, with the traceback indented below."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record's line, sanitised."""
        return sanitise_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """Return the traceback, sanitised and indented."""
        return _indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        """Return the stack, sanitised and indented."""
        return _indent(super().formatStack(stack_info))


def configure_quiet_logging() -> None:
    """Log warnings and above to stderr by the standard library, for commands that log little and must start fast."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SanitisedFormatter(PLAIN))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def configure_logging(*, verbose: bool = False, file: Path | None = None) -> None:
    """Configure structlog and the standard library to log to stderr, or as JSON lines to a file.

    With a file the process is in the background, and its stdout and stderr are logs as well: they are sanitised, too,
    for output of user code and for the traceback that ends a process. All log files of the directory are kept bounded.

    Args:
        verbose: Whether to log debug events of this package and info of others.
        file: Log file, which gets info and above; None for stderr, which gets warnings and above.
    """
    import structlog

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    handler: logging.Handler
    if file is None:
        stream = sys.stderr
        handler = logging.StreamHandler(getattr(stream, "unguarded", stream))
        # structlog's default traceback shows the local variables of each frame, secrets among them.
        renderer = structlog.dev.ConsoleRenderer(
            colors=handler.stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        guard_stderr()
        sys.stdout = _guard(sys.stdout)
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(file, encoding="utf-8")
        # Imports the data models, which a short command does not need.
        from benchflow.log_files import keep_logs_bounded

        keep_logs_bounded(file.parent)
        renderer = structlog.processors.JSONRenderer()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _sanitise_event if file is not None else _sanitise_and_indent_event,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.DEBUG if verbose else logging.INFO if file else logging.WARNING
    root.setLevel(logging.INFO if verbose else level)
    logging.getLogger("benchflow").setLevel(level)
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _sanitise_event(logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Return the event with keys and values sanitised; the last processor before the renderer."""
    return {
        sanitise_line(key): sanitise(value) if key in _TEXTS else _sanitise_value(value) for key, value in event.items()
    }


def _sanitise_and_indent_event(logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    made = dict(_sanitise_event(logger, method, event))
    return made | {key: _indent(made[key]) for key in _TEXTS if made.get(key)}


def _sanitise_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {sanitise_line(key): _sanitise_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_sanitise_value(inner) for inner in value]
    return sanitise_line(value if isinstance(value, str) else repr(value))


def _indent(text: str) -> str:
    """Return the lines of a traceback, sanitised and indented, so that none of them looks like a record."""
    return "\n".join(f"  │ {line}" for line in sanitise(text).split("\n"))
