"""A sandbox with acpx and an agent behind it: what the tests of acpx stand on.

Run as a program it is a worker: it takes one turn, writes its trajectory, and prints how the turn ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support.acp_room import CWD, LOG, PATIENT, PROVIDERS, USER
from support.small_agents import node_agent

from benchflow.contracts.agent import TurnLimits
from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Mount, Sandbox, SandboxRef, SandboxSpec
from benchflow.planes.agent.account import find_account
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY, make_run_mount
from benchflow.planes.agent.acp.dialogue import EndedTurn
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acpx import NO_CHOICES, Choices, make_acpx_record
from benchflow.planes.agent.acpx.acpx_session import AcpxSession
from benchflow.planes.agent.notes import Message, SessionFiles
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox import PUMP, Toolbox
from benchflow.testing import demo_agent
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import append_node

HOME = "/tmp/home"
SESSION = "session-0"


def small_record() -> AgentRecord:
    """Return the record of acpx with a small agent, whose program no test starts: tests replace it."""
    opencode = find_agent("acpx/opencode")
    acpx = opencode.model_copy(
        update={
            "version": str(opencode.version).partition("-")[0],
            "install": node_agent(packages={"acpx": opencode.install.packages["acpx"]}).install,  # type: ignore[union-attr]
        }
    )
    return make_acpx_record(acpx, node_agent())


@dataclass
class AcpxRoom:
    """A sandbox in which one session of acpx can be. pump, acpx: how both are started there.

    choices, servers: what the session is given.
    """

    sandbox: Sandbox
    files: SessionFiles
    pump: tuple[str, ...]
    acpx: tuple[str, ...]
    inner: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    choices: Choices = NO_CHOICES
    servers: list[Message] = field(default_factory=list)
    lines: list[Message] = field(default_factory=list)

    async def session(self, **settings: Any) -> AcpxSession:
        settings = {"choices": self.choices, "servers": self.servers} | settings
        return AcpxSession(
            self.sandbox,
            self.files.join(SESSION),
            pump=self.pump,
            argv=self.acpx,
            inner=self.inner,
            env={"HOME": HOME, "DEMO_AGENT_LOG": LOG, **self.env},
            account=await find_account(self.sandbox, USER),
            cwd=CWD,
            inside=f"{RUN_DIRECTORY}/{SESSION}",
            **settings,
        )

    async def play(self, *turns: list[Message] | Message, **script: Any) -> None:
        """Put the demo agent behind acpx, with these turns."""
        await self.sandbox.write_file("/opt/demo_agent.py", Path(demo_agent.__file__).read_bytes())
        await self.sandbox.write_file("/opt/script.json", json.dumps({"turns": turns} | script))
        self.inner = ("python3", "/opt/demo_agent.py", "/opt/script.json")

    async def turn(
        self,
        number: int = 0,
        limits: TurnLimits = PATIENT,
        *,
        prompt: str = "go",
        reading: Reading | None = None,
        **more: Any,
    ) -> EndedTurn:
        session = await self.session(**more)
        return await session.run_turn(number, prompt, self.lines.extend, reading or Reading(), limits)

    def of(self, kind: str) -> list[Message]:
        return [line for line in self.lines if line["type"] == kind]

    def texts(self) -> list[str]:
        return [line["text"] for line in self.of("agent_message")]

    async def tell(self, path: str) -> None:
        """Make a file that the agent waits for."""
        await self.sandbox.control('touch "$1"', f"{CWD}/{path}")

    async def received(self) -> list[Message]:
        """All messages that the agent got, in all of its processes."""
        said = (await self.sandbox.read_bytes(LOG)).decode()
        return [json.loads(json.loads(line)["line"]) for line in said.splitlines()]

    async def running(self, what: str) -> int:
        """How many processes have this in their command line: a pattern that is not itself what it finds."""
        script = 'for p in /proc/[0-9]*; do tr "\\0" " " <$p/cmdline 2>/dev/null | grep -c -- "$1"; done | grep -c 1'
        return int((await self.sandbox.control(script, what)).stdout)

    async def until_running(self, what: str, count: int) -> None:
        """Wait until so many have it: what holds a turn's files names the agent, too, and goes just after the turn."""

        async def are_running() -> bool:
            return await self.running(what) == count

        await until(are_running)


@asynccontextmanager
async def acpx_room_in(
    kind: str, directory: Path, runtime: Toolbox, toolbox: Toolbox, image: str, *mounts: Mount
) -> AsyncIterator[AcpxRoom]:
    """A room, and nothing of it left. toolbox: has acpx."""
    provider = make_provider(PROVIDERS[kind])
    stack = uuid.uuid4().hex
    files = SessionFiles.from_directory(directory)
    files.shared.mkdir(parents=True)
    spec = SandboxSpec(
        name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
        image=ImageRef(reference="host" if kind == "local" else image),
        labels={"benchflow.stack": stack},
        network_mode="no-network",
        mounts=(make_run_mount(files), runtime.mount, toolbox.mount, *mounts),
    )
    try:
        sandbox = await provider.start(spec, host_id="host", queue="queue")
        await sandbox.control('mkdir -p "$1" "$2" && chown "$3" "$1" "$2"', CWD, HOME, USER)
        yield AcpxRoom(sandbox, files, runtime.find_program(PUMP), toolbox.find_program("acpx"))
    finally:
        await provider.remove(spec.name)
        await provider.sweep(stack)
        await provider.close()


# --- the worker that is killed ---------------------------------------------------------------------------


async def _work(job: dict[str, Any]) -> None:
    provider = make_provider(PROVIDERS[job["kind"]])
    try:
        sandbox = await provider.attach(SandboxRef.model_validate(job["ref"]))
        made = job["room"]
        room = AcpxRoom(
            sandbox,
            SessionFiles.from_directory(Path(made["directory"])),
            tuple(made["pump"]),
            tuple(made["acpx"]),
            tuple(made["inner"]),
            choices=Choices(**made["choices"]),
            servers=made["servers"],
        )
        session = await room.session()

        def sink(new: list[Message]) -> None:
            room.lines.extend(new)
            append_node(Path(job["trajectory"]), "n1", "agent", room.lines)

        turn = await session.run_turn(0, job["prompt"], sink, Reading(), PATIENT)
        print(json.dumps({"stop_reason": turn.stop_reason, "ended_by": turn.ended_by}), flush=True)
    finally:
        await provider.close()


@asynccontextmanager
async def acpx_worker(
    room: AcpxRoom, kind: str, trajectory: Path, prompt: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that drives the first turn; killed at the end, wherever it is then."""
    job = {
        "kind": kind,
        "ref": room.sandbox.ref.model_dump(mode="json"),
        "room": {
            "directory": str(room.files.shared.parent),
            "pump": room.pump,
            "acpx": room.acpx,
            "inner": room.inner,
            "choices": asdict(room.choices),
            "servers": room.servers,
        },
        "trajectory": str(trajectory),
        "prompt": prompt,
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


if __name__ == "__main__":
    asyncio.run(_work(json.loads(sys.argv[1])))
