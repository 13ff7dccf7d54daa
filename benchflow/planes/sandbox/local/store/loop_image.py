"""The store's own filesystem: a sparse image file, created once and mounted through a loop device.

It has to be a filesystem of its own, because the kernel accepts no overlay whose layers lie inside one another, and
`/` is one of them. Callers hold the store's lock, and every program started here inherits it, so that a mount that
outlives its caller can't race with the next one.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchflow.errors import SandboxUnavailableError
from benchflow.planes.sandbox.local.store.mount_table import find_mount

SHARE_OF_FREE_SPACE = 0.9
"""Size of an image, as a share of the free space. It takes only as much of it as is written."""

MIN_BYTES = 1 << 30
"""Minimum size of an image."""

DETACH_SEC = 5.0
"""Seconds in which the kernel releases an unused loop device."""

_PROGRAM_SEC = 300.0
_SYSTEM_PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"
_NO_COPY_ON_WRITE = 0x00800000
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
STOPPED = {errno.EROFS, errno.EIO, errno.ESHUTDOWN, errno.EUCLEAN}
"""Errnos of a filesystem that has shut down after an error of its disk."""

OTHER_WAYS = (
    "or set BENCHFLOW_LOCAL_STORE to a directory on a filesystem of its own (a volume, a partition, a tmpfs), or use "
    "the Docker sandbox (--sandbox docker)"
)
"""Remedies for all errors here."""


@dataclass(frozen=True)
class Format:
    """A filesystem for the image."""

    kind: str
    """Type, as for mount(8)."""
    make: tuple[str, ...]
    """Argv of the program that makes it, without the file."""
    options: str
    """Mount options, with which freed blocks are returned to the disk."""
    offset: int
    """Offset of its magic number in the image."""
    magic: bytes
    """The magic number."""


FORMATS = (
    Format("btrfs", ("mkfs.btrfs", "-q", "-f", "-K", "-m", "single"), "discard=async", 0x10040, b"_BHRfS_M"),
    Format("xfs", ("mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1"), "discard", 0, b"XFSB"),
    Format(
        "ext4",
        ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "has_journal", "-E", "nodiscard,lazy_itable_init=1"),
        "discard",
        0x438,
        b"\x53\xef",
    ),
)
"""Formats, best first: the first has snapshots, the second shares blocks between files, the third copies them."""


class LoopImage:
    """An image file and its mount. `lock` is the descriptor of the store's lock.

    Args:
        file: Image file.
        point: Directory to mount it at.
    """

    def __init__(self, file: Path, point: Path) -> None:
        """Make it."""
        self.file = file
        self.point = point

    @property
    def mounted(self) -> bool:
        """Return whether the image is mounted."""
        return os.path.ismount(self.point)

    def attach(self, lock: int) -> None:
        """Create and mount the image, as far as that is not done. Mount it again if its filesystem has stopped.

        Raises:
            SandboxUnavailableError: That failed, or the stopped filesystem is still in use.
        """
        if self.mounted and not self._works():
            self.detach(lock)
        if not self.mounted:
            if not self.file.exists():
                self._make(lock)
            self._mount(lock)
        if not self._works():
            raise SandboxUnavailableError(
                "the filesystem of the sandbox store has stopped after an error, and sandboxes still use it",
                file=str(self.file),
                remedy=f"see that the disk of {self.file.parent} is sound and has free space, end what runs, try again",
            )

    def detach(self, lock: int, patience: float = DETACH_SEC) -> bool:
        """Unmount it. Return False, with it mounted as before, if it is in use for `patience` seconds."""
        if not self.mounted:
            return True
        backing = Path("/sys/block") / Path(find_mount(self.point).source).name / "loop" / "backing_file"
        file = _read_text(backing)
        if _run(["umount", str(self.point)], lock).returncode:
            return False
        # umount succeeds while an overlay still uses the filesystem; then the loop device stays attached.
        if _wait_detached(backing, file, patience):
            return True
        self._mount(lock)
        return False

    def _works(self) -> bool:
        """Return whether the mounted filesystem still accepts changes."""
        try:
            os.utime(self.point)
        except OSError as error:
            return error.errno not in STOPPED
        return True

    def _make(self, lock: int) -> None:
        """Create the image under a temporary name first, so that a file of the right name is a whole filesystem."""
        free = shutil.disk_usage(self.file.parent).free
        size = int(free * SHARE_OF_FREE_SPACE) >> 20 << 20
        if size < MIN_BYTES:
            raise SandboxUnavailableError(
                f"only {free >> 20} MiB are free for the sandbox store",
                file=str(self.file.parent),
                remedy="free space, set BENCHFLOW_STATE_DIR to a directory on a larger disk, " + OTHER_WAYS,
            )
        form, program = _find_format(lock)
        draft = self.file.with_name(f".{self.file.name}")
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_in_place(fd)
            os.ftruncate(fd, size)
            done = _run([program, *form.make[1:], str(draft)], lock)
            if done.returncode:
                raise SandboxUnavailableError(
                    f"no filesystem for the sandbox store could be made: {form.make[0]} failed",
                    file=str(draft),
                    remedy="see the message below, " + OTHER_WAYS,
                    log_tail=done.stdout,
                )
            os.fsync(fd)
        finally:
            os.close(fd)
        draft.rename(self.file)

    def _mount(self, lock: int) -> None:
        """Mount the image."""
        form = self._format()
        self.point.mkdir(mode=0o700, exist_ok=True)
        said = ""
        # An older kernel may not know the option by which freed blocks are returned.
        for options in (f"loop,noatime,nosuid,nodev,{form.options}", "loop,noatime,nosuid,nodev"):
            done = _run(["mount", "-t", form.kind, "-o", options, str(self.file), str(self.point)], lock)
            if done.returncode == 0:
                return
            said = done.stdout
        if not Path("/dev/loop-control").exists() or "loop device" in said:
            raise SandboxUnavailableError(
                "there is no loop device to mount the sandbox store with",
                file=str(self.file),
                remedy="load the kernel's `loop` module; in a container, start that one privileged and with the host's "
                "/dev; " + OTHER_WAYS,
                log_tail=said,
            )
        raise SandboxUnavailableError(
            f"the sandbox store cannot be mounted as {form.kind}",
            file=str(self.file),
            remedy="run as root with the right to mount; if the file is damaged, remove it: it holds only sandboxes "
            "and cached layers; " + OTHER_WAYS,
            log_tail=said,
        )

    def _format(self) -> Format:
        """Return the format of the image, by its magic number."""
        with self.file.open("rb") as file:
            for form in FORMATS:
                file.seek(form.offset)
                if file.read(len(form.magic)) == form.magic:
                    return form
        raise SandboxUnavailableError(
            "the sandbox store holds no filesystem",
            file=str(self.file),
            remedy="remove it: it holds only sandboxes and cached layers",
        )


def is_open(directory: Path) -> bool:
    """Return whether a process has a directory open, as far as this process can see."""
    wanted = os.path.realpath(directory)
    for handle in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207
        try:
            if os.readlink(handle) == wanted:  # noqa: PTH115
                return True
        except OSError:
            continue
    return False


def _find_format(lock: int) -> tuple[Format, str]:
    """Return the first format that this machine can make and mount, and the path of the program that makes it."""
    for form in FORMATS:
        program = _find_program(form.make[0])
        if program is not None and _is_supported(form.kind, lock):
            return form, program
    raise SandboxUnavailableError(
        "no filesystem for the sandbox store can be made: there is no mkfs.btrfs, mkfs.xfs or mkfs.ext4 that suits "
        "this kernel",
        remedy="install btrfs-progs (fastest forks), xfsprogs or e2fsprogs, " + OTHER_WAYS,
    )


def _is_supported(kind: str, lock: int) -> bool:
    """Return whether the kernel has this filesystem, or a module of it that can be loaded."""

    def known() -> bool:
        return any(line.split()[-1:] == [kind] for line in Path("/proc/filesystems").read_text().splitlines())

    if known():
        return True
    return _find_program("modprobe") is not None and _run(["modprobe", kind], lock).returncode == 0 and known()


def _write_in_place(fd: int) -> None:
    """Turn off copy-on-write for a new file, where the disk has it; else each block of the image would be copied twice.

    Other filesystems do not know the flag.
    """
    try:
        flags = bytearray(8)
        fcntl.ioctl(fd, _GET_FLAGS, flags)
        fcntl.ioctl(fd, _SET_FLAGS, (int.from_bytes(flags[:4], "little") | _NO_COPY_ON_WRITE).to_bytes(8, "little"))
    except OSError:
        return


def _wait_detached(backing: Path, file: str | None, patience: float) -> bool:
    """Wait until the kernel has released the loop device of a file, which it does once nothing uses its filesystem."""
    deadline = time.monotonic() + patience
    while file is not None and _read_text(backing) == file:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _read_text(file: Path) -> str | None:
    """Return the content of a file; None if it can't be read."""
    try:
        return file.read_text(errors="surrogateescape")
    except OSError:
        return None


def _find_program(name: str) -> str | None:
    """Return the path of a system program: the PATH of root may lack root's own directories."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PROGRAMS}")


def _run(command: list[str], lock: int) -> subprocess.CompletedProcess[str]:
    """Run a program that inherits the lock, with a timeout. Raise `SandboxUnavailableError` if it is missing."""
    program = _find_program(command[0])
    if program is None:
        raise SandboxUnavailableError(
            f"there is no program `{command[0]}` on this machine", remedy="install util-linux"
        )
    try:
        return subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
            pass_fds=(lock,),
            timeout=_PROGRAM_SEC,
        )
    except subprocess.TimeoutExpired:
        raise SandboxUnavailableError(
            f"`{' '.join(command)}` did not end within {_PROGRAM_SEC:.0f} seconds",
            remedy="see the kernel's log (dmesg) for the state of the disk",
        ) from None
