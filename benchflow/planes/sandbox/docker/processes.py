"""Commands as executions of the daemon. An execution that the daemon has created starts at most once, however often it
is asked to; its id is recorded on the host before it is started, if other processes may ask for it.

The daemon forgets executions some minutes after their end, and all of them when it is started again, which the
container may outlive. It misses ends while its containerd is away. Then it can't tell how they ended.
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
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.records import container_records, entering
from benchflow.planes.sandbox.docker.stream import STDOUT, Stream
from benchflow.planes.sandbox.docker.translation import NotFound, passing_error
from benchflow.planes.sandbox.records import write_record

_MAX_REASON = 64 * 1024
"""Bytes of what the daemon says of a command that does not start."""


class Processes:
    """The commands of the containers of one daemon, each by the handle of its sandbox and its id."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Of commands that were started here and have not ended, as far as is known.
        self._streams: dict[tuple[str, str], Stream] = {}
        self._exec_ids: dict[tuple[str, str], str] = {}

    async def spawn(self, handle: str, container: str, process: Process) -> None:
        """Start a command, unless it was. Whoever else may do that waits meanwhile."""
        known = self._known(handle, process.id)
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
        async with entering(container):
            self._streams[handle, process.id] = await self._engine.open_exec(container, known["exec_id"])

    async def status(self, handle: str, container: str, process_id: str) -> ProcessStatus:
        """Return how a command fares."""
        known = self._known(handle, process_id)
        if known is None:
            return ProcessStatus(was_started=False)
        await self._require_running(container)
        state = await self._inspect(known["exec_id"])
        if state is None or "refused" in known:
            return ProcessStatus(was_started=True)
        if state["ExitCode"] is not None and not state["Running"]:
            # Nobody asks again for one that is not kept.
            self._exec_ids.pop((handle, process_id), None)
        # The daemon answers a start before it has noted it.
        is_coming = state["ExitCode"] is None and (handle, process_id) in self._streams
        return ProcessStatus(
            was_started=state["Running"] or is_coming or state["ExitCode"] is not None,
            is_running=state["Running"] or is_coming,
            exit_code=None if state["Running"] else state["ExitCode"],
        )

    async def wait(self, handle: str, container: str, process_id: str) -> ProcessStatus:
        """Return once a command has ended."""
        pause, longest = 0.05, 1.0
        if (stream := self._streams.get((handle, process_id))) is not None:
            try:
                said = (await stream.read_all(_MAX_REASON)).decode(errors="replace").strip()
            finally:
                self._drop(handle, process_id)
            if said and (refused := self._refusal(handle, process_id, said)) is not None:
                return refused
            # The daemon may note the end a little later.
            pause, longest = 0.002, 0.2
        while (status := await self.status(handle, container, process_id)).is_running:
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
        return status

    def _refusal(self, handle: str, process_id: str, said: str) -> ProcessStatus | None:
        """Return the end of a command that the daemon did not start. None if somebody else has started it.

        Raises:
            SandboxError: It would start it at another time.
        """
        if (passing := passing_error(said)) is not None:
            known = self._known(handle, process_id)
            if known is not None and (file := _record(handle, process_id)).exists():
                # What the daemon tells later of its exit code is not the command's.
                write_record(file, known | {"refused": True})
            raise passing
        return None if "already run" in said else ProcessStatus(error=said)

    async def stream(self, container: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a command and yield what it prints, then its exit code."""
        exec_id = await self._create(container, process)
        async with entering(container):
            stream = await self._engine.open_exec(container, exec_id)
        try:
            while (piece := await stream.read()) is not None:
                yield ExecChunk(stream="stdout" if piece[0] == STDOUT else "stderr", data=piece[1])
        finally:
            stream.close()
        yield ExecChunk(stream="exit", return_code=await self._exit_code(container, exec_id))

    async def _exit_code(self, container: str, exec_id: str) -> int:
        """Return the exit code of an execution whose stream has ended."""
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
        """Let go of what is held of the commands of a sandbox."""
        for one, process_id in [key for key in self._exec_ids | self._streams if key[0] == handle]:
            self._drop(one, process_id)
            self._exec_ids.pop((one, process_id), None)

    def _drop(self, handle: str, process_id: str) -> None:
        stream = self._streams.pop((handle, process_id), None)
        if stream is not None:
            stream.close()

    def _known(self, handle: str, process_id: str) -> dict[str, Any] | None:
        """Return what is recorded of a command, None if it was never created."""
        if (exec_id := self._exec_ids.get((handle, process_id))) is not None:
            return {"exec_id": exec_id}
        file = _record(handle, process_id)
        # An earlier version has recorded it elsewhere.
        for place in (file, file.with_suffix(".json")):
            if place.exists():
                record: dict[str, Any] = json.loads(place.read_text())
                if "exec_id" in record:
                    return record
        return None

    async def _create(self, container: str, process: Process) -> str:
        async with entering(container):
            made = await self._engine.about(
                container,
                lambda client: client.exec_create(
                    container, list(process.argv), user=process.user, environment=process.env, workdir=process.cwd
                ),
            )
        return str(made["Id"])

    async def _inspect(self, exec_id: str) -> dict[str, Any] | None:
        """Return what the daemon says of an execution, None if it has forgotten it."""
        try:
            state: dict[str, Any] = await self._engine.call(lambda client: client.exec_inspect(exec_id))
        except NotFound:
            return None
        return state

    async def _require_running(self, container: str) -> None:
        state = await self._engine.about(container, lambda client: client.inspect_container(container))
        if not state["State"]["Running"]:
            raise SandboxLostError(f"the container {state['Name'].lstrip('/')} stopped during a command")


def _record(handle: str, process_id: str) -> Path:
    # Not among the `*.json` there, which say what was run once.
    return container_records(handle) / f"{process_id}.exec"
