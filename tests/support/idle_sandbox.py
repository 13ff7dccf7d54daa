"""A sandbox that does nothing, as a provider of its own kind and not over a driver: tests say what it does instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.file_changes import FileChanges, FileState
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.sandbox import Capabilities, ExecChunk, SandboxExecResult, SandboxRef, SandboxSpec
from benchflow.contracts.sandbox_provider import EntrypointState, OwnedSandbox
from benchflow.errors import UnsupportedFeatureError
from benchflow.planes.reward.hardening.survey import ARCHIVE, make_empty_archive
from benchflow.testing.noop_sandbox import NoopDriver

REWARD_FILE = "/logs/verifier/reward.txt"
REWARD = b"1.0"


class IdleSandbox:
    """Stands for a sandbox; there is nothing behind it."""

    def __init__(self, ref: SandboxRef) -> None:
        self._ref = ref

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
        return SandboxExecResult(return_code=0)

    async def control(
        self, script: str, *args: str, sink: Callable[[bytes], None] | None = None, timeout: float | None = 60.0
    ) -> SandboxExecResult:
        return SandboxExecResult(return_code=0)

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
        return SandboxExecResult(return_code=0)

    async def was_started(self, key: str) -> bool:
        return False

    async def kill_once(self, key: str) -> None:
        return None

    async def exec_stream(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[ExecChunk]:
        yield ExecChunk(stream="exit", return_code=0)

    async def read_file(self, path: str) -> str:
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str) -> bytes:
        if path == REWARD_FILE:
            return REWARD
        if path == ARCHIVE:
            return make_empty_archive()
        raise FileNotFoundError(f"{path}: the idle sandbox holds no files")

    async def write_file(
        self, path: str, content: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        return None

    async def upload(
        self, source: Path, target: str, *, user: str | int | None = None, exclude: Sequence[str] = ()
    ) -> None:
        return None

    async def download(self, source: str, target: Path, *, exclude: Sequence[str] = ()) -> bool:
        where = {
            "/logs": target / "verifier" / "reward.txt",
            "/logs/verifier": target / "reward.txt",
            REWARD_FILE: target,
        }.get(source.rstrip("/"))
        if where is None:
            return False
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(REWARD)
        return True

    async def read_outside(self, path: str) -> bytes | None:
        return REWARD if path == REWARD_FILE else None

    async def write_outside(self, path: str, content: bytes, *, mode: int = 0o755) -> None:
        return None

    async def put_outside(self, files: Mapping[str, tuple[FileState, bytes]]) -> None:
        return None

    async def changes(self, known: FileChanges | None = None, *, skip: Sequence[str] = ()) -> FileChanges:
        return FileChanges()

    async def originals(self, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        return {}

    async def read_original(self, path: str) -> bytes | None:
        return None

    async def kill_processes(self, *, keep: Literal["services", "nothing"] = "services") -> int:
        return 0

    async def strangers(self) -> list[RunningProcess]:
        return []

    async def mark_baseline(self, key: str | None = None, *, is_restored: bool = False) -> None:
        return None

    async def memory_use(self) -> MemoryUse | None:
        return None

    async def expose_port(self, port: int) -> tuple[str, int]:
        return "127.0.0.1", port

    async def snapshot(self, name: str) -> ImageRef:
        raise UnsupportedFeatureError("the idle sandbox has no state to keep", key="snapshot")

    async def freeze(self) -> None:
        return None

    async def thaw(self) -> None:
        return None

    async def is_frozen(self) -> bool:
        return False

    async def restore(self, image: ImageRef) -> None:
        raise UnsupportedFeatureError("the idle sandbox has no state to restore", key="restore")

    async def fork(self, names: Sequence[str]) -> list[SandboxRef]:
        raise UnsupportedFeatureError("the idle sandbox has no state to fork", key="fork")

    async def stop(self) -> None:
        return None


class IdleProvider:
    """Hands out `IdleSandbox`es. Never fails, keeps nothing."""

    name = "idle"

    def capabilities(self) -> Capabilities:
        """Return what the driver says that does nothing, too."""
        return NoopDriver().capabilities().model_copy(update={"provider": self.name})

    async def check(self) -> None:
        return None

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        return ImageRef(reference=config.image or "noop", workdir="/app")

    async def start(
        self,
        spec: SandboxSpec,
        *,
        host_id: str,
        queue: str,
        generation: int = 0,
        secrets: Mapping[str, str] | None = None,
    ) -> IdleSandbox:
        return IdleSandbox(
            SandboxRef(
                provider=self.name,
                name=spec.name,
                handle=spec.name,
                host_id=host_id,
                queue=queue,
                generation=generation,
                workdir=spec.named_workdir or "/app",
                has_workdir=spec.named_workdir is not None,
                image_user=spec.image_user,
            )
        )

    async def entrypoint_state(self, name: str) -> EntrypointState:
        return EntrypointState(running=True)

    async def end_entrypoint(self, name: str) -> None:
        return None

    async def attach(self, ref: SandboxRef) -> IdleSandbox:
        return IdleSandbox(ref)

    async def remove(self, name: str) -> None:
        return None

    async def remove_image(self, image: ImageRef) -> None:
        return None

    async def remove_snapshots(self, prefix: str) -> None:
        return None

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        raise UnsupportedFeatureError("the idle sandbox has no snapshots to pack", key="portable")

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        raise UnsupportedFeatureError("the idle sandbox has no files to begin with", key="portable")

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        return []

    async def sweep(self, stack_id: str) -> None:
        return None

    async def close(self) -> None:
        return None
