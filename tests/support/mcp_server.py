"""An MCP server over streamable HTTP that answers as a test says, and remembers what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Message = dict[str, Any]

Speak = Callable[[Message], bytes]
"""The body of an answer."""

VERSION = "2025-06-18"
TEXT: Message = {"content": [{"type": "text", "text": "done"}]}


def document(answer: Message) -> bytes:
    return json.dumps(answer).encode()


def one_of_a_list(answer: Message) -> bytes:
    return json.dumps([answer]).encode()


def stream(*before: str, end: str = "\n") -> Speak:
    """An answer as events, in as many lines as its JSON has; before: lines that come first."""

    def speak(answer: Message) -> bytes:
        lines = [f"data: {line}" for line in json.dumps(answer, indent=1, ensure_ascii=False).split("\n")]
        return end.join([*before, "event: message", *lines, "", ""]).encode()

    return speak


def tool(name: str, **more: Any) -> Message:
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}, **more}


class McpServer:
    """pages: of tools. result: of a call, by its parameters; a `bytes` is the whole body, and a number the status.

    `sent`: messages, each with the headers that it came with as `headers`.
    """

    def __init__(
        self,
        *pages: list[Message],
        result: Callable[[Message], Message | bytes | int] = lambda params: {"result": TEXT},
        speak: Speak = document,
        session: str | None = None,
        version: str = VERSION,
    ) -> None:
        self.pages, self.result, self.speak, self.version = pages, result, speak, version
        self.session = session
        self.sent: list[Message] = []
        self.released = threading.Event()
        """What a result may wait for."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True

    def __enter__(self) -> McpServer:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.released.set()
        self.stop()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def row(self, name: str, **headers: str) -> Message:
        """As in `session/new`."""
        url = f"http://127.0.0.1:{self._http.server_port}/mcp?of={name}"
        rows = [{"name": header, "value": value} for header, value in headers.items()]
        return {"type": "http", "name": name, "url": url, "headers": rows}

    def of(self, method: str) -> list[Message]:
        return [message for message in self.sent if message.get("method") == method]

    def answer(self, message: Message) -> tuple[int, bytes]:
        headers = message["headers"]
        if message.get("method") != "initialize" and self.session and headers.get("mcp-session-id") != self.session:
            return 404, b"no such session"
        if "method" not in message or "id" not in message:
            return 202, b""
        given = self._outcome(message["method"], message.get("params") or {})
        if isinstance(given, int):
            return given, b"out of order"
        return 200, given if isinstance(given, bytes) else self.speak({"jsonrpc": "2.0", "id": message["id"], **given})

    def _outcome(self, method: str, params: Message) -> Message | bytes | int:
        if method == "initialize":
            about = {"name": "test", "version": "1"}
            capabilities: Message = {"tools": {}} if self.pages else {}
            return {"result": {"protocolVersion": self.version, "capabilities": capabilities, "serverInfo": about}}
        if method == "tools/list":
            place = int(params.get("cursor", 0))
            more = {"nextCursor": str(place + 1)} if place + 1 < len(self.pages) else {}
            return {"result": {"tools": self.pages[place], **more}}
        return self.result(params)


def _handler(server: McpServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message["headers"] = {name.lower(): value for name, value in self.headers.items()}
            server.sent.append(message)
            status, body = server.answer(message)
            self.send_response(status)
            if server.session and message.get("method") == "initialize":
                self.send_header("Mcp-Session-Id", server.session)
            streamed = body.startswith((b"data:", b"event:", b":"))
            self.send_header("Content-Type", "text/event-stream; charset=utf-8" if streamed else "application/json")
            self.end_headers()
            half = len(body) // 2
            for part in (body[:half], body[half:]):
                self.wfile.write(part)
                self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
