"""The files of sandboxes and images: a volume of the store each, with what is changed over the layers below in `u`."""

from __future__ import annotations

import secrets
import shutil

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.planes.sandbox.local.cgroups import Cgroup
from benchflow.planes.sandbox.local.fingerprint import host_fingerprint
from benchflow.planes.sandbox.local.images import Image, key_of, require_image
from benchflow.planes.sandbox.local.single_flight import SingleFlight
from benchflow.planes.sandbox.local.store.store import Store

_WORK = "w-"
"""How the names of overlay work directories begin."""

_FREEZE_SEC = 60.0
"""A process that writes more than the disk takes stands still only once the disk has taken it."""


class Volumes:
    """The volumes of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fingerprint = SingleFlight(host_fingerprint)

    def make_for(self, spec: SandboxSpec, copy: bool) -> Image:
        """Make the volume of a new sandbox. Returns its image; `base` is the layer to lie below it.

        copy: its files begin as a copy of the image's, even where that is a layer.
        """
        volume = place_of(spec.name)
        key = key_of(spec.image)
        if key is None:
            self._make(volume)
            return Image(fingerprint=self._fingerprint())
        image = require_image(self._store.root, key, self._fingerprint())
        if image.kind == "layer" and not copy:
            self._make(volume)
            return image.model_copy(update={"base": key})
        self.copy(f"images/{key}", volume)
        return image

    def _make(self, volume: str) -> None:
        self._store.make(volume)
        upper = self._store.root / volume / "u"
        upper.mkdir()
        # The mode of the sandbox's root directory, which must not depend on the umask.
        upper.chmod(0o755)

    def copy(self, source: str, volume: str) -> None:
        """Make a volume as a writable copy, without the work directory of the sandbox that it is a copy of."""
        self._store.clone(source, volume)
        for old in (self._store.root / volume).glob(f"{_WORK}*"):
            shutil.rmtree(old)

    def make_work(self, name: str) -> str:
        """A work directory that no start was told of before: one that was given up may yet come, and not find it."""
        work = f"{place_of(name)}/{_WORK}{secrets.token_hex(4)}"
        (self._store.root / work).mkdir(mode=0o755)
        return work

    def capture(self, cgroup: Cgroup, name: str, target: str, image: Image) -> None:
        """Copy the volume of a running sandbox, all as of one moment. image: what the copy is said to be."""
        image.write(self._store.root / place_of(name))
        # What is written now need not be written while the sandbox stands still.
        self._store.sync()
        cgroup.freeze(_FREEZE_SEC)
        try:
            self._store.clone(place_of(name), target)
        finally:
            cgroup.thaw()

    def image_of(self, spec: SandboxSpec) -> Image:
        """What a snapshot of a sandbox would be."""
        key = key_of(spec.image)
        fingerprint = self._fingerprint()
        if key is None:
            return Image(kind="snapshot", fingerprint=fingerprint, workdir=spec.workdir)
        image = require_image(self._store.root, key, fingerprint)
        base = key if image.kind == "layer" else image.base
        return image.model_copy(update={"kind": "snapshot", "base": base})


def place_of(name: str) -> str:
    """The volume of a sandbox."""
    return f"sandboxes/{name}"
