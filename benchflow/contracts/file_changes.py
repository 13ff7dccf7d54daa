"""The files of a sandbox that differ from those of its image, as its host sees them."""

from __future__ import annotations

from typing import Literal

from benchflow.contracts.base import Model

FileKind = Literal["file", "directory", "link", "device", "pipe", "socket"]
"""Kind of a file. `link` is a symbolic link; `device`, a character or block device."""


class FileState(Model):
    """The state of a file, directory, symbolic link or special file.

    Two states are equal if no program of the sandbox could tell them apart, except by times.
    """

    kind: FileKind
    """Kind of the file."""

    mode: int = 0
    """Permission bits, with the set-user-id, set-group-id and sticky bit. 0 for a link."""

    uid: int = 0
    """User id of the owner."""

    gid: int = 0
    """Group id."""

    size: int = 0
    """Bytes of a regular file; device number of a device, if it was read from a layer; else 0."""

    digest: str = ""
    """Sha256 of a regular file, in hex. Empty if it was not read: then `is_same` holds for no other file."""

    target: str = ""
    """Target of a link, as it is written there; else empty."""

    capability: str = ""
    """Capabilities of a program (extended attribute `security.capability`), in hex; empty if it has none."""

    @property
    def is_program(self) -> bool:
        """Return whether it is a regular file that any user may execute."""
        return self.kind == "file" and bool(self.mode & 0o111)

    def is_same(self, other: FileState | None) -> bool:
        """Return whether both states are known to be equal: a file whose content was not read is like no other."""
        return self == other and (self.kind != "file" or bool(self.digest))


class FileChanges(Model):
    """The files of a sandbox that differ from those of an image, or all its files.

    Both fields are empty if neither can be listed without programs of the sandbox (`Capabilities.lockdown` is `none`).
    """

    base: str = ""
    """Id of the image, as the driver has it. Empty if `files` has all files of the sandbox, not only changed ones."""

    files: dict[str, FileState | None] = {}
    """States by absolute path. None for a path that the image has and the sandbox has not; the content of a removed
    directory is not listed."""

    def may_differ(self, path: str, after: FileChanges) -> bool:
        """Return whether a path may be another file in a second list over the same image.

        A path that is in one list only counts as different, although it may still be as the image has it.

        Args:
            path: Absolute path that is in one of the lists, or in both.
            after: The second list.
        """
        was, now = self.files.get(path), after.files.get(path)
        if path in self.files and path in after.files:
            return not (was is now or (now is not None and now.is_same(was)))
        # Of a list of all files, what is not in it is not there.
        return bool(self.base) or was is not None or now is not None

    def differences(self, after: FileChanges) -> list[str]:
        """Return the paths that may be other files in a second list over the same image, sorted.

        Args:
            after: The second list.
        """
        return [path for path in sorted({*self.files, *after.files}) if self.may_differ(path, after)]
