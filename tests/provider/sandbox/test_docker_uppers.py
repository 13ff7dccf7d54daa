"""Snapshots whose files this host copies, past the daemon: equal to the daemon's own, and whole or not there at all."""

# Names of files are bytes here: not all of them are text.
# ruff: noqa: PTH115, PTH118, PTH123

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import stat
import uuid
from pathlib import Path

import pytest
from support.killed_capture import take_snapshot

from benchflow.contracts.images import ImageRef
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.docker import DockerDriver, captures, uppers
from benchflow.planes.sandbox.docker.layers import stream_image
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider

pytestmark = pytest.mark.docker

CAPABLE = bytes.fromhex("0100000200040000000000000000000000000000")
"""`cap_net_bind_service=ep`, as a file has it."""

CHANGES = """
import os, shutil, socket, struct
os.makedirs('/all/deep/er')
os.chdir('/all')
def put(path, content=b'x', mode=0o644, owner=(0, 0)):
    with open(path, 'wb') as file:
        file.write(content)
    os.chown(path, *owner)
    os.chmod(path, mode)
put('plain'); put('empty', b''); put('owned', owner=(61000, 61001)); put('setuid', mode=0o6755); put('secret', mode=0)
put('big', os.urandom(3000001), 0o600); put('capable'); put('a \\n"name"'); put(b'\\xff\\xfe'); put('.wh-like')
put('n' * 255); put('deep/er/' + 'm' * 255)
put('noted'); os.setxattr('noted', 'user.note', bytes(range(256))); os.setxattr('deep', 'user.note', b'of a directory')
entries = ((1, 6, -1), (2, 4, 61000), (4, 4, -1), (16, 6, -1), (32, 4, -1))
put('listed')
os.setxattr('listed', 'system.posix_acl_access',
            struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries))
os.link('plain', 'deep/second'); os.link('plain', 'deep/er/third')
os.symlink('plain', 'link'); os.symlink('/nowhere', 'dangling'); os.lchown('link', 7, 8)
os.link('link', 'deep/link', follow_symlinks=False)
os.mkfifo('pipe', 0o640)
socket.socket(socket.AF_UNIX).bind('socket')
os.mkdir('sticky'); os.chmod('sticky', 0o1777); os.mkdir('closed', 0o000)
os.utime('empty', ns=(10**18 + 1, 10**18 + 123456789)); os.utime('deep', ns=(10**18, 10**18 + 987654321))
with open('holes', 'wb') as file:
    file.truncate(1 << 26)
    file.seek(1 << 25)
    file.write(b'in the middle')
os.remove('/etc/motd'); os.remove('/etc/issue')
shutil.rmtree('/etc/skel'); os.mkdir('/etc/skel'); put('/etc/skel/new')
shutil.rmtree('/etc/cron.daily')
os.remove('/etc/debian_version'); os.mkdir('/etc/debian_version'); put('/etc/debian_version/file')
shutil.rmtree('/etc/opt'); put('/etc/opt')
os.chmod('/etc/passwd', 0o640); os.chmod('/etc/apt', 0o700)
"""
"""Whatever a file system can hold, new, changed, and gone."""

LOOK = """
import hashlib, json, os, stat
found = {}
for top in ('/all', '/etc'):
    here = os.lstat(top).st_dev
    for directory, names, files in os.walk(top):
        for path in (directory + '/' + name for name in names + files):
            own = os.lstat(path)
            # Mounted, never kept, or put there by the daemon.
            if own.st_dev != here or stat.S_ISSOCK(own.st_mode) or path == '/etc/mtab':
                continue
            what = [stat.filemode(own.st_mode), own.st_uid, own.st_gid, int(own.st_mtime)]
            if not stat.S_ISDIR(own.st_mode):
                what += [own.st_size, own.st_nlink]
            if stat.S_ISREG(own.st_mode):
                what.append(hashlib.sha256(open(path, 'rb').read()).hexdigest())
            if stat.S_ISLNK(own.st_mode):
                what.append(os.readlink(path))
            found[os.fsencode(path).hex()] = what
print(json.dumps(found, sort_keys=True))
"""


def a_name():
    return f"benchflow-test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def kept(daemon):
    """Remembers images, to be removed."""
    images = []

    def remember(reference):
        images.append(reference)
        return daemon.api.inspect_image(reference)

    yield remember
    for reference in images:
        with contextlib.suppress(Exception):
            daemon.images.remove(reference, force=True)


@pytest.fixture(autouse=True)
def copying(daemon):
    if not uppers.may_copy(daemon.info()):
        pytest.skip("this host does not copy what a container has changed past its daemon")


@contextlib.asynccontextmanager
async def elsewhere(monkeypatch):
    """While this is held, the daemon is one at an address of the network."""

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()

    async def serve(reader, writer):
        there = await asyncio.open_unix_connection("/var/run/docker.sock")
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        there[1].close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield
    server.close()


def tree(top: Path):
    """All there is to know of what lies in a layer's directory, by path."""
    found, names = {}, {}
    for directory, _, files in os.walk(os.fsencode(top)):
        for path in (directory, *(os.path.join(directory, file) for file in files)):
            own = os.lstat(path)
            name = os.path.relpath(path, os.fsencode(top))
            what = {
                "mode": own.st_mode,
                "owner": (own.st_uid, own.st_gid),
                "mtime": own.st_mtime_ns,
                "dev": own.st_rdev,
            }
            what["xattrs"] = {
                key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)
            }
            if stat.S_ISREG(own.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
                what |= {"size": own.st_size, "sha256": hashlib.sha256(content).hexdigest(), "data": data(path)}
            if stat.S_ISLNK(own.st_mode):
                what["to"] = os.readlink(path)
            if not stat.S_ISDIR(own.st_mode):
                what["same"] = names.setdefault(own.st_ino, [])
                what["same"].append(name)
            found[name] = what
    for same in names.values():
        same.sort()
    return found


def data(path):
    """The ranges of a file that are no holes."""
    ranges, end = [], 0
    with open(path, "rb") as file, contextlib.suppress(OSError):
        while True:
            start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            ranges.append((start, end))
    return ranges


def packed(found, *, by_daemon):
    """What of a tree comes through an archive. by_daemon: through one that the daemon has made."""
    kept = {}
    for name, what in found.items():
        if stat.S_ISSOCK(what["mode"]) or name == b".":
            continue
        if stat.S_ISCHR(what["mode"]) and what["dev"] == 0:
            kept[name] = "gone"
            continue
        what = {key: value for key, value in what.items() if key != "data"}
        known = ("security.capability", "trusted.overlay.opaque", *(() if by_daemon else ("user.", "system.")))
        what["xattrs"] = {key: value for key, value in what["xattrs"].items() if key.startswith(known)}
        if by_daemon:
            what["mtime"] //= 10**9
        kept[name] = what
    return kept


@pytest.mark.long
async def test_a_copy_is_what_was_there_and_what_the_daemon_would_have_made_of_it(
    start, provider, daemon, kept, monkeypatch, tmp_path
):
    sandbox = await start()
    made = await sandbox.exec(["python3", "-c", CHANGES])
    assert made.return_code == 0, made.stderr
    upper = uppers.find_directory(daemon.api.inspect_container(sandbox.ref.handle))
    # Not even root may do this in a sandbox.
    os.setxattr(upper / "all/capable", "security.capability", CAPABLE)
    there = tree(upper)
    copy = kept((await sandbox.snapshot(a_name())).reference)
    async with elsewhere(monkeypatch):
        other = DrivenProvider(DockerDriver())
        committed = kept((await (await other.attach(sandbox.ref)).snapshot(a_name())).reference)
        await other.close()
    own = daemon.api.inspect_image(daemon.api.inspect_container(sandbox.ref.handle)["Image"])
    below = own["RootFS"]["Layers"]
    for image in (copy, committed):
        assert image["Config"] == own["Config"] and image["RootFS"]["Layers"][:-1] == below

    assert uppers.find_copied_layers(committed) == {}
    ((number, layer),) = uppers.find_copied_layers(copy).items()
    assert number == len(below)
    assert tree(upper) == there == tree(layer)
    assert there[b"all/holes"]["data"] != [(0, 1 << 26)] and there[b"all/plain"]["same"] == [
        *(b"all/deep/er/third", b"all/deep/second", b"all/plain"),
    ]
    by_daemon = packed(tree(uppers.find_directory(committed)), by_daemon=True)
    assert packed(there, by_daemon=True) == by_daemon
    assert by_daemon[b"etc/motd"] == "gone" and by_daemon[b"all/capable"]["xattrs"] == {"security.capability": CAPABLE}

    assert uppers.read_digest(layer) is None
    digest = uppers.pack_layer(layer, tmp_path / "layer.tar")
    assert uppers.read_digest(layer) == digest
    again = kept(load(daemon, copy, [*below, digest], {number: tmp_path / "layer.tar"}))
    assert packed(tree(uppers.find_directory(again)), by_daemon=False) == packed(there, by_daemon=False)

    begun = [await start(image=ImageRef(reference=image["RepoTags"][0])) for image in (copy, committed, again)]
    looked = [json.loads((await each.exec(["python3", "-c", LOOK])).stdout) for each in (sandbox, *begun)]
    for look in looked[1:]:
        assert look == looked[0]


def load(daemon, like, layers, files):
    """Have the daemon make an image of layers, some of which are files; its name."""
    name = f"benchflow-test:{uuid.uuid4().hex[:12]}"
    description = {"architecture": like["Architecture"], "os": like["Os"], "config": like["Config"], "history": []}
    description["rootfs"] = {"type": "layers", "diff_ids": layers}
    said = daemon.api.load_image(stream_image(json.dumps(description).encode(), name, len(layers), files))
    assert not [line for line in said if "error" in line]
    return name


@pytest.fixture
def taken(state, daemon, kept):
    """Takes a snapshot in a process of its own, and removes it in the end: how that ended, and what it said.

    moment: at which the process is killed.
    """

    def take(ref, name, moment="", *, before=()):
        done = take_snapshot(ref, name, moment, before=before)
        if done.returncode == 0:
            kept(done.stdout.strip())
        return done

    return take


@pytest.fixture
def left(daemon, stack):
    """The images of this test's stack."""

    def look():
        short = captures.hash_stack(stack)
        return [tag for row in daemon.api.images() for tag in row["RepoTags"] or () if f":{short}-" in tag]

    return look


@pytest.mark.parametrize(
    "moments", [["copy"], pytest.param(["after load_image", "unpause", "tag", "after tag"], marks=pytest.mark.long)]
)
async def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_snapshot_or_none(
    start, provider, daemon, stack, taken, left, kept, moments
):
    sandbox = await start()
    for number, moment in enumerate(moments):
        await sandbox.exec(["sh", "-c", f"rm -f /etc/motd; mkdir -p /d && echo {number} >/d/file && sync"])
        done = await asyncio.to_thread(taken, sandbox.ref, name := a_name(), moment)
        assert done.returncode == -9, done.stderr
        fresh = DrivenProvider(DockerDriver())
        assert [owned.name for owned in await fresh.owned(stack)] == [sandbox.ref.name]
        assert not daemon.api.inspect_container(sandbox.ref.handle)["State"]["Paused"]
        assert [tag.partition(":")[0] for tag in left()] == ([captures.SNAPSHOT] if moment == "after tag" else [])
        await sandbox.write_file("/d/file", "later")
        image = await (await fresh.attach(sandbox.ref)).snapshot(name)
        await fresh.close()
        kept(image.reference)
        (copy,) = uppers.find_copied_layers(daemon.api.inspect_image(image.reference)).values()
        assert (copy / "d/file").read_text() == (f"{number}\n" if moment == "after tag" else "later")
        await provider.remove_image(image)
        assert left() == []


@pytest.mark.long
async def test_what_this_process_may_not_copy_the_daemon_copies(start, daemon, taken, left):
    sandbox = await start()
    await sandbox.exec(["sh", "-c", "rm -rf /etc/apt && mkdir /etc/apt && rm /etc/motd && echo x >/kept"])
    as_less = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    done = await asyncio.to_thread(taken, sandbox.ref, a_name(), before=as_less)
    assert done.returncode == 0, done.stderr
    image = done.stdout.strip()
    assert uppers.find_copied_layers(daemon.api.inspect_image(image)) == {} and left() == [image]
    copy = await start(image=ImageRef(reference=image))
    assert (await copy.exec(["ls", "-A", "/etc/apt", "/kept"])).stdout == "/kept\n\n/etc/apt:\n"
    assert (await copy.exec(["test", "-e", "/etc/motd"])).return_code == 1


async def test_one_that_did_not_stand_still_all_the_time_is_not_kept(start, provider, daemon, left, monkeypatch):
    sandbox = await start()
    real = uppers.fill_layer

    def fill(layer, container):
        assert real(layer, container) is None
        daemon.api.unpause(sandbox.ref.handle)

    with monkeypatch.context() as patch:
        patch.setattr(uppers, "fill_layer", fill)
        with pytest.raises(SandboxError, match="not paused"):
            await sandbox.snapshot(a_name())
    assert left() == []
    (ref,) = await sandbox.fork([a_name()])
    assert (await (await provider.attach(ref)).exec(["echo", "x"])).stdout == "x\n"
