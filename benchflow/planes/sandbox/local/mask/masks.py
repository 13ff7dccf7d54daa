"""The masks of a sandbox: the host's, and one for the paths of its run."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.local import network
from benchflow.planes.sandbox.local.mask.mask_layer import Mask
from benchflow.planes.sandbox.local.mask.mask_plan import make_host_mask, make_image_mask, make_run_mask
from benchflow.planes.sandbox.local.single_flight import SingleFlight
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore

_LOOKED_AT = ("/", "/etc", "/var", "/var/lib", "/opt", "/etc/passwd", "/etc/group")
"""Paths whose modification, by a new name or account, requires a new mask of the host."""


class Masks:
    """The masks in a store. Each is written once and then found by its key.

    Args:
        store: The store, which must be open.
    """

    def __init__(self, store: VolumeStore) -> None:
        """Make it."""
        self._store = store
        self._host: tuple[object, Mask] | None = None
        self._looked_up = SingleFlight(self._look)

    def layers(self, hidden: Sequence[str]) -> list[str]:
        """Return the layers that hide the host's secrets and the `hidden` paths, relative to the store, topmost first.

        Paths of the engine itself are hidden as well: its code, state directory and store.
        """
        return self._looked_up(tuple(hidden))

    def over_image(self, key: str | None) -> list[str]:
        """Return the layers over a ready image, which give each sandbox its own host name and resolvers.

        Args:
            key: Key of the image; None if its files are copied into the sandbox's own.
        """
        root = self._store.root / "images" / (key or "none") / "u"
        return [self._written(make_image_mask(root, nameservers=network.find_nameservers()))]

    def _look(self, hidden: tuple[str, ...]) -> list[str]:
        """Make the masks of the host and of a run, as far as they are not written; return their layers."""
        host = self._of_host()
        always = [find_state_dir(), self._store.home, self._store.root, *_list_engine_paths()]
        run = make_run_mask([*map(Path, hidden), *always], host)
        return [self._written(mask) for mask in (run, host) if mask is not None]

    def _of_host(self) -> Mask:
        """Return the host's mask, made anew if names, accounts or resolvers have changed."""
        nameservers = network.find_nameservers()
        stamp = (nameservers, [Path(place).stat().st_mtime_ns for place in _LOOKED_AT])
        if self._host is None or self._host[0] != stamp:
            self._host = (stamp, make_host_mask(nameservers=nameservers))
        return self._host[1]

    def _written(self, mask: Mask) -> str:
        """Write a mask into the store, unless it is there, and return its path."""
        place = self._store.root / "masks" / mask.key
        if not place.exists():
            part = place.with_name(f".partial-{mask.key}-{os.getpid()}-{secrets.token_hex(4)}")
            part.mkdir(parents=True)
            mask.write(part)
            try:
                part.rename(place)
            except OSError:
                # Another process was faster; its mask is the same.
                shutil.rmtree(part)
        return f"masks/{mask.key}"


def _list_engine_paths() -> list[Path]:
    """Return the directories of the engine's code: its package or the repository around it, its virtual environment."""
    package = Path(__file__).parents[4]
    repository = package.parent
    own = [repository if (repository / "pyproject.toml").is_file() else package]
    if sys.prefix != sys.base_prefix:
        own.append(Path(sys.prefix))
    with suppress(KeyError):
        own += Path(sysconfig.get_paths()["purelib"]).glob("benchflow-*.dist-info")
    return own
