"""Starting an agent in its sandbox, once, with its stdio in files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from benchflow.contracts.sandbox import Mount, Sandbox
from benchflow.errors import AgentExitError
from benchflow.planes.agent.account import SandboxAccount
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.sandbox.background import cancel_and_wait, run_as_root, start_once

T = TypeVar("T")

RUN_DIRECTORY = "/run/benchflow/agent"
"""Directory in the sandbox that holds the files of agent processes. Only root may enter it."""


def make_run_mount(files: SessionFiles) -> Mount:
    """Return the mount that a sandbox needs for its agents' stdio journals."""
    return Mount(source=str(files.shared), target=RUN_DIRECTORY, read_only=False)


class AgentProcess:
    """One agent process of a sandbox."""

    def __init__(self, sandbox: Sandbox, wire: Wire, key: str, *, inside: str = RUN_DIRECTORY) -> None:
        """Make a handle of it.

        Args:
            sandbox: Sandbox of the process.
            wire: Its files on this host.
            key: Idempotency key of its start.
            inside: Directory of its files in the sandbox.
        """
        self._sandbox = sandbox
        self._wire = wire
        self._key = key
        self.inside = inside

    async def start(
        self, pump: Sequence[str], argv: Sequence[str], *, env: Mapping[str, str], cwd: str, account: SandboxAccount
    ) -> None:
        """Start the process behind the stdio proxy, unless it was started.

        Args:
            pump: Command of the stdio proxy.
            argv: Command of the agent.
            env: Variables of the agent.
            cwd: Working directory of the agent.
            account: Account that the agent runs as.

        Raises:
            AgentExitError: The stdio proxy exits at once.
        """
        command = [*pump, self.inside, str(account.uid), str(account.gid), cwd, *argv]
        identity = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
        said = await start_once(self._sandbox, self._key, command, {**identity, **env})
        if said is not None and self._wire.describe_end() is None:
            raise AgentExitError(
                f"the program that holds the agent's files ended with {said.return_code}",
                log_tail=(said.stderr or said.stdout)[-4000:] or None,
            )

    async def was_started(self) -> bool:
        """Return whether the process was started, by this process of the engine or another one."""
        return await self._sandbox.was_started(self._key)

    async def await_work(
        self, work: Coroutine[Any, Any, T], *, catch_up: Callable[[], Awaitable[None]] | None = None
    ) -> T:
        """Await work that needs the process, and return its result.

        If the stdio proxy dies before it can record the end of the agent, the end is recorded for it: the work then
        sees it as any other.

        Args:
            work: Coroutine, which is cancelled with the call.
            catch_up: Callback that copies the sandbox's files to this host, if the sandbox mounts nothing.

        Raises:
            SandboxLostError: The sandbox is lost meanwhile.
        """
        # The command was started, so that this attaches to it and ignores `true`.
        waiting = run_as_root(self._sandbox, self._key, ["true"], {})
        task = asyncio.ensure_future(work)
        try:
            both: list[asyncio.Future[Any]] = [waiting, task]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                how = waiting.result()
                if catch_up is not None:
                    await catch_up()
                if self._wire.describe_end() is None:
                    self._wire.note_end(how.return_code)
            return await task
        finally:
            await cancel_and_wait(waiting)
            await cancel_and_wait(task)

    async def kill(self) -> None:
        """Kill the process with all its descendants. Success if it has ended."""
        await self._sandbox.kill_once(self._key)
