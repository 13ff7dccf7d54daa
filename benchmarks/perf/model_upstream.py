"""A model's endpoint that answers at once: what `gateway.py` measures against. Prints its port on the first line.

Every request gets the same stream of events, whatever it asks; connections stay open.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

EVENTS = 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def stream() -> bytes:
    """The body of an answer, in chunks."""
    pieces = [{"index": 0, "delta": {"content": "some words "}, "finish_reason": None}] * EVENTS
    ends = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    ends["usage"] = {"prompt_tokens": 5000, "completion_tokens": EVENTS}  # type: ignore[assignment]
    said = [{"id": "chatcmpl-1", "choices": [piece]} for piece in pieces] + [ends]
    events = [b"data: %s\n\n" % json.dumps(event).encode() for event in said] + [b"data: [DONE]\n\n"]
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


async def serve() -> None:
    answer = HEAD + stream()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve())
