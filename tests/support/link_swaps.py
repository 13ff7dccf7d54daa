"""A process that changes what lies behind names while they are used, as a sandbox's root does in what it may write.

Run as a program it swaps, until its stdin is closed: `link_swaps.py OUTSIDE PLACE...`. What was at a place at first is
one of the things that it puts there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


class Outside:
    """A directory with a file, beside the one that is changed: neither must be changed, nor the file be read."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "outside"
        self.directory.mkdir()
        self.secret = secrets.token_hex(16)
        self.file = self.directory / "file"
        self.file.write_text(self.secret)

    def assert_untouched(self) -> None:
        assert [path.name for path in self.directory.iterdir()] == ["file"]
        assert self.file.read_text() == self.secret


@contextlib.contextmanager
def swapping(outside: Outside, *places: Path) -> Iterator[None]:
    """Have what is at each place swapped, as fast as it goes, until the end of the block."""
    command = [sys.executable, __file__, str(outside.directory), *map(str, places)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"swapping\n"
        yield
        assert process.poll() is None, "it was not swapped until the end"
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def try_often(use: Callable[[], object], times: int, *allowed: type[BaseException]) -> list[object]:
    """Call a function so often, and return what it returned where it raised none of what it may raise."""
    results = []
    for _ in range(times):
        with contextlib.suppress(*allowed):
            results.append(use())
    return results


def _swap(outside: Path, places: list[Path]) -> None:
    for place in places:
        place.rename(_original(place))
    print("swapping", flush=True)
    kinds: tuple[Callable[[Path], None], ...]
    kinds = (_put_original, _put_link_to(outside / "file"), os.mkfifo, _put_link_to(outside), Path.mkdir)
    kinds += (_put_original, _put_link_to(outside / "new"), _put_hard_link, _put_link_to_original)
    for kind in itertools.cycle(kinds):
        for place in places:
            if select.select([sys.stdin], [], [], 0)[0]:
                return
            # Whoever uses the names may have made something there.
            _clear(place)
            with contextlib.suppress(OSError):
                kind(place)
            if kind is _put_original:
                with contextlib.suppress(OSError):
                    place.rename(_original(place))


def _clear(place: Path) -> None:
    with contextlib.suppress(OSError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def _original(place: Path) -> Path:
    return place.with_name(f"was-{place.name}")


def _put_original(place: Path) -> None:
    _original(place).rename(place)


def _put_hard_link(place: Path) -> None:
    place.hardlink_to(_original(place))


def _put_link_to_original(place: Path) -> None:
    place.symlink_to(_original(place).name)


def _put_link_to(target: Path) -> Callable[[Path], None]:
    return lambda place: place.symlink_to(target)


if __name__ == "__main__":
    _swap(Path(sys.argv[1]), [Path(place) for place in sys.argv[2:]])
