"""The gateway's process: `python -m benchflow.gateway --state DIRECTORY`, one for each state directory.

SIGTERM and SIGINT let calls under way end, within `--grace` seconds. A second process ends by itself, while the first
one runs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

import structlog

from benchflow.errors import BenchFlowError
from benchflow.gateway.replay import make_replayer
from benchflow.gateway.sockets import Gateway
from benchflow.host_files import hold_lock
from benchflow.log import configure_logging
from benchflow.paths import StatePaths

GRACE_SEC = 10.0

_LOCK_SEC = 0.4
"""Seconds to wait for the lock: a process that checks whether a gateway runs holds it for a moment."""

log = structlog.get_logger("benchflow.gateway")


async def serve(paths: StatePaths, grace: float) -> None:
    """Run the gateway until SIGTERM or SIGINT, then stop it. `grace`: seconds for calls in flight to end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    gateway = Gateway(paths, grace=grace, make_replayer=make_replayer)
    await gateway.start()
    log.info("the gateway works", pid=os.getpid())
    await stopping.wait()
    log.info("the gateway stops")
    await gateway.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 also if another gateway runs already."""
    # Imported objects stay: freezing spares every collection, and the one at exit, which takes longest, to visit them.
    gc.freeze()
    parser = argparse.ArgumentParser(prog="python -m benchflow.gateway", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, metavar="DIRECTORY", help="the engine's state directory")
    for_calls = "for calls under way when it is to end (default: %(default)s)"
    parser.add_argument("--grace", type=float, default=GRACE_SEC, metavar="SECONDS", help=for_calls)
    options = parser.parse_args(arguments)
    paths = StatePaths(options.state.absolute())
    try:
        configure_logging(file=paths.logs / "gateway.log")
        with hold_lock(paths.gateway.lock, wait_sec=_LOCK_SEC) as lock:
            if lock is not None:
                asyncio.run(serve(paths, options.grace))
    except BenchFlowError as error:
        log.error("the gateway cannot run", error=str(error))
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
