"""What a toolbox says of itself: `toolbox.json` at its top, written last, read by whoever mounts it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchflow.contracts.agent import AgentRecord
from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import Mount
from benchflow.errors import AgentInstallError, ConfigError

FILE = "toolbox.json"

Libc = Literal["glibc", "musl"]
"""The C library of an image, which what runs in it must be made for."""


class Installed(Model):
    """What an installation put into a toolbox.

    runtime: `node 24.21.0`. packages: those that were asked for, with the versions that are there. resolved: all, by
    name or place. commands: how each program is started, its words relative to the toolbox where they hold a slash.
    probe: a command that shows whether an image can run this. libc: the image's, or one that the toolbox brings.
    """

    runtime: str
    packages: dict[str, str]
    resolved: dict[str, str]
    commands: dict[str, tuple[str, ...]]
    probe: tuple[str, ...]
    libc: Libc | Literal["own"]


class ToolboxManifest(Model):
    """digest: of what was asked for, the platform and the way it is built. size: bytes on disk; seconds: to build."""

    agent: str
    version: str
    digest: str
    platform: str
    installed: Installed
    size: int
    files: int
    seconds: float
    built_at: str


@dataclass(frozen=True)
class Toolbox:
    """A built toolbox on this host. root: its directory here; mount_path: where sandboxes see it. built: just now."""

    root: Path
    mount_path: str
    manifest: ToolboxManifest
    built: bool = False

    @property
    def mount(self) -> Mount:
        return Mount(source=str(self.root), target=self.mount_path, read_only=True)

    def argv(self, record: AgentRecord, *, at: str | None = None) -> tuple[str, ...]:
        """How the agent is started where the toolbox lies at `at` (its mount path, if not given).

        Raises `ConfigError` when the record's program is none of the toolbox's.
        """
        name, *arguments = record.launch
        root = at or self.mount_path
        return (*self._start_of(name, root, record), *(word.replace("{toolbox}", root) for word in arguments))

    def program(self, name: str) -> tuple[str, ...]:
        """How one of its programs is started in a sandbox: absolute words. Raises `ConfigError` when it has none."""
        return self._start_of(name, self.mount_path, None)

    def _start_of(self, name: str, root: str, record: AgentRecord | None) -> tuple[str, ...]:
        commands = self.manifest.installed.commands
        if name not in commands:
            raise ConfigError(
                f"the toolbox has no program {name!r}",
                file=record.source if record else str(self.root),
                key="launch" if record else None,
                remedy=f"use one of {', '.join(sorted(commands))}, or declare it in install.commands",
            )
        return absolute(commands[name], root)


def absolute(words: tuple[str, ...], root: str) -> tuple[str, ...]:
    """A command of a toolbox with its paths below `root`."""
    return tuple(f"{root}/{word}" if "/" in word and not word.startswith("-") else word for word in words)


def write_manifest(directory: Path, manifest: ToolboxManifest) -> None:
    (directory / FILE).write_text(json.dumps(manifest.model_dump(mode="json"), indent=2) + "\n")


def read_manifest(directory: Path) -> ToolboxManifest:
    """Raises `AgentInstallError` for a directory that no build of ours left."""
    try:
        return ToolboxManifest.model_validate_json((directory / FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise AgentInstallError(
            "is not the manifest of a toolbox", file=str(directory / FILE), remedy=f"remove {directory}"
        ) from error
