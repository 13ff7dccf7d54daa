"""The world as the agent left it, for scorers that run something in it: a sandbox, opened when the first one asks."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.errors import BenchFlowError, SandboxError, SandboxLostError, VerifierError
from benchflow.planes.reward.verify import ScriptVerifier

T = TypeVar("T")


class SandboxWorkbench:
    """A sandbox as scorers use it.

    open: the sandbox; called once at most. verifier: the task's own; its `key` marks all that is run here, and its user
    runs it. logs: the directory of this host for what the verifier leaves. What runs does so one after another, in the
    order in which it was asked for, because each would be disturbed by the others. soft: between an agent's turns:
    nothing of the agent's ends.
    """

    def __init__(
        self, open: Callable[[], Awaitable[Sandbox]], verifier: ScriptVerifier, logs: Path, *, soft: bool = False
    ) -> None:
        self._open = open
        self._verifier = verifier
        self._logs = logs
        self._soft = soft
        self._turn = asyncio.Lock()
        self._sandbox: Sandbox | BenchFlowError | None = None
        self._said: VerifyResult | BenchFlowError | None = None

    async def tests(self) -> VerifyResult:
        """What the task's own verifier says; it is run once, and what it failed of is remembered, too."""
        async with self._turn:
            if self._said is None:
                try:
                    verify = self._verifier.soft if self._soft else self._verifier.run
                    self._said = await verify(await self._opened(), self._logs)
                except BenchFlowError as error:
                    self._said = error
        return _told(self._said)

    async def run(
        self,
        key: str,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_sec: float = 60.0,
    ) -> SandboxExecResult:
        """Run a command in the workspace as the verifier's user, once for each key.

        files: put in place before, by absolute path. Raises `SandboxError`.
        """
        own_key, user = f"{self._verifier.key}-run-{key}", self._verifier.user
        async with self._turn:
            sandbox = await self._settled()
            if not await sandbox.was_started(own_key):
                for path, content in (files or {}).items():
                    await sandbox.write_file(path, content, user=user)
            variables = {**self._verifier.pinned(sandbox), **(env or {})}
            return await sandbox.exec_once(own_key, command, env=variables, user=user, timeout=timeout_sec)

    async def read(self, path: str, *, limit: int) -> bytes | None:
        """A file's content, relative to the workspace; None when there is none.

        Raises `VerifierError` for one beyond `limit` bytes, and for what is no file.
        """
        async with self._turn:
            sandbox = await self._settled()
        place = posixpath.join(sandbox.ref.workdir, path)
        try:
            content = await sandbox.read_bytes(place)
        except FileNotFoundError:
            return None
        except SandboxLostError:
            raise
        except SandboxError as error:
            if error.retryable:
                raise
            raise VerifierError(error.message, file=place, remedy="leave a file there that can be read") from error
        if len(content) > limit:
            raise VerifierError(f"is larger than {limit} bytes", file=place, remedy="leave a smaller file")
        return content

    async def _settled(self) -> Sandbox:
        """The sandbox, with nothing of the agent's running in it."""
        sandbox = await self._opened()
        if not self._soft and self._said is None and not await self._verifier.has_settled(sandbox):
            await self._verifier.settle(sandbox, self._logs)
            # So that whoever comes after a crash does not take what runs here for the agent's.
            await sandbox.exec_once(f"{self._verifier.key}-settled", ["true"], cwd="/")
        return sandbox

    async def _opened(self) -> Sandbox:
        if self._sandbox is None:
            try:
                self._sandbox = await self._open()
            except BenchFlowError as error:
                self._sandbox = error
        return _told(self._sandbox)


def _told(kept: T | BenchFlowError | None) -> T:
    """What is remembered: a value, or a failure, which each who asks is told."""
    assert kept is not None
    if isinstance(kept, BenchFlowError):
        raise kept
    return kept
