"""Which masks a sandbox gets: the host's, and one for what belongs to its run."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchflow.paths import state_dir
from benchflow.planes.sandbox.local import network
from benchflow.planes.sandbox.local.mask.layer import Mask
from benchflow.planes.sandbox.local.mask.plan import host_mask, image_mask, run_mask
from benchflow.planes.sandbox.local.single_flight import SingleFlight
from benchflow.planes.sandbox.local.store.store import Store

_LOOKED_AT = ("/", "/etc", "/var", "/var/lib", "/opt", "/etc/passwd", "/etc/group")
"""Where a new name, or a new account, makes the host's mask another one."""


class Masks:
    """The masks of a store. Each is written once and then found by its key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._host: tuple[object, Mask] | None = None
        self._looked_up = SingleFlight(self._look)

    def layers(self, hidden: Sequence[str]) -> list[str]:
        """Directories, relative to the store and topmost first, that hide the host's secrets and `hidden` paths."""
        return self._looked_up(tuple(hidden))

    def over_image(self, key: str | None) -> list[str]:
        """Return the same for sandboxes that see nothing of the host: what each has of its own over a ready image.

        key: of the image. None where its files are among the sandbox's own.
        """
        root = self._store.root / "images" / (key or "none") / "u"
        return [self._written(image_mask(root, nameservers=network.nameservers()))]

    def _look(self, hidden: tuple[str, ...]) -> list[str]:
        host = self._of_host()
        always = [state_dir(), self._store.home, self._store.root, *_engine_paths()]
        run = run_mask([*map(Path, hidden), *always], host)
        return [self._written(mask) for mask in (run, host) if mask is not None]

    def _of_host(self) -> Mask:
        nameservers = network.nameservers()
        stamp = (nameservers, [Path(place).stat().st_mtime_ns for place in _LOOKED_AT])
        if self._host is None or self._host[0] != stamp:
            self._host = (stamp, host_mask(nameservers=nameservers))
        return self._host[1]

    def _written(self, mask: Mask) -> str:
        place = self._store.root / "masks" / mask.key
        if not place.exists():
            part = place.with_name(f".partial-{mask.key}-{os.getpid()}-{secrets.token_hex(4)}")
            part.mkdir(parents=True)
            mask.write(part)
            try:
                part.rename(place)
            except OSError:
                # Another process was faster; what it made is the same.
                shutil.rmtree(part)
        return f"masks/{mask.key}"


def _engine_paths() -> list[Path]:
    """Where the engine itself lies: its package, or the repository around it, and its virtual environment."""
    package = Path(__file__).parents[4]
    repository = package.parent
    own = [repository if (repository / "pyproject.toml").is_file() else package]
    if sys.prefix != sys.base_prefix:
        own.append(Path(sys.prefix))
    with suppress(KeyError):
        own += Path(sysconfig.get_paths()["purelib"]).glob("benchflow-*.dist-info")
    return own
