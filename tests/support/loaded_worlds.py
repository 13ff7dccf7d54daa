"""Copies of a world in which an agent has a session: what the tests of loaded sessions stand on.

A world is a local sandbox with an agent whose calls go by the gateway to a scripted model. A copy is started from a
snapshot of it, as a rollout of its own: with its own run directory, token and record.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow import secrets
from benchflow.contracts.agent import StopReason, TurnLimits, TurnRequest
from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.gateway import (
    RELAY_MOUNT,
    RELAY_PORT,
    SOCKET_NAME,
    GatewayStatus,
    Registration,
    agent_base_url,
)
from benchflow.contracts.images import ImageRef
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import Mount, Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.gateway.gateway_client import GatewayClient, make_token
from benchflow.gateway.gateway_process import ensure_gateway, is_running
from benchflow.paths import StatePaths
from benchflow.planes.agent.account import find_account, prepare_account
from benchflow.planes.agent.acp.acp_session import AcpSession
from benchflow.planes.agent.acp.agent_process import make_run_mount
from benchflow.planes.agent.acp.agent_start import AgentStart
from benchflow.planes.agent.acp.connect import AgentConnection
from benchflow.planes.agent.agent_settings import make_settings
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox import PUMP, RELAY, Toolbox, ensure_runtime, ensure_toolbox
from benchflow.planes.agent.turn_limits import AgentTimeouts
from benchflow.planes.sandbox.background import start_once
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

Json = dict[str, Any]

LOCAL = "benchflow.planes.sandbox.local.local_driver:LocalDriver"
JOB = "job/loaded"
KEY_NAME, KEY = "MODEL_KEY", "k3y-of-the-upstream-loaded"
NOTES = "/work/notes.txt"
PATIENCE = 120.0


def answer(request: ModelRequest) -> Mapping[str, Any] | str:
    """Answer `note WORD` by a command that notes it, then `WORD is noted.`, and anything else by `You said it.`."""
    said = [message.text for message in request.messages if message.role == "user" and "note " in message.text]
    word = said[-1].rpartition("note ")[2].split()[0] if said else ""
    if request.tool_results:
        return f"{word} is noted."
    if not word:
        return "You said it."
    command = f"echo {word} >> {NOTES} && cat {NOTES}"
    return {"text": f"I note {word}.", "tools": [{"tool": "shell", "arguments": {"command": command}}]}


@dataclass
class World:
    """One sandbox and a rollout in it. index: the number of its session, where several agents have theirs in it."""

    room: Worlds
    sandbox: Sandbox
    directory: Path
    start: AgentStart
    registration: Registration
    session: AgentSession | None = None
    lines: list[Json] = field(default_factory=list)
    index: int = 0
    timeouts: AgentTimeouts = field(default_factory=AgentTimeouts)

    @property
    def files(self) -> SessionFiles:
        return SessionFiles.from_directory(self.directory / "sessions")

    def connection(self) -> AgentConnection:
        return AgentConnection(self.sandbox, self.files, mirrored=self.room.mirrored, timeouts=self.timeouts)

    async def open(self, load: AgentSession | None = None, within: float = PATIENCE) -> AgentSession:
        self.session = await self.connection().open(self.index, self.start, within, load=load)
        return self.session

    async def turn(self, number: int, prompt: str) -> StopReason:
        """A turn. Its lines come behind those of earlier ones."""
        assert self.session is not None
        session = AcpSession(self.sandbox, self.connection(), self.session)
        try:
            limits = TurnLimits(wall=PATIENCE, idle=PATIENCE)
            stop = await session.prompt(TurnRequest(number, prompt, limits, self.lines.extend))
        finally:
            await session.close()
        assert await self.room.client.until_quiet(self.registration.id)
        return stop

    async def status(self) -> GatewayStatus:
        return await self.room.client.status(self.registration.id)

    def texts(self) -> str:
        return "".join(line["text"] for line in self.lines if line["type"] == "agent_message")

    def sent(self) -> list[Json]:
        """The messages that the agent got, of all its processes."""
        files = sorted(self.files.notes.glob(f"{self.index}.*/in"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def record(self) -> list[Json]:
        """The lines of its model calls."""
        return [json.loads(line) for line in Path(self.registration.record).read_text().splitlines()]

    def bodies(self) -> list[Json]:
        """Of its calls that are part of the task."""
        return [line["request"] for line in self.record() if line["type"] == "request" and not line["side"]]

    async def notes(self) -> list[str]:
        return (await self.sandbox.read_bytes(NOTES)).decode().split()


@dataclass
class Worlds:
    """One agent's worlds, a gateway, and the model. mirrored: sandboxes do not mount the files of their sessions."""

    paths: StatePaths
    directory: Path
    provider: SandboxProvider
    model: ScriptedModel
    record: AgentRecord
    runtime: Toolbox
    toolbox: Toolbox | None
    stack: str = field(default_factory=lambda: uuid.uuid4().hex)
    mirrored: bool = False
    names: list[str] = field(default_factory=list)
    images: list[ImageRef] = field(default_factory=list)

    @property
    def client(self) -> GatewayClient:
        return GatewayClient(self.paths)

    async def first(self, **options: Any) -> World:
        """A world that is no copy."""
        return await self._world("parent", ImageRef(reference="host"), **options)

    async def copy(self, world: World, name: str, **options: Any) -> World:
        """A world that begins with the files of another, and is to have its session."""
        image = await world.sandbox.snapshot(f"{world.sandbox.ref.name}-{name}")
        self.images.append(image)
        before: Json = {"prefix": world.registration.record, "prefix_requests": (await world.status()).requests}
        return await self._world(name, image, **(before | options))

    async def _world(self, name: str, image: ImageRef, *, model: str = "scripted", **registration: Any) -> World:
        directory = self.directory / name
        files = SessionFiles.from_directory(directory / "sessions")
        files.shared.mkdir(parents=True)
        mounts = [self.runtime.mount] if self.mirrored else [make_run_mount(files), self.runtime.mount]
        mounts += [self.toolbox.mount] if self.toolbox else []
        mounts.append(Mount(source=str(self.paths.gateway.public), target=RELAY_MOUNT, read_only=True))
        spec = SandboxSpec(
            name=f"benchflow-loaded-{uuid.uuid4().hex[:10]}",
            image=image,
            labels={"benchflow.stack": self.stack},
            network_mode="no-network",
            workdir="/work",
            mounts=tuple(mounts),
        )
        self.names.append(spec.name)
        sandbox = await self.provider.start(spec, host_id="host", queue="queue")
        await sandbox.control("mkdir -p /work")
        registered = await self._register(name, directory, model, registration)
        relay = [*self.runtime.find_program(RELAY), str(RELAY_PORT), f"{RELAY_MOUNT}/{SOCKET_NAME}"]
        await start_once(sandbox, "relay", relay)
        start = await self._start(sandbox, registered, model)
        return World(self, sandbox, directory, start, registered)

    async def _register(self, name: str, directory: Path, model: str, more: Json) -> Registration:
        if not self.record.endpoints:
            api, suffix = "openai-chat", "/v1"
        else:
            api = self.record.endpoints[0].api
            suffix = "/v1" if api.startswith("openai") else ""
        registration = Registration(
            id=f"{JOB}/r/{name}-{uuid.uuid4().hex[:6]}",
            token=make_token(),
            job_id=JOB,
            agent=self.record.name,
            api=api,
            base_url=f"{self.model.base_url}{suffix}",
            credentials=(KEY_NAME,),
            model=model,
            record=str(directory / "llm_trajectory.jsonl"),
            **more,
        )
        await self.client.register(registration)
        return registration

    async def _start(self, sandbox: Sandbox, registration: Registration, model: str) -> AgentStart:
        account = await find_account(sandbox, await prepare_account(sandbox, self.record, None, PATIENCE))
        settings = make_settings(
            self.record,
            home=account.home,
            workspace="/work",
            model=model if self.record.takes_model else None,
            base_url=agent_base_url(registration.api) if self.record.takes_model else None,
            api_key=registration.token,
        )
        argv = self.toolbox.make_argv(self.record) if self.toolbox else self.record.launch
        return AgentStart(
            record=self.record,
            settings=settings,
            pump=self.runtime.find_program(PUMP),
            argv=(*argv, *settings.argv),
            account=account,
            cwd="/work",
            env=settings.env,
        )


@asynccontextmanager
async def worlds_of(agent: AgentRecord | str, paths: StatePaths, directory: Path) -> AsyncIterator[Worlds]:
    """Worlds of an agent, and nothing left of them, but for the gateway of the state directory."""
    record = find_agent(agent) if isinstance(agent, str) else agent
    runtime, toolbox = await ensure_runtime(paths), await ensure_toolbox(record, paths)
    secrets.store_secrets(paths, JOB, set(), {KEY_NAME: KEY})
    await ensure_gateway(paths)
    provider = make_provider(LOCAL)
    async with ScriptedModel(answer) as model:
        worlds = Worlds(paths, directory, provider, model, record, runtime, toolbox)
        try:
            yield worlds
        finally:
            for name in worlds.names:
                await provider.remove(name)
            for image in worlds.images:
                await provider.remove_image(image)
            await provider.sweep(worlds.stack)
            await provider.close()


async def end_gateway(paths: StatePaths) -> None:
    """End the gateway of a state directory."""
    os.kill((await ensure_gateway(paths)).pid, signal.SIGKILL)
    while is_running(paths):
        await asyncio.sleep(0.01)
