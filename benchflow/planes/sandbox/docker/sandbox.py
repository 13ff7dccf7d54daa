"""A started container as the contract's `Sandbox`.

`Connection` is what this process holds of a container (its shell and what works through it);
`DockerSandbox` is a connection together with the ref it was reached by.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

from benchflow.contracts.images import ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.sandbox import ExecChunk, SandboxExecResult, SandboxRef, SandboxSpec
from benchflow.errors import SandboxError, SandboxLostError
from benchflow.planes.sandbox.docker import freezer
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.executions import Command, Executions
from benchflow.planes.sandbox.docker.files import Files
from benchflow.planes.sandbox.docker.launch import ROOM, daemon_host
from benchflow.planes.sandbox.docker.memory import memory_use
from benchflow.planes.sandbox.docker.outside import read_original, read_outside, write_outside
from benchflow.planes.sandbox.docker.processes import Processes
from benchflow.planes.sandbox.docker.records import BASELINE, container_records, is_frozen
from benchflow.planes.sandbox.docker.shell import RootShell
from benchflow.planes.sandbox.docker.translation import raise_if_full
from benchflow.planes.sandbox.outcome import TIMED_OUT
from benchflow.planes.sandbox.timeouts import awake_timeout

# The agent's and the artifacts' directories are for whichever user the agent is; the verifier's is root's.
_PREPARE = f"""umask 022
mkdir -p /logs/agent /logs/verifier /logs/artifacts {ROOM}/exec || exit 1
chmod 0755 /logs /logs/verifier; chmod 0777 /logs/agent /logs/artifacts; chmod 0711 {ROOM} {ROOM}/exec
"""


class Connection:
    """This process's hold on one sandbox. Made again at will; nothing in it is the only copy.

    handle: what the sandbox's records are kept under, whichever container it is now.
    """

    def __init__(self, engine: Engine, handle: str, container: str) -> None:
        self._engine = engine
        self.handle = handle
        self.bind(container)

    def bind(self, container: str) -> None:
        """Work with this container from now on."""
        self.container = container
        self.shell = RootShell(self._engine, container)
        self.files = Files(self._engine, self.shell, container)
        records = container_records(self.handle)
        self.processes = Processes(self._engine, self.shell, container, records / BASELINE)
        self.executions = Executions(self._engine, self.shell, self.processes, container, records)

    async def prepare(self, spec: SandboxSpec) -> str:
        """Make the directories that every sandbox has; the workspace. May be done again."""
        chosen = spec.named_workdir
        find = f"w={shlex.quote(chosen)}" if chosen else "if [ -d /app ]; then w=/app; else w=/root; fi"
        answer = await self.shell.run(f'{_PREPARE}{find}\nmkdir -p -- "$w" && printf %s "$w"')
        if answer.code:
            raise_if_full(answer.complaint)
            raise SandboxError(f"the sandbox cannot be prepared: {answer.complaint}")
        return answer.out.decode()

    def close(self) -> None:
        self.shell.close()


class Lives(Protocol):
    """What becomes of whole sandboxes, which is the provider's to say."""

    async def end(self, ref: SandboxRef) -> None: ...

    async def snapshot(self, ref: SandboxRef, name: str) -> ImageRef: ...

    async def restore(self, ref: SandboxRef, image: ImageRef) -> None: ...

    async def fork(self, ref: SandboxRef, names: Sequence[str]) -> list[SandboxRef]: ...


class DockerSandbox:
    """A running container. Made by `DockerProvider.start` and `attach`."""

    def __init__(self, engine: Engine, connection: Connection, ref: SandboxRef, lives: Lives) -> None:
        self._engine = engine
        self._connection = connection
        self._ref = ref
        self._lives = lives

    @property
    def ref(self) -> SandboxRef:
        return self._ref

    async def exec(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> SandboxExecResult:
        return await self._connection.executions.run(self._command(cmd, env, cwd, user), timeout)

    async def control(self, script: str, *args: str, timeout: float = 60.0) -> SandboxExecResult:
        line = f"set -- {shlex.join(args)}\n{script}" if args else script
        try:
            async with awake_timeout(timeout):
                answer = await self._connection.shell.run(line, timeout=None)
        except TimeoutError:
            await self._engine.require_answer()
            return SandboxExecResult(return_code=TIMED_OUT, timed_out=True)
        return SandboxExecResult(
            return_code=answer.code,
            stdout=answer.out.decode(errors="replace"),
            stderr=answer.err.decode(errors="replace"),
        )

    async def exec_once(
        self,
        key: str,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> SandboxExecResult:
        return await self._connection.executions.run_once(self._key(key), self._command(cmd, env, cwd, user), timeout)

    async def was_started(self, key: str) -> bool:
        return await self._connection.executions.was_started(self._key(key))

    async def kill_once(self, key: str) -> None:
        await self._connection.executions.kill_once(self._key(key))

    def exec_stream(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[ExecChunk]:
        return self._connection.executions.stream(self._command(cmd, env, cwd, user))

    async def read_file(self, path: str) -> bytes:
        return await self._connection.files.read(path)

    async def write_file(
        self, path: str, content: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        data = content.encode() if isinstance(content, str) else content
        await self._connection.files.write(path, data, mode, _user(user))

    async def upload(
        self, source: Path, target: str, *, user: str | int | None = None, exclude: Sequence[str] = ()
    ) -> None:
        await self._connection.files.upload(source, target, _user(user), exclude)

    async def download(self, source: str, target: Path, *, exclude: Sequence[str] = ()) -> bool:
        return await self._connection.files.download(source, target, exclude)

    async def read_outside(self, path: str) -> bytes | None:
        return await read_outside(self._engine, self._connection.container, path)

    async def write_outside(self, path: str, content: bytes, *, mode: int = 0o755) -> None:
        await write_outside(self._engine, self._connection.container, path, content, mode)

    async def read_original(self, path: str) -> bytes | None:
        return await read_original(self._engine, self._connection.container, path)

    async def kill_processes(self, *, keep: Literal["services", "nothing"] = "services") -> int:
        killed = await self._connection.processes.kill_unknown(keep_services=keep == "services")
        # A process that ran as root may have changed what the old shell has open.
        self._connection.close()
        return killed

    async def mark_baseline(self, key: str | None = None, *, is_restored: bool = False) -> None:
        if is_restored:
            await self._connection.processes.add_entrypoint()
        elif key is None:
            await self._connection.processes.mark_baseline()
        elif (nonce := self._connection.executions.nonce_of(key)) is not None:
            await self._connection.processes.add_to_baseline(nonce)

    async def memory_use(self) -> MemoryUse | None:
        return await memory_use(self._engine, self._connection.shell, self._connection.container)

    async def expose_port(self, port: int) -> tuple[str, int]:
        container = self._connection.container
        state = await self._engine.about(container, lambda client: client.inspect_container(container))
        if not state["State"]["Running"]:
            raise SandboxLostError(f"the sandbox {self._ref.name} no longer runs")
        for published in state["NetworkSettings"]["Ports"].get(f"{port}/tcp") or ():
            return daemon_host(), int(published["HostPort"])
        for network in state["NetworkSettings"]["Networks"].values():
            if network["IPAddress"]:
                return str(network["IPAddress"]), port
        raise SandboxError(
            f"port {port} of the sandbox cannot be reached: it has no network",
            key="network_mode",
            remedy='use network_mode = "public"',
        )

    async def snapshot(self, name: str) -> ImageRef:
        return await self._lives.snapshot(self._ref, name)

    async def freeze(self) -> None:
        # A shell that is asked while the container stands still would not answer.
        self._connection.shell.close()
        await freezer.freeze(self._engine, self._connection.container, self._ref.handle)

    async def thaw(self) -> None:
        if await self.is_frozen():
            await freezer.thaw(self._engine, self._connection.container, self._ref.handle)

    async def is_frozen(self) -> bool:
        return is_frozen(self._ref.handle)

    async def restore(self, image: ImageRef) -> None:
        await self._lives.restore(self._ref, image)

    async def fork(self, names: Sequence[str]) -> list[SandboxRef]:
        return await self._lives.fork(self._ref, names)

    async def stop(self) -> None:
        await self._lives.end(self._ref)

    def _key(self, key: str) -> str:
        return f"{self._ref.episode}/{key}" if self._ref.episode else key

    def _command(
        self,
        cmd: Sequence[str],
        env: dict[str, str] | None,
        cwd: str | None,
        user: str | int | None,
    ) -> Command:
        return Command(tuple(cmd), dict(env or {}), cwd or self._ref.workdir, _user(user))


def _user(user: str | int | None) -> str:
    return "0" if user in (None, "root", 0, "0") else str(user)
