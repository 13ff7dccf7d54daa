"""The outputs of commands that ran once, where a sandbox begins anew with other files: they lie in the sandbox.

Docker's driver keeps them on a volume, which no capture has.
"""

from __future__ import annotations

from typing import BinaryIO

from benchflow.contracts.driver import SandboxDriver
from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox.driven.records import Records
from benchflow.planes.sandbox.driven.scripts import Scripts
from benchflow.planes.sandbox.driven.wrapped import COMMANDS
from benchflow.store import storage_errors

MAX_BYTES = 256 * 1024 * 1024
"""Bytes of outputs that a restore takes along. Those of an agent that has filled the place are lost."""


class Outputs:
    """The outputs of a sandbox that is restored."""

    def __init__(self, driver: SandboxDriver, records: Records) -> None:
        self._driver = driver
        self._file = records.directory / "outputs.tar"

    async def save(self, handle: str) -> None:
        """Keep them on this host, before the sandbox goes."""
        part = self._file.with_suffix(".part")
        with storage_errors(part):
            part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with part.open("wb") as file:
                bounded = _Bounded(file)
                try:
                    is_file = await self._driver.get(handle, COMMANDS, bounded.take)
                except SandboxLostError:
                    # It has died, and they with it.
                    is_file = None
            if is_file is False and bounded.is_whole:
                part.rename(self._file)
            else:
                part.unlink()

    async def put_back(self, handle: str) -> None:
        """Give them to the sandbox that has come in its place, in place of those that its image has."""
        await clear_outputs(Scripts(self._driver, handle))
        if not self._file.exists():
            return
        with self._file.open("rb") as archive:
            await self._driver.put(handle, COMMANDS, archive)
        self._file.unlink()


async def clear_outputs(scripts: Scripts) -> None:
    """Remove the outputs that a sandbox has from the image that it began with."""
    await scripts.run(f"rm -rf {COMMANDS}; mkdir -p {COMMANDS}; chmod 0711 {COMMANDS}")


class _Bounded:
    """Writes an archive as far as it is not too large."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._written = 0
        self.is_whole = True

    def take(self, piece: bytes) -> None:
        self._written += len(piece)
        self.is_whole = self.is_whole and self._written <= MAX_BYTES
        if self.is_whole:
            self._file.write(piece)
