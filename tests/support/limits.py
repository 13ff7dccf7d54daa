"""How long a test may take, and what is shown of one that takes longer: the stacks of its threads and of its tasks."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
import traceback
from types import FrameType

import pytest
from pytest_timeout import Settings

LONG_SEC = 1500
"""Seconds of a test that is marked `long`; the default of all others is pyproject.toml's, and `soak` has no limit."""

AGAIN_SEC = 30
"""Seconds after which a test that goes on is ended again: the first end may have come to a task that nobody awaits."""

_SETTINGS = pytest.StashKey[Settings]()


def limit(item: pytest.Item) -> None:
    """Give a test the limit of its markers."""
    if item.get_closest_marker("soak") is not None:
        item.add_marker(pytest.mark.timeout(0))
    elif item.get_closest_marker("long") is not None:
        item.add_marker(pytest.mark.timeout(LONG_SEC))


def show_stacks_at_end(item: pytest.Item, settings: Settings) -> None:
    """Have the timer that was just set show all stacks in the test's report, and go off again if the test goes on."""
    item.stash[_SETTINGS] = settings
    end = signal.getsignal(signal.SIGALRM)
    if settings.method != "signal" or not callable(end):
        return

    def show_and_end(number: int, frame: FrameType | None) -> None:
        # Of what xdist's processes print nothing is seen: only reports are.
        item.add_report_section("call", "stacks", _stacks())
        end(number, frame)

    signal.signal(signal.SIGALRM, show_and_end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_SEC)


def set_again(item: pytest.Item) -> None:
    """Set the timer of a test again if there is none: a failure cancels it, and a teardown or a rerun may hang, too."""
    settings = item.stash.get(_SETTINGS, None)
    if settings is not None and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        item.config.pluginmanager.hook.pytest_timeout_set_timer(item=item, settings=settings)


def _stacks() -> str:
    """Return the stacks of all threads of this process, and of all tasks of the loop that is running."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        print(f"\nthread {names.get(ident, ident)}:", file=text)
        traceback.print_stack(frame, file=text)
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return text.getvalue()
    for task in tasks:
        print(file=text)
        task.print_stack(file=text)
    return text.getvalue()
