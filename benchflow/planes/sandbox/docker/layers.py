"""The layers of the daemon's images, read and written as the tar archives by whose digests they are known.

If this process may read the daemon's files, a layer's archive is assembled from them: the daemon has the headers of
each archive (tar-split), and the files are in the layer's directory. Else the daemon exports the whole image. Either
way an archive is used only if it has the layer's digest.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from benchflow.confined import ConfinedDirectory
from benchflow.errors import UnsafePathError
from benchflow.planes.sandbox.archives import make_header
from benchflow.planes.sandbox.docker.docker_daemon import RecordingClient
from benchflow.planes.sandbox.docker.translation import raise_if_full

CHUNK = 1 << 20
"""Bytes that are read at a time."""

_GZIP = b"\x1f\x8b"
"""Magic number of gzip."""


class Layers:
    """The layers of a daemon on this host, in a storage driver like overlay2."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        """Make it from the daemon's `info`."""
        self._root = Path(info["DockerRootDir"])
        self._driver = str(info["Driver"])

    def copy(self, layers: list[str], number: int, target: Path) -> bool:
        """Write the archive of a layer, assembled from the daemon's files. Return False if that is not possible.

        Args:
            layers: Digests of the image's layers, from the bottom up.
            number: Index of the layer.
            target: File to write.
        """
        record = self._root / "image" / self._driver / "layerdb" / "sha256" / _compute_chain_id(layers[: number + 1])
        try:
            files = self._root / self._driver / (record / "cache-id").read_text() / "diff"
            with (
                gzip.open(record / "tar-split.json.gz") as parts,
                ConfinedDirectory(files) as directory,
                target.open("wb") as archive,
            ):
                digest = _join(parts, directory, archive)
        except (OSError, EOFError, ValueError, KeyError, UnsafePathError):
            digest = ""
        if digest != layers[number]:
            target.unlink(missing_ok=True)
            return False
        return True


def extract_layers(image: Iterable[bytes], wanted: set[str], directory: Path) -> dict[str, Path]:
    """Write the wanted layers of an exported image to files, and return the files by digest. The rest is skipped.

    Args:
        image: The daemon's export, as a stream.
        wanted: Digests of the wanted layers.
        directory: Empty directory for the files.
    """
    found: dict[str, Path] = {}
    with tarfile.open(fileobj=PieceReader(image), mode="r|", bufsize=CHUNK) as archive:
        for number, member in enumerate(archive):
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            file = directory / str(number)
            digest = hashlib.sha256()
            with file.open("wb") as copy, _decompress(content) as plain:
                while piece := plain.read(CHUNK):
                    digest.update(piece)
                    copy.write(piece)
            name = f"sha256:{digest.hexdigest()}"
            if name in wanted and name not in found:
                found[name] = file
            else:
                file.unlink()
    return found


@contextlib.contextmanager
def _decompress(content: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a member's content, decompressed if it is gzip: containerd's store exports compressed layers."""
    buffered = io.BufferedReader(content)  # type: ignore[type-var]
    if buffered.peek(len(_GZIP)).startswith(_GZIP):
        with gzip.open(buffered) as plain:
            yield cast(IO[bytes], plain)
    else:
        yield buffered


def stream_image(description: bytes, reference: str, layers: int, files: Mapping[int, Path | bytes]) -> Iterator[bytes]:
    """Yield an image as a stream for the daemon's `load`.

    Args:
        description: Configuration file of the image.
        reference: Name of the image.
        layers: Number of its layers.
        files: Archives, by index, of the layers that the daemon lacks; it looks for layers among its own first.
    """
    config = f"{hashlib.sha256(description).hexdigest()}.json"
    names = [f"{number}/layer.tar" for number in range(layers)]
    manifest = json.dumps([{"Config": config, "RepoTags": [reference], "Layers": names}]).encode()
    for name, content in ((config, description), ("manifest.json", manifest)):
        yield from stream_member(name, len(content), io.BytesIO(content))
    for number, file in files.items():
        size = len(file) if isinstance(file, bytes) else file.stat().st_size
        archive: IO[bytes]
        with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as archive:
            yield from stream_member(names[number], size, archive)
    yield bytes(2 * tarfile.BLOCKSIZE)


def load_image(client: RecordingClient, image: Iterator[bytes]) -> str:
    """Have the daemon load an image, entirely or not at all. Return its error message, empty on success.

    Args:
        client: The daemon's client.
        image: The image, as a stream.

    Raises:
        SandboxSpaceError: The daemon's disk is full.
    """
    lines = list(client.load_image(image))  # type: ignore[no-untyped-call]
    wrong = " ".join(str(line["error"]) for line in lines if "error" in line)
    raise_if_full(wrong)
    return wrong


def parse_missing_layer(message: str) -> int | None:
    """Return the index of the layer that the daemon did not find, from its error message; None if it names none."""
    for word in message.replace(":", " ").split():
        path = PurePosixPath(word)
        if path.name == "layer.tar" and path.parent.name.isdecimal():
            return int(path.parent.name)
    return None


def _compute_chain_id(layers: list[str]) -> str:
    """Return the chain id, in hex, by which the daemon knows the topmost of these layers over the others."""
    chain = layers[0]
    for layer in layers[1:]:
        chain = f"sha256:{hashlib.sha256(f'{chain} {layer}'.encode()).hexdigest()}"
    return chain.removeprefix("sha256:")


def _join(parts: Iterable[bytes], files: ConfinedDirectory, archive: IO[bytes]) -> str:
    """Assemble an archive from the recorded headers and the layer's files, and return its digest."""
    digest = hashlib.sha256()
    for line in parts:
        part = json.loads(line)
        if part["type"] == 2:
            pieces: Iterable[bytes] = [base64.b64decode(part["payload"])]
        elif part.get("size"):
            name = os.fsdecode(base64.b64decode(part["name_raw"])) if "name_raw" in part else part["name"]
            pieces = _read_content(files, name)
        else:
            continue
        for piece in pieces:
            digest.update(piece)
            archive.write(piece)
    return f"sha256:{digest.hexdigest()}"


def _read_content(files: ConfinedDirectory, name: str) -> Iterator[bytes]:
    # Confined, because a sandbox made these files.
    with files.open(name) as file:
        while piece := file.read(CHUNK):
            yield piece


def stream_member(name: str, size: int, content: IO[bytes]) -> Iterator[bytes]:
    """Yield a file as a member of a tar archive: header, content and padding."""
    yield make_header(name, 0o644, (0, 0), size).tobuf()
    while piece := content.read(CHUNK):
        yield piece
    yield bytes(-size % tarfile.BLOCKSIZE)


class PieceReader(io.RawIOBase):
    """A stream of byte pieces, as a file to read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """Make it over an iterable of pieces."""
        self._pieces = iter(pieces)
        self._left = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes; fewer only at the end."""
        while len(self._left) < size and (piece := next(self._pieces, b"")):
            self._left += piece
        taken, self._left = self._left[:size], self._left[size:]
        return taken
