"""Processes that are stopped for a while: never others that were given their numbers since."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from benchflow.stack import StackProcess


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes, and have them continue when the context is left."""
    processes = [StackProcess.of(pid) for pid in pids]
    try:
        for process in processes:
            _signal(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            _signal(process, signal.SIGCONT)


def _signal(process: StackProcess, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if process.alive:
            os.kill(process.pid, number)
