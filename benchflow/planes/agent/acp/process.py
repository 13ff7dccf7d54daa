"""Starting an agent in its sandbox, once, with its stdio held to files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from benchflow.contracts.sandbox import Mount, Sandbox
from benchflow.errors import AgentExitError, SandboxError
from benchflow.planes.agent.acp.wire import Wire
from benchflow.store import write_atomic

RUN_DIRECTORY = "/run/benchflow/agent"
"""Where the pump finds the session's files in the sandbox. Root alone may enter it."""

_LOOK_EVERY = 0.02

# $1: user. Numbers and the home, from the sandbox's own tables.
_ACCOUNT = """id -u -- "$1" && id -g -- "$1" || exit 1
{ getent passwd "$1" 2>/dev/null || grep "^$1:" /etc/passwd; } | cut -d: -f6"""


@dataclass(frozen=True)
class Account:
    """Who an agent is in its sandbox."""

    name: str
    uid: int
    gid: int
    home: str


async def find_account(sandbox: Sandbox, user: str | int) -> Account:
    """The numbers of a user of the sandbox. Raises `SandboxError` when there is none."""
    if user in ("root", 0, "0"):
        return Account("root", 0, 0, "/root")
    answer = await sandbox.control(_ACCOUNT, str(user))
    rows = answer.stdout.split("\n")
    if answer.return_code != 0 or len(rows) < 3 or not (rows[0].isdigit() and rows[1].isdigit()):
        raise SandboxError(
            f"there is no user {user!r} in the sandbox", key="agent.user", log_tail=answer.stderr or None
        )
    return Account(str(user), int(rows[0]), int(rows[1]), rows[2] or "/")


def run_mount(wire: Wire) -> Mount:
    """What a sandbox must be started with for a session to be held in this directory."""
    return Mount(source=str(wire.directory), target=RUN_DIRECTORY, read_only=False)


class AgentProcess:
    """One agent process of a sandbox. key: names it, so that it is started once."""

    def __init__(self, sandbox: Sandbox, wire: Wire, key: str) -> None:
        self._sandbox = sandbox
        self._wire = wire
        self._key = key

    async def start(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, account: Account
    ) -> None:
        """Start it, unless it was. node: the program, in the sandbox. Raises `AgentExitError` if it ends at once."""
        if not await self._sandbox.was_started(self._key):
            await self._place_pump()
        command = [node, f"{RUN_DIRECTORY}/pump.mjs", RUN_DIRECTORY, str(account.uid), str(account.gid), cwd, *argv]
        identity = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
        # Waiting for its end is not this call's business: leaving the call leaves it running.
        running = asyncio.ensure_future(
            self._sandbox.exec_once(self._key, command, env={**identity, **env}, cwd="/", user="root")
        )
        try:
            while not await self._sandbox.was_started(self._key):
                await asyncio.wait([running], timeout=_LOOK_EVERY)
                if running.done() and not await self._sandbox.was_started(self._key):
                    running.result()
            if running.done() and self._wire.ended() is None:
                said = running.result()
                raise AgentExitError(
                    f"the program that holds the agent's files ended with {said.return_code}",
                    log_tail=(said.stderr or said.stdout)[-4000:] or None,
                )
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def kill(self) -> None:
        """End it with all that it started."""
        await self._sandbox.kill_once(self._key)

    async def _place_pump(self) -> None:
        source = resources.files("benchflow.planes.agent.acp").joinpath("pump.mjs")
        # At once: another worker's start may be reading it.
        await asyncio.to_thread(write_atomic, self._wire.directory / "pump.mjs", source.read_bytes(), durable=False)
