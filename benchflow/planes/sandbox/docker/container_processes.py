"""Commands of a container, as execs of the daemon.

An exec that the daemon has created starts at most once, however often the start is requested. Its id is recorded on the
host before the start, if other processes of the engine may ask for it.

The daemon forgets execs some minutes after their end, and all of them when it restarts, which the container may
outlive. It misses ends while its containerd is away. Then it can't tell how they ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from benchflow.contracts.driver import Process, ProcessStatus
from benchflow.contracts.sandbox import ExecChunk
from benchflow.errors import DaemonUnavailableError, SandboxLostError
from benchflow.host_files import write_record
from benchflow.planes.sandbox.docker.container_records import container_records, lock_for_exec
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.exec_stream import STDOUT, ExecStream
from benchflow.planes.sandbox.docker.translation import NotFoundError, find_passing_error

_MAX_REASON = 64 * 1024
"""Maximum number of bytes of the daemon's message about a command that does not start."""


class ContainerProcesses:
    """The commands of the containers of one daemon, by the handle of the sandbox and the id of the process."""

    def __init__(self, engine: DockerDaemon) -> None:
        """Make it."""
        self._engine = engine
        # Streams of commands that this process has started and has not seen end.
        self._streams: dict[tuple[str, str], ExecStream] = {}
        self._exec_ids: dict[tuple[str, str], str] = {}

    async def spawn(self, handle: str, container: str, process: Process) -> None:
        """Start a command, unless it was started. The caller must exclude others that start the same one meanwhile.

        Args:
            handle: Handle of the sandbox.
            container: Id of its container.
            process: The command.
        """
        known = self._read_record(handle, process.id)
        state = await self._inspect(known["exec_id"]) if known is not None and "refused" not in known else None
        if state is None:
            known = {"exec_id": await self._create(container, process)}
            if process.is_kept:
                write_record(_record(handle, process.id), known)
            else:
                self._exec_ids[handle, process.id] = known["exec_id"]
        elif state["Running"] or state["ExitCode"] is not None:
            return
        assert known is not None
        async with lock_for_exec(container):
            self._streams[handle, process.id] = await self._engine.open_exec(container, known["exec_id"])

    async def status(self, handle: str, container: str, process_id: str) -> ProcessStatus:
        """Return the status of a command.

        One that the daemon has forgotten, or could not start for a reason that passes, is reported as started, without
        an exit code.

        Raises:
            SandboxLostError: The container does not run.
        """
        known = self._read_record(handle, process_id)
        if known is None:
            return ProcessStatus(was_started=False)
        await self._require_running(container)
        state = await self._inspect(known["exec_id"])
        if state is None or "refused" in known:
            return ProcessStatus(was_started=True)
        if state["ExitCode"] is not None and not state["Running"]:
            # Commands that are not retained are asked for only until their end.
            self._exec_ids.pop((handle, process_id), None)
        # The daemon answers a start before its state says so.
        is_coming = state["ExitCode"] is None and (handle, process_id) in self._streams
        return ProcessStatus(
            was_started=state["Running"] or is_coming or state["ExitCode"] is not None,
            is_running=state["Running"] or is_coming,
            exit_code=None if state["Running"] else state["ExitCode"],
        )

    async def wait(self, handle: str, container: str, process_id: str) -> ProcessStatus:
        """Wait for the end of a command and return its status.

        Raises:
            SandboxLostError: The container ended.
            SandboxError: The daemon could not start the command for a reason that passes, such as a full disk.
        """
        pause, longest = 0.05, 1.0
        if (stream := self._streams.get((handle, process_id))) is not None:
            try:
                message = (await stream.read_all(_MAX_REASON)).decode(errors="replace").strip()
            finally:
                self._drop(handle, process_id)
            if message and (refused := self._handle_refusal(handle, process_id, message)) is not None:
                return refused
            # The daemon may notice the end a little later.
            pause, longest = 0.002, 0.2
        while (status := await self.status(handle, container, process_id)).is_running:
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
        return status

    def _handle_refusal(self, handle: str, process_id: str, message: str) -> ProcessStatus | None:
        """Return the status of a command that the daemon did not start; None if another process has started it.

        Raises:
            SandboxError: The reason passes, so that a retry may succeed.
        """
        if (passing := find_passing_error(message)) is not None:
            known = self._read_record(handle, process_id)
            if known is not None and (file := _record(handle, process_id)).exists():
                # The exit code that the daemon will have for the exec is not the command's.
                write_record(file, known | {"refused": True})
            raise passing
        return None if "already run" in message else ProcessStatus(error=message)

    async def stream(self, container: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a command and yield its output as it comes, then its exit code. Closing early leaves it running."""
        exec_id = await self._create(container, process)
        async with lock_for_exec(container):
            stream = await self._engine.open_exec(container, exec_id)
        try:
            while (piece := await stream.read()) is not None:
                yield ExecChunk(stream="stdout" if piece[0] == STDOUT else "stderr", data=piece[1])
        finally:
            stream.close()
        yield ExecChunk(stream="exit", return_code=await self._await_exit_code(container, exec_id))

    async def _await_exit_code(self, container: str, exec_id: str) -> int:
        """Poll for the exit code of an exec whose stream has ended, and return it."""
        pause = 0.002
        while True:
            state = await self._inspect(exec_id)
            if state is None:
                await self._require_running(container)
                raise DaemonUnavailableError("the Docker daemon was started again during a command")
            if not state["Running"] and state["ExitCode"] is not None:
                return int(state["ExitCode"])
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.2)
            if pause == 0.2:
                await self._require_running(container)

    def forget(self, handle: str) -> None:
        """Close the streams of a sandbox's commands and drop their exec ids. The commands run on."""
        for one, process_id in [key for key in self._exec_ids | self._streams if key[0] == handle]:
            self._drop(one, process_id)
            self._exec_ids.pop((one, process_id), None)

    def _drop(self, handle: str, process_id: str) -> None:
        """Close the stream of a command."""
        stream = self._streams.pop((handle, process_id), None)
        if stream is not None:
            stream.close()

    def _read_record(self, handle: str, process_id: str) -> dict[str, Any] | None:
        """Return the record of a command, with its `exec_id`; None if no exec was created for it."""
        if (exec_id := self._exec_ids.get((handle, process_id))) is not None:
            return {"exec_id": exec_id}
        file = _record(handle, process_id)
        # An earlier version of the engine used another suffix.
        for place in (file, file.with_suffix(".json")):
            if place.exists():
                record: dict[str, Any] = json.loads(place.read_text())
                if "exec_id" in record:
                    return record
        return None

    async def _create(self, container: str, process: Process) -> str:
        """Create an exec and return its id."""
        async with lock_for_exec(container):
            made = await self._engine.call_entered(
                container,
                lambda client: client.exec_create(
                    container, list(process.argv), user=process.user, environment=process.env, workdir=process.cwd
                ),
            )
        return str(made["Id"])

    async def _inspect(self, exec_id: str) -> dict[str, Any] | None:
        """Return the daemon's state of an exec; None if it has forgotten it."""
        try:
            state: dict[str, Any] = await self._engine.call(lambda client: client.exec_inspect(exec_id))
        except NotFoundError:
            return None
        return state

    async def _require_running(self, container: str) -> None:
        state = await self._engine.inspect(container)
        if not state["State"]["Running"]:
            raise SandboxLostError(f"the container {state['Name'].lstrip('/')} stopped during a command")


def _record(handle: str, process_id: str) -> Path:
    # Not `*.json`, which are the records of `exec_once`.
    return container_records(handle) / f"{process_id}.exec"
