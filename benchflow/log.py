"""Logging: structlog for our own events, the standard library's for everybody else's, one format for both.

Messages quote what sandboxes, models and task sets wrote. Every record passes the sanitiser, whoever logged it, so that
none can steer the terminal that shows the log, nor contain what would look like another record.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, TextIO, cast

from benchflow.log_files import keep_logs_bounded
from benchflow.sanitise import sanitise, sanitise_line

PLAIN = "%(levelname)s %(name)s: %(message)s"

_TEXTS = ("exception", "stack")
"""Keys of an event whose values have lines."""


class GuardedStream(io.TextIOBase):
    """A stream of text on which nothing is written unsanitised.

    unguarded, rich_proxied_file: the stream below. Consoles find it there: what they write was sanitised before our
    own colours were added.
    """

    def __init__(self, unguarded: TextIO) -> None:
        self.unguarded = self.rich_proxied_file = unguarded

    def write(self, text: str) -> int:
        self.unguarded.write(sanitise(text))
        return len(text)

    def flush(self) -> None:
        self.unguarded.flush()

    def fileno(self) -> int:
        return self.unguarded.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.unguarded.encoding


def guard_stderr() -> None:
    """Sanitise what is written to standard error from here on, tracebacks and warnings included."""
    sys.stderr = _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, GuardedStream) else cast(TextIO, GuardedStream(stream))


class SanitisedFormatter(logging.Formatter):
    """One line a record, as `PLAIN` says, and its traceback below, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return sanitise_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def configure_quiet_logging() -> None:
    """Warnings and above to standard error, for commands that have little to say and should start fast."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SanitisedFormatter(PLAIN))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def configure_logging(*, verbose: bool = False, file: Path | None = None) -> None:
    """Send logs to standard error, or as JSON lines to a file. Quiet unless `verbose`: warnings and above.

    With a file the process is one in the background, whose standard output and error are a log as well: they are
    guarded, too, for what a user's own code prints and for the traceback that a process ends with. The file, and the
    others of its directory, are kept bounded.
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
        # Its default formatter of exceptions would show the local variables of each frame, secrets among them.
        renderer = structlog.dev.ConsoleRenderer(
            colors=handler.stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        guard_stderr()
        sys.stdout = _guarded(sys.stdout)
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(file, encoding="utf-8")
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
    """Return the event with its keys and values sanitised, as the last step before it is rendered."""
    return {
        sanitise_line(key): sanitise(value) if key in _TEXTS else _sanitised_value(value)
        for key, value in event.items()
    }


def _sanitise_and_indent_event(logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    made = dict(_sanitise_event(logger, method, event))
    return made | {key: _indented(made[key]) for key in _TEXTS if made.get(key)}


def _sanitised_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {sanitise_line(key): _sanitised_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_sanitised_value(inner) for inner in value]
    return sanitise_line(value if isinstance(value, str) else repr(value))


def _indented(text: str) -> str:
    """Return the lines of a traceback, sanitised and set off, so that none of them can pass for a record."""
    return "\n".join(f"  │ {line}" for line in sanitise(text).split("\n"))
