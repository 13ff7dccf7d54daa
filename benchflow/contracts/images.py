"""Images: what one is made from, and how it is named once it is there."""

from __future__ import annotations

from benchflow.contracts.base import Model


class ImageConfig(Model):
    """What an image is made from: a ready one, a ready one with the files of a directory of this host, or a Dockerfile
    in a context directory there.

    context: directory; dockerfile: path of the Dockerfile (inside or outside the context). digest: of the
    context's content and the Dockerfile; equal digests share one build. timeout_sec: for the build.
    hidden: paths of this host that no step may see, for providers whose sandboxes see the host. bases: references of
    images that the same provider made, by the names that FROM has for them. entrypoint: the image's ENTRYPOINT and CMD
    are to be run.
    """

    image: str | None = None
    context: str | None = None
    dockerfile: str | None = None
    exclude: tuple[str, ...] = ()
    digest: str | None = None
    timeout_sec: float = 600.0
    hidden: tuple[str, ...] = ()
    bases: dict[str, str] = {}
    entrypoint: bool = False
    files_target: str | None = None
    """Where the files of `context` go, if `image` is given, too. None for the working directory of the image."""

    files_fallback: str = "/"
    """Where they go in an image whose working directory is `/` or unset."""

    rebuild: str | None = None
    """Names one wish to have the image built anew, without any cache. All that give one name share one build; where
    that exists, it is found. Those that give none find the newest build."""


class ImageRef(Model):
    """A ready image. workdir: its working directory, None when unset or `/`.

    warnings: in what it is not quite what was asked for.
    """

    reference: str
    workdir: str | None = None
    built: bool = False
    warnings: tuple[str, ...] = ()
    user: str | None = None
    """Its USER, None for root or where it names none."""

    id: str | None = None
    """Of its content, from the provider, where another image may get the same reference. None where none can."""

    @property
    def identity(self) -> str:
        """Return what no other image has."""
        return self.id or self.reference


def user_of(named: str | None) -> str | None:
    """Return an image's USER as an `ImageRef` has it. named: as the image has it."""
    return named if named and named.partition(":")[0] not in ("", "root", "0") else None
