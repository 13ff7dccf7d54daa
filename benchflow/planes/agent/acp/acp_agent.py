"""Agents that speak the Agent Client Protocol: a process in the sandbox behind a stdio proxy that writes journals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from benchflow.contracts.agent import RolloutAgent, Session
from benchflow.contracts.base import Model
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rollout_records import AgentSession, ModelAccess
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.paths import StatePaths
from benchflow.planes.agent.account import SandboxAccount, find_account
from benchflow.planes.agent.acp.acp_session import AcpSession
from benchflow.planes.agent.acp.agent_process import make_run_mount
from benchflow.planes.agent.acp.agent_start import AgentStart
from benchflow.planes.agent.acp.connect import AgentConnection, find_resume_mode
from benchflow.planes.agent.agent_settings import make_settings
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.toolbox import (
    PUMP,
    RELAY,
    Libc,
    Toolbox,
    build_toolbox_image,
    ensure_runtime,
    ensure_toolbox,
    find_libc,
    require_runs_in,
)

NO_KEY = "no-key"
"""API key for a user's own endpoint that has none: most agents refuse to start without one."""

_SETUP = "outfit.json"


class RuntimeSetup(Model):
    """How a sandbox was prepared for its agent. Stored on this host, so that any process can read it."""

    libc: Libc
    """C library of its image."""

    mounted: bool
    """Whether it mounts directories of its host."""

    access: ModelAccess
    """How the agent reaches its model."""


class AcpAgent(RolloutAgent):
    """An agent that is a program, installed in a toolbox or in the image."""

    runs_inside = True

    # --- its sandbox -----------------------------------------------------------------------------------------

    async def prepare(self, wanted: SandboxSpec, log: Path) -> SandboxSpec:
        """Return the spec with mounts of the toolboxes and the journals, or with the toolboxes built into the image.

        Args:
            wanted: The spec without the agent.
            log: File for the output of the image's build.
        """
        place = self.place
        libc = await find_libc(place.provider, wanted.image, self._paths, labels=wanted.labels)
        mounted = place.provider.capabilities().mounts
        toolboxes = [toolbox.mount for toolbox in await self._ensure_toolboxes(libc)]
        setup = RuntimeSetup(libc=libc, mounted=mounted, access=place.access)
        with raise_storage_errors(place.directory):
            place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(place.directory / _SETUP, setup.model_dump_json().encode())
        if not mounted:
            image = await build_toolbox_image(place.provider, wanted.image, toolboxes, log=log)
            return wanted.model_copy(update={"image": image})
        files = SessionFiles.from_directory(place.directory)
        with raise_storage_errors(files.shared):
            files.shared.mkdir(exist_ok=True, mode=0o700)
        return wanted.model_copy(update={"mounts": (*wanted.mounts, make_run_mount(files), *toolboxes)})

    async def set_up(self) -> None:
        """Start the relay to the gateway in the sandbox, if the agent calls its model through the gateway."""
        if self._setup.access == "gateway":
            runtime = await ensure_runtime(self._paths, self._setup.libc)
            await self.place.run_relay(runtime.find_program(RELAY))

    async def _ensure_toolboxes(self, libc: Libc) -> list[Toolbox]:
        """Return the stdio proxy's toolbox and, if the agent is not in the image, the agent's own."""
        runtime = await ensure_runtime(self._paths, libc)
        own = await ensure_toolbox(self.place.record, self._paths, libc)
        return [runtime] if own is None else [runtime, own]

    # --- its sessions ----------------------------------------------------------------------------------------

    async def open(self, index: int) -> AgentSession:
        """Open the rollout's session number `index`, or return it if it is open."""
        return await self._open(index)

    async def restore(self, index: int, held: AgentSession, captured: Mapping[str, Any] | None) -> AgentSession:
        """Open a session that loads the session `held`, in a copy of its sandbox; `captured` is not needed."""
        return await self._open(index, held)

    async def _open(self, index: int, held: AgentSession | None = None) -> AgentSession:
        start, _ = await self._check_and_make_start()
        opened = await self._connection.open(index, start, self.place.setup_sec, load=held)
        return opened.model_copy(update={"model_access": self._setup.access})

    def rung(self, held: AgentSession, least: Rung) -> Rung:
        """Return the best resume mode of a session in a copy of its world, as `find_resume_mode`."""
        return find_resume_mode(self.place.record, held, least)

    async def session(self, held: AgentSession) -> Session:
        """Return a handle of an open session."""
        return AcpSession(self.place.sandbox, self._connection, held)

    @property
    def _connection(self) -> AgentConnection:
        files = SessionFiles.from_directory(self.place.directory)
        return AgentConnection(self.place.sandbox, files, mirrored=not self._setup.mounted)

    # --- its process -----------------------------------------------------------------------------------------

    async def _check_and_make_start(self) -> tuple[AgentStart, Toolbox | None]:
        """Return the agent's start and toolbox as `_make_start`, after a check that its programs run in the sandbox."""
        for toolbox in await self._ensure_toolboxes(self._setup.libc):
            await require_runs_in(self.place.sandbox, toolbox)
        return await self._make_start(await find_account(self.place.sandbox, self.place.user))

    async def _make_start(self, account: SandboxAccount) -> tuple[AgentStart, Toolbox | None]:
        """Return the start of the agent as a user, and the agent's toolbox; None if it has none."""
        place, record = self.place, self.place.record
        runtime, *own = await self._ensure_toolboxes(self._setup.libc)
        toolbox = own[0] if own else None
        workspace, route = place.sandbox.ref.workdir, place.route()
        settings = make_settings(
            record,
            home=account.home,
            workspace=workspace,
            model=route.name,
            base_url=route.base_url,
            api_key=None if route.login_files else route.api_key or (NO_KEY if route.base_url else None),
            effort=route.effort,
        )
        start = AgentStart(
            record=record,
            settings=settings,
            pump=runtime.find_program(PUMP),
            argv=(*(toolbox.make_argv(record) if toolbox else record.launch), *settings.argv),
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
        """The setup that `prepare` has stored."""
        return RuntimeSetup.model_validate_json((self.place.directory / _SETUP).read_bytes())

    @property
    def _paths(self) -> StatePaths:
        return StatePaths(self.place.state)
