"""The content of a Dockerfile: steps that change files, and the configuration of the image."""

from __future__ import annotations

from dataclasses import dataclass

from benchflow.contracts.base import Model
from benchflow.planes.sandbox.local.build.copied_files import Copy, Tree
from benchflow.planes.sandbox.local.local_images import SHELL


class LayerConfig(Model):
    """The configuration of an image, without its files."""

    env: dict[str, str] = {}
    """Variables that ENV sets."""
    workdir: str | None = None
    """Absolute working directory; None if unset or `/`."""
    user: str | None = None
    """Name or uid, either with an optional `:group`; None for root."""
    labels: dict[str, str] = {}
    """Labels."""
    ports: tuple[str, ...] = ()
    """Exposed ports, as `80/tcp`."""
    shell: tuple[str, ...] = SHELL
    """Argv that precedes RUN, ENTRYPOINT and CMD in shell form."""
    entrypoint: tuple[str, ...] = ()
    """Argv of ENTRYPOINT."""
    command: tuple[str, ...] = ()
    """Argv of CMD, which follows ENTRYPOINT."""
    warnings: tuple[str, ...] = ()
    """Differences from the image that was asked for, as sentences."""
    base: str
    """The image in FROM, which the host may stand for."""


@dataclass(frozen=True)
class Run:
    """A command to run."""

    argv: tuple[str, ...]
    """Program and arguments."""
    env: dict[str, str]
    """Variables that ENV and ARG set."""
    workdir: str
    """Absolute working directory."""
    user: str | None
    """User, as in `LayerConfig`; None for root."""


@dataclass(frozen=True)
class MakeDirectory:
    """A working directory to create if it is missing."""

    path: str
    """Absolute path."""


@dataclass(frozen=True)
class BuildInstruction:
    """An instruction of a Dockerfile."""

    line: int
    """Its first line, from 1."""
    word: str
    """Name of the instruction, such as RUN."""
    rest: str
    """Text after the name."""
    action: Run | Copy | MakeDirectory | None
    """The change of files; None if it changes only the configuration."""

    @property
    def title(self) -> str:
        """Return the instruction on one line."""
        return f"{self.word} {self.rest}"


@dataclass(frozen=True)
class Base:
    """An image that FROM may name."""

    reference: str
    """Reference of the image."""
    config: LayerConfig
    """Its configuration."""


@dataclass(frozen=True)
class Recipe:
    """A Dockerfile that can be carried out."""

    shown: str
    """Name of the file in errors."""
    steps: tuple[BuildInstruction, ...]
    """Its instructions."""
    config: LayerConfig
    """Configuration of the finished image."""
    tree: Tree
    """Build context."""
    upon: str | None = None
    """Reference of the image in FROM; None if the host stands for it."""
