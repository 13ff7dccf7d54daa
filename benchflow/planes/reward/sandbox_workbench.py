"""The world as the agent left it, for scorers that run programs in it: a sandbox that is opened at its first use."""

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
    """A `Workbench` in a sandbox.

    Its operations run one after another, in the order of the calls, because each would disturb the others.
    """

    def __init__(
        self, open: Callable[[], Awaitable[Sandbox]], verifier: ScriptVerifier, logs: Path, *, soft: bool = False
    ) -> None:
        """Make it.

        Args:
            open: Opens the sandbox; called at most once.
            verifier: Verifier of the task. Its `key` is the prefix of all keys here, and its user runs the commands.
            logs: Directory of this host for the verifier's files.
            soft: Whether this is a verification between an agent's turns, in which no process of the agent is ended.
        """
        self._open = open
        self._verifier = verifier
        self._logs = logs
        self._soft = soft
        self._turn = asyncio.Lock()
        self._sandbox: Sandbox | BenchFlowError | None = None
        self._said: VerifyResult | BenchFlowError | None = None

    async def tests(self) -> VerifyResult:
        """Run the task's verifier at the first call; return its result, or raise its error, at each call."""
        async with self._turn:
            if self._said is None:
                try:
                    verify = self._verifier.run_soft if self._soft else self._verifier.run
                    self._said = await verify(await self._get_sandbox(), self._logs)
                except BenchFlowError as error:
                    self._said = error
        return _unwrap(self._said)

    async def run(
        self,
        key: str,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_sec: float = 60.0,
    ) -> SandboxExecResult:
        """Run a command in the workspace as the verifier's user, once for each key, and return its result.

        Args:
            key: Idempotency key.
            command: Argv.
            files: Files that are written before, by absolute path.
            env: Further environment variables.
            timeout_sec: Seconds that the command may take.

        Raises:
            SandboxError: The sandbox cannot be opened or used.
        """
        own_key, user = f"{self._verifier.key}-run-{key}", self._verifier.user
        async with self._turn:
            sandbox = await self._open_settled()
            if not await sandbox.was_started(own_key):
                for path, content in (files or {}).items():
                    await sandbox.write_file(path, content, user=user)
            variables = {**self._verifier.pin_env(sandbox), **(env or {})}
            return await sandbox.exec_once(own_key, command, env=variables, user=user, timeout=timeout_sec)

    async def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the content of a file; None if it does not exist.

        Args:
            path: Path of the file, absolute or relative to the workspace.
            limit: Maximum size in bytes.

        Raises:
            VerifierError: It is larger, or no file that can be read.
        """
        async with self._turn:
            sandbox = await self._open_settled()
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

    async def _open_settled(self) -> Sandbox:
        """Return the sandbox, with the agent's processes ended unless this is a soft verification."""
        sandbox = await self._get_sandbox()
        if not self._soft and self._said is None and not await self._verifier.has_settled(sandbox):
            await self._verifier.settle(sandbox, self._logs)
            # A marker: after a crash, the next attempt must not take programs that run here for the agent's.
            await sandbox.exec_once(f"{self._verifier.key}-settled", ["true"], cwd="/")
        return sandbox

    async def _get_sandbox(self) -> Sandbox:
        """Return the sandbox. The first call opens it; if that fails, each later call raises the same error."""
        if self._sandbox is None:
            try:
                self._sandbox = await self._open()
            except BenchFlowError as error:
                self._sandbox = error
        return _unwrap(self._sandbox)


def _unwrap(kept: T | BenchFlowError | None) -> T:
    """Return a remembered value, or raise a remembered error."""
    assert kept is not None
    if isinstance(kept, BenchFlowError):
        raise kept
    return kept
