"""An environment in code: one HTTP service without a manifest, whose state is in its memory alone.

It is a board, to which notes are added: `POST /add`, one note a request.
"""

from __future__ import annotations

import asyncio
import json

from benchflow.contracts.environment import ReadyWorld, StateSnapshot, WorldState
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import ReadinessError, StateError

PORT = 9107
PROGRAM = "/usr/local/lib/board.py"

PROVISIONING, RESTORING = "/root/provisioning", "/root/restoring"

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

notes = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(json.dumps(notes).encode())

    def do_POST(self):
        notes.append(self.body().decode())
        self.answer(b"")

    def do_PUT(self):
        notes[:] = json.loads(self.body())
        self.answer(b"")

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass

with open("/root/board-starts", "a") as starts:
    starts.write("started\\n")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

_ASK = """
import sys, urllib.request
method, path, *body = sys.argv[2:]
data = body[0].encode() if body else None
request = urllib.request.Request("http://127.0.0.1:" + sys.argv[1] + path, data, method=method)
sys.stdout.write(urllib.request.urlopen(request, timeout=10).read().decode())
"""


class Board(StatefulEnvironment):
    name = "board"
    readiness_timeout_sec = 60.0

    async def provision(self) -> ReadyWorld:
        await self._start()
        ready = await self.readiness()
        await self.capture_baseline()
        return ready

    async def readiness(self) -> ReadyWorld:
        deadline = asyncio.get_running_loop().time() + self.readiness_timeout_sec
        while await self._ask("GET", "/") is None:
            if asyncio.get_running_loop().time() > deadline:
                raise ReadinessError("the board does not answer", key="board", remedy="see why it does not start")
            await asyncio.sleep(0.1)
        return ReadyWorld()

    async def query(self) -> WorldState:
        return WorldState.of(json.loads(await self._state()))

    async def snapshot(self, name: str) -> StateSnapshot:
        found = await self.context.find_snapshot(name)
        return found or await self.context.save_snapshot(name, {"notes.json": (await self._state()).encode()})

    async def restore(self, snapshot: StateSnapshot) -> None:
        files = await self.context.load_snapshot(snapshot)
        await self._start()
        await self.readiness()
        if await self._ask("PUT", "/", files["notes.json"].decode()) is None:
            raise StateError("the board did not take its notes", key="board")

    async def reset(self) -> None:
        await self.restore(self.context.baseline())

    async def teardown(self) -> None:
        await self.context.stop_service("board")

    async def _start(self) -> None:
        await self.context.sandbox.write_file(PROGRAM, SERVER)
        await self.context.start_service("board", ["python3", "-I", PROGRAM, str(PORT)])

    async def _state(self) -> str:
        answer = await self._ask("GET", "/")
        if answer is None:
            raise StateError("the board does not answer", key="board")
        return answer

    async def _ask(self, method: str, path: str, *body: str) -> str | None:
        """Return what the service answers; None where it does not."""
        command = ["python3", "-I", "-c", _ASK, str(PORT), method, path, *body]
        answer = await self.context.sandbox.exec(command, cwd="/")
        return answer.stdout if answer.return_code == 0 else None


class HeldBoard(Board):
    """A board that is not yet provisioned, or put back, until the test lets it go on."""

    async def provision(self) -> ReadyWorld:
        await self._start()
        await self._hold(PROVISIONING)
        return await super().provision()

    async def restore(self, snapshot: StateSnapshot) -> None:
        await super().restore(snapshot)
        await self._hold(RESTORING)

    async def _hold(self, step: str) -> None:
        wait = f"touch {step}; until [ -e {step}.enough ]; do sleep 0.1; done"
        await self.context.sandbox.exec(["sh", "-c", wait], cwd="/")
