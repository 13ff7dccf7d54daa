"""Preservation of the stored outputs of commands across a restore that starts a new sandbox: they lie in the sandbox.

Docker's driver does not need it: it has them on a volume, which no capture contains.
"""

from __future__ import annotations

from typing import IO

from benchflow.contracts.driver import SandboxDriver
from benchflow.errors import SandboxLostError
from benchflow.host_files import create_atomic, raise_storage_errors
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.planes.sandbox.driven.wrapped import COMMANDS

MAX_BYTES = 256 * 1024 * 1024
"""Maximum bytes of outputs that are preserved; larger ones, of an agent that has filled the directory, are lost."""


class RetainedOutputs:
    """The stored outputs of a sandbox that is restored."""

    def __init__(self, driver: SandboxDriver, records: SandboxRecords) -> None:
        """Make it. records: records of the sandbox, whose directory holds the archive of the outputs."""
        self._driver = driver
        self._file = records.directory / "outputs.tar"

    async def save(self, handle: str) -> None:
        """Archive the outputs on this host, before the sandbox is removed. handle: the driver's handle of it."""
        with raise_storage_errors(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with create_atomic(self._file) as file:
                bounded = _Bounded(file)
                try:
                    is_file = await self._driver.get(handle, COMMANDS, bounded.take)
                except SandboxLostError:
                    # The sandbox has died, and its outputs are lost.
                    is_file = None
                if is_file is not False or not bounded.is_whole:
                    file.close()

    async def put_back(self, handle: str) -> None:
        """Replace the outputs that a new sandbox has from its image by the archived ones. handle: of the new one."""
        await clear_outputs(EngineScripts(self._driver, handle))
        if not self._file.exists():
            return
        with self._file.open("rb") as archive:
            await self._driver.put(handle, COMMANDS, archive)
        self._file.unlink()


async def clear_outputs(scripts: EngineScripts) -> None:
    """Remove the outputs of commands that a sandbox has from its image."""
    await scripts.run(f"rm -rf {COMMANDS}; mkdir -p {COMMANDS}; chmod 0711 {COMMANDS}")


class _Bounded:
    """A file that receives an archive, up to `MAX_BYTES`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._written = 0
        self.is_whole = True

    def take(self, piece: bytes) -> None:
        """Write a piece, unless the archive is too large; then `is_whole` is False."""
        self._written += len(piece)
        self.is_whole = self.is_whole and self._written <= MAX_BYTES
        if self.is_whole:
            self._file.write(piece)
