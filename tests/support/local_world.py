"""The local sandboxes of a state directory, as the kernel shows them: nothing here asks the provider.

Everything that a sandbox is made of is looked for by itself, wherever it can be told to be of this state directory:
processes by their command line, control groups by their name, mounts and loop devices by their path, interfaces and
rules by the subnet, which each stack under test asks for.
"""

from __future__ import annotations

import fcntl
import functools
import ipaddress
import json
import os
import random
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from support.signals import stopped
from support.worlds import Seen

from benchflow.planes.sandbox.local.firewall import find_firewalls, parse_subnets
from benchflow.planes.sandbox.local.helper import netlink
from benchflow.planes.sandbox.local.machine import name_group
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
from benchflow.process_identity import read_start_time
from benchflow.testing.waiting import until

_GET_ADDRESS = 0x8915
_HELPER = "helper.server"


_reserved: dict[ipaddress.IPv4Network, socket.socket] = {}


def free_subnet(*but: str) -> str:
    """A subnet that nothing on this machine uses, so that what is found in it is of the test that was given it.

    but: not one of these.
    """
    with netlink.open_socket() as sock:
        taken = {route.destination for route in netlink.list_routes(sock)} | {
            f"{it}/32" for it in _addresses().values()
        }
    taken |= {*_subnets(), *but}
    networks = [ipaddress.ip_network(each) for each in taken]
    # Tests that run beside each other look at the same moment, and must not find the same.
    first = 100 + 20 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5)
    candidates = [ipaddress.IPv4Network(f"10.{second}.0.0/16") for second in range(first, first + 20)]
    free = [it for it in candidates if not any(it.overlaps(other) for other in networks)]
    random.SystemRandom().shuffle(free)
    return str(next(it for it in sorted(free, key=lambda it: it not in _reserved) if it in _reserved or _reserve(it)))


def _reserve(network: ipaddress.IPv4Network) -> bool:
    """Keep a subnet for this process, from others that run tests on this machine, too."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0benchflow-test/{network}")
    except OSError:
        sock.close()
        return False
    _reserved[network] = sock
    return True


class LocalWorld:
    """A `World` on this machine itself. root: the state directory."""

    sandbox = "local"

    def __init__(self, root: Path) -> None:
        self.home = root / "local"
        self.started: list[str] = []
        self._links: set[str] | None = None
        self._subnet = ipaddress.ip_network(os.environ[SUBNET_VARIABLE])
        self._over = threading.Event()

    def watch(self, stack_id: str) -> None:
        self._links = set()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        known: set[Seen] = set()
        stamps: dict[str, tuple[int, int]] = {}
        while not self._over.wait(0.02):
            # To read all of them each time would take half of a core from what is under test.
            now = {place.name: _stamp(place / "running.json") for place in self._records()}
            changed = now != stamps
            stamps = now
            if changed and self._links is not None:
                running = [_json(place / "running.json") for place in self._records()]
                self._links.update(link for one in running if (link := one.get("link")))
            for seen in self.sandboxes() if changed else ():
                if seen.identity and seen not in known:
                    known.add(seen)
                    self.started.append(seen.name)

    # --- sandboxes -----------------------------------------------------------------------------------

    def sandboxes(self) -> list[Seen]:
        found = []
        for place in self._records():
            labels = (_json(place / "spec.json").get("labels")) or {}
            running = _json(place / "running.json")
            identity = f"{running['pid']}-{running['started']}" if running else ""
            found.append(Seen(place.name, identity, labels.get("benchflow.workflow", "")))
        return found

    def init_of(self, name: str) -> int | None:
        """The pid of a sandbox's first process, if it runs."""
        running = _json(self.home / "sandboxes" / name / "running.json")
        return running["pid"] if running and read_start_time(running["pid"]) == running["started"] else None

    def with_file(self, path: str) -> list[Seen]:
        inits = {seen: self.init_of(seen.name) for seen in self.sandboxes()}
        return [seen for seen, init in inits.items() if init and Path(f"/proc/{init}/root{path}").exists()]

    def make_file(self, path: str, among: Iterable[Seen] | None = None) -> None:
        for seen in self.sandboxes() if among is None else among:
            if init := self.init_of(seen.name):
                Path(f"/proc/{init}/root{path}").touch()

    def repeated(self, files: Sequence[str]) -> list[str]:
        """Those of these files, in running sandboxes, that have more than a line."""
        roots = [Path(f"/proc/{init}/root") for seen in self.sandboxes() if (init := self.init_of(seen.name))]
        paths = [Path(f"{root}{file}") for root in roots for file in files]
        return [str(path) for path in paths if _text(path).count("\n") > 1]

    def commands(self, sandbox: Seen) -> list[str]:
        return [_shown(pid) for pid in self.inside(sandbox.name)]

    def kill(self, sandbox: Seen) -> None:
        init = self.init_of(sandbox.name)
        assert init is not None
        os.kill(init, signal.SIGKILL)

    def frozen(self) -> AbstractContextManager[None]:
        return stopped(self.inside())

    def builds(self, mark: str, *, begun: bool = False) -> list[Seen]:
        # One whose step has not begun is not seen here at all.
        building = [seen for seen in self.sandboxes() if seen.name.startswith("build-")]
        return [seen for seen in building if any(mark in _command(pid) for pid in self.inside(seen.name))]

    def inside(self, name: str = "") -> set[int]:
        """The processes in a sandbox's control groups, or in those of all."""
        return {
            int(pid)
            for group in self._groups()
            for file in (group / name).rglob("cgroup.procs")
            for pid in _text(file).split()
        }

    def is_frozen(self, name: str) -> bool:
        files = [group / name / "cgroup.freeze" for group in self._groups()]
        return any(_text(file).strip() == "1" for file in files)

    def shared(self) -> set[str]:
        return {*self._mounts(), *map(str, self._groups()), *self._rules()}

    # --- the provider's own processes ----------------------------------------------------------------

    def processes(self) -> list[int]:
        """The helpers and their forks: all have the command line that the helper was started with."""
        return [pid for pid in _pids() if _HELPER in (said := _command(pid)) and f"\0{self.home}\0" in said]

    def helpers(self) -> list[int]:
        """Those that a worker started, and not another one of them."""
        ours = self.processes()
        return [pid for pid in ours if _parent(pid) not in ours and not self._has_entered(pid)]

    def waiters(self) -> list[int]:
        return [pid for pid in self.processes() if self._has_entered(pid)]

    def _has_entered(self, pid: int) -> bool:
        """Whether it is in a sandbox but for the processes there: those that it starts will be."""
        spaces = {name: _namespace(pid, name) for name in ("mnt", "pid", "pid_for_children")}
        outside = spaces["pid"] == _namespace(os.getpid(), "pid")
        return (
            outside and spaces["pid_for_children"] != spaces["pid"] and spaces["mnt"] != _namespace(os.getpid(), "mnt")
        )

    # --- what may be left ----------------------------------------------------------------------------

    async def leftovers(self) -> list[str]:
        found = [f"process {pid}: {_shown(pid)}" for pid in {*self.processes(), *self.inside()}]
        found += [f"mount of process {pid}: {_shown(pid)}" for pid in self._holders()]
        found += [f"mount {point}" for point in self._mounts()]
        found += [f"loop device {device}" for device in self._loop_devices()]
        found += [f"control group {group}" for group in self._groups()]
        found += [f"interface {name}" for name in self._interfaces()]
        found += [f"rules for {subnet}" for subnet in self._rules() if not self._others_have_rules()]
        found += [f"record {place.name}" for place in self._records()]
        found += [f"lock {lock.name}" for lock in self._locks()]
        return found or [f"volume {name}" for name in await self._volumes()]

    def counts(self) -> dict[str, int]:
        """How much there is of everything, this process's own handles included."""
        helpers = self.helpers()
        return {
            "handles": _handles(os.getpid()),
            "helpers": len(helpers),
            "handles of helpers": sum(map(_handles, helpers)),
            "processes": len(self.processes()) + len(self.inside()),
            "holders": len(self._holders()),
            "mounts": len(self._mounts()),
            "loop devices": len(self._loop_devices()),
            "control groups": sum(len(list(group.rglob("*/"))) for group in self._groups()),
            "interfaces": len(self._interfaces()),
            "records": len(self._records()),
            "locks": len(self._locks()),
            "volumes": sum(len(list((self.home / "store" / kind).glob("*"))) for kind in ("sandboxes", "masters")),
        }

    def memory_of_helpers(self) -> int:
        """Bytes that are theirs alone, of all of them."""
        lines = [
            line.split() for pid in self.helpers() for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
        ]
        return sum(int(words[1]) << 10 for words in lines if words[0] in ("Private_Clean:", "Private_Dirty:"))

    async def reboot(self) -> None:
        """Leave what a machine that was switched off and on again has: its files."""
        for pid in {*self.processes(), *self.inside()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._remove_groups()
        self._unmount()
        for place in self._records():
            running = _json(place / "running.json")
            (place / "running.json").write_text(json.dumps(running | {"boot": "before"}))

    async def _remove_groups(self) -> None:
        for group in self._groups():
            for directory, _, _ in os.walk(group, topdown=False):
                # Its processes have been killed and are about to end.
                await until(functools.partial(_is_removed, Path(directory)))

    def _unmount(self) -> None:
        for point in self._mounts():
            subprocess.run(["umount", "-l", point], check=True)

    def _records(self) -> list[Path]:
        return sorted((self.home / "sandboxes").glob("*"))

    def _locks(self) -> list[Path]:
        return [lock for lock in sorted((self.home / "locks").glob("*")) if lock.name != "use.lock"]

    def _mounts(self) -> list[str]:
        return _mounted_below(Path("/proc/self/mountinfo"), self.home)

    def _holders(self) -> list[int]:
        """Processes in mount namespaces of their own that hold a mount of ours there."""
        ours = _namespace(os.getpid(), "mnt")
        others = [pid for pid in _pids() if _namespace(pid, "mnt") not in ("", ours)]
        return [pid for pid in others if _mounted_below(Path(f"/proc/{pid}/mountinfo"), self.home)]

    def _loop_devices(self) -> list[str]:
        """As long as any namespace holds a sandbox's root, or anything a file in it, the store keeps its device."""
        files = Path("/sys/block").glob("loop*/loop/backing_file")
        return [file.parts[3] for file in files if _text(file).startswith(f"{self.home}/")]

    def _groups(self) -> list[Path]:
        kinds = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        hierarchies = {Path(point) for _, point, kind, *_ in kinds if kind in ("cgroup", "cgroup2")}
        groups = [hierarchy / "benchflow" / name_group(self.home) for hierarchy in sorted(hierarchies)]
        # Controllers that share a hierarchy are links to one directory.
        return sorted({group.resolve() for group in groups if group.exists()})

    def _interfaces(self) -> list[str]:
        """List those in the subnet; of a watched stack, its own ones: stacks that ask for none use what they find."""
        ours = [name for name, address in _addresses().items() if ipaddress.ip_address(address) in self._subnet]
        return [name for name in ours if self._links is None or name in self._links]

    def _rules(self) -> list[str]:
        return [subnet for subnet in _subnets() if subnet == str(self._subnet)]

    def _others_have_rules(self) -> bool:
        """The rules of a host are removed all together, once none of its sandboxes, whoever's they are, needs them."""
        return bool(_addresses()) or _subnets() != [str(self._subnet)]

    async def _volumes(self) -> list[str]:
        """What the store holds of sandboxes. Looks into it, so only when nothing else is left."""
        if not (self.home / "store.img").exists():
            return []
        store = VolumeStore(self.home)
        found = [f"{kind}/{name}" for kind in ("sandboxes", "masters") for name in store.names(kind)]
        found += [str(draft.relative_to(store.root)) for draft in (store.root / ".partial").iterdir()]
        # Others may just be looking at the mounts, as we do.
        await until(store.close)
        return found

    def _has_ended(self) -> bool:
        """Kill all its processes. Returns whether there were none."""
        left = {*self.processes(), *self.inside()}
        for group in self._groups() if left else ():
            for file in group.rglob("cgroup.freeze"):
                file.write_text("0")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    # --- after a failure -----------------------------------------------------------------------------

    async def remove_built(self, mark: str) -> None:
        """They lie in the state directory."""

    async def close(self) -> None:
        self._over.set()
        await until(self._has_ended)
        await self._remove_groups()
        self._unmount()


def _is_removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _mounted_below(table: Path, home: Path) -> list[str]:
    return [line.split()[4] for line in _text(table).splitlines() if line.split()[4].startswith(f"{home}/")]


def _subnets() -> list[str]:
    """Those that rules of this host are for."""
    return [subnet for firewall in find_firewalls() for subnet in parse_subnets(firewall.tags())]


def _addresses() -> dict[str, str]:
    """The IPv4 addresses of all links of sandboxes on this host."""
    found = {}
    with netlink.open_socket() as sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for name in netlink.list_links(sock):
            with suppress(OSError):
                said = fcntl.ioctl(asked, _GET_ADDRESS, struct.pack("256s", name.encode()))
                found[name] = socket.inet_ntoa(said[20:24])
    return found


def _pids() -> Iterator[int]:
    return (int(place.name) for place in Path("/proc").glob("[0-9]*"))


def _parent(pid: int) -> int:
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _namespace(pid: int, name: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/{name}").readlink())
    except OSError:
        return ""


def _handles(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _command(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/cmdline"))


def _shown(pid: int) -> str:
    return " ".join(_command(pid).split("\0"))[-80:]


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _json(file: Path) -> dict[str, Any]:
    text = _text(file)
    return json.loads(text) if text else {}
