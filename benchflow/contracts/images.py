"""Images of sandboxes: the configuration of a build, and the reference to a ready image."""

from __future__ import annotations

from benchflow.contracts.base import Model


class ImageConfig(Model):
    """The configuration of an image: a ready one, a ready one with a directory's files added, or a Dockerfile's build.

    `image` alone is a ready image; `image` and `context`, a ready image with the files of `context`; `context` alone,
    the build of a Dockerfile. Paths are of the host that builds.
    """

    image: str | None = None
    """Reference of a ready image, which is pulled if it is not on the host. None to build a Dockerfile."""

    context: str | None = None
    """Directory: the build context or, if `image` is given, the files to add. None for a ready image as it is."""

    dockerfile: str | None = None
    """Path of the Dockerfile, inside or outside of the context; a relative one starts there. None for `Dockerfile` in
    the context. Has no effect if `image` is given."""

    exclude: tuple[str, ...] = ()
    """Patterns, as in `.dockerignore`, of files of the context to leave out, besides those of its own ignore file."""

    digest: str | None = None
    """Digest of the context's content and, unless `image` is given, of the Dockerfile. Equal digests share one build.
    None: the provider computes it from the files."""

    timeout_sec: float = 600.0
    """Seconds for the build, with the pulls that it needs, or for the pull of a ready image."""

    hidden: tuple[str, ...] = ()
    """Paths of the host that no build step may see, for providers whose sandboxes see the host."""

    bases: dict[str, str] = {}
    """References of images that the same provider built, by the names that the Dockerfile's FROM has for them."""

    entrypoint: bool = False
    """Whether sandboxes are to run the image's ENTRYPOINT and CMD. If not, the local provider refuses a Dockerfile that
    has them; Docker makes no difference."""

    files_target: str | None = None
    """Directory of the image for the files of `context`, if `image` is given, too. None for the image's working
    directory."""

    files_fallback: str = "/"
    """Directory for these files in an image whose working directory is `/` or unset."""

    rebuild: str | None = None
    """Name of a request to build the image anew, without any cache. All configurations with one name share one build,
    which is found if it exists. None for the newest build."""


class ImageRef(Model):
    """A reference to a ready image, from the provider that has it."""

    reference: str
    """Name by which the provider finds it: Docker's name of the image; of the local provider, `local/KEY` or `host`."""

    workdir: str | None = None
    """Working directory of the image; None if it is unset or `/`, which count as none."""

    built: bool = False
    """Whether the engine made the image, by a build or a snapshot. No other image is ever removed."""

    warnings: tuple[str, ...] = ()
    """Differences from the requested image, a sentence each, such as that the host stands for the base image."""

    user: str | None = None
    """USER of the image; None for root, or if the image names none."""

    id: str | None = None
    """Id of the content, from a provider in which another image may get the same reference. None from one in which
    that cannot be."""

    @property
    def identity(self) -> str:
        """Return a text that no other image of the provider has: the id or, without one, the reference."""
        return self.id or self.reference


def user_of(named: str | None) -> str | None:
    """Return an image's USER as `ImageRef.user` has it.

    Args:
        named: USER of the image's configuration, as `user` or `user:group`. None or empty if it is unset.
    """
    return named if named and named.partition(":")[0] not in ("", "root", "0") else None
