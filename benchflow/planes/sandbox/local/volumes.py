"""The volumes of sandboxes and images in the store; `u` in each has its changes to the layers below."""

from __future__ import annotations

import secrets
import shutil

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.planes.sandbox.local.cgroups import Cgroup
from benchflow.planes.sandbox.local.fingerprint import compute_host_fingerprint
from benchflow.planes.sandbox.local.local_images import LocalImage, parse_key, require_image
from benchflow.planes.sandbox.local.single_flight import SingleFlight
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore

_WORK = "w-"
"""Prefix of the names of overlay work directories."""

_FREEZE_SEC = 60.0
"""Seconds in which a sandbox must freeze. A process that waits for the disk freezes only after that."""


class Volumes:
    """The volumes of a store.

    Args:
        store: The store.
    """

    def __init__(self, store: VolumeStore) -> None:
        """Make it."""
        self._store = store
        self._fingerprint = SingleFlight(compute_host_fingerprint)

    def make_for(self, spec: SandboxSpec, copy: bool) -> LocalImage:
        """Create the volume of a new sandbox.

        Args:
            spec: The sandbox.
            copy: Whether its files begin as a copy of the image's, even if the image is a layer, which else lies below.

        Returns:
            Its image, whose `base` is the layer that lies below the volume.

        Raises:
            SandboxError: The image is missing, or was made over other programs of this machine.
        """
        volume = name_volume(spec.name)
        key = parse_key(spec.image)
        if key is None:
            self._make(volume)
            return LocalImage(fingerprint=self._fingerprint())
        image = require_image(self._store.root, key, self._fingerprint())
        if image.kind == "layer" and not copy:
            self._make(volume)
            return image.model_copy(update={"base": key})
        self.copy(f"images/{key}", volume)
        return image

    def _make(self, volume: str) -> None:
        """Create an empty volume with its directory of changed files."""
        self._store.make(volume)
        upper = self._store.root / volume / "u"
        upper.mkdir()
        # The mode of the sandbox's root directory, which must not depend on the umask.
        upper.chmod(0o755)

    def copy(self, source: str, volume: str) -> None:
        """Create a volume as a writable copy of another one, without that one's overlay work directory."""
        self._store.clone(source, volume)
        for old in (self._store.root / volume).glob(f"{_WORK}*"):
            shutil.rmtree(old)

    def make_work(self, name: str) -> str:
        """Create an overlay work directory for a start of a sandbox, and return its path relative to the store.

        Its name is random, so that an earlier start, given up but carried out late by the helper, can't find its own.
        """
        work = f"{name_volume(name)}/{_WORK}{secrets.token_hex(4)}"
        (self._store.root / work).mkdir(mode=0o755)
        return work

    def capture(self, cgroup: Cgroup, name: str, target: str, image: LocalImage) -> None:
        """Copy the volume of a running sandbox, all as of one moment.

        Args:
            cgroup: Cgroup of the sandbox, which is frozen meanwhile.
            name: Name of the sandbox.
            target: Volume to create.
            image: Image record to write into the copy.
        """
        image.write(self._store.root / name_volume(name))
        # Data that is flushed now need not be flushed while the sandbox is frozen.
        self._store.sync()
        cgroup.freeze(_FREEZE_SEC)
        try:
            self._store.clone(name_volume(name), target)
        finally:
            cgroup.thaw()

    def image_of(self, spec: SandboxSpec) -> LocalImage:
        """Return the image record that a snapshot of a sandbox would have. Raises as `make_for`."""
        key = parse_key(spec.image)
        fingerprint = self._fingerprint()
        if key is None:
            return LocalImage(kind="snapshot", fingerprint=fingerprint, workdir=spec.workdir)
        image = require_image(self._store.root, key, fingerprint)
        base = key if image.kind == "layer" else image.base
        return image.model_copy(update={"kind": "snapshot", "base": base})


def name_volume(name: str) -> str:
    """Return the name of a sandbox's volume."""
    return f"sandboxes/{name}"
