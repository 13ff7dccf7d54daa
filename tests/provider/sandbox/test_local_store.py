"""The store of the local sandbox, on real filesystems: what a clone keeps, what a crash leaves, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.embedded import chance_of_this_run
from support.local_sandboxes import NOT_ROOT
from support.paths import ROOT

from benchflow.errors import BenchFlowError, DiskFullError, SandboxUnavailableError, StoreError
from benchflow.planes.sandbox.local.store.mount_table import read_mounts
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
from benchflow.testing.waiting import until

pytestmark = pytest.mark.local

MIB = 1 << 20
KINDS = {"btrfs": "snapshot", "xfs": "reflink", "ext4": "copy", "tmpfs": "copy"}
MAKE = {
    "btrfs": ["mkfs.btrfs", "-q", "-f", "-m", "single"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "ext4": ["mkfs.ext4", "-q", "-F"],
}
MIB_OF = {"btrfs": 512, "xfs": 320, "ext4": 128, "tmpfs": 128}

Tree = dict[str, tuple[object, ...]]


def loops() -> list[str]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(file.read_text())
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """No mount and no loop device of the test, also after a failure."""
    yield
    left = [mount.point for mount in read_mounts() if Path(mount.point).is_relative_to(tmp_path)]
    for point in reversed(left):
        subprocess.run(["umount", "-l", point], check=True)
    asyncio.run(until(lambda: not [file for file in loops() if str(tmp_path) in file]))
    assert left == []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "state" / "local"


def longer(*kinds: str) -> list[object]:
    return [pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


ON_EACH = pytest.mark.parametrize("kind", ["btrfs", "xfs", *longer("ext4"), "tmpfs"], indirect=True)
"""Where clones are made in another way on each: by snapshots, by shared blocks, by copies as on ext4."""


@pytest.fixture(params=["btrfs", *longer("xfs", "ext4", "tmpfs")])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A small filesystem of this kind, as the store's image or, without one, as a given directory."""
    if kind != "tmpfs":
        home.mkdir(parents=True)
        image(home / "store.img", kind)
        yield kind
        return
    given = tmp_path / "given"
    given.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MIB_OF[kind]}m", "tmpfs", given], check=True)
    monkeypatch.setenv("BENCHFLOW_LOCAL_STORE", str(given))
    yield kind
    unmount(given)


@pytest.fixture
def store(place: str, home: Path) -> Iterator[VolumeStore]:
    made = VolumeStore(home)
    made.open()
    assert made.kind == KINDS[place]
    yield made
    close(made)


@pytest.fixture
def fresh(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VolumeStore]:
    """A store that makes its image itself."""
    monkeypatch.delenv("BENCHFLOW_LOCAL_STORE", raising=False)
    made = VolumeStore(home)
    yield made
    close(made)


def image(file: Path, kind: str) -> None:
    with file.open("wb") as empty:
        empty.truncate(MIB_OF[kind] * MIB)
    subprocess.run([*MAKE[kind], file], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def unmount(point: Path) -> None:
    """As soon as the kernel has let go of what was used in it."""
    asyncio.run(until(lambda: subprocess.run(["umount", point], capture_output=True).returncode == 0))


def acl(*entries: tuple[int, int, int]) -> bytes:
    """tag, permissions, id."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def furnish(root: Path) -> None:
    """One of everything that an agent and an overlay leave behind."""
    upper = root / "u"
    (upper / "etc" / "deep" / "deeper").mkdir(parents=True)
    (upper / "etc" / "plain").write_text("text")
    (upper / "etc" / "empty").touch()
    program = upper / "program"
    program.write_bytes(b"\x7fELF" + bytes(10_000))
    os.chown(program, 61000, 61001)
    program.chmod(0o6755)
    os.setxattr(program, "user.note", b"x" * 200)
    capability = upper / "capable"
    capability.touch()
    os.setxattr(capability, "security.capability", struct.pack("<IIIII", 0x02000001, 0x400, 0, 0, 0))
    for name in ("etc/deep/first", "etc/second", "third"):
        os.link(upper / "etc" / "plain", upper / name)
    with (upper / "sparse").open("wb") as sparse:
        sparse.seek(64 * 1024 * MIB)
        sparse.write(b"end")
        sparse.truncate(65 * 1024 * MIB)
    (upper / "dangling").symlink_to("../nowhere")
    os.chown(upper / "dangling", 61000, 61000, follow_symlinks=False)
    os.setxattr(upper / "dangling", "trusted.overlay.origin", b"o", follow_symlinks=False)
    os.mkfifo(upper / "fifo", 0o620)
    os.link(upper / "fifo", upper / "fifo-too")
    with socket.socket(socket.AF_UNIX) as listening:
        # The path of a socket may not be long.
        here = os.open(upper, os.O_PATH)
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    os.mknod(upper / "whiteout", stat.S_IFCHR, 0)
    os.mknod(upper / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (upper / "opaque").mkdir(mode=0o750)
    os.setxattr(upper / "opaque", "trusted.overlay.opaque", b"y")
    shared = upper / "shared"
    shared.mkdir()
    users = acl(
        (0x01, 7, 0xFFFFFFFF), (0x02, 6, 61000), (0x04, 5, 0xFFFFFFFF), (0x10, 7, 0xFFFFFFFF), (0x20, 0, 0xFFFFFFFF)
    )
    os.setxattr(shared, "system.posix_acl_access", users)
    os.setxattr(shared, "system.posix_acl_default", users)
    (upper / "sticky").mkdir()
    (upper / "sticky").chmod(0o1777)
    (upper / os.fsdecode(b"odd \n \xff name")).write_bytes(b"odd")
    (upper / "closed").mkdir()
    (upper / "closed" / "inside").write_text("secret")
    (upper / "closed").chmod(0)
    for number, path in enumerate([root, *sorted(root.rglob("*"))]):
        os.utime(path, ns=(10**18 + number, 10**18 + 7 * number), follow_symlinks=False)


def describe(root: Path) -> Tree:
    """All that must be the same in a copy, by path."""
    found: Tree = {}
    first: dict[int, str] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        name = str(path.relative_to(root))
        data: object = None
        if stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                data = (status.st_size, file.read(MIB), tail(path) if status.st_size > MIB else b"")
        elif path.is_symlink():
            data = path.readlink()
        found[name] = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_rdev,
            status.st_mtime_ns,
            # Directories count their parts differently on each filesystem.
            None if stat.S_ISDIR(status.st_mode) else (status.st_nlink, first.setdefault(status.st_ino, name)),
            {key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)},
            data,
        )
    return found


def tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(64 * 1024 * MIB)
        return file.read(16)


@ON_EACH
def test_a_clone_keeps_everything(store: VolumeStore) -> None:
    furnish(store.make("images/one"))
    before = describe(store.root / "images/one")
    store.clone("images/one", "sandboxes/one")
    copied = describe(store.root / "sandboxes/one")
    assert copied == describe(store.root / "images/one") == before
    assert len(copied) == 25
    assert "trusted.overlay.opaque" in copied["u/opaque"][6]  # type: ignore[operator]
    assert copied["u/third"][5] == (4, "u/etc/deep/first")


def test_a_clone_of_a_clone_is_the_same(store: VolumeStore) -> None:
    furnish(store.make("chain/0"))
    for number in range(10):
        store.clone(f"chain/{number}", f"chain/{number + 1}")
        store.delete(f"chain/{number}")
    furnish(store.make("chain/again"))
    assert describe(store.root / "chain/10") == describe(store.root / "chain/again")


def test_a_clone_takes_no_space_for_holes(store: VolumeStore) -> None:
    furnish(store.make("a"))
    store.clone("a", "b")
    assert (store.root / "b/u/sparse").stat().st_blocks * 512 < MIB


@ON_EACH
def test_clone_and_source_go_their_own_ways(store: VolumeStore) -> None:
    file = store.make("a") / "file"
    file.write_text("before")
    store.clone("a", "b")
    (store.root / "b" / "file").write_text("clone")
    (store.root / "b" / "new").touch()
    assert file.read_text() == "before"
    file.write_text("source")
    assert (store.root / "b" / "file").read_text() == "clone"
    store.delete("a")
    assert (store.root / "b" / "file").read_text() == "clone"


@ON_EACH
def test_an_overlay_looks_the_same_through_a_clone(store: VolumeStore, tmp_path: Path) -> None:
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    (lower / "dir").mkdir(parents=True)
    for name in ("dir/hidden", "gone", "changed", "kept"):
        (lower / name).write_text("lower")
    merged.mkdir()

    def mounted(volume: Path) -> contextlib.AbstractContextManager[None]:
        return overlay(lower, volume, merged)

    volume = store.make("a")
    with mounted(volume):
        shutil.rmtree(merged / "dir")
        (merged / "dir").mkdir()
        (merged / "gone").unlink()
        (merged / "changed").write_text("upper")
        seen = sorted(str(path) for path in merged.rglob("*"))
    store.clone("a", "b")
    with mounted(store.root / "b"):
        assert sorted(str(path) for path in merged.rglob("*")) == seen
        assert (merged / "changed").read_text() == "upper"
        assert (merged / "kept").read_text() == "lower"


@contextlib.contextmanager
def overlay(lower: Path, volume: Path, merged: Path) -> Iterator[None]:
    shutil.rmtree(volume / "w", ignore_errors=True)
    for name in ("u", "w"):
        (volume / name).mkdir(exist_ok=True)
    options = f"lowerdir={lower},upperdir={volume}/u,workdir={volume}/w"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", merged], check=True)


def test_a_name_is_taken_once(store: VolumeStore) -> None:
    store.make("sandboxes/a")
    store.make("sandboxes/b")
    with pytest.raises(FileExistsError):
        store.make("sandboxes/a")
    with pytest.raises(FileExistsError):
        store.clone("sandboxes/a", "sandboxes/b")
    with pytest.raises(FileNotFoundError):
        store.clone("sandboxes/missing", "sandboxes/c")
    assert store.names("sandboxes") == ["a", "b"]
    assert store.names("missing") == []


def test_a_deleted_volume_is_gone_and_may_be_deleted_again(store: VolumeStore) -> None:
    furnish(store.make("sandboxes/a"))
    store.delete("sandboxes/a")
    store.delete("sandboxes/a")
    store.delete("never/there")
    assert store.names("sandboxes") == []
    store.make("sandboxes/a")


def test_a_tree_of_any_depth_can_be_deleted(store: VolumeStore) -> None:
    deep = os.open(store.make("a"), os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=deep)
        deeper = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = deeper
    os.close(deep)
    store.delete("a")
    assert not (store.root / "a").exists()


@pytest.mark.parametrize("kind", ["btrfs"], indirect=True)
def test_volumes_inside_volumes_are_deleted_too(store: VolumeStore) -> None:
    store.make("a")
    store.make("a/b")
    (store.make("a/b/c") / "file").touch()
    (store.root / "plain/dir").mkdir(parents=True)
    store.make("plain/dir/volume")
    store.delete("a")
    store.delete("plain")
    assert sorted(path.name for path in store.root.iterdir()) == [".kind", ".partial"]
    assert list((store.root / ".partial").iterdir()) == []


@pytest.mark.parametrize("kind", ["tmpfs"], indirect=True)
def test_a_name_cannot_leave_the_store(store: VolumeStore) -> None:
    for name in ("", ".", "..", "a/../b", "/etc", ".partial/x", "a/.x"):
        with pytest.raises(StoreError, match="name of a volume"):
            store.make(name)


def test_nobody_else_of_this_host_can_look_in(store: VolumeStore) -> None:
    (store.make("a") / "file").touch()
    denied = subprocess.run(
        ["setpriv", "--reuid=61000", "--clear-groups", "cat", store.root / "a" / "file"], capture_output=True
    )
    assert b"Permission denied" in denied.stderr


@pytest.mark.parametrize("kind", ["tmpfs", *longer("btrfs", "xfs", "ext4")], indirect=True)
def test_a_full_store_says_so_and_can_be_emptied(store: VolumeStore, home: Path) -> None:
    big = store.make("sandboxes/big")
    (store.make("sandboxes/small") / "file").write_bytes(os.urandom(20 * MIB))
    noise = os.urandom(MIB)
    with pytest.raises(OSError, match="No space left"), (big / "file").open("wb") as file:
        while True:
            file.write(noise)
            os.fsync(file.fileno())
    with contextlib.suppress(DiskFullError):
        for number in range(300):
            store.clone("sandboxes/small", f"clones/{number}")
    for name in store.names("clones"):
        assert (store.root / "clones" / name / "file").stat().st_size == 20 * MIB
    again = VolumeStore(home)
    again.open()
    for directory in ("clones", "sandboxes"):
        for name in again.names(directory):
            again.delete(f"{directory}/{name}")
    store.sync()
    again.close()
    file = store.make("sandboxes/next") / "file"

    def fits() -> bool:
        with contextlib.suppress(OSError):
            return file.write_bytes(bytes([1]) * 20 * MIB) > 0
        return False

    asyncio.run(until(fits))


@pytest.mark.parametrize("kind", ["tmpfs", *longer("xfs", "ext4")], indirect=True)
def test_a_clone_that_does_not_fit_leaves_nothing(store: VolumeStore) -> None:
    volume = store.make("a")
    (volume / "file").write_bytes(bytes([1]) * 20 * MIB)
    for number in range(5000 if store.kind == "reflink" else 0):
        (volume / str(number)).touch()
    ballast = store.root / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes([1]) * MIB)
            os.fsync(file.fileno())
    os.truncate(ballast, ballast.stat().st_size - 10 * MIB)
    with pytest.raises(DiskFullError) as raised:
        for number in range(100):
            store.clone("a", f"copies/{number}")
    assert "remedy" in str(raised.value)
    last = len(store.names("copies"))
    assert not (store.root / "copies" / str(last)).exists()
    assert list((store.root / ".partial").iterdir()) == []


# --- opening and closing -------------------------------------------------------------------------------


def test_a_fresh_store_is_btrfs_where_this_machine_has_it(fresh: VolumeStore, home: Path) -> None:
    fresh.open()
    assert fresh.kind == "snapshot"
    assert fresh.root == home / "store"
    mounted = next(mount for mount in read_mounts() if mount.point == str(fresh.root))
    assert {"noatime", "nosuid", "nodev"} <= mounted.flags
    assert "discard=async" in mounted.options
    assert (home / "store.img").stat().st_blocks * 512 < 64 * MIB
    fresh.open()


def test_a_store_is_opened_by_its_first_use_and_stays_over_a_reboot(fresh: VolumeStore, home: Path) -> None:
    (fresh.make("sandboxes/a") / "file").write_text("kept")
    close(fresh)
    assert not os.path.ismount(fresh.root)
    again = VolumeStore(home)
    assert again.names("sandboxes") == ["a"]
    assert (again.root / "sandboxes/a/file").read_text() == "kept"
    close(again)


@pytest.mark.parametrize("kind", ["btrfs", *longer("xfs", "ext4")], indirect=True)
def test_what_was_synced_survives_a_power_cut(store: VolumeStore, home: Path, tmp_path: Path) -> None:
    furnish(store.make("images/a"))
    before = describe(store.root / "images/a")
    store.clone("images/a", "images/b")
    store.sync()
    (store.make("sandboxes/later") / "file").write_bytes(os.urandom(MIB))
    other = tmp_path / "rebooted"
    other.mkdir()
    # A copy of the image while it is in use: what a disk holds when the power goes.
    subprocess.run(["cp", "--sparse=always", home / "store.img", other / "store.img"], check=True)
    close(store)
    rebooted = VolumeStore(other)
    assert rebooted.names("images") == ["a", "b"]
    assert describe(rebooted.root / "images/a") == before
    assert describe(rebooted.root / "images/b") == before
    for name in rebooted.names("sandboxes"):
        rebooted.delete(f"sandboxes/{name}")
    close(rebooted)


def test_an_image_half_made_is_made_again(fresh: VolumeStore, home: Path) -> None:
    home.mkdir(parents=True)
    (home / ".store.img").write_bytes(b"half a filesystem" * 1000)
    fresh.make("a")
    assert not (home / ".store.img").exists()


def test_a_mount_that_vanished_comes_back(fresh: VolumeStore) -> None:
    (fresh.make("a") / "file").write_text("kept")
    subprocess.run(["umount", "-l", fresh.root], check=True)
    assert list(fresh.root.iterdir()) == []
    fresh.make("b")
    assert (fresh.root / "a/file").read_text() == "kept"
    assert os.path.ismount(fresh.root)


def test_a_store_in_use_stays_mounted(fresh: VolumeStore, home: Path, tmp_path: Path) -> None:
    volume = fresh.make("a")
    other = VolumeStore(home)
    other.open()
    assert not fresh.close()
    assert os.path.ismount(fresh.root)
    with (volume / "file").open("w"):
        assert not other.close()
    # An overlay pins its layers' filesystem but not their mount.
    (tmp_path / "lower").mkdir()
    (tmp_path / "merged").mkdir()
    with overlay(tmp_path / "lower", volume, tmp_path / "merged"):
        assert not other.close(patience=0.1)
        assert os.path.ismount(fresh.root)
        (tmp_path / "merged" / "written").write_text("through the overlay")
    assert (volume / "u/written").read_text() == "through the overlay"
    close(other)
    assert not os.path.ismount(fresh.root)


def close(store: VolumeStore) -> None:
    """Close an unused store.

    A sandbox that starts beside it, or a killed process's child, has it briefly, and the kernel releases it later.
    """
    asyncio.run(until(store.close))


def test_a_store_that_nobody_opened_can_be_closed(home: Path) -> None:
    close(VolumeStore(home))
    assert not home.exists()


OPEN = """
import os, sys
from pathlib import Path
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
store = VolumeStore(Path(sys.argv[1]))
store.make(f"sandboxes/{os.getpid()}").joinpath("file").write_text("x")
print(store.kind, store.root, flush=True)
sys.stdin.read()
"""


def python(code: str, *args: object, prefix: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )


def test_processes_open_the_store_at_once(fresh: VolumeStore, home: Path) -> None:
    processes = [python(OPEN, home) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == f"snapshot {home / 'store'}\n", process.communicate()
    assert len([mount for mount in read_mounts() if mount.point == str(fresh.root)]) == 1
    assert len([file for file in loops() if str(home) in file]) == 1
    assert not fresh.close()
    for process in processes:
        process.communicate()
    assert fresh.names("sandboxes") == sorted(str(process.pid) for process in processes)


def _at_any_moment(within: float) -> None:
    """Let somebody else work for a while, so that what is killed next is killed anywhere."""
    asyncio.run(asyncio.sleep(chance_of_this_run().uniform(0, within)))


OPEN_AND_CLOSE = """
import sys
from pathlib import Path
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
while True:
    store = VolumeStore(Path(sys.argv[1]))
    store.make("sandboxes/a")
    store.delete("sandboxes/a")
    store.close()
    Path(sys.argv[1], "store.img").unlink(missing_ok=True)
    print(flush=True)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(15, marks=pytest.mark.long)])
def test_a_process_killed_while_opening_leaves_a_store_that_opens(fresh: VolumeStore, home: Path, kills: int) -> None:
    for _ in range(kills):
        process = python(OPEN_AND_CLOSE, home)
        assert process.stdout is not None
        process.stdout.readline()
        _at_any_moment(0.15)
        process.kill()
        process.communicate()
        fresh.make("sandboxes/mine")
        fresh.delete("sandboxes/mine")
        assert len([mount for mount in read_mounts() if mount.point == str(fresh.root)]) == 1
        close(fresh)


CLONE = """
import sys
from pathlib import Path
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
store = VolumeStore(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    store.make(f"sandboxes/empty-{number}")
    store.clone("images/one", f"sandboxes/clone-{number}")
    store.clone(f"sandboxes/clone-{number}", f"sandboxes/clone-of-{number}")
    print(flush=True)
    if number > 2:
        for name in ("empty", "clone", "clone-of"):
            store.delete(f"sandboxes/{name}-{number - 2}")
"""


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_a_killed_process_leaves_whole_volumes_only(store: VolumeStore, home: Path, kills: int) -> None:
    volume = store.make("images/one")
    furnish(volume)
    for number in range(60):
        (volume / "u" / f"file-{number}").write_text("x" * number)
    whole = describe(volume)
    seen = 0
    for _ in range(kills):
        process = python(CLONE, home)
        assert process.stdout is not None
        process.stdout.readline()
        _at_any_moment(0.1)
        process.kill()
        process.communicate()
        after = VolumeStore(home)
        after.open()
        for name in after.names("sandboxes"):
            seen += 1
            expected = {".": None} if name.startswith("empty") else whole
            assert describe(after.root / "sandboxes" / name).keys() == expected.keys()
            if not name.startswith("empty"):
                assert describe(after.root / "sandboxes" / name) == whole
            after.delete(f"sandboxes/{name}")
        asyncio.run(until(lambda: not list((store.root / ".partial").iterdir())))
        assert after.names("sandboxes") == []
        after.close()
    assert seen > 2 * kills


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ext4"], indirect=True)
def test_opening_leaves_alone_what_a_living_process_makes(store: VolumeStore, home: Path) -> None:
    furnish(store.make("images/one"))
    process = python(CLONE, home)
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline() == "\n"
        again = VolumeStore(home)
        again.open()
        again.close()
    process.kill()
    process.communicate()


# --- what is refused, and what to do about it ----------------------------------------------------------

TRY = """
import sys
from pathlib import Path
from benchflow.errors import BenchFlowError
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
try:
    store = VolumeStore(Path(sys.argv[1]))
    store.open()
    print(store.kind)
    store.close()
except BenchFlowError as error:
    print(type(error).__name__, error)
"""


def told(home: Path, script: str, **variables: str) -> str:
    """What opening a store says after a shell script, in a mount namespace of its own."""
    prefix = ("unshare", "-m", "sh", "-ec", script + '\nexec "$@"', "sh")
    out, problem = python(TRY, home, prefix=prefix, **variables).communicate()
    assert problem == ""
    return out


def without(*programs: str) -> str:
    return "\n".join(f"mount --bind /dev/null {Path(shutil.which(name) or '').resolve()}" for name in programs)


@pytest.mark.long
def test_without_btrfs_the_store_shares_blocks_and_else_copies_them(tmp_path: Path) -> None:
    assert told(tmp_path / "a", without("mkfs.btrfs")) == "reflink\n"
    assert told(tmp_path / "b", without("mkfs.btrfs", "mkfs.xfs")) == "copy\n"


def test_without_any_file_system_to_make_there_is_a_remedy(home: Path) -> None:
    refused = told(home, without("mkfs.btrfs", "mkfs.xfs", "mkfs.ext4"))
    assert "SandboxUnavailableError" in refused and "install btrfs-progs" in refused


def test_without_loop_devices_there_is_a_remedy(home: Path) -> None:
    refused = told(home, "mount -t tmpfs tmpfs /dev; mknod -m 666 /dev/null c 1 3")
    assert "SandboxUnavailableError" in refused and "no loop device" in refused
    assert "load the kernel's `loop` module" in refused and "BENCHFLOW_LOCAL_STORE" in refused


def test_without_root_there_is_a_remedy(home: Path) -> None:
    refused = told(home, f'set -- {NOT_ROOT} "$@"')
    assert "SandboxUnavailableError local sandboxes need root" in refused and "Docker" in refused


@pytest.mark.long
def test_without_the_right_to_mount_there_is_a_remedy(home: Path) -> None:
    refused = told(home, 'set -- setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$@"')
    assert "SandboxUnavailableError" in refused and "remedy: run as root" in refused


@pytest.mark.long
def test_too_little_space_for_an_image_is_told(home: Path) -> None:
    home.mkdir(parents=True)
    refused = told(home, f"mount -t tmpfs -o size=100m tmpfs {home}")
    assert "SandboxUnavailableError" in refused and "MiB are free for the sandbox store" in refused


@pytest.mark.long
def test_a_given_store_may_be_a_tmpfs(home: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    script = f"mount -t tmpfs tmpfs {tmp_path}/given"
    assert told(home, script, BENCHFLOW_LOCAL_STORE=f"{tmp_path}/given") == "copy\n"


@pytest.mark.parametrize("place", ["state", "missing", "relative"])
def test_a_given_store_must_lie_on_another_filesystem(place: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.parent.mkdir()
    given = {"state": str(home.parent), "missing": "/does/not/exist", "relative": "."}[place]
    monkeypatch.setenv("BENCHFLOW_LOCAL_STORE", given)
    with pytest.raises(SandboxUnavailableError) as refused:
        VolumeStore(home).open()
    assert "remedy: unset BENCHFLOW_LOCAL_STORE" in str(refused.value)


@pytest.mark.long
def test_a_given_store_that_cannot_hold_layers_is_refused(home: Path, tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "given"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    variable = {"BENCHFLOW_LOCAL_STORE": f"{tmp_path}/given"}
    refused = told(home, f"mount -t overlay -o {options} overlay {tmp_path}/given", **variable)
    assert "cannot hold an overlay's layers" in refused and "unset BENCHFLOW_LOCAL_STORE" in refused
    refused = told(home, f"mount -t tmpfs -o ro tmpfs {tmp_path}/given", **variable)
    assert "is mounted read-only" in refused


def test_two_state_directories_share_a_given_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given"
    given.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", given], check=True)
    monkeypatch.setenv("BENCHFLOW_LOCAL_STORE", str(given))
    one, other = VolumeStore(tmp_path / "one"), VolumeStore(tmp_path / "other")
    one.make("sandboxes/a")
    assert other.names("sandboxes") == []
    other.make("sandboxes/a")
    close(one)
    close(other)
    unmount(given)


@pytest.mark.parametrize("content", [b"", b"garbage" * 100_000, b"\0" * 0x10040 + b"_BHRfS_M" + b"\0" * MIB])
def test_a_damaged_image_is_told_with_its_remedy(content: bytes, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "store.img").write_bytes(content)
    with pytest.raises(SandboxUnavailableError) as refused:
        VolumeStore(home).open()
    assert "remove it: it holds only sandboxes" in str(refused.value)
    asyncio.run(until(lambda: not [file for file in loops() if str(home) in file]))


@pytest.mark.long
def test_a_store_whose_disk_ran_full_works_again_once_there_is_space(tmp_path: Path) -> None:
    disk, home = tmp_path / "disk.img", tmp_path / "disk" / "local"
    (tmp_path / "disk").mkdir()
    with disk.open("wb") as file:
        file.truncate(1500 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, tmp_path / "disk"], check=True)
    try:
        store = VolumeStore(home)
        store.make("sandboxes/a")
        ballast = tmp_path / "disk" / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            # Most of it at once.
            size = max(0, shutil.disk_usage(tmp_path / "disk").free - 16 * MIB)
            os.posix_fallocate(file.fileno(), 0, size)
            file.seek(size)
            while True:
                file.write(bytes(MIB))
        with contextlib.suppress(OSError, BenchFlowError):
            for number in range(200):
                (store.make(f"sandboxes/{number}") / "file").write_bytes(os.urandom(MIB))
                store.sync()
        ballast.unlink()
        store.make("sandboxes/next").joinpath("file").write_bytes(os.urandom(MIB))
        store.sync()
        for name in store.names("sandboxes"):
            store.delete(f"sandboxes/{name}")
        close(store)
    finally:
        unmount(tmp_path / "disk")
