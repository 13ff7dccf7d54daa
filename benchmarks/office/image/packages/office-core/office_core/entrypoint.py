"""`office-world`: the entrypoint of the image, for whoever lets the image start its own services.

It seeds the databases by the task's id if there are none, runs all services, and ends with the first one that ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from office_core.command_line import DEFAULT_WORLD
from office_core.errors import WorldError
from office_core.seeding import SERVICES, seed_all
from office_core.worlds import World

DATA = Path("/data")
TASK_VARIABLE = "BENCHFLOW_TASK_ID"
GRACE_SECONDS = 5.0


def main() -> int:
    """The exit code of the first service that ended, 1 if that is 0; 0 after SIGTERM."""
    try:
        _seed_once()
    except WorldError as problem:
        print(f"office-world: {problem}", file=sys.stderr)
        return 1
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        _terminate(running)

    running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    for name in SERVICES:
        process = subprocess.Popen([f"office-{name}", "serve", "--host", "0.0.0.0"])
        running[process.pid] = (name, process)
    if stopped:  # while they were being started
        _terminate(running)
    name, code = _first_end(running)
    _terminate(running)
    _wait(running)
    if stopped:
        return 0
    print(f"office-world: {name} ended with {code}", file=sys.stderr)
    return 128 - code if code < 0 else code or 1  # of a signal, as shells tell it; nobody asked it to end well


def _seed_once() -> None:
    if any(DATA.glob("*.db")):
        return
    task = os.environ.get(TASK_VARIABLE, "")
    if not task:
        raise WorldError(f"{DATA} is empty, and {TASK_VARIABLE} does not say which task to seed")
    seed_all(World.load(Path(DEFAULT_WORLD), task), DATA)
    print(f"office-world: {task} is in {DATA}", file=sys.stderr)


def _first_end(running: dict[int, tuple[str, subprocess.Popen[bytes]]]) -> tuple[str, int]:
    """Which service ended, and how. As the first process of a container, it also takes in orphans that are none."""
    while True:
        pid, status = os.wait()
        if pid in running:
            name, process = running.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            return name, process.returncode


def _terminate(running: dict[int, tuple[str, subprocess.Popen[bytes]]]) -> None:
    for _, process in list(running.values()):
        process.terminate()


def _wait(running: dict[int, tuple[str, subprocess.Popen[bytes]]]) -> None:
    for _, process in running.values():
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
