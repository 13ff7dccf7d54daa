"""A cluster on one machine: a server, and hosts that share with each other what a cluster shares, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import docker
import pytest
from support.worlds import make_world

from benchflow.contracts import temporal_names
from benchflow.errors import ServerUnavailableError
from benchflow.paths import StatePaths
from benchflow.planes.sandbox.docker.captures import SNAPSHOT, hash_stack
from benchflow.stack import find_free_port
from benchflow.temporal import Target, connect
from benchflow.temporal_server import find_temporal_binary
from benchflow.testing.waiting import until


@contextlib.asynccontextmanager
async def cluster_server() -> AsyncIterator[str]:
    """The address of a Temporal server in memory."""
    port = find_free_port()
    command = [find_temporal_binary(), "server", "start-dev", "--headless", "--port", str(port), "--log-level", "error"]
    command += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]
    command += ["--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"']
    command += [f"--search-attribute={name}=Keyword" for name in temporal_names.KEYWORD_ATTRIBUTES]
    command += [f"--search-attribute={name}=Double" for name in temporal_names.DOUBLE_ATTRIBUTES]
    quiet = subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        await until(lambda: _answers(f"127.0.0.1:{port}"))
        yield f"127.0.0.1:{port}"
    finally:
        # Asked to end, it waits a second for calls that nobody makes.
        process.kill()
        await process.wait()


async def _answers(address: str) -> bool:
    try:
        await connect(Target(address, "default", embedded=False))
    except ServerUnavailableError:
        return False
    return True


class Host:
    """A host of the cluster that the environment names.

    Args:
        root: State directory to be.
        sandbox: Provider of the jobs.
        results: Where all hosts lay down the results of rollouts.
        variables: Environment of its worker, such as the address of its Docker daemon.
    """

    def __init__(self, root: Path, sandbox: str, results: Path, variables: Mapping[str, str]) -> None:
        root.mkdir()
        self.paths = StatePaths(root)
        self.paths.rollouts.symlink_to(results)
        self._sandbox = sandbox
        self._variables = {"BENCHFLOW_STATE_DIR": str(root)} | variables
        self._process: subprocess.Popen[bytes] | None = None
        with self._environment():
            self.world = make_world(sandbox, root)

    def begin(self, stack_id: str) -> None:
        """Work for the cluster from now on."""
        self._stack = stack_id
        if not self.world.started:
            self.world.watch(stack_id)
        with self._environment(), (self.paths.root / "worker.log").open("ab") as log:
            command = [sys.executable, "-m", "benchflow.worker"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self, with_signal: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(with_signal)
            self._process.wait(60)
            self._process = None

    def snapshots(self) -> list[str]:
        """What it keeps of states of rollouts."""
        kept = [file.stem for file in self.paths.checkpoints.glob("*.json")]
        if self._sandbox == "local":
            return kept + [place.name for place in (self.paths.root / "local" / "store" / "images").glob("bf-*")]
        with self._environment(), contextlib.closing(docker.from_env()) as client:
            tags = [tag for row in client.api.images(name=SNAPSHOT) for tag in row["RepoTags"] or ()]
        return kept + [tag for tag in tags if tag.startswith(f"{SNAPSHOT}:{hash_stack(self._stack)}-")]

    async def close(self) -> None:
        """End what a failed test may have left of it."""
        self.end(signal.SIGKILL)
        await self.world.close()

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._variables.items():
                patch.setenv(name, value)
            yield
