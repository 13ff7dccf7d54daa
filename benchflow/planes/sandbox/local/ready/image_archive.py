"""Archives of images, as `docker save`, skopeo, podman and buildah write them: configurations and layers.

An archive is not trusted. Its members are read in place, by their offsets in the archive, never by a name on this
host. Decompression has a limit, and a layer is accepted only with the digest that the image's configuration states.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import posixpath
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from benchflow.archive_reader import CHUNK, ArchiveLimits, read_archive
from benchflow.errors import ImagePullError
from benchflow.planes.sandbox.bases import add_tag
from benchflow.planes.sandbox.local.ready.description import ARCHITECTURE, Description, _Lenient

T = TypeVar("T")

MAX_SIZE = 64 * 1024 * 1024 * 1024
"""Maximum number of bytes of an archive's members, and of the files of all layers of one image."""

_MEMBERS = ArchiveLimits(size=MAX_SIZE, entries=20_000)
_MAX_DESCRIPTION = 4 * 1024 * 1024
"""Maximum number of bytes of an index, a manifest, or an image's configuration."""

_AS_GZIP = "write it with gzip: skopeo copy --dest-compress-format gzip --dest-force-compress-format"
"""Remedy for layers with zstd."""

_MAX_INDEXES = 3
"""Maximum depth of indexes: the archive's index may name one of platforms."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class _Saved(_Lenient):
    """An image in `manifest.json`, as `docker save` writes it."""

    config: str = Field(alias="Config")
    tags: list[str] | None = Field(None, alias="RepoTags")
    layers: list[str] = Field(alias="Layers")


class _Platform(_Lenient):
    os: str = ""
    architecture: str = ""


class _Descriptor(_Lenient):
    """A reference to a blob in the OCI format."""

    media_type: str = Field("", alias="mediaType")
    digest: str
    annotations: dict[str, str] | None = None
    platform: _Platform | None = None


class _Index(_Lenient):
    manifests: list[_Descriptor]


class _Manifest(_Lenient):
    config: _Descriptor
    layers: list[_Descriptor]


_SAVED = TypeAdapter(list[_Saved])
_INDEX, _MANIFEST = TypeAdapter(_Index), TypeAdapter(_Manifest)


@dataclass(frozen=True)
class ArchivedImage:
    """An image in an archive."""

    description: Description
    """Its configuration."""
    members: tuple[str, ...]
    """Names of its layers in the archive, bottom first."""


class ImageArchive:
    """An open archive. Methods raise `ImagePullError` if it is invalid.

    Args:
        file: The archive, seekable and not compressed.
        shown: Its name in errors.
        scratch: Directory for decompressed layers.
        check: Callback that is called now and then, and may raise to stop the work.
    """

    def __init__(self, file: IO[bytes], shown: str, scratch: Path, check: Callable[[], None] = lambda: None) -> None:
        """Read the offsets of all members."""
        self._file = file
        self._shown = shown
        self._scratch = scratch
        self._check = check
        self._places: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        try:
            for member in read_archive(file, _MEMBERS, check):
                name = "/".join(member.parts)
                if member.info.isreg() and not member.info.issparse():
                    self._places[name] = (member.info.offset_data, member.info.size)
                elif member.info.issym():
                    # `docker save` writes a layer that two images share once, and links the other.
                    self._links[name] = posixpath.normpath(posixpath.join(*member.parts[:-1], member.info.linkname))
                elif member.info.islnk():
                    self._links[name] = posixpath.normpath(member.info.linkname)
        except tarfile.TarError as error:
            raise self._error(f"is no archive of an image: {error}") from error

    # --- images --------------------------------------------------------------------------------------

    def saved(self, reference: str | None) -> ArchivedImage:
        """Return an image in the format of `docker save`.

        Args:
            reference: Its tag; None for the only image.
        """
        found = self._parse(_SAVED, self._read("manifest.json"))
        if reference is not None:
            wanted = add_tag(reference)
            found = [one for one in found if wanted in {_shorten(tag) for tag in one.tags or ()} | {*(one.tags or ())}]
        if len(found) != 1:
            raise self._not_one(reference, len(found), "docker-archive")
        description = Description.read(self._read(found[0].config), self._shown)
        return self._image(description, tuple(found[0].layers))

    def oci(self, reference: str | None) -> ArchivedImage:
        """Return an image in the OCI format, for this machine's platform.

        Args:
            reference: Its name in the index; None for the only image.
        """
        found = self._parse(_INDEX, self._read("index.json")).manifests
        if reference is not None:
            found = [one for one in found if reference in {(one.annotations or {}).get(name) for name in _NAMES}]
        if len(found) != 1:
            raise self._not_one(reference, len(found), "oci-archive")
        chosen = found[0]
        for _ in range(_MAX_INDEXES):
            if chosen.media_type not in _INDEXES:
                break
            chosen = self._of_this_platform(self._parse(_INDEX, self._blob(chosen)))
        manifest = self._parse(_MANIFEST, self._blob(chosen))
        description = Description.read(self._blob(manifest.config), self._shown)
        return self._image(description, tuple(self._place(layer.digest) for layer in manifest.layers))

    def _image(self, description: Description, members: tuple[str, ...]) -> ArchivedImage:
        """Return an image with these layers. Raise `ImagePullError` if the configuration has another number of them."""
        if len(members) != len(description.rootfs.layers):
            raise self._error("names other layers in its manifest than in its configuration")
        return ArchivedImage(description, members)

    def _of_this_platform(self, index: _Index) -> _Descriptor:
        """Return the entry of an index for this machine's platform."""
        wanted = _Platform(os="linux", architecture=ARCHITECTURE)
        found = next((one for one in index.manifests if one.platform == wanted), None)
        if found is None:
            raise self._error(f"holds no image for linux/{ARCHITECTURE}")
        return found

    # --- layers --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def layer(self, image: ArchivedImage, number: int) -> Iterator[IO[bytes]]:
        """Return a context with an image's uncompressed layer as a file, after its digest was verified.

        Args:
            image: The image.
            number: Index of the layer.
        """
        member, digest = image.members[number], image.description.rootfs.layers[number]
        content: IO[bytes] = cast(IO[bytes], io.BufferedReader(self._content(member), CHUNK))
        start = content.read(len(_ZSTD))
        content.seek(0)
        if start == _ZSTD:
            raise self._error("has a layer that is compressed with zstd", remedy=_AS_GZIP)
        total = hashlib.sha256()
        with tempfile.TemporaryFile(dir=self._scratch) as plain:
            if start.startswith(_GZIP):
                for piece in self._pieces(cast(IO[bytes], gzip.GzipFile(fileobj=content))):
                    total.update(piece)
                    plain.write(piece)
                content = plain
            else:
                for piece in self._pieces(content):
                    total.update(piece)
            # Without this check, an image could take the key of another one.
            if f"sha256:{total.hexdigest()}" != digest:
                raise self._error(f"has a layer of another digest than {digest}")
            content.seek(0)
            yield content

    def _pieces(self, content: IO[bytes]) -> Iterator[bytes]:
        """Yield the content of a layer in pieces, up to a limit."""
        size = 0
        try:
            while piece := content.read(CHUNK):
                self._check()
                size += len(piece)
                if size > MAX_SIZE:
                    raise self._error(f"has a layer that unpacks to more than {MAX_SIZE} bytes")
                yield piece
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._error(f"has a layer that cannot be decompressed: {error}") from error

    # --- members -------------------------------------------------------------------------------------

    def _content(self, name: str) -> _Part:
        """Return a member as a file."""
        name = posixpath.normpath(name)
        # One link is followed: these programs write no links to links.
        place = self._places.get(self._links.get(name, name))
        if place is None:
            raise self._error(f"lacks {name!r}")
        return _Part(self._file, *place)

    def _read(self, name: str) -> bytes:
        """Return the content of a small member."""
        part = self._content(name)
        if part.size > _MAX_DESCRIPTION:
            raise self._error(f"has a {name!r} of more than {_MAX_DESCRIPTION} bytes")
        return part.read()

    def _blob(self, descriptor: _Descriptor) -> bytes:
        """Return the content of a small blob, after its digest was verified."""
        content = self._read(self._place(descriptor.digest))
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != descriptor.digest:
            raise self._error(f"has other content than {descriptor.digest} under that name")
        return content

    def _place(self, digest: str) -> str:
        """Return the name of a blob's member."""
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise self._error(f"has a blob whose digest is not of sha256: {digest[:80]!r}")
        return f"blobs/sha256/{match[1]}"

    def _parse(self, kind: TypeAdapter[T], content: bytes) -> T:
        try:
            return kind.validate_json(content)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise self._error(f"has an index that makes no sense: {wrong['loc']}: {wrong['msg']}") from error

    def _not_one(self, reference: str | None, count: int, form: str) -> ImagePullError:
        """Return the error for an archive that does not hold exactly one image of a name."""
        if reference is not None:
            return self._error(f"holds {count} images named {reference!r}")
        return self._error(f"holds {count} images, and none is named", remedy=f"name one: {form}:{self._shown}:NAME")

    def _error(
        self, what: str, remedy: str = "write the archive anew with skopeo, podman or docker save"
    ) -> ImagePullError:
        return ImagePullError(f"the archive {what}", file=self._shown, key="docker_image", remedy=remedy)


class _Part(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file = file
        self._start = start
        self.size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        self._at = position + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._start + self._at)
        piece = self._file.read(max(0, min(len(buffer), self.size - self._at)))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def _shorten(tag: str) -> str:
    """Return a tag without the registry and namespace that Docker adds if none is given."""
    return tag.removeprefix("docker.io/").removeprefix("library/")
