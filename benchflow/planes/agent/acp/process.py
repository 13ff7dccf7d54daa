"""Starting an agent in its sandbox, once, with its stdio held to files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from benchflow.contracts.sandbox import Mount, Sandbox
from benchflow.errors import AgentExitError
from benchflow.planes.agent.account import Account
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.sandbox.background import held, leave, start_once

T = TypeVar("T")

RUN_DIRECTORY = "/run/benchflow/agent"
"""Where the pump finds the session's files in the sandbox. Root alone may enter it."""


def run_mount(files: SessionFiles) -> Mount:
    """Return the mount that a sandbox needs for its agents' stdio journals."""
    return Mount(source=str(files.shared), target=RUN_DIRECTORY, read_only=False)


class AgentProcess:
    """One agent process of a sandbox.

    key: names it, so that it is started once. inside: where the sandbox has the files of the wire.
    """

    def __init__(self, sandbox: Sandbox, wire: Wire, key: str, *, inside: str = RUN_DIRECTORY) -> None:
        self._sandbox = sandbox
        self._wire = wire
        self._key = key
        self.inside = inside

    async def start(
        self, pump: Sequence[str], argv: Sequence[str], *, env: Mapping[str, str], cwd: str, account: Account
    ) -> None:
        """Start it, unless it was. pump: what holds its stdio. Raises `AgentExitError` if that ends at once."""
        command = [*pump, self.inside, str(account.uid), str(account.gid), cwd, *argv]
        identity = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
        said = await start_once(self._sandbox, self._key, command, {**identity, **env})
        if said is not None and self._wire.ended() is None:
            raise AgentExitError(
                f"the program that holds the agent's files ended with {said.return_code}",
                log_tail=(said.stderr or said.stdout)[-4000:] or None,
            )

    async def was_started(self) -> bool:
        """Whether somebody has started it."""
        return await self._sandbox.was_started(self._key)

    async def during(self, work: Coroutine[Any, Any, T], *, catch_up: Callable[[], Awaitable[None]] | None = None) -> T:
        """The result of work that needs the process to live. Raises `SandboxLostError` when the sandbox goes meanwhile.

        An end that the pump did not live to write down is written for it: the work hears of it as of any other.
        catch_up: what makes this host's files equal to the sandbox's, where they are not the same.
        """
        # The command is not looked at again: it was started.
        waiting = held(self._sandbox, self._key, ["true"], {})
        task = asyncio.ensure_future(work)
        try:
            both: list[asyncio.Future[Any]] = [waiting, task]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                how = waiting.result()
                if catch_up is not None:
                    await catch_up()
                if self._wire.ended() is None:
                    self._wire.note_end(how.return_code)
            return await task
        finally:
            await leave(waiting)
            await leave(task)

    async def kill(self) -> None:
        """End it with all that it started."""
        await self._sandbox.kill_once(self._key)
