"""How a command ended: by what the daemon says of its execution, else by what the command's wrapper has left.

The daemon forgets executions some minutes after their end, and all of them when it is started again, which the
container may outlive. It misses ends while its containerd is away.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchflow.errors import DaemonUnavailableError, SandboxError, SandboxLostError
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.processes import Processes
from benchflow.planes.sandbox.docker.shell import RootShell
from benchflow.planes.sandbox.docker.translation import NotFound
from benchflow.planes.sandbox.outcome import KILLED
from benchflow.planes.sandbox.timeouts import AwakeDeadline

NOTICE_SEC = 5.0
"""Seconds that the daemon has to note the end of a command of which no process is left."""

BEGUN = "begun"
"""In the file of the exit status, until there is one."""

STATUS_WIDTH = len(BEGUN)
"""Characters of the line in that file, which is written when the room is made, and blank before the command begins.
Overwritten in place, it needs no more of a disk that may be full by then.
"""


class Endings:
    """Tells how the commands of one container ended. A record of one has its execution's id, its mark and its user."""

    def __init__(self, engine: Engine, shell: RootShell, processes: Processes, container: str) -> None:
        self._engine = engine
        self._shell = shell
        self._processes = processes
        self._container = container
        # When a command that runs, as the daemon says, was first seen to have left its exit status, by its mark.
        self._unnoticed: dict[str, float] = {}

    async def exit_code(self, record: dict[str, Any], room: str | None = None) -> int:
        """Return the exit status of an execution whose stream has ended; the daemon may say it a little later.

        room: None where it leaves none there. Its stream has ended with the daemon, if that has forgotten it.
        """
        pause, began = 0.002, time.monotonic()
        while True:
            try:
                state = await self._engine.call(lambda client: client.exec_inspect(record["exec_id"]))
            except NotFound as error:
                await self._require_running()
                if room is None:
                    raise DaemonUnavailableError("the Docker daemon was started again during a command") from error
                code, _ = await self._state_without_daemon(record, room)
            else:
                code = await self._code_of(state)
                if code is None and room is not None and time.monotonic() - began > NOTICE_SEC:
                    code = await self.missed(record, room)
            if code is not None:
                return code
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.2)
            if pause == 0.2:
                await self._require_running()

    async def state(self, record: dict[str, Any], room: str) -> tuple[int | None, bool]:
        """Return the exit status of a recorded execution, None if it has not ended, and whether it ever began."""
        await self._require_running()
        try:
            state = await self._engine.call(lambda client: client.exec_inspect(record["exec_id"]))
        except NotFound:
            return await self._state_without_daemon(record, room)
        if record.get("refused"):
            return await self._state_without_daemon(record, room)
        code = await self._code_of(state)
        return code, state["Running"] or code is not None

    async def is_known(self, exec_id: str) -> bool:
        """Return whether the daemon knows an execution."""
        try:
            await self._engine.call(lambda client: client.exec_inspect(exec_id))
        except NotFound:
            return False
        return True

    async def _code_of(self, state: dict[str, Any]) -> int | None:
        """Return the exit status of an execution of which the daemon says this; None for none yet."""
        if not state["Running"]:
            if state["ExitCode"] == KILLED:
                # Where the container died, the daemon says so of the execution first. The shell died, too.
                await self._shell.run(":")
                await self._require_running()
            code: int | None = state["ExitCode"]
            return code
        return None

    async def missed(self, record: dict[str, Any], room: str) -> int | None:
        """Return the exit status of a command whose end the daemon has missed; None while it may run, or be noted yet.

        To be asked from time to time while it runs, but not where an answer may not wait: processes of the sandbox can
        hold up the shell.
        """
        said = (await self._said_at_exit(room)).strip()
        if not said.isdigit():
            return None
        since = self._unnoticed.setdefault(record["nonce"], time.monotonic())
        if time.monotonic() - since < NOTICE_SEC or await self._processes.any_marked(record["nonce"], record["user"]):
            return None
        return int(said)

    async def _said_at_exit(self, room: str) -> str:
        """Return the line that a command's wrapper has left: its exit status, `BEGUN`, or blanks before it began.

        Empty where the container's root has made away with it: nobody can tell.
        """
        answer = await self._shell.run(f"cat {room}/exit")
        return answer.out.decode(errors="replace")

    async def _state_without_daemon(self, record: dict[str, Any], room: str) -> tuple[int | None, bool]:
        """Return the same where the daemon has forgotten it, as some minutes after the end, or did not start it."""
        # Asked in this order, since it may end between the two questions.
        running = await self._processes.any_marked(record["nonce"], record["user"])
        said = await self._said_at_exit(room)
        if said.strip().isdigit():
            return int(said), True
        if running or (said and not said.strip()):
            return None, running
        raise SandboxError("a command's end was not seen: its processes are gone and left no exit status")

    async def ended_unseen(self, record: dict[str, Any], room: str) -> int | None:
        """Return the exit status of an execution whose time is over, if it ended while the daemon did not answer.

        Raises:
            DaemonUnavailableError: It does not answer yet, so that nobody can tell.
        """
        await self._engine.require_answer()
        giving_up = AwakeDeadline(2 * NOTICE_SEC)
        while True:
            code, _ = await self.state(record, room)
            if code is None and record["nonce"] in self._unnoticed:
                code = await self.missed(record, room)
            if code is not None or record["nonce"] not in self._unnoticed or giving_up.is_over():
                return code
            await asyncio.sleep(0.2)

    async def _require_running(self) -> None:
        state = await self._engine.about(self._container, lambda client: client.inspect_container(self._container))
        if not state["State"]["Running"]:
            raise SandboxLostError(f"the container {state['Name'].lstrip('/')} stopped during a command")
