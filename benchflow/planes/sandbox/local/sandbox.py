"""A started local sandbox as the contract's `Sandbox`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from benchflow.contracts.images import ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.sandbox import ExecChunk, SandboxExecResult, SandboxRef, SandboxSpec
from benchflow.errors import SandboxError, SandboxLostError
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.local.entrypoint import Entrypoint, group_of
from benchflow.planes.sandbox.local.executions import Command, Executions, leaf_of
from benchflow.planes.sandbox.local.files import Files
from benchflow.planes.sandbox.local.machine import INIT, Machine
from benchflow.planes.sandbox.local.records import Baseline, Running

_SHELL = "/bin/sh"


class LocalSandbox:
    """A running sandbox. Made by `LocalProvider.start` and `attach`. env: what each of its commands has."""

    def __init__(self, machine: Machine, ref: SandboxRef, env: dict[str, str]) -> None:
        self._machine = machine
        self._ref = ref
        self._env = env
        self._records = machine.records(ref.name)
        self._cgroup = machine.cgroups.sandbox(ref.name)
        self._executions = Executions(machine.helper, self._cgroup, self._records.directory, self._init)
        self._files = Files(machine.helper, self._records.directory, self._init)

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
        return await self._executions.run(self._command(cmd, env, cwd, user), timeout)

    async def control(self, script: str, *args: str, timeout: float = 60.0) -> SandboxExecResult:
        command = Command((_SHELL, "-c", script, _SHELL, *args), self._env, "/", "0", limited=False)
        return await self._executions.run(command, timeout)

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
        return await self._executions.run_once(self._key(key), self._command(cmd, env, cwd, user), timeout)

    async def was_started(self, key: str) -> bool:
        return await self._executions.was_started(self._key(key))

    async def kill_once(self, key: str) -> None:
        await self._executions.kill_once(self._key(key))

    def exec_stream(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[ExecChunk]:
        return self._executions.stream(self._command(cmd, env, cwd, user))

    async def read_file(self, path: str) -> bytes:
        return await self._files.read(path)

    async def write_file(
        self, path: str, content: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        data = content.encode() if isinstance(content, str) else content
        await self._files.write(path, data, mode, _user(user))

    async def upload(
        self, source: Path, target: str, *, user: str | int | None = None, exclude: Sequence[str] = ()
    ) -> None:
        await self._files.upload(source, target, _user(user), exclude)

    async def download(self, source: str, target: Path, *, exclude: Sequence[str] = ()) -> bool:
        return await self._files.download(source, target, exclude)

    async def read_outside(self, path: str) -> bytes | None:
        try:
            return await self._files.read(path)
        except FileNotFoundError:
            return None

    async def write_outside(self, path: str, content: bytes, *, mode: int = 0o755) -> None:
        await self._files.write(path, content, mode, "0")

    async def read_original(self, path: str) -> bytes | None:
        return await asyncio.to_thread(self._machine.read_original, self._ref.name, path)

    async def kill_processes(self, *, keep: Literal["services", "nothing"] = "services") -> int:
        self._init()
        services = {*self._records.baseline.leaves, *group_of(self._records.running)}
        kept = {INIT} | (services if keep == "services" else set())
        async with self._machine.standing_still(self._ref.name):
            return await asyncio.to_thread(self._kill_all_but, kept)

    def _kill_all_but(self, kept: set[str]) -> int:
        """Frozen processes cannot fork: what is counted now is all there is. The kills hold without that, too."""
        with suppress(SandboxError):
            self._cgroup.freeze()
        try:
            others = [leaf for leaf in self._cgroup.leaves() if leaf not in kept]
            number = sum(len(self._cgroup.pids(leaf)) for leaf in others)
            for leaf in others:
                self._cgroup.kill(leaf)
        finally:
            self._cgroup.thaw()
        for leaf in others:
            self._cgroup.wait_empty(leaf=leaf)
            self._cgroup.drop_leaf(leaf)
        return number

    async def mark_baseline(self, key: str | None = None, *, is_restored: bool = False) -> None:
        self._init()
        if is_restored:
            # The entrypoint's cgroup stays in any case.
            return
        if key is None:
            leaves = set(await asyncio.to_thread(self._cgroup.leaves))
        else:
            leaves = {*self._records.baseline.leaves, leaf_of(key)}
        self._records.baseline = Baseline(leaves=tuple(sorted(leaves)))

    async def memory_use(self) -> MemoryUse | None:
        return await asyncio.to_thread(self._cgroup.memory_use)

    async def expose_port(self, port: int) -> tuple[str, int]:
        self._init()
        running = self._records.running
        if running is None or running.address is None:
            raise SandboxError(
                f"port {port} of the sandbox cannot be reached: it has no network",
                key="network_mode",
                remedy='use network_mode = "public"',
            )
        return running.address, port

    async def snapshot(self, name: str) -> ImageRef:
        return await self._machine.snapshot(self._ref.name, name)

    async def freeze(self) -> None:
        self._init()
        async with self._machine.standing_still(self._ref.name):
            # Before: whoever finds it frozen must see why.
            self._records.is_frozen = True
            await see_through(asyncio.to_thread(self._cgroup.freeze))

    async def thaw(self) -> None:
        if not self._records.is_frozen:
            return
        async with self._machine.standing_still(self._ref.name):
            await see_through(asyncio.to_thread(self._cgroup.thaw))
            self._records.is_frozen = False

    async def is_frozen(self) -> bool:
        return self._records.is_frozen

    async def restore(self, image: ImageRef) -> None:
        await self._machine.restore(self._ref.name, image)

    async def fork(self, names: Sequence[str]) -> list[SandboxRef]:
        started = await self._machine.fork(self._ref.name, names)
        return [
            self._ref.model_copy(
                update={
                    "name": name,
                    "handle": running.handle,
                    "workdir": running.workdir,
                    "warnings": running.warnings,
                }
            )
            for name, running in zip(names, started, strict=True)
        ]

    async def stop(self) -> None:
        await self._machine.remove(self._ref.name)

    def entrypoint(self) -> Entrypoint:
        """The image's own, whether it runs or not. Raises `SandboxLostError`."""
        self._init()
        running = self._records.running
        if running is None:
            raise SandboxLostError(f"the sandbox {self._ref.name} no longer runs")
        return Entrypoint(self._executions, running)

    def _key(self, key: str) -> str:
        return f"{self._ref.episode}/{key}" if self._ref.episode else key

    def _init(self) -> tuple[int, int]:
        return self._machine.init_of(self._ref.name, self._ref.handle)

    def _command(
        self, cmd: Sequence[str], env: dict[str, str] | None, cwd: str | None, user: str | int | None
    ) -> Command:
        return Command(tuple(cmd), self._env | (env or {}), cwd or self._ref.workdir, _user(user))


def _user(user: str | int | None) -> str:
    return "0" if user in (None, "root", 0, "0") else str(user)


def ref_of(
    spec: SandboxSpec, running: Running, *, host_id: str = "", queue: str = "", generation: int = 0
) -> SandboxRef:
    """How any process finds a started sandbox again."""
    return SandboxRef(
        provider="local",
        name=spec.name,
        handle=running.handle,
        host_id=host_id,
        queue=queue,
        generation=generation,
        workdir=running.workdir,
        has_workdir=spec.named_workdir is not None,
        image_user=spec.image_user,
        warnings=running.warnings,
        image=spec.image.identity,
    )
