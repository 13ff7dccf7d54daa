"""Agents that stream in real sandboxes, and what of the engine stands between them and a trajectory file."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivial_task import IMAGE

from benchflow.contracts.agent import TurnLimits
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.paths import StatePaths
from benchflow.planes.agent.account import find_account
from benchflow.planes.agent.acp.agent_process import AgentProcess, make_run_mount
from benchflow.planes.agent.acp.agent_requests import Client
from benchflow.planes.agent.acp.dialogue import Dialogue
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.toolbox import PUMP, Toolbox, ensure_runtime
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import STACK_LABEL, LocalDriver
from benchflow.planes.sandbox.local.local_images import BARE
from benchflow.trajectories.journal import NodeWriter

AGENT = Path(__file__).with_name("stream_agent.mjs")
INSIDE = "/opt/stream_agent.mjs"
USER = "nobody"
PATIENT = TurnLimits(wall=3600, idle=300)


@dataclass
class Stream:
    """One agent with an open session. lines: how many it has said; last_at: when the last was written (monotonic)."""

    session: Dialogue
    process: AgentProcess
    wire: Wire
    trajectory: Path
    lines: int = 0
    last_at: float = 0.0
    _turns: int = field(default=0)

    async def open(self) -> None:
        hello = {"protocolVersion": 1, "clientCapabilities": {}}
        await self.session.call("initialize", "initialize", hello, PATIENT)
        await self.session.call("new", "session/new", {"cwd": "/tmp", "mcpServers": []}, PATIENT)

    async def turn(self, count: int, **how: float) -> None:
        """Have the agent say `count` messages, and write them all into the trajectory."""
        prompt = [{"type": "text", "text": json.dumps({"count": count, **how})}]
        request = f"prompt-{self._turns}"
        writer = NodeWriter(self.trajectory, f"n{self._turns + 1}", "agent")
        self._turns += 1
        before = self.lines

        def sink(lines: list[dict[str, Any]]) -> None:
            writer.add(lines)
            self.lines += len(lines)
            self.last_at = time.monotonic()

        try:
            talk = self.session.prompt(request, "stream", prompt, sink, PATIENT, self.process.kill, skip=writer.skip)
            await self.process.await_work(talk)
        finally:
            writer.close()
        if self.lines - before != count:
            raise RuntimeError(f"the agent said {count} messages, of which {self.lines - before} arrived")


@asynccontextmanager
async def streams(kind: str, count: int, root: Path) -> AsyncIterator[list[Stream]]:
    """So many agents, each in a sandbox of its own; all gone afterwards."""
    provider: SandboxProvider = DrivenProvider(LocalDriver()) if kind == "local" else DrivenProvider(DockerDriver())
    runtime = await ensure_runtime(StatePaths.default())
    stack = uuid.uuid4().hex
    try:
        async with AsyncExitStack() as started:
            yield [
                await started.enter_async_context(_stream(provider, kind, runtime, stack, root)) for _ in range(count)
            ]
    finally:
        await provider.sweep(stack)
        await provider.close()


@asynccontextmanager
async def _stream(
    provider: SandboxProvider, kind: str, runtime: Toolbox, stack: str, root: Path
) -> AsyncIterator[Stream]:
    name = f"perf-{uuid.uuid4().hex[:12]}"
    files = SessionFiles.from_directory(root / name)
    wire = Wire(files)
    wire.make()
    spec = SandboxSpec(
        name=name,
        image=ImageRef(reference=BARE if kind == "local" else IMAGE),
        labels={STACK_LABEL: stack},
        network_mode="no-network",
        mounts=(make_run_mount(files), runtime.mount),
    )
    try:
        sandbox = await provider.start(spec, host_id="", queue="")
        yield await _opened(sandbox, wire, runtime, root / name / "acp_trajectory.jsonl")
    finally:
        await provider.remove(name)


async def _opened(sandbox: Sandbox, wire: Wire, runtime: Toolbox, trajectory: Path) -> Stream:
    await sandbox.write_file(INSIDE, AGENT.read_bytes())
    process = AgentProcess(sandbox, wire, "agent-0")
    account = await find_account(sandbox, USER)
    argv = (f"{runtime.mount_path}/bin/node", INSIDE)
    await process.start(runtime.find_program(PUMP), argv, env={}, cwd="/tmp", account=account)
    stream = Stream(Dialogue(wire, Client(sandbox, user=USER, cwd="/tmp")), process, wire, trajectory)
    await stream.open()
    return stream
