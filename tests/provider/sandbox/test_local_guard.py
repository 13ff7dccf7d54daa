"""What of this machine a local sandbox shows, looked for with root's rights and with the agent's.

Everything that is looked for is readable by everybody on the host, so that no file mode is what hides it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.local_probes import CONNECT, KEYRINGS, LOOK, WATCH, WORKER
from support.local_sandboxes import AGENT, EVERYBODY, OverTheHost, tried

from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.testing.sandbox_conformance.sandbox_fixtures import PATIENCE, Start, leave, nap, napping

pytestmark = pytest.mark.local

PYTHONPATH = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

PROGRAMS = " ".join(f"-path /usr/{name} -prune -o" for name in ("include", "lib", "share", "src"))
FIND = f'find / {PROGRAMS} -name proc -prune -o -name sys -prune -o -name "*$1*" -print 2>/dev/null; :'


@dataclass(frozen=True)
class Decoys:
    """What is laid on the host. mark: in the content of every file, and in the name of each directory.

    files: must not be seen by anybody inside. shown: lies where sandboxes see what they may have a use for.
    """

    mark: str
    home: Path
    files: list[Path]
    hidden: list[Path]
    shown: Path


@pytest.fixture(scope="module")
def decoys() -> Iterator[Decoys]:
    mark = f"bfguard{secrets.token_hex(6)}"
    roots = [Path(top, mark) for top in ("/tmp", "/opt", "/usr/local", "/var/tmp", "/home", "/srv", "/")]
    roots += [Path(top, mark) for top in ("/var/lib", "/var/log", "/var/cache", "/run", "/media")]
    times = {root.parent: root.parent.stat() for root in roots}
    with contextlib.ExitStack() as stack:
        for root in roots:
            stack.callback(_remove, root, times[root.parent])
            root.mkdir()
            _keep_time(root.parent, times[root.parent])
        hidden = [root / "task" for root in roots[:3]] + [Path("/usr/local", mark, "jobs")]
        files = [task / name for task in hidden[:3] for name in ("solution/solve.sh", "tests/test.sh", "task.toml")]
        files += [hidden[3] / "job" / "rollout" / "result.json", Path("/usr/local", mark, "state", "temporal.db")]
        files += [root / "notes" for root in roots if root not in (Path("/opt", mark), Path("/usr/local", mark))]
        for home in (Path("/home", mark), Path("/opt", mark), Path("/usr/local", mark)):
            files += [home / name for name in (".ssh/id_ed25519", ".aws/credentials", ".kube/config", ".netrc")]
        files += [Path("/home", mark, name) for name in (".config/gcloud/key.json", ".bash_history", "private/notes")]
        shown = Path("/opt", mark, "program", "file")
        for file in (*files, shown):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{mark} secret of the host\n")
        yield Decoys(mark, Path("/usr/local", mark), files, hidden, shown)


def _remove(root: Path, parent: os.stat_result) -> None:
    shutil.rmtree(root, ignore_errors=True)
    _keep_time(root.parent, parent)


def _keep_time(directory: Path, status: os.stat_result) -> None:
    """Layers of other stacks on this machine hold while its programs' directories are as they were."""
    os.utime(directory, ns=(status.st_atime_ns, status.st_mtime_ns))


class AmongDecoys(OverTheHost):
    @pytest.fixture(scope="class")
    @classmethod
    def state_directory(cls, decoys: Decoys) -> Iterator[Path]:
        """Where sandboxes otherwise see what lies there, so that nothing but its being the state hides it."""
        directory = decoys.home / "state"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
            yield directory


class TestTheHostsFiles(AmongDecoys):
    @EVERYBODY
    async def test_the_tasks_source_states_homes_and_credentials_are_not_there(
        self, start: Start, decoys: Decoys, user: int | None
    ) -> None:
        sandbox = await start(hidden=tuple(map(str, decoys.hidden)))
        assert all(file.is_file() for file in decoys.files)
        assert await tried(sandbox, LOOK, *map(str, decoys.files), user=user) == []
        assert await tried(sandbox, LOOK, *map(str, decoys.hidden), user=user) == []
        # Who looks does see what there is.
        assert len(await tried(sandbox, LOOK, str(decoys.shown), user=user)) >= 4

    async def test_nothing_of_it_is_anywhere_else(self, start: Start, decoys: Decoys, state_directory: Path) -> None:
        sandbox = await start(hidden=tuple(map(str, decoys.hidden)))
        found = (await sandbox.exec(["sh", "-c", FIND, "sh", decoys.mark], timeout=600)).stdout.split()
        # Of these two directories sandboxes see all that is neither named nor called like a secret.
        assert set(found) == {f"/opt/{decoys.mark}", str(decoys.home)}
        left = (await sandbox.exec(["find", *found, "-type", "f"])).stdout.split()
        assert left == [str(decoys.shown)]

    async def test_what_is_put_into_a_hidden_directory_later_is_hidden_too(self, start: Start, decoys: Decoys) -> None:
        late = decoys.hidden[1] / "tests" / "late" / "answer"
        sandbox = await start(hidden=tuple(map(str, decoys.hidden)))
        late.parent.mkdir()
        late.write_text("42")
        assert await tried(sandbox, LOOK, str(late)) == []
        (child,) = await sandbox.fork([f"benchflow-test-{nap()}"])
        image = await sandbox.snapshot(f"kept-{nap()}")
        await sandbox.restore(image)
        for each in (sandbox, await start(name=child.name)):
            assert await tried(each, LOOK, str(late), *map(str, decoys.hidden)) == []

    async def test_a_hidden_place_can_be_made_anew_and_stays_the_sandboxs(self, start: Start, decoys: Decoys) -> None:
        sandbox = await start(hidden=tuple(map(str, decoys.hidden)))
        for place in map(str, decoys.hidden):
            made = await sandbox.exec(["sh", "-c", 'mkdir -p "$1/x" && rmdir "$1/x" && ls -A "$1"', "sh", place])
            assert (made.return_code, made.stdout) == (0, "")
        for file in decoys.files:
            assert file.read_text().startswith(decoys.mark)

    async def test_the_store_the_records_and_the_database_are_not_there(
        self, own: Sandbox, decoys: Decoys, state_directory: Path
    ) -> None:
        places = [state_directory, *state_directory.rglob("*")]
        assert {"store", "store.img", "sandboxes", "temporal.db"} <= {place.name for place in places}
        places = [place for place in places if len(place.relative_to(decoys.home).parts) <= 5]
        assert await tried(own, LOOK, *map(str, places)) == []

    async def test_containers_sockets_are_not_there(self, own: Sandbox) -> None:
        paths = [f"/{top}/{name}.sock" for top in ("run", "var/run") for name in ("docker", "containerd/containerd")]
        paths += [
            "/run/podman/podman.sock",
            "/run/crio/crio.sock",
            "/run/dbus/system_bus_socket",
            "/run/systemd/private",
        ]
        script = (
            "import json, socket, sys\n"
            "def reaches(path):\n"
            "    try:\n"
            "        return not socket.socket(socket.AF_UNIX).connect(path)\n"
            "    except OSError:\n"
            "        return False\n"
            "print(json.dumps([path for path in sys.argv[1:] if reaches(path)]))\n"
        )
        assert await tried(own, LOOK, *paths) == []
        assert await tried(own, script, *paths) == []
        found = (await own.exec(["find", "/", "-xdev", "-type", "s"])).stdout
        assert found == ""

    async def test_other_mounts_show_nothing(self, start: Start, decoys: Decoys) -> None:
        points = [Path(top, decoys.mark, "mounted") for top in ("/opt", "/usr/local", "/tmp")]
        bound = Path("/opt", decoys.mark, "bound")
        with contextlib.ExitStack() as stack:
            for point in points:
                stack.enter_context(_mounted(point, "-t", "tmpfs", "x"))
                (point / "notes").write_text(decoys.mark)
            stack.enter_context(_mounted(bound, "--bind", str(decoys.hidden[0])))
            sandbox = await start(hidden=(str(decoys.hidden[0]),))
            paths = [*(point / "notes" for point in points), bound / "task.toml"]
            assert all(path.is_file() for path in paths)
            assert await tried(sandbox, LOOK, *map(str, paths)) == []
            table = (await sandbox.exec(["cut", "-d ", "-f5", "/proc/self/mountinfo"])).stdout.split()
        assert table[0] == "/" and all(point.startswith(("/proc", "/sys", "/dev")) for point in table[1:])


class TestOtherProcesses(AmongDecoys):
    async def test_another_sandboxs_memory_and_names_are_its_own(self, start: Start) -> None:
        name = f"bfguard-{secrets.token_hex(4)}"
        hold = (
            "import ctypes, socket, sys, time\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "open('/dev/shm/' + sys.argv[1], 'w').write('x')\n"
            "named = socket.socket(socket.AF_UNIX); named.bind(chr(0) + sys.argv[1]); named.listen()\n"
            "assert libc.shmget(4711, 4096, 0o1666) >= 0\n"
            "assert libc.mq_open(('/' + sys.argv[1]).encode(), 0o102, 0o666, None) >= 0\n"
            "open('/held', 'w').close()\n"
            "time.sleep(600)\n"
        )
        look = (
            "import ctypes, json, os, socket, sys\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "named = socket.socket(socket.AF_UNIX)\n"
            "shared, reached = os.path.exists('/dev/shm/' + sys.argv[1]), named.connect_ex(chr(0) + sys.argv[1]) == 0\n"
            "print(json.dumps([shared, reached,\n"
            "    libc.shmget(4711, 4096, 0o666) >= 0, libc.mq_open(('/' + sys.argv[1]).encode(), 2) >= 0]))\n"
        )
        one, other = await start(), await start()
        begin = 'python3 -c "$@" >/dev/null 2>&1 & until [ -e /held ]; do sleep 0.02; done'
        assert (await one.exec(["sh", "-c", begin, "sh", hold, name], timeout=PATIENCE)).return_code == 0
        assert await tried(one, look, name) == [True] * 4
        assert await tried(other, look, name) == [False] * 4
        assert not Path("/dev/shm", name).exists()

    async def test_the_hosts_processes_and_its_shared_memory_are_not_there(self, own: Sandbox) -> None:
        length, name = nap(), f"bfguard-{secrets.token_hex(4)}"
        process = await asyncio.create_subprocess_exec("sleep", length)
        shared = Path("/dev/shm", name)
        shared.write_text("x")
        try:
            await leave(own, mine := nap())
            assert await napping(own, length, mine) == [mine]
            assert await tried(own, LOOK, str(shared)) == []
            pids = (await own.exec(["sh", "-c", "echo /proc/[0-9]*"])).stdout.split()
            assert len(pids) < 8
        finally:
            shared.unlink()
            process.kill()
            await process.wait()

    @pytest.mark.parametrize("mode", ["public", "no-network"])
    async def test_the_hosts_ports_are_out_of_reach_at_all_its_addresses(self, start: Start, mode: str) -> None:
        sandbox = await start(network_mode=mode)
        shown = await sandbox.exec(["sh", "-c", "awk '$2 == \"00000000\" {print $3}' /proc/net/route"])
        gateways = [socket.inet_ntoa(bytes.fromhex(text)[::-1]) for text in shown.stdout.split()]
        assert bool(gateways) == (mode == "public")
        addresses = {*gateways, *_addresses(), "127.0.0.1", "0.0.0.0", "169.254.169.254"}
        with contextlib.ExitStack() as stack:
            listeners = [stack.enter_context(socket.create_server((at, 0))) for at in ("0.0.0.0", "127.0.0.1")]
            datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            datagrams.bind(("0.0.0.0", listeners[0].getsockname()[1]))
            datagrams.setblocking(False)
            ports = [each.getsockname()[1] for each in listeners]
            targets = [str(each) for address in sorted(addresses) for each in (address, ports[0])]
            targets += ["127.0.0.1", str(ports[1])]
            assert await tried(sandbox, CONNECT, *targets) == []
            with pytest.raises(BlockingIOError):
                datagrams.recv(100)
            # The host itself reaches all that is its own.
            here = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CONNECT, *targets), stdout=asyncio.subprocess.PIPE
            )
            reached = json.loads((await here.communicate())[0])
            assert {("127.0.0.1", ports[0]), ("127.0.0.1", ports[1])} <= set(map(tuple, reached))
            assert datagrams.recv(100) == b"hello"


class TestTheEnginesSecrets(AmongDecoys):
    @pytest.mark.parametrize("user", [None, pytest.param(AGENT, marks=pytest.mark.long)], ids=["root", "agent"])
    async def test_its_environment_is_nowhere_in_a_sandbox_also_while_commands_start(
        self, start: Start, spec: SandboxSpec, tmp_path: Path, user: int | None
    ) -> None:
        engines, given = (f"canary-{secrets.token_hex(12)}" for _ in range(2))
        sandbox = await start(name=spec.name)
        arguments = [WORKER, spec.model_dump_json(), given, str(tmp_path / "got")]
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", *arguments),
            env=os.environ | {"ENGINES_KEY": engines, **PYTHONPATH},
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert worker.stdout is not None
            assert await worker.stdout.readline() == b"started\n"
            assert f"ENGINES_KEY={engines}" in Path(f"/proc/{worker.pid}/environ").read_text()
            most = "300" if user is None else "2"
            found, memories = await tried(sandbox, WATCH, "0.5", most, engines[::-1], given[::-1], user=user)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            await worker.wait()
        assert engines not in found
        if user is None:
            # Root inside sees what its sandbox's commands are given: whoever looks would have found the other, too.
            assert given in found and memories > 20

    async def test_its_keyrings_are_not_the_sandboxs_even_by_their_numbers(self, state_directory: Path) -> None:
        if not Path("/proc/keys").exists():
            pytest.skip("this kernel has no keyrings")
        # A process of its own, because a session's keyring cannot be left again.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KEYRINGS, f"benchflow-test-{nap()}"),
            env=os.environ | PYTHONPATH,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0
        assert json.loads(said) == {"here": [True, True], "0": [False, False], "61000": [False, False]}


@contextlib.contextmanager
def _mounted(point: Path, *arguments: str) -> Iterator[None]:
    point.mkdir()
    try:
        subprocess.run(["mount", *arguments, str(point)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)
        point.rmdir()


def _addresses() -> set[str]:
    """This host's own addresses."""
    found = set()
    for line, following in itertools.pairwise(Path("/proc/net/fib_trie").read_text().split("\n")):
        if "/32 host LOCAL" in following:
            found.add(line.rsplit(" ", 1)[-1])
    return found
