"""Build contexts: the files of a directory that are sent to the builder, their digest, and the Dockerfile's needs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchflow.confined import MAX_TEXT, read_regular
from benchflow.contracts.images import ImageConfig
from benchflow.errors import ConfigError, ImageBuildError, UnsafePathError

if TYPE_CHECKING:
    from docker.utils.build import PatternMatcher

OUTSIDE = ".benchflow.dockerfile"
"""Name in the context of a Dockerfile that is outside of its directory."""

_BUILDKIT_ONLY = (
    (re.compile(r"^RUN\s+(--\S+\s+)*--(mount|network|security)\b", re.I | re.M), "RUN --{0}"),
    (
        re.compile(
            r"^(?:COPY|ADD)\s+(--\S+\s+)*--(link|chmod|parents|exclude|checksum|keep-git-dir|unpack)\b",
            re.I | re.M,
        ),
        "COPY/ADD --{0}",
    ),
    (re.compile(r"^(?:RUN|COPY|ADD)\b.*(<<)-?[\"']?[A-Za-z_]\w*[\"']?", re.I | re.M), "a here-document"),
)
"""Patterns of instructions that need BuildKit, each with a label in which `{0}` is the matched flag."""


@dataclass(frozen=True)
class Context:
    """A directory to build an image from."""

    root: Path
    """The directory."""

    source: Path
    """Path of the Dockerfile, or of the directory whose files are added to a ready image."""

    dockerfile: str
    """Name of the Dockerfile in the context."""

    text: str
    """Content of the Dockerfile."""

    files: tuple[str, ...]
    """Relative paths of the files that are sent."""

    sent: str | None = None
    """Content that is sent in place of `text`; None to send `text`."""

    has_ignore_file: bool = True
    """Whether a `.dockerignore` in the directory has effect."""

    @property
    def shown(self) -> str:
        """Return the Dockerfile's name for errors, with the directory that it is in."""
        return f"{self.source.parent.name}/{self.source.name}"

    def compute_digest(self) -> str:
        """Return a digest of all that the image is made from: names, modes, link targets and contents."""
        total = hashlib.sha256(self.text.encode())
        for name in self.files:
            path = self.root / name
            status = path.lstat()
            total.update(f"\0{name}\0{status.st_mode:o}\0".encode(errors="surrogateescape"))
            if path.is_symlink():
                total.update(os.fsencode(path.readlink()))
            elif path.is_file():
                with path.open("rb") as content:
                    total.update(hashlib.file_digest(content, "sha256").digest())
        return total.hexdigest()

    def pack(self) -> IO[bytes]:
        """Return the context as a tar archive in a temporary file, at its start.

        Raises:
            ImageBuildError: A file can't be read.
        """
        outside = self.dockerfile == OUTSIDE
        extra = [(self.dockerfile, self.sent or self.text)] if outside or self.sent else []
        if outside and self.has_ignore_file:
            # The daemon removes its Dockerfile from the context if the ignore file names it, so that no COPY sees it.
            own = self.root / ".dockerignore"
            ignore = _read(own, "its ignore file") if own.is_file() else ""
            extra.append((".dockerignore", f"{ignore}\n{OUTSIDE}\n.dockerignore\n"))
        from docker.utils.build import create_archive

        packed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            files = [name for name in self.files if not extra or name != self.dockerfile]
            create_archive(str(self.root), files, packed, extra_files=extra)
        except (OSError, tarfile.TarError) as error:
            packed.close()
            raise ImageBuildError(
                f"the build context {self.root} cannot be read: {error}",
                file=self.shown,
                remedy="make its files readable, or list them in .dockerignore",
            ) from error
        packed.seek(0)
        return packed

    def list_copied(self) -> tuple[str, ...]:
        """Return the files that a COPY sees: those sent, without ignored ones that only the builder reads."""
        matcher = _make_matcher(_read_ignore_lines(self.root))
        matcher.patterns.pop()  # the library's last pattern, by which the ignore file is always sent
        own = [name for name in (self.dockerfile, ".dockerignore") if matcher.matches(name)]  # type: ignore[arg-type]
        return tuple(name for name in self.files if name not in own)

    def list_buildkit_features(self) -> list[str]:
        """Return the features of the Dockerfile that need BuildKit, in words for people; empty if there are none."""
        joined = re.sub(r"\\\s*\n", " ", self.text)
        found = []
        for pattern, label in _BUILDKIT_ONLY:
            if match := pattern.search(joined):
                found.append(label.format(match.group(match.lastindex or 0)))
        return found


def read_context(config: ImageConfig) -> Context:
    """Return the context of a configuration with a Dockerfile.

    Raises:
        ConfigError: The configuration has no context.
        ImageBuildError: The directory or the Dockerfile can't be read.
    """
    if config.context is None:
        raise ConfigError(
            "neither an image nor a build context is given",
            key="docker_image",
            remedy="set docker_image, or write environment/Dockerfile",
        )
    root = Path(config.context).absolute()
    if not root.is_dir():
        raise ImageBuildError("the build context is not a directory", file=str(root))
    source = Path(config.dockerfile) if config.dockerfile else root / "Dockerfile"
    source = source if source.is_absolute() else root / source
    text = _read(source, "the Dockerfile")
    inside = source.parent.resolve().is_relative_to(root.resolve())
    name = source.resolve().relative_to(root.resolve()).as_posix() if inside else OUTSIDE
    patterns = [*_read_ignore_lines(root), *config.exclude, f"!{name}"]
    files = tuple(sorted(set(_make_matcher(patterns).walk(str(root)))))
    return Context(root, source, name, text, files)


def read_files(config: ImageConfig, workdir: str | None) -> Context:
    """Return a context that adds the files of a directory to a ready image.

    An ignore file among them is a file like the others, and the target directory itself is not changed.

    Args:
        config: Configuration with `image` and `context`.
        workdir: Working directory of the image; None if it has none.
    """
    assert config.context is not None
    root = Path(config.context).absolute()
    target = config.files_target or workdir or config.files_fallback
    paths = json.dumps([_escape(f"{root.name}/"), _escape(target.rstrip("/") + "/")])
    files = sorted(set(_make_matcher(list(config.exclude)).walk(str(root))))
    text = f"FROM {config.image}\nCOPY {paths}\n"
    names = tuple(f"{root.name}/{name}" for name in files)
    return Context(root.parent, root, OUTSIDE, text, names, has_ignore_file=False)


def _escape(path: str) -> str:
    """Return a path that COPY takes literally: with escapes for quotes and variables."""
    return re.sub(r"""[\\$'"]""", r"\\\g<0>", path)


def _read(file: Path, what: str) -> str:
    """Return the text of a file with normalized line ends, or raise `ImageBuildError`, in which `what` names it."""
    try:
        # Line ends as in Python's text mode.
        return read_regular(file, MAX_TEXT).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnsafePathError as error:
        raise ImageBuildError(f"{what} {error.message}", file=str(file)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ImageBuildError(f"{what} cannot be read: {error}", file=str(file)) from error


def _make_matcher(patterns: list[str]) -> PatternMatcher:
    # Imported here, so that commands that build nothing need not wait for the library.
    from docker.utils.build import PatternMatcher

    return PatternMatcher(patterns)


def _read_ignore_lines(root: Path) -> list[str]:
    """Return the patterns of a directory's `.dockerignore`."""
    file = root / ".dockerignore"
    if not file.is_file():
        return []
    lines = (line.strip() for line in _read(file, "its ignore file").splitlines())
    return [line for line in lines if line and not line.startswith("#")]
