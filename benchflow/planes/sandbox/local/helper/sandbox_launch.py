"""Starting a sandbox: its namespaces, its view of this machine's root, and a first process that only waits.

The order makes it secure. All mounts are made while the process still has the host's rights and its mount namespace
belongs to the host. Only then it enters a user namespace, in which every id maps to itself. Root in there is root over
files and processes, but has no rights over the mounts, the devices or the network of its own sandbox. The first
process is an executed program with no memory of this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
from typing import Any

from benchflow.planes.sandbox.local.helper import first, kernel, netlink
from benchflow.planes.sandbox.local.helper.confinement import confine
from benchflow.process_identity import read_start_time

_NAMESPACES = kernel.CLONE_NEWPID | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNET

_IDENTITY = "0 0 4294967295"
"""Id map in which every id maps to itself."""

_STILL = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}

_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}

_READ_ONLY = ("proc/sys", "proc/irq", "proc/bus", "proc/fs", "proc/sysrq-trigger")

_COVERED_FILES = (
    *("proc/kcore", "proc/keys", "proc/key-users", "proc/timer_list", "proc/sched_debug", "proc/kallsyms"),
    # They show the whole machine to the host's root, which root inside is to the kernel.
    *("proc/interrupts", "proc/latency_stats", "proc/pagetypeinfo", "proc/slabinfo", "proc/vmallocinfo"),
)

_COVERED_DIRECTORIES = (
    *("proc/acpi", "proc/asound", "proc/scsi", "sys/devices/virtual/powercap", "sys/firmware", "sys/fs/cgroup"),
)


class LaunchDiedError(Exception):
    """The first process was killed while it started."""


class LaunchRefusedError(OSError):
    """The kernel refused something to the first process, which reported it and ended."""


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start a sandbox. Return pid and start time of its first process, its workspace, and its network link if any.

    Args:
        request: `store` (directory that all other paths are relative to), `root` (empty directory to mount on), `lower`
            (layers, topmost first), `upper`, `work`, `group` (directory of the first process's cgroup), `limits` (files
            of further cgroups, to write `0` to), `hostname`, `workdir` (None: `/app` if it exists, else `/root`),
            `mounts` (each with `source`, `target` and `read_only`), `subnet` (None: no network but loopback).

    Raises:
        LaunchDiedError: The first process was killed.
        LaunchRefusedError: The kernel refused something to the first process.
        OSError: The kernel refused something to this process.
    """
    group = os.open(request["group"], os.O_PATH | os.O_DIRECTORY)
    for file in request["limits"]:
        with open(file, "w") as limit:
            limit.write("0")
    os.setsid()
    outside = netlink.open_socket() if request["subnet"] else None
    os.chdir(request["store"])
    kernel.unshare(_NAMESPACES)
    socket.sethostname(request["hostname"])
    link = _connect_network(outside, request["subnet"])
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = kernel.fork_into(group)
    if pid == 0:
        here.close()
        _run_first_process(request, there)
    there.close()
    try:
        answer = _map_ids(pid, here)
        started = read_start_time(pid)
    except LaunchRefusedError:
        raise
    except BaseException as error:
        if read_start_time(pid) is None:
            raise LaunchDiedError from error
        # The kernel then kills all of its pid namespace; a link vanishes with its namespace.
        os.kill(pid, signal.SIGKILL)
        raise
    if started is None:
        raise LaunchDiedError
    found = {"link": link.name, "address": link.address} if link else {}
    return {"pid": pid, "started": started} | found | answer


def _connect_network(outside: socket.socket | None, subnet: str | None) -> netlink.Link | None:
    """Set up the network of this process's namespace, and return its link to the host; None without a subnet."""
    inside = netlink.open_socket()
    try:
        netlink.bring_up_loopback(inside)
        netlink.open_low_ports()
        if outside is None or subnet is None:
            return None
        with outside:
            return netlink.connect(outside, inside, os.getpid(), subnet)
    finally:
        inside.close()


def _map_ids(pid: int, channel: socket.socket) -> dict[str, Any]:
    """Write the id maps of the first process, which only a process outside can do, and return its report."""
    _receive(channel)
    for table in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{table}", "w") as file:
            file.write(_IDENTITY)
    channel.send(b"{}")
    answer = _receive(channel)
    # Its end of the channel is closed by the execution (close-on-exec): the end of the channel means success.
    while rest := channel.recv(65536):
        _raise_if_error(json.loads(rest))
    return answer


def _receive(channel: socket.socket) -> dict[str, Any]:
    """Receive a message of the first process. Raise `LaunchDiedError` at its end, `LaunchRefusedError` for an error."""
    said = channel.recv(65536)
    if not said:
        raise LaunchDiedError
    answer: dict[str, Any] = json.loads(said)
    _raise_if_error(answer)
    return answer


def _raise_if_error(answer: dict[str, Any]) -> None:
    if "error" in answer:
        raise LaunchRefusedError(answer.get("errno"), answer["error"])


# --- the first process --------------------------------------------------------------------------------------


def _run_first_process(request: dict[str, Any], channel: socket.socket) -> None:
    """Mount the sandbox's view, give up all rights, and execute the idle program. Never returns."""
    try:
        os.setsid()
        limits = _mount_all(request)
        workdir = _make_directories(request["workdir"])
        kernel.unshare(kernel.CLONE_NEWUSER)
        channel.send(b"{}")
        if not channel.recv(16):
            os._exit(1)
        # No user namespaces inside the sandbox: one would open much of the kernel to its programs.
        with open("max_user_namespaces", "w", opener=lambda name, flags: os.open(name, flags, dir_fd=limits)) as file:
            file.write("0")
        os.close(limits)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.umask(0o022)
        program = first.prepare()
        confine(())
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        # An ignored SIGCHLD stays ignored after the execution: the kernel reaps the orphans.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        channel.send(json.dumps({"workdir": workdir}).encode())
        # All but the channel and the program, which the execution closes.
        low, high = sorted((channel.fileno(), program))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, 65536)
        first.execute(program)
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else None
        # The receiver may have been killed, and this process must not respond in its place.
        with contextlib.suppress(OSError):
            channel.send(json.dumps({"error": f"{type(error).__name__}: {error}", "errno": number}).encode())
    os._exit(1)


def _mount_all(request: dict[str, Any]) -> int:
    """Mount the whole view of the sandbox and make it the root. Return a handle on the sysctls of user namespaces."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    lower = ":".join(request["lower"])
    kernel.mount(
        "overlay",
        request["root"],
        "overlay",
        kernel.MS_NODEV,
        # `volatile`: a sandbox is disposable, so it never waits for the disk. A capture syncs what it copies.
        f"lowerdir={lower},upperdir={request['upper']},workdir={request['work']},volatile"
        ",redirect_dir=off,index=off,metacopy=off",
    )
    os.chdir(request["root"])
    kernel.mount("proc", "proc", "proc", _STILL)
    kernel.mount("sysfs", "sys", "sysfs", _STILL | kernel.MS_RDONLY)
    _mount_devices()
    limits = os.open("proc/sys/user", os.O_PATH | os.O_DIRECTORY)
    for path in _READ_ONLY:
        if os.path.exists(path):
            kernel.mount(path, path, None, kernel.MS_BIND)
            kernel.mount("none", path, None, _STILL | kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY)
    for path in _COVERED_FILES:
        if os.path.exists(path):
            kernel.mount("dev/null", path, None, kernel.MS_BIND)
    for path in _COVERED_DIRECTORIES:
        if os.path.isdir(path):
            kernel.mount("none", path, "tmpfs", _STILL | kernel.MS_RDONLY, "size=4k,mode=555")
    carried = [(kernel.open_tree(mount["source"]), mount) for mount in request["mounts"]]
    kernel.change_root()
    for tree, mount in carried:
        os.makedirs(mount["target"], exist_ok=True)
        kernel.attach(tree, mount["target"])
        os.close(tree)
        wanted = kernel.MS_RDONLY if mount["read_only"] else 0
        flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV | wanted
        kernel.mount("none", mount["target"], None, flags)
    return limits


def _mount_devices() -> None:
    """Mount and fill /dev."""
    os.umask(0)
    kernel.mount("dev", "dev", "tmpfs", kernel.MS_NOSUID, "mode=755,size=1m")
    for name, (major, minor) in _DEVICES.items():
        os.mknod(f"dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
    for name, target in _LINKS.items():
        os.symlink(target, f"dev/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"dev/{name}", 0o755)
    kernel.mount(
        "devpts", "dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"
    )
    kernel.mount("shm", "dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777,size=1g")
    kernel.mount("mqueue", "dev/mqueue", "mqueue", _STILL)
    os.umask(0o022)


def _make_directories(workdir: str | None) -> str:
    """Create the directories that every sandbox has, and return the workspace.

    Those of the agent and of artifacts are writable for all, whichever user the agent is.
    """
    chosen = workdir or ("/app" if os.path.isdir("/app") else "/root")
    modes = {"/logs": 0o755, "/logs/verifier": 0o755, "/logs/agent": 0o777, "/logs/artifacts": 0o777}
    for path, mode in modes.items():
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
    os.makedirs(chosen, exist_ok=True)
    return chosen
