"""The files by which a sandbox differs from the image that it was started from, as this host sees them."""

from __future__ import annotations

from typing import Literal

from benchflow.contracts.base import Model

FileKind = Literal["file", "directory", "link", "device", "pipe", "socket"]


class FileState(Model):
    """A file, directory, link or node. Two states are equal if no program of the sandbox could tell them apart,
    except by times.
    """

    kind: FileKind

    mode: int = 0
    """Permission bits, with set-user-id, set-group-id and sticky bit. 0 for a link."""

    uid: int = 0
    gid: int = 0

    size: int = 0
    """Bytes of a regular file; the number of a device."""

    digest: str = ""
    """SHA-256 of a regular file, in hex. Empty if it was not read: then it equals no other."""

    target: str = ""
    """Text of a link."""

    capability: str = ""
    """Capabilities of a program (`security.capability`), in hex."""

    @property
    def is_program(self) -> bool:
        """True for a regular file that somebody may execute."""
        return self.kind == "file" and bool(self.mode & 0o111)

    def is_same(self, other: FileState | None) -> bool:
        """Return whether both are known to be alike."""
        return self == other and (self.kind != "file" or bool(self.digest))


class FileChanges(Model):
    """All that was changed over an image."""

    base: str = ""
    """Id of that image, as the driver knows it. Empty if `files` has all files of the sandbox, and not only changed
    ones.
    """

    files: dict[str, FileState | None] = {}
    """By absolute path. None for what the image has and the sandbox has not: also for a directory, whose content is
    then not listed."""

    def may_differ(self, path: str, after: FileChanges) -> bool:
        """Return whether a path that is in one of two lists over the same image is another file in the other one.

        A path that only one of them has may still be what the image has.
        """
        was, now = self.files.get(path), after.files.get(path)
        if path in self.files and path in after.files:
            return not (was is now or (now is not None and now.is_same(was)))
        # Of a list of all files, what is not in it is not there.
        return bool(self.base) or was is not None or now is not None

    def differences(self, after: FileChanges) -> list[str]:
        """Return the paths for which `may_differ` holds, in order."""
        return [path for path in sorted({*self.files, *after.files}) if self.may_differ(path, after)]
