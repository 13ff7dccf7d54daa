"""A gateway as a process of its own, rollouts that it knows, and agents that call it: what the tests stand on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchflow import secrets
from benchflow.contracts.gateway import Api, Registration
from benchflow.gateway.gateway_client import GatewayClient, make_token
from benchflow.gateway.gateway_process import ensure_gateway, is_running
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until

KEY_NAME = "MODEL_KEY"
KEY = "sk-the-real-key-0123456789"
JOB = "job/gateway-test"
APIS: tuple[Api, ...] = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")
TOOL = {"name": "run", "description": "Runs a command", "parameters": {"type": "object", "properties": {}}}
MODEL = "scripted"

Json = dict[str, Any]


def ask(api: Api, text: str = "Say hello.", *, stream: bool = True, **more: Any) -> tuple[str, Json]:
    """The path below the base URL that an agent is told, and the body, of a call that offers a tool."""
    if api == "openai-chat":
        body: Json = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": stream}
        body |= {"tools": [{"type": "function", "function": TOOL}]}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        return "/chat/completions", body | more
    if api == "openai-responses":
        body = {"model": MODEL, "input": [{"role": "user", "content": text}], "stream": stream}
        return "/responses", body | {"tools": [{"type": "function", **TOOL}]} | more
    if api == "anthropic-messages":
        body = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": text}], "stream": stream}
        return "/v1/messages?beta=true", body | {"tools": [{"name": "run", "input_schema": {"type": "object"}}]} | more
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    body = {"contents": [{"role": "user", "parts": [{"text": text}]}], "tools": [{"functionDeclarations": [TOOL]}]}
    return f"/v1beta/models/{MODEL}:{verb}", body | more


def key_header(api: Api, key: str) -> dict[str, str]:
    names = {"anthropic-messages": "x-api-key", "gemini": "x-goog-api-key"}
    return {names[api]: key} if api in names else {"Authorization": f"Bearer {key}"}


@dataclass(frozen=True)
class Got:
    """An answer as the agent has it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Agent:
    """An agent of one rollout, on the gateway's socket or, with a URL, at an endpoint itself."""

    registration: Registration
    session: aiohttp.ClientSession
    base: str

    @property
    def id(self) -> str:
        return self.registration.id

    def url(self, path: str) -> str:
        return self.base + path

    async def call(self, text: str = "Say hello.", *, stream: bool = True, **more: Any) -> Got:
        path, body = ask(self.registration.api, text, stream=stream, **more)
        return await self.post(path, json.dumps(body).encode())

    async def post(self, path: str, body: bytes, **headers: str) -> Got:
        async with self.open(path, body, **headers) as response:
            return Got(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    def open(self, path: str, body: bytes, **headers: str) -> Any:
        """The request as a context manager, to read its answer piece by piece."""
        shown = {"content-type": "application/json", **key_header(self.registration.api, self.registration.token)}
        return self.session.post(self.url(path), data=body, headers=shown | headers)

    def open_call(self, text: str = "Say hello.", **more: Any) -> Any:
        path, body = ask(self.registration.api, text, **more)
        return self.open(path, json.dumps(body).encode())

    @property
    def record(self) -> Path:
        return Path(self.registration.record)

    def lines(self) -> list[Json]:
        """The record's lines, but for one that is being written; each must be JSON."""
        data = self.record.read_bytes() if self.record.exists() else b""
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def calls(self) -> list[tuple[Json, Json | None]]:
        """Requests in their order, with their responses."""
        lines = self.lines()
        answers = {line["id"]: line for line in lines if line["type"] == "response"}
        return [(line, answers.get(line["id"])) for line in lines if line["type"] == "request"]

    async def answered(self, count: int = 1) -> list[tuple[Json, Json]]:
        """The calls, as soon as so many have their response in the record."""

        def those() -> list[tuple[Json, Json]]:
            return [(request, response) for request, response in self.calls() if response is not None]

        await until(lambda: len(those()) >= count)
        return those()


@dataclass
class GatewayFixture:
    """A state directory with a gateway. public: a shorter name of the directory that sandboxes mount."""

    paths: StatePaths
    directory: Path
    client: GatewayClient
    pid: int
    public: Path
    sessions: list[aiohttp.ClientSession] = field(default_factory=list)

    async def agent(self, api: Api, base_url: str, id: str = "job/r/task/a/0", **options: Any) -> Agent:
        """Register a rollout, and be its agent."""
        record = self.directory / "jobs" / id.replace("/", "_") / "llm_trajectory.jsonl"
        given = {"credentials": (KEY_NAME,), "agent": "policy", "record": str(record), "model": MODEL} | options
        registration = Registration(id=id, token=make_token(), job_id=JOB, api=api, base_url=base_url, **given)
        await self.client.register(registration)
        return self.agent_of(registration)

    def agent_of(self, registration: Registration) -> Agent:
        session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=self.socket, limit=0),
            timeout=aiohttp.ClientTimeout(total=300),
            auto_decompress=False,
            read_bufsize=2**20,
        )
        self.sessions.append(session)
        suffix = "/v1" if registration.api.startswith("openai") else ""
        return Agent(registration, session, f"http://127.0.0.1:41417{suffix}")

    async def direct(self, agent: Agent) -> Agent:
        """The same agent with the real key, at the endpoint itself."""
        registration = agent.registration.model_copy(update={"token": KEY})
        session = aiohttp.ClientSession(auto_decompress=False)
        self.sessions.append(session)
        return Agent(registration, session, registration.base_url)

    @property
    def socket(self) -> str:
        """Its path, from where the test runs: the address of a socket is short."""
        return os.path.relpath(self.public / "gateway.sock")

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process, and wait until it is gone."""
        os.kill(self.pid, number)
        await until(lambda: not is_running(self.paths))

    async def start(self) -> None:
        self.pid = (await ensure_gateway(self.paths)).pid


@asynccontextmanager
async def gateway_in(directory: Path, shared: StatePaths | None = None) -> AsyncIterator[GatewayFixture]:
    """shared: where a gateway is that goes on; without it the fixture has its own, and ends it."""
    paths = shared or StatePaths(directory / "state")
    secrets.store_secrets(paths, JOB, set(), {KEY_NAME: KEY})
    info = await ensure_gateway(paths)
    public = directory / "s"
    public.symlink_to(paths.gateway.public)
    gateway = GatewayFixture(paths, directory, GatewayClient(paths, patience=300), info.pid, public)
    try:
        yield gateway
    finally:
        for session in gateway.sessions:
            await session.close()
        if shared is None:
            await end_gateway(paths)
        else:
            # The test may have ended it.
            await ensure_gateway(paths)
            for status in await gateway.client.statuses():
                await gateway.client.forget(status.id)


async def end_gateway(paths: StatePaths) -> None:
    """End the process by force, if it runs."""
    if is_running(paths):
        os.kill((await ensure_gateway(paths)).pid, signal.SIGKILL)
        await until(lambda: not is_running(paths))
