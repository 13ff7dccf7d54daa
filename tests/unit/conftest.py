"""Hold the lane to its word: a unit test starts no process and opens no connection."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from benchflow.planes import sandbox

FORBIDDEN = frozenset(
    {
        "subprocess.Popen",
        "os.fork",
        "os.forkpty",
        "os.exec",
        "os.posix_spawn",
        "os.system",
        "socket.bind",
        "socket.connect",
    }
)
"""Audit events of the interpreter that no unit test may cause."""

_running: str | None = None
_is_installed = False


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if _running is not None and event in FORBIDDEN:
        raise AssertionError(f"{_running} is in the unit lane, but causes {event} {args[:2]}: move it to another lane")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _running, _is_installed
    if not _is_installed:
        # An audit hook can't be removed; it does nothing between unit tests.
        sys.addaudithook(_refuse)
        _is_installed = True
    # This hook is called for the tests of all directories.
    _running = item.nodeid if item.path.is_relative_to(Path(__file__).parent) else None
    try:
        return (yield)
    finally:
        _running = None


@pytest.fixture(autouse=True)
def providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test sandbox providers of its own: a command that ends lets go of all that there are."""
    monkeypatch.setattr(sandbox, "_made", {})
