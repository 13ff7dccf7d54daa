"""A sandbox with the demo agent in it, its files, and the client's side: what the tests of sessions stand on.

Run as a program it is a worker: it takes one turn over, writes its trajectory, and prints how the turn ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.agent import TurnLimits
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxRef, SandboxSpec
from benchflow.planes.agent.account import find_account
from benchflow.planes.agent.acp.agent_process import AgentProcess, make_run_mount
from benchflow.planes.agent.acp.agent_requests import Client
from benchflow.planes.agent.acp.dialogue import AgentRequestHandler, Dialogue, EndedTurn
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import Message, SessionFiles
from benchflow.planes.agent.toolbox import PUMP, Toolbox
from benchflow.planes.agent.turn_limits import AgentTimeouts
from benchflow.testing import demo_agent
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import append_node

KINDS = [
    pytest.param("local", marks=pytest.mark.local),
    pytest.param("docker", marks=pytest.mark.docker),
]
SELDOM_IN_DOCKER = [KINDS[0], pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long])]
PROVIDERS = {
    "local": "benchflow.planes.sandbox.local.local_driver:LocalDriver",
    "docker": "benchflow.planes.sandbox.docker:DockerDriver",
}
USER = "nobody"
CWD = "/work"
LOG = "/tmp/received.jsonl"
"""What the agent received, as it tells."""

KEY = "agent-0"
PATIENT = TurnLimits(wall=600, idle=300)
WAITS = AgentTimeouts(last_log=300, cancel=300)
"""An agent that has little of the machine may be late with what the tests wait for."""


@dataclass
class Room:
    """A sandbox in which one agent process can be. pump: the program that holds its stdio."""

    sandbox: Sandbox
    wire: Wire
    pump: tuple[str, ...]

    @property
    def process(self) -> AgentProcess:
        return AgentProcess(self.sandbox, self.wire, KEY)

    def session(self, host: AgentRequestHandler | None = None, timeouts: AgentTimeouts = WAITS) -> Dialogue:
        return Dialogue(self.wire, host or Client(self.sandbox, user=USER, cwd=CWD), timeouts)

    async def start(self, *argv: str) -> None:
        account = await find_account(self.sandbox, USER)
        await self.process.start(self.pump, argv, env={"HOME": "/tmp", "DEMO_AGENT_LOG": LOG}, cwd=CWD, account=account)

    async def open(self, *actions: Message, host: AgentRequestHandler | None = None) -> DemoSession:
        """Start the demo agent with a first turn of these actions, and open a session."""
        await self.sandbox.write_file("/opt/demo_agent.py", Path(demo_agent.__file__).read_bytes())
        await self.sandbox.write_file("/opt/script.json", json.dumps({"turns": [list(actions)]}))
        await self.start("python3", "/opt/demo_agent.py", "/opt/script.json")
        session = self.session(host)
        await session.call("initialize", "initialize", {"protocolVersion": 1, "clientCapabilities": {}}, PATIENT)
        new = await session.call("new", "session/new", {"cwd": CWD, "mcpServers": []}, PATIENT)
        return DemoSession(self, session, str(new["sessionId"]))

    async def tell(self, path: str) -> None:
        """Make a file that the agent waits for."""
        await self.sandbox.control('touch "$1"', f"{CWD}/{path}")

    async def recorded(self, path: str = "record") -> list[Any]:
        """The results of the actions that the script has recorded."""
        said = (await self.sandbox.read_bytes(f"{CWD}/{path}")).decode()
        return [json.loads(line)["result"] for line in said.splitlines()]

    async def received(self) -> list[Message]:
        """All messages that the agent got."""
        said = (await self.sandbox.read_bytes(LOG)).decode()
        return [json.loads(json.loads(line)["line"]) for line in said.splitlines()]


@dataclass
class DemoSession:
    """The session of a demo agent. lines: what was heard of its turns."""

    room: Room
    session: Dialogue
    id: str

    def __post_init__(self) -> None:
        self.lines: list[Message] = []

    async def prompt(self, limits: TurnLimits = PATIENT, request: str = "prompt-0") -> EndedTurn:
        return await take_turn(self.session, request, self.id, self.lines.extend, limits, self.room.process)

    async def begun(self, timeouts: AgentTimeouts = WAITS) -> DemoSession:
        """Begin the first turn, and leave it when the agent has said something; the session as its heir has it.

        So that an heir's limit, however short, does not cut off what comes before. timeouts: the heir's.
        """
        turn = asyncio.create_task(self.prompt())
        await until(lambda: self.lines or turn.done())
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        return DemoSession(self.room, self.room.session(timeouts=timeouts), self.id)

    def texts(self) -> list[str]:
        return [line["text"] for line in self.lines if line["type"] == "agent_message"]

    def of(self, kind: str) -> list[Message]:
        return [line for line in self.lines if line["type"] == kind]


async def take_turn(
    session: Dialogue,
    request: str,
    name: str,
    sink: Callable[[list[Message]], None],
    limits: TurnLimits,
    process: AgentProcess,
) -> EndedTurn:
    return await session.prompt(request, name, [{"type": "text", "text": "go"}], sink, limits, process.kill)


@asynccontextmanager
async def room_in(kind: str, directory: Path, toolbox: Toolbox, image: str) -> AsyncIterator[Room]:
    """A room, and nothing of it left. toolbox: the runtime."""
    provider = make_provider(PROVIDERS[kind])
    stack = uuid.uuid4().hex
    wire = Wire(SessionFiles.from_directory(directory))
    wire.make()
    spec = SandboxSpec(
        name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
        image=ImageRef(reference="host" if kind == "local" else image),
        labels={"benchflow.stack": stack},
        network_mode="no-network",
        mounts=(make_run_mount(wire.files), toolbox.mount),
    )
    try:
        sandbox = await provider.start(spec, host_id="host", queue="queue")
        await sandbox.control('mkdir -p "$1" && chown "$2" "$1"', CWD, USER)
        yield Room(sandbox, wire, toolbox.find_program(PUMP))
    finally:
        await provider.remove(spec.name)
        await provider.sweep(stack)
        await provider.close()


# --- the worker that is killed ---------------------------------------------------------------------------


class SlowToAnswer(Client):
    """Answers a permission request when a file is there, so that it can be killed before."""

    def __init__(self, sandbox: Sandbox, answers: Path) -> None:
        super().__init__(sandbox, user=USER, cwd=CWD)
        self._answers = answers

    async def ask(self, question: str, method: str, params: Message) -> Message:
        gate = self._answers / params["toolCall"]["title"]
        await until(gate.exists)
        return await super().ask(question, method, params)


async def _work(job: dict[str, Any]) -> None:
    provider = make_provider(PROVIDERS[job["kind"]])
    try:
        sandbox = await provider.attach(SandboxRef.model_validate(job["ref"]))
        wire = Wire(SessionFiles.from_directory(Path(job["files"])))
        lines: list[Message] = []

        def sink(new: list[Message]) -> None:
            lines.extend(new)
            append_node(Path(job["trajectory"]), "n1", "agent", lines)

        session = Dialogue(wire, SlowToAnswer(sandbox, Path(job["answers"])))
        process = AgentProcess(sandbox, wire, KEY)
        turn = await take_turn(session, "prompt-0", job["session"], sink, PATIENT, process)
        print(json.dumps({"stop_reason": turn.stop_reason, "ended_by": turn.ended_by}), flush=True)
    finally:
        await provider.close()


@dataclass
class Worker:
    """A process that drives a turn. trajectory: the file that all of them write."""

    room: Room
    kind: str
    session: str
    directory: Path

    def __post_init__(self) -> None:
        self.trajectory = self.directory / "acp_trajectory.jsonl"
        self.answers = self.directory / "answers"
        self.answers.mkdir(parents=True, exist_ok=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """The process; killed at the end, wherever it is then."""
        job = {
            "kind": self.kind,
            "ref": self.room.sandbox.ref.model_dump(mode="json"),
            "files": str(self.room.wire.files.shared.parent),
            "session": self.session,
            "trajectory": str(self.trajectory),
            "answers": str(self.answers),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, json.dumps(job)),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def allow(self, title: str) -> None:
        (self.answers / title).touch()


if __name__ == "__main__":
    asyncio.run(_work(json.loads(sys.argv[1])))
