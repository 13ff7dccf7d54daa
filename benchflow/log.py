"""Logging: structlog for our own events, the standard library's for everybody else's, one format for both."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

PLAIN = "%(levelname)s %(name)s: %(message)s"


def configure_quiet_logging() -> None:
    """Warnings and above to standard error, for commands that have little to say and should start fast."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(PLAIN))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def configure_logging(*, verbose: bool = False, file: Path | None = None) -> None:
    """Send logs to standard error, or as JSON lines to a file. Quiet unless `verbose`: warnings and above."""
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
        handler = logging.StreamHandler(sys.stderr)
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(file)
        renderer = structlog.processors.JSONRenderer()
        shared.append(structlog.processors.format_exc_info)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
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
