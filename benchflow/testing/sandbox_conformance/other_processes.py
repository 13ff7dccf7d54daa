"""Calls by other processes, which a test can start in any number, and kill.

A fork server imports everything once and forks a process for each call, so that twenty of them take a second. A caller
receives text: the path of the provider and the ref, or the spec, as JSON. It makes a provider of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from benchflow.contracts.images import ImageConfig
from benchflow.contracts.sandbox import SandboxRef, SandboxSpec
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider

WAIT = 120.0
"""Timeout, in seconds, of messages from a caller."""


class Caller:
    """A process that makes one call of a provider or a sandbox."""

    def __init__(self, process: BaseProcess, answers: Connection) -> None:
        """Make the caller of a started process; `answers` receives the messages of that process."""
        self._process = process
        self._answers = answers

    async def begun(self) -> None:
        """Wait until the process is about to make its call."""
        assert await self._next() == "begun"

    async def answer(self) -> dict[str, Any]:
        """Return the result of the call as JSON data. Raise `AssertionError`, with its error, if it failed."""
        said = await self._next()
        if said == "begun":
            said = await self._next()
        assert isinstance(said, dict), said
        return said

    async def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        self._process.kill()
        await asyncio.to_thread(self._process.join, WAIT)
        assert not self._process.is_alive()

    async def _next(self) -> Any:
        """Return the next message of the process. Raise `AssertionError` if none comes in time."""
        assert await asyncio.to_thread(self._answers.poll, WAIT), "the other process says nothing"
        return self._answers.recv()


def call(provider_path: str, ref: SandboxRef, method: str, *args: Any, **options: Any) -> Caller:
    """Have another process attach to a sandbox and call one of its methods.

    Args:
        provider_path: `module:attribute` of the provider.
        ref: The sandbox.
        method: Name of the method.
        args: Its positional arguments.
        options: Its keyword arguments.

    Returns:
        The process. Its answer is the result, as `{"result": ...}` unless that is a model.
    """
    return _launch(_call, provider_path, ref.model_dump_json(), method, args, options)


def start(
    provider_path: str, spec: SandboxSpec, then: list[str] | None = None, secrets: dict[str, str] | None = None
) -> Caller:
    """Have another process start a sandbox.

    Args:
        provider_path: `module:attribute` of the provider.
        spec: The sandbox.
        then: Command to run in it. With one, the process then stays until it is killed, as a worker does.
        secrets: Secrets of the sandbox.

    Returns:
        The process. Its answer is the sandbox's ref.
    """
    return _launch(_start, provider_path, spec.model_dump_json(), then, secrets)


def build(provider_path: str, config: ImageConfig) -> Caller:
    """Have another process build an image, and return the process. Its answer is the image's ref."""
    return _launch(_build, provider_path, config.model_dump_json())


def _launch(target: Any, provider_path: str, *args: Any) -> Caller:
    """Start a process that calls `target` with an environment, a connection for its messages, and these arguments."""
    context = multiprocessing.get_context("forkserver")
    # Imported once in the fork server instead of once a call.
    context.set_forkserver_preload([__name__, provider_path.partition(":")[0]])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(dict(os.environ), there, provider_path, *args), daemon=True)
    process.start()
    there.close()
    return Caller(process, here)


def _call(
    env: dict[str, str], answers: Connection, path: str, ref: str, method: str, args: Any, options: dict[str, Any]
) -> None:
    """Call a method of a sandbox: the target of `call`."""

    async def work() -> None:
        provider = make_provider(path)
        sandbox = await provider.attach(SandboxRef.model_validate_json(ref))
        answers.send("begun")
        result = await getattr(sandbox, method)(*args, **options)
        answers.send(result.model_dump(mode="json") if hasattr(result, "model_dump") else {"result": result})
        await provider.close()

    _run(env, answers, work)


def _start(
    env: dict[str, str],
    answers: Connection,
    path: str,
    spec: str,
    then: list[str] | None,
    secrets: dict[str, str] | None,
) -> None:
    """Start a sandbox: the target of `start`."""

    async def work() -> None:
        provider = make_provider(path)
        answers.send("begun")
        wanted = SandboxSpec.model_validate_json(spec)
        sandbox = await provider.start(wanted, host_id="host", queue="queue", secrets=secrets)
        if then:
            await sandbox.exec(then)
        answers.send(sandbox.ref.model_dump(mode="json"))
        if then:
            # Like a worker, it keeps its open resources until it is killed.
            await asyncio.sleep(WAIT)
        await provider.close()

    _run(env, answers, work)


def _build(env: dict[str, str], answers: Connection, path: str, config: str) -> None:
    """Build an image: the target of `build`."""

    async def work() -> None:
        provider = make_provider(path)
        answers.send("begun")
        image = await provider.build(ImageConfig.model_validate_json(config))
        answers.send(image.model_dump(mode="json"))
        await provider.close()

    _run(env, answers, work)


def _run(env: dict[str, str], answers: Connection, work: Any) -> None:
    """Run a coroutine function in the environment `env`, and send its error, if it has one, as text."""
    # The fork server's environment may be that of another test.
    os.environ.clear()
    os.environ.update(env)
    try:
        asyncio.run(work())
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
