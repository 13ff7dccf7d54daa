"""An endpoint of which every byte and every pause is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    """A part of a chat's stream."""
    data = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % text.encode()
    return chunk(data)


def answer(body: bytes, status: str = "200 OK", head: str = "") -> bytes:
    """A whole answer, after which the connection stays open."""
    start = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{head}\r\n"
    return start.encode() + body


DONE = (
    b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":2}}'
)


@dataclass
class Visit:
    """One request. gone: the gateway has closed the connection."""

    head: bytes
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


@dataclass
class RawUpstream:
    """Where it is, and who came."""

    port: int = 0
    visits: list[Visit] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@asynccontextmanager
async def raw_upstream(behave: Callable[[Visit], Awaitable[None]]) -> AsyncIterator[RawUpstream]:
    """An upstream that does this with each request; the connection is closed when it returns."""
    upstream = RawUpstream()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watch = None
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            body = await reader.readexactly(int(length.partition(b":")[2]))
            visit = Visit(head, body, writer, asyncio.Event())
            upstream.visits.append(visit)

            async def wait_for_end() -> None:
                with suppress(ConnectionError):
                    await reader.read()
                visit.gone.set()

            watch = asyncio.create_task(wait_for_end())
            await behave(visit)
        writer.close()
        if watch is not None:
            watch.cancel()

    server = await asyncio.start_server(meet, "127.0.0.1", 0, backlog=512)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for visit in upstream.visits:
            visit.writer.close()
