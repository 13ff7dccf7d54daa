"""The contract of a sandbox provider: what the engine asks of everything that runs sandboxes on a host.

Most providers are made of a driver (`contracts.driver`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchflow.contracts.base import ArtifactRef, BlobStore, Model
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Capabilities, Sandbox, SandboxRef, SandboxSpec


class EntrypointState(Model):
    """How the image's entrypoint fares. exit_code: when it has ended. log: the end of what it has printed."""

    running: bool
    exit_code: int | None = None
    log: str = ""


class OwnedSandbox(Model):
    """A sandbox found by its labels, for the reaper."""

    name: str
    handle: str
    labels: dict[str, str]


@runtime_checkable
class ImageBuilder(Protocol):
    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Make, or find, an image. Concurrent builds of one digest are one build. Raises `ImageBuildError`."""
        ...


@runtime_checkable
class SandboxProvider(ImageBuilder, Protocol):
    """One way to run sandboxes on this host, e.g. a Docker daemon."""

    @property
    def name(self) -> str: ...

    def capabilities(self) -> Capabilities: ...

    async def check(self) -> None:
        """Raise `SandboxUnavailableError`, with the remedy, when no sandbox could be started here now."""
        ...

    async def start(
        self,
        spec: SandboxSpec,
        *,
        host_id: str,
        queue: str,
        generation: int = 0,
        secrets: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """Find the sandbox of this name, else create and start it.

        secrets: for the environment of the image's entrypoint, and of nothing else; written to no record, and part of
        no image.
        """
        ...

    async def entrypoint_state(self, name: str) -> EntrypointState:
        """Of a sandbox that runs its image's entrypoint, also when the sandbox ended with it."""
        ...

    async def end_entrypoint(self, name: str) -> None:
        """End an entrypoint that runs `below`, with all that it started; the sandbox stays."""
        ...

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """The running sandbox of a ref. Raises `SandboxLostError` when it no longer runs."""
        ...

    async def remove(self, name: str) -> None:
        """Remove the sandbox of this name, running or not, and all it owns. Missing is success."""
        ...

    async def remove_image(self, image: ImageRef) -> None:
        """Remove an image that this provider made: a build or a snapshot. Missing is success."""
        ...

    async def remove_snapshots(self, prefix: str) -> None:
        """Remove all snapshots on this host whose names begin with `prefix`. None is success."""
        ...

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Bring a snapshot of this host to the store, for other hosts; what is there of it already is not sent again.

        Raises `UnsupportedFeatureError` where the provider's capabilities say no, here and in `unpack_snapshot`.
        """
        ...

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Find the snapshot of a name, else make it of a pack, whole or not at all.

        It is removed like one that was taken under this name. Raises `ForeignSnapshotError` on a host that it cannot
        run on, and what the store raises.
        """
        ...

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """All sandboxes on this host that carry the stack's label, running or not."""
        ...

    async def sweep(self, stack_id: str) -> None:
        """Remove what the stack's sandboxes shared (networks), once none of them is left."""
        ...

    async def close(self) -> None: ...
