"""Things of which one test run has exactly one, however many processes share it: servers, stacks, installed agents.

Each lies in a directory of the run. The process that needs it first makes it, the others find it, and the run's
controller ends it when all processes are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.service import RPCError

from benchflow import stack
from benchflow.contracts import temporal_names
from benchflow.errors import ServerUnavailableError
from benchflow.host_files import hold_lock
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox.directory import remove_tree
from benchflow.stack import find_free_port
from benchflow.temporal import Target, connect, make_stack_target
from benchflow.temporal_server import find_temporal_binary
from benchflow.testing.waiting import until

DIRECTORY = "run"
PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Processes of this run. Each has a namespace of its own on the server; one that nobody uses costs the server work."""

UNUSED = "unused"
"""The server's last namespace, in which nothing ever runs."""


def run_directory(config: pytest.Config) -> Path:
    """Return the directory of what all processes of this run share."""
    root: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    found = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / DIRECTORY
    found.mkdir(parents=True, exist_ok=True)
    return found


def once(directory: Path, name: str, make: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Return what `make` returned in the first process of this run that asked for `name`."""
    file = directory / f"{name}.json"
    with hold_lock(directory / f"{name}.lock"):
        if not file.exists():
            file.write_text(json.dumps(make()))
        found: dict[str, object] = json.loads(file.read_text())
        return found


def start_server() -> dict[str, object]:
    """Start a Temporal server in memory with a namespace for each process of the run. Returns its address and pid."""
    port = find_free_port()
    command = [find_temporal_binary(), "server", "start-dev", "--headless", "--port", str(port), "--log-level", "error"]
    command += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]
    # Each test has a queue of its own, which otherwise is four, loaded for minutes: in the end they took half a core.
    for setting in (
        "matching.numTaskqueueReadPartitions=1",
        "matching.numTaskqueueWritePartitions=1",
        'matching.maxTaskQueueIdleTime="20s"',
    ):
        command += ["--dynamic-config-value", setting]
    # By default, a timer of less than a second, or a retry's, takes a second: hosts' clocks may differ so much.
    command += ["--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"']
    for name in (*(f"gw{number}" for number in range(PROCESSES)), UNUSED):
        command += ["--namespace", name]
    command += [f"--search-attribute={name}=Keyword" for name in temporal_names.KEYWORD_ATTRIBUTES]
    command += [f"--search-attribute={name}=Double" for name in temporal_names.DOUBLE_ATTRIBUTES]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    address = f"127.0.0.1:{port}"

    async def answers() -> bool:
        try:
            await connect(Target(address, UNUSED, embedded=False))
        except ServerUnavailableError:
            return False
        return True

    asyncio.run(until(answers))
    return {"address": address, "pid": process.pid}


def stack_state(directory: Path) -> Path:
    """Return the state directory of the run's one embedded stack, which nobody need have started."""
    state = directory / "stack"

    def make() -> dict[str, object]:
        toolboxes = StatePaths(directory / "kept").toolboxes
        toolboxes.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700)
        StatePaths(state).toolboxes.symlink_to(toolboxes)
        return {}

    once(directory, "stack", make)
    return state


def namespace() -> str:
    """Return the namespace of this process on the run's server."""
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0")


def end(directory: Path) -> list[str]:
    """End and remove everything that the run has started. Returns why something may be left."""
    problems: list[str] = []
    if not directory.is_dir():
        return problems
    server = directory / "server.json"
    if server.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(json.loads(server.read_text())["pid"]), signal.SIGTERM)
    for state in directory.glob("stack*/"):
        record = stack.find_running(StatePaths(state))
        if record is not None:
            # Jobs of tests that failed, or were not come to: their sandboxes would outlive the stack.
            try:
                asyncio.run(_cancel_all(make_stack_target(record)))
            except (AssertionError, ServerUnavailableError, RPCError) as error:
                problems.append(f"workflows that were cancelled have not ended: {error}")
        stack.stop_stack(StatePaths(state))
        store = state / "local" / "store"
        if store.is_mount():
            # Whoever still holds it, so that the stack's worker could not unmount it, ends with this run.
            subprocess.run(["umount", "--lazy", store], check=True)
    remove_tree(directory)
    return problems


async def _cancel_all(target: Target) -> None:
    """Cancel what is open on a stack, and wait until it has torn down what it had."""
    client = await connect(target)

    async def is_over() -> bool:
        found = [execution async for execution in client.list_workflows('ExecutionStatus="Running"')]
        for execution in found:
            # What is listed may have ended meanwhile.
            with contextlib.suppress(RPCError):
                await client.get_workflow_handle(execution.id).cancel()
        return not found

    await until(is_over, seconds=120, every=0.5)
