"""The agent behind acpx: where it differs from an agent that speaks ACP with the engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow.contracts.agent import RolloutAgent, Session
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import UnsupportedFeatureError
from benchflow.planes.agent.account import SandboxAccount
from benchflow.planes.agent.acp.acp_agent import AcpAgent
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY
from benchflow.planes.agent.acp.agent_start import AgentStart, prepare_home
from benchflow.planes.agent.acpx import make_choices
from benchflow.planes.agent.acpx.acpx_session import OPENING_TIMEOUT, AcpxSession, end_session
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.toolbox import Toolbox


class AcpxAgent(AcpAgent):
    """An agent that acpx drives."""

    async def prepare(self, wanted: SandboxSpec, log: Path) -> SandboxSpec:
        """Return the spec as `AcpAgent.prepare`.

        Raise `UnsupportedFeatureError` if the sandbox mounts nothing of its host.
        """
        if not self.place.provider.capabilities().mounts:
            raise UnsupportedFeatureError(
                f"agent {self.place.record.name!r} needs a sandbox that mounts directories of its host",
                key="agent",
                remedy="use a Docker daemon of the worker's own host, or the agent without acpx",
            )
        return await super().prepare(wanted, log)

    async def open(self, index: int) -> AgentSession:
        """Open the rollout's session number `index`, or return it if it is open."""
        place = self.place
        start, toolbox = await self._check_and_make_start()
        await prepare_home(place.sandbox, start)
        name = f"{place.sandbox.ref.episode}{index}.0"
        account = start.account
        return AgentSession(
            index=index,
            id=await self.make_session(name, start, toolbox).open(),
            directory=name,
            user=account.name,
            uid=account.uid,
            gid=account.gid,
            home=account.home,
            cwd=start.cwd,
            agent=place.record.name,
            version=place.record.version,
            model_access=self._setup.access,
        )

    async def restore(self, index: int, held: AgentSession, captured: Mapping[str, Any] | None) -> AgentSession:
        """Raise `SessionNotLoadedError`: acpx cannot resume a session in a copy of the sandbox."""
        return await RolloutAgent.restore(self, index, held, captured)

    async def session(self, held: AgentSession) -> Session:
        """Return a handle of an open session."""
        start, toolbox = await self._make_start(SandboxAccount(held.user, held.uid, held.gid, held.home))
        return self.make_session(held.directory, start, toolbox)

    async def end(self, held: AgentSession) -> None:
        """Kill all processes of a session, the agent's included."""
        files = SessionFiles.from_directory(self.place.directory).join(held.directory)
        await end_session(self.place.sandbox, files)

    def make_session(self, name: str, start: AgentStart, toolbox: Toolbox | None) -> AcpxSession:
        """Return a handle of the session in this directory, which need not be open. toolbox: must not be None."""
        # The protocol's types take long to import.
        from benchflow.planes.agent.acp.opening import format_server

        assert toolbox is not None, "acpx is always installed"
        place = self.place
        return AcpxSession(
            place.sandbox,
            SessionFiles.from_directory(place.directory).join(name),
            pump=start.pump,
            argv=toolbox.find_program("acpx"),
            inner=start.argv,
            env=start.env,
            account=start.account,
            cwd=start.cwd,
            permissions=place.permissions,
            choices=make_choices(start.record, start.settings.model, start.effort),
            offers=start.record.session.client,
            servers=[format_server(server) for server in start.mcp_servers],
            inside=f"{RUN_DIRECTORY}/{name}",
            within=max(OPENING_TIMEOUT, place.setup_sec),
        )
