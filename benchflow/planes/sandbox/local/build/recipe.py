"""What a Dockerfile becomes: steps that change files, and what the finished image is besides its files."""

from __future__ import annotations

from dataclasses import dataclass

from benchflow.contracts.base import Model
from benchflow.planes.sandbox.local.build.copies import Copy, Tree
from benchflow.planes.sandbox.local.images import SHELL


class LayerConfig(Model):
    """What an image is besides its files.

    env: only what ENV sets. workdir: None when unset or `/`. user: `name` or `uid`, either with `:group`. ports: as
    `80/tcp`. shell: of RUN and of what has no list. entrypoint, command: what it runs by itself, one after the other.
    base: the FROM that the host stands for. warnings: in what the image is not quite what was asked for.
    """

    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    labels: dict[str, str] = {}
    ports: tuple[str, ...] = ()
    shell: tuple[str, ...] = SHELL
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    base: str


@dataclass(frozen=True)
class Run:
    """A command. env: what ENV and ARG set. workdir: absolute. user: root if None."""

    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    user: str | None


@dataclass(frozen=True)
class MakeDirectory:
    """A working directory, made if it is missing."""

    path: str


@dataclass(frozen=True)
class Step:
    """An instruction of the file. action: what it does to files; None for what only describes the image."""

    line: int
    word: str
    rest: str
    action: Run | Copy | MakeDirectory | None

    @property
    def title(self) -> str:
        return f"{self.word} {self.rest}"


@dataclass(frozen=True)
class Base:
    """An image that a Dockerfile may begin with: its reference, and what it is."""

    reference: str
    config: LayerConfig


@dataclass(frozen=True)
class Recipe:
    """A Dockerfile that can be carried out. shown: its name in errors. config: of the finished image. upon: the
    reference of the image that it begins with, None if that is the host.
    """

    shown: str
    steps: tuple[Step, ...]
    config: LayerConfig
    tree: Tree
    upon: str | None = None
