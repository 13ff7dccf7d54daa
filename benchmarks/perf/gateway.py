"""What the model gateway adds to a call, how many calls it carries, and whether its memory stays level.

    python benchmarks/perf/gateway.py [--calls N] [--soak] [--json]

A gateway as a process of its own, and an endpoint that answers at once in another one; this process is the agents. Each
call is a conversation of 20 KB and gets a stream of 20 events. It is recorded and metered as any rollout's.

    added_ms      {p50, p99} from the request until the first byte of the answer's body, less that of the same call to
                  the endpoint itself, made right before or after it
    calls_per_s   through sixteen connections at once
    cpu_ms        CPU of the gateway for one of these calls
    memory_mb     {start, quarter, end} of the gateway over these calls; start is after a warm-up
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from measured_stack import rss_mb_of

from benchflow import secrets
from benchflow.contracts.gateway import SOCKET_NAME, Registration
from benchflow.gateway.gateway_client import GatewayClient, make_token
from benchflow.gateway.gateway_process import ensure_gateway, stop_gateway
from benchflow.paths import StatePaths

UPSTREAM = Path(__file__).with_name("model_upstream.py")
PAIRS = 1000
SOAK = 100_000
CALLS = 4000
AT_ONCE = 16
WARM_UP = 320
REQUEST_BYTES = 20_000

# The most that is aimed at, for the sizes that are measured where no others are asked for; growth: from the quarter on.
MOST = {"added_ms_p50": 5.0}
MOST_IN_SOAK = {"memory_growth_mb": 5.0}


class Caller:
    """One connection of an agent's, which makes the same call again and again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        self._reader, self._writer, self._request = reader, writer, request

    async def call(self) -> float:
        """Seconds until the first byte of the body."""
        began = time.perf_counter()
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await self._reader.readuntil(b"data:")
        first = time.perf_counter() - began
        await self._reader.readuntil(b"\r\n0\r\n\r\n")
        return first

    def close(self) -> None:
        self._writer.close()


def request(path: str, key: str) -> bytes:
    text = "word " * (REQUEST_BYTES // 5)
    asked = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": text}]}
    body = json.dumps(asked | {"tools": [{"type": "function", "function": {"name": "run"}}]}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Gateway:
    """The gateway under measurement, and the endpoint behind it."""

    def __init__(self, pid: int, socket: str, port: int, token: str) -> None:
        self.pid, self._socket, self._port, self._token = pid, socket, port, token

    async def through(self) -> Caller:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=2**20)
        return Caller(reader, writer, request("/v1/chat/completions", self._token))

    async def direct(self) -> Caller:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        return Caller(reader, writer, request("/v1/chat/completions", "key"))

    def rss_mb(self) -> float:
        return rss_mb_of(self.pid)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def gateway(root: Path) -> AsyncIterator[Gateway]:
    paths = StatePaths(root / "state")
    secrets.store_secrets(paths, "job/perf", set(), {"MODEL_KEY": "sk-perf-0123456789"})
    upstream = await asyncio.create_subprocess_exec(sys.executable, UPSTREAM, stdout=subprocess.PIPE)
    assert upstream.stdout is not None
    try:
        port = int(await upstream.stdout.readline())
        pid = (await ensure_gateway(paths)).pid
        registration = Registration(
            id="job/perf/r/task/a/0",
            token=make_token(),
            job_id="job/perf",
            agent="policy",
            api="openai-chat",
            base_url=f"http://127.0.0.1:{port}/v1",
            credentials=("MODEL_KEY",),
            record=str(root / "llm_trajectory.jsonl"),
        )
        await GatewayClient(paths).register(registration)
        yield Gateway(pid, str(paths.gateway.public / SOCKET_NAME), port, registration.token)
    finally:
        await stop_gateway(paths)
        upstream.kill()
        await upstream.wait()


async def added(measured: Gateway, pairs: int) -> list[float]:
    """Milliseconds that the gateway adds, a pair of calls each; either one is first in turn."""
    through, direct = await measured.through(), await measured.direct()
    found = []
    for number in range(pairs + 20):
        if number % 2:
            by_gateway, by_itself = await through.call(), await direct.call()
        else:
            by_itself, by_gateway = await direct.call(), await through.call()
        found.append(1000 * (by_gateway - by_itself))
    through.close()
    direct.close()
    return found[20:]


async def carried(measured: Gateway, calls: int, record: Path) -> dict[str, Any]:
    """Rate, CPU and memory over so many calls."""
    callers = [await measured.through() for _ in range(AT_ONCE)]

    async def some(count: int) -> None:
        async def one(caller: Caller) -> None:
            for _ in range(count // AT_ONCE):
                await caller.call()

        await asyncio.gather(*(one(caller) for caller in callers))
        # A record of every call is not what is measured, and would fill the disk.
        record.unlink(missing_ok=True)

    await some(WARM_UP)
    memory = {"start": measured.rss_mb()}
    began, cpu = time.monotonic(), measured.cpu_seconds()
    made = 0
    for quarter in range(4):
        for _ in range(max(1, calls // 4 // WARM_UP)):
            await some(WARM_UP)
            made += WARM_UP
        if quarter == 0:
            memory["quarter"] = measured.rss_mb()
    took = time.monotonic() - began
    memory["end"] = measured.rss_mb()
    for caller in callers:
        caller.close()
    return {
        "calls": made,
        "calls_per_s": round(made / took, 1),
        "cpu_ms": round(1000 * (measured.cpu_seconds() - cpu) / made, 3),
        "memory_mb": {name: round(value, 1) for name, value in memory.items()},
        "memory_growth_mb": round(memory["end"] - memory["quarter"], 1),
    }


async def measure(pairs: int, calls: int) -> dict[str, Any]:
    """The measurement as the one object that `--json` prints."""
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bf-perf-") as directory:
        root = Path(directory)
        async with gateway(root) as measured:
            differences = await added(measured, pairs)
            found = await carried(measured, calls, root / "llm_trajectory.jsonl")
    cuts = statistics.quantiles(differences, n=100)
    found = {"added_ms": {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}} | found
    limits = (MOST if pairs == PAIRS else {}) | (MOST_IN_SOAK if calls == SOAK else {})
    flat = found | {f"added_ms_{name}": value for name, value in found["added_ms"].items()}
    return found | {
        "targets": {name: {"limit": limit, "met": flat[name] <= limit} for name, limit in limits.items()},
        "pairs": pairs,
        "machine": {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]},
    }


def show(found: dict[str, Any]) -> str:
    """The measurement for people."""
    flat = {f"added_ms_{name}": value for name, value in found["added_ms"].items()}
    flat |= {name: found[name] for name in ("calls_per_s", "cpu_ms", "memory_growth_mb")}
    lines = [f"{name:18}{value:12.3f}  {_verdict(found['targets'].get(name))}".rstrip() for name, value in flat.items()]
    memory = "  ".join(f"{name} {value:g}" for name, value in found["memory_mb"].items())
    return "\n".join([*lines, f"{'memory_mb':18}  {memory}  over {found['calls']} calls"])


def _verdict(target: dict[str, Any] | None) -> str:
    if target is None:
        return ""
    return f"≤ {target['limit']:g} {'met' if target['met'] else 'NOT MET'}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--pairs", **number, default=PAIRS, help="of calls, for what is added (default: %(default)s)")
    parser.add_argument("--calls", **number, help=f"for rate and memory (default: {CALLS}; with --soak {SOAK})")
    parser.add_argument("--soak", action="store_true", help="as many calls as show whether memory stays level")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    calls = options.calls if options.calls is not None else SOAK if options.soak else CALLS
    if options.pairs < 2 or calls < 4 * WARM_UP:
        parser.error(f"--pairs is at least 2, --calls at least {4 * WARM_UP}")
    found = asyncio.run(measure(options.pairs, calls))
    print(json.dumps(found, indent=2) if options.json else show(found))


if __name__ == "__main__":
    main()
