"""The manifest of a toolbox: `toolbox.json` at its top, written last by the build."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import Mount
from benchflow.errors import AgentInstallError, ConfigError

FILE = "toolbox.json"
"""Name of the manifest."""

Libc = Literal["glibc", "musl"]
"""C library of an image, which programs that run in it must be built for."""


class Installed(Model):
    """What the installation of a toolbox made: interpreter, versions of packages, commands, needs of the image."""

    runtime: str
    """Name and version of the interpreter, as `node 24.21.0`."""

    packages: dict[str, str]
    """Installed versions of the packages in the record, by name."""

    resolved: dict[str, str]
    """Versions of all packages, by name or path."""

    commands: dict[str, tuple[str, ...]]
    """Command of each program. Words with a slash are paths relative to the toolbox."""

    probe: tuple[str, ...]
    """Command that shows whether an image can run the toolbox."""

    libc: Libc | Literal["own"]
    """C library that it needs in the image; `own` if it brings one."""


class ToolboxManifest(Model):
    """The content of `toolbox.json`."""

    agent: str
    """Name of the agent."""

    version: str
    """Version of the agent."""

    digest: str
    """Digest of the record's installation, the platform and the way it is built."""

    platform: str
    """Platform, as `linux-x64` or `linux-arm64-musl`."""

    installed: Installed
    """Result of the installation."""

    size: int
    """Bytes on disk."""

    files: int
    """Number of files."""

    seconds: float
    """Seconds that the build took."""

    built_at: str
    """Time of the build, in ISO 8601, UTC."""


@dataclass(frozen=True)
class Toolbox:
    """A built toolbox on this host."""

    root: Path
    """Its directory on this host."""

    mount_path: str
    """Its directory in sandboxes."""

    manifest: ToolboxManifest
    """Its manifest."""

    built: bool = False
    """Whether the call that returned it has built it."""

    @property
    def mount(self) -> Mount:
        """Return the mount that a sandbox needs for it."""
        return Mount(source=str(self.root), target=self.mount_path, read_only=True)

    def make_argv(self, record: AgentRecord, *, at: str | None = None) -> tuple[str, ...]:
        """Return the command that starts the agent. Raise `ConfigError` if the toolbox does not have its program.

        Args:
            record: Registry record of the agent.
            at: Absolute path of the toolbox where it runs; its mount path by default.
        """
        name, *arguments = record.launch
        root = at or self.mount_path
        return (*self._find_command(name, root, record), *(word.replace("{toolbox}", root) for word in arguments))

    def find_program(self, name: str) -> tuple[str, ...]:
        """Return the command that starts a program of it in a sandbox.

        Raise `ConfigError` if there is no such program.
        """
        return self._find_command(name, self.mount_path, None)

    def _find_command(self, name: str, root: str, record: AgentRecord | None) -> tuple[str, ...]:
        commands = self.manifest.installed.commands
        if name not in commands:
            raise ConfigError(
                f"the toolbox has no program {name!r}",
                file=record.source if record else str(self.root),
                key="launch" if record else None,
                remedy=f"use one of {', '.join(sorted(commands))}, or declare it in install.commands",
            )
        return make_absolute(commands[name], root)


def make_absolute(words: tuple[str, ...], root: str) -> tuple[str, ...]:
    """Return a command with its relative paths below `root`."""
    return tuple(f"{root}/{word}" if "/" in word and not word.startswith("-") else word for word in words)


def write_manifest(directory: Path, manifest: ToolboxManifest) -> None:
    """Write the manifest of a toolbox."""
    (directory / FILE).write_text(json.dumps(manifest.model_dump(mode="json"), indent=2) + "\n")


def read_manifest(directory: Path) -> ToolboxManifest:
    """Return the manifest of a toolbox. Raise `AgentInstallError` if it is missing or invalid."""
    try:
        return ToolboxManifest.model_validate_json((directory / FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise AgentInstallError(
            "is not the manifest of a toolbox", file=str(directory / FILE), remedy=f"remove {directory}"
        ) from error
