"""The contract of a sandbox provider, which starts, finds and removes the sandboxes of one kind on a host.

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
    """The status of the image's entrypoint in a sandbox that runs it."""

    running: bool
    """Whether its own process runs. Services that it left in the background do not count."""

    exit_code: int | None = None
    """Exit status; None while it runs, and before it has started."""

    log: str = ""
    """End of its stdout and stderr, at most 64 KiB."""


class OwnedSandbox(Model):
    """A sandbox that a provider finds by its labels, for the reaper."""

    name: str
    """Name of the sandbox, as its `SandboxSpec` had it."""

    handle: str
    """The provider's own id of it, as in `SandboxRef`. Empty if the provider has none on record."""

    labels: dict[str, str]
    """Labels that it was started with, such as `benchflow.stack` and `benchflow.workflow`."""


@runtime_checkable
class ImageBuilder(Protocol):
    """Builds images for sandboxes."""

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Find an image, or pull or build it. Concurrent builds of one digest are one build.

        Args:
            config: Image to find or make.
            log: File for the output of the build or pull; None for no file.

        Raises:
            ImageBuildError: A build failed, or took too long.
            ImagePullError: A ready image, or one that the build starts from, cannot be had.
        """
        ...


@runtime_checkable
class SandboxProvider(ImageBuilder, Protocol):
    """One kind of sandboxes on this host, such as the containers of a Docker daemon."""

    @property
    def name(self) -> str:
        """Return the provider's name, as `--sandbox` has it."""
        ...

    def capabilities(self) -> Capabilities:
        """Return the features that its sandboxes have on this host."""
        ...

    async def check(self) -> None:
        """Check that sandboxes can be started on this host now.

        Raises:
            SandboxUnavailableError: They cannot. The error has the remedy.
        """
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
        """Find the sandbox of the spec's name, else create and start it.

        Args:
            spec: Sandbox to start.
            host_id: Id of this host, for the `SandboxRef`. May be empty for a sandbox that one process starts and
                removes.
            queue: Task queue of this host, for the `SandboxRef`. May be empty like `host_id`.
            generation: Number of the provision within its rollout, from 0, for the `SandboxRef`.
            secrets: Variables of the image's entrypoint, and of no other process. They enter no record and no image.

        Raises:
            SandboxStartError: The sandbox does not start.
            UnsupportedFeatureError: The spec asks for more than the capabilities.
        """
        ...

    async def entrypoint_state(self, name: str) -> EntrypointState:
        """Return the status of the entrypoint of a sandbox that runs it, also if the sandbox has ended with it.

        Args:
            name: Name of the sandbox.
        """
        ...

    async def end_entrypoint(self, name: str) -> None:
        """End an entrypoint that runs `below`, with all its descendants; the sandbox stays.

        Args:
            name: Name of the sandbox.

        Raises:
            UnsupportedFeatureError: The entrypoint is the first process, and ends with the sandbox.
        """
        ...

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Return the running sandbox of a reference.

        Raises:
            SandboxLostError: It no longer runs, or another sandbox has its name.
        """
        ...

    async def remove(self, name: str) -> None:
        """Remove the sandbox of this name, running or not, and all that it owns. Success if there is none."""
        ...

    async def remove_image(self, image: ImageRef) -> None:
        """Remove an image that this provider made, by a build or a snapshot. Success if there is none."""
        ...

    async def remove_snapshots(self, prefix: str) -> None:
        """Remove all snapshots on this host whose names start with `prefix`. Success if there are none."""
        ...

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Upload a snapshot of this host to the store, for other hosts, and return the pack.

        Parts that the store already holds are not uploaded again.

        Args:
            image: The snapshot.
            store: Store that all hosts see.

        Raises:
            UnsupportedFeatureError: The capabilities lack `portable`.
        """
        ...

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Find the snapshot of a name on this host, else download it, whole or not at all.

        It is removed like one that was taken under this name. Errors of the store are raised as they are.

        Args:
            pack: Pack of the snapshot, from `pack_snapshot`.
            name: Name of the snapshot on this host.
            store: Store that holds the pack.

        Raises:
            ForeignSnapshotError: This host cannot run it.
            UnsupportedFeatureError: The capabilities lack `portable`.
        """
        ...

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """Return all sandboxes on this host whose label `benchflow.stack` is `stack_id`, running or not."""
        ...

    async def sweep(self, stack_id: str) -> None:
        """Remove resources that the stack's sandboxes shared, such as networks, once none of them is left."""
        ...

    async def close(self) -> None:
        """Close connections and files of this process. Sandboxes stay as they are."""
        ...
