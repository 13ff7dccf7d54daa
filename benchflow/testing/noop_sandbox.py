"""A sandbox that does nothing, for measuring the engine itself.

Every command ends at once with status 0 and runs nothing; writes and uploads are discarded; the verifier's reward reads
as 1.0, because the engine needs a reward to finish a rollout. Its scores mean nothing.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import IO

from benchflow.contracts.accelerators import ProcessOutput
from benchflow.contracts.driver import (
    FoundSandbox,
    Process,
    ProcessStatus,
    SandboxDriver,
    ScriptResult,
    StartedSandbox,
)
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.sandbox import Capabilities, ExecChunk, SandboxSpec
from benchflow.contracts.sandbox_provider import OwnedSandbox
from benchflow.planes.reward.hardening.survey import ARCHIVE, make_empty_archive

REWARD_FILE = "/logs/verifier/reward.txt"
REWARD = b"1.0"


class NoopDriver(SandboxDriver):
    """A stateless driver of sandboxes that don't exist.

    Everything succeeds, except to read anything but the reward, and the survey of the hardening, which found nothing.
    """

    name = "noop"

    def capabilities(self) -> Capabilities:
        """Return all capabilities that tasks ask for by default, so that any task can be used to measure."""
        return Capabilities(
            provider=self.name,
            network_modes=("public", "no-network"),
            cpu_limit=True,
            memory_limit=True,
            storage_limit=True,
            dockerfile=True,
            isolation="none",
            lockdown="clean_room",
        )

    async def build(self, config: ImageConfig, *, log: object = None) -> ImageRef:
        """Return a reference without a build."""
        return ImageRef(reference=config.image or "noop", workdir="/app")

    async def start(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> StartedSandbox:
        """Return a sandbox whose handle is its name."""
        return StartedSandbox(handle=spec.name, workdir=spec.named_workdir or "/app")

    async def find(self, name: str) -> FoundSandbox:
        """Find a running sandbox under every name."""
        return FoundSandbox(handle=name, is_running=True)

    async def remove(self, name: str) -> None:
        """Do nothing."""
        return None

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """Return no sandboxes: none needs to be reaped."""
        return []

    async def run_script(
        self,
        handle: str,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        """Return success without output."""
        return ScriptResult(exit_code=0)

    async def spawn(self, handle: str, process: Process) -> None:
        """Do nothing."""
        return None

    async def status(self, handle: str, process_id: str) -> ProcessStatus:
        """Return that the process was never started."""
        return ProcessStatus(was_started=False)

    async def wait(self, handle: str, process_id: str) -> ProcessStatus:
        """Return exit status 0 at once."""
        return ProcessStatus(exit_code=0)

    async def stream(self, handle: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Yield exit status 0 at once, without output."""
        yield ExecChunk(stream="exit", return_code=0)

    async def kill(self, handle: str, process_id: str) -> bool:
        """Report the process as gone."""
        return True

    async def processes(self, handle: str) -> list[RunningProcess]:
        """Return no processes."""
        return []

    async def kill_processes(self, handle: str, spared: Callable[[list[RunningProcess]], set[int]]) -> int:
        """Return 0 killed processes."""
        return 0

    async def output(self, handle: str, process_id: str) -> ProcessOutput:
        """Return empty output."""
        return ProcessOutput()

    async def output_tail(self, handle: str, process_id: str, limit: int) -> str:
        """Return empty output."""
        return ""

    async def trim_output(self, handle: str, process_id: str) -> None:
        """Do nothing."""
        return None

    async def forget(self, handle: str, process_id: str) -> None:
        """Do nothing."""
        return None

    async def read(self, handle: str, path: str, limit: int) -> bytes:
        """Return the reward, or an empty survey of the sandbox. Raise `FileNotFoundError` for any other file."""
        if path == REWARD_FILE:
            return REWARD
        if path == ARCHIVE:
            return make_empty_archive()
        raise FileNotFoundError(f"{path}: the no-op sandbox holds no files")

    async def write(self, handle: str, path: str, content: bytes, mode: int, user: str) -> None:
        """Discard the content."""
        return None

    async def unpack(self, handle: str, directory: str, archive: IO[bytes], user: str) -> None:
        """Discard the archive."""
        return None

    async def put(self, handle: str, directory: str, archive: IO[bytes]) -> None:
        """Discard the archive."""
        return None

    async def get(self, handle: str, path: str, take: Callable[[bytes], None]) -> bool | None:
        """Pass the reward's file, or a directory that holds it, to `take`. Return None for any other path."""
        directory = path.rstrip("/") + "/"
        if path != REWARD_FILE and not REWARD_FILE.startswith(directory):
            return None
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            info = tarfile.TarInfo(REWARD_FILE.removeprefix(directory).lstrip("/"))
            info.size, info.mode = len(REWARD), 0o600
            archive.addfile(info, io.BytesIO(REWARD))
        take(packed.getvalue())
        return path == REWARD_FILE

    async def address(self, handle: str, port: int) -> tuple[str, int]:
        """Return the port itself on this host, where nothing need listen."""
        return "127.0.0.1", port
