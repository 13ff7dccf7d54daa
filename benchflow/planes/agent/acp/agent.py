"""Agents that speak the Agent Client Protocol: a process of the sandbox, held by a proxy whose files are journals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from benchflow.contracts.base import Model
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rollout import AgentSession, ModelAccess
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.session import Agent, Session
from benchflow.paths import StatePaths
from benchflow.planes.agent.account import Account, find_account
from benchflow.planes.agent.acp.connect import Connection, Start, session_rung
from benchflow.planes.agent.acp.process import run_mount
from benchflow.planes.agent.acp.session import AcpSession
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.settings import settings_for
from benchflow.planes.agent.toolbox import (
    PUMP,
    RELAY,
    Libc,
    Toolbox,
    ensure_runtime,
    ensure_toolbox,
    image_with_toolboxes,
    libc_of,
    require_runs_in,
)
from benchflow.store import storage_errors, write_atomic

NO_KEY = "no-key"
"""Key that a user's own endpoint is given where there is none: most agents refuse to start without one."""

_SETUP = "outfit.json"


class RuntimeSetup(Model):
    """How a sandbox was prepared for its agent."""

    libc: Libc
    """C library of its image."""

    mounted: bool
    """Whether it mounts directories of its host."""

    access: ModelAccess
    """How the agent reaches its model."""


class AcpAgent(Agent):
    """An agent that is a program, installed in a toolbox or in the image."""

    runs_inside = True

    # --- its sandbox -----------------------------------------------------------------------------------------

    async def prepare(self, wanted: SandboxSpec, log: Path) -> SandboxSpec:
        place = self.place
        libc = await libc_of(place.provider, wanted.image, self._paths, labels=wanted.labels)
        mounted = place.provider.capabilities().mounts
        toolboxes = await self._toolboxes(libc)
        setup = RuntimeSetup(libc=libc, mounted=mounted, access=place.access)
        with storage_errors(place.directory):
            place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(place.directory / _SETUP, setup.model_dump_json().encode())
        if not mounted:
            image = await image_with_toolboxes(place.provider, wanted.image, toolboxes, log=log)
            return wanted.model_copy(update={"image": image})
        files = SessionFiles.below(place.directory)
        with storage_errors(files.shared):
            files.shared.mkdir(exist_ok=True, mode=0o700)
        mounts = [run_mount(files), *(toolbox.mount for toolbox in toolboxes)]
        # The world may have asked for one of them already.
        return wanted.model_copy(update={"mounts": tuple(dict.fromkeys([*wanted.mounts, *mounts]))})

    async def set_up(self) -> None:
        """Run the relay to the gateway, if the model is reached by it."""
        if self._setup.access == "gateway":
            runtime = await ensure_runtime(self._paths, self._setup.libc)
            await self.place.run_relay(runtime.program(RELAY))

    async def _toolboxes(self, libc: Libc) -> list[Toolbox]:
        """Return the stdio proxy's toolbox and, if the agent is not in the image, the agent's own."""
        runtime = await ensure_runtime(self._paths, libc)
        own = await ensure_toolbox(self.place.record, self._paths, libc)
        return [runtime] if own is None else [runtime, own]

    # --- its sessions ----------------------------------------------------------------------------------------

    async def open(self, index: int) -> AgentSession:
        return await self._open(index)

    async def restore(self, index: int, held: AgentSession, captured: Mapping[str, Any] | None) -> AgentSession:
        return await self._open(index, held)

    async def _open(self, index: int, held: AgentSession | None = None) -> AgentSession:
        start, _ = await self._checked_start()
        opened = await self._connection.open(index, start, self.place.setup_sec, load=held)
        return opened.model_copy(update={"model_access": self._setup.access})

    def rung(self, held: AgentSession, least: Rung) -> Rung:
        return session_rung(self.place.record, held, least)

    async def session(self, held: AgentSession) -> Session:
        return AcpSession(self.place.sandbox, self._connection, held)

    @property
    def _connection(self) -> Connection:
        files = SessionFiles.below(self.place.directory)
        return Connection(self.place.sandbox, files, mirrored=not self._setup.mounted)

    # --- its process -----------------------------------------------------------------------------------------

    async def _checked_start(self) -> tuple[Start, Toolbox | None]:
        """Return what the agent is started with, and its toolbox, after a look whether both can run in the sandbox."""
        for toolbox in await self._toolboxes(self._setup.libc):
            await require_runs_in(self.place.sandbox, toolbox)
        return await self._start(await find_account(self.place.sandbox, self.place.user))

    async def _start(self, account: Account) -> tuple[Start, Toolbox | None]:
        """Return what the agent is started with, and its toolbox."""
        place, record = self.place, self.place.record
        runtime, *own = await self._toolboxes(self._setup.libc)
        toolbox = own[0] if own else None
        workspace, route = place.sandbox.ref.workdir, place.route()
        settings = settings_for(
            record,
            home=account.home,
            workspace=workspace,
            model=route.name,
            base_url=route.base_url,
            api_key=None if route.login_files else route.api_key or (NO_KEY if route.base_url else None),
            effort=route.effort,
        )
        start = Start(
            record=record,
            settings=settings,
            pump=runtime.program(PUMP),
            argv=(*(toolbox.argv(record) if toolbox else record.launch), *settings.argv),
            account=account,
            cwd=workspace,
            env={**place.env, **settings.env, **place.agent_env},
            secret_files=route.login_files,
            mcp_servers=place.mcp_servers,
            effort=route.effort,
        )
        return start, toolbox

    @cached_property
    def _setup(self) -> RuntimeSetup:
        return RuntimeSetup.model_validate_json((self.place.directory / _SETUP).read_bytes())

    @property
    def _paths(self) -> StatePaths:
        return StatePaths(self.place.state)
