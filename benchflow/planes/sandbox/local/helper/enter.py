"""Entering a sandbox to run a command: from the host's side, with no more rights than root in it has.

The process that enters stays outside of the sandbox's pid namespace, where no process inside can see, trace or kill it.
It alone learns the command's exit code, and writes it to a file that the sandbox cannot reach.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

from benchflow.planes.sandbox.local.helper import kernel
from benchflow.planes.sandbox.local.helper.confinement import confine
from benchflow.process_identity import open_process, read_start_time

_ALL = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWNET
)

NOT_STARTED = 126
NOT_FOUND = 127
STARTED = "started"
"""Name of the file that marks a command as started."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessGoneError(Exception):
    """The sandbox no longer runs."""


class NoSuchUserError(Exception):
    """There is no such user in the sandbox."""


class CommandUser:
    """The user that a command runs as. `groups` are all groups, the first one included."""

    def __init__(self, uid: int, gid: int, groups: list[int], home: str) -> None:
        """Make it."""
        self.uid, self.gid, self.groups, self.home = uid, gid, groups, home


def run(request: dict[str, Any], fds: list[int], reply: Callable[[dict[str, Any]], None]) -> None:
    """Run a command to its end, respond when it is about to start, and write its exit code to the status file.

    Args:
        request: `pid` and `started` of the sandbox's first process; `group`, the directory of the cgroup that the
            command is born in; `limits`, files of further cgroups, to write `0` to; `argv`, `env`, `cwd`, `user`;
            `once`, None or a directory for the mark that it was started: with a mark there already, it is not started
            again.
        fds: Stdout, stderr and status, all opened outside.
        reply: Sends the response, which is the mark, or `already`.

    Raises:
        ProcessGoneError: The sandbox no longer runs.
        NoSuchUserError: There is no such user in the sandbox.
    """
    out, err, status = fds
    # The first process's /dev/null as stdin. Not the host's, whose mode root inside could change for the whole machine;
    # nor the one at that path inside, which may be anything by now.
    try:
        null = os.open(f"/proc/{request['pid']}/fd/0", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessGoneError from error
    group = os.open(request["group"], os.O_PATH | os.O_DIRECTORY)
    limits = [os.open(file, os.O_WRONLY) for file in request["limits"]]
    once = os.open(request["once"], os.O_PATH | os.O_DIRECTORY) if request["once"] else None
    own = read_start_time(os.getpid())
    enter(request, _ALL)
    account = find_account(request["user"])
    mark = {"pid": os.getpid(), "started": own, "at": time.monotonic()}
    if once is not None and not _mark_started(once, mark):
        reply({"already": True})
        return
    for fd in (out, err):
        os.fchown(fd, account.uid, account.gid)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        pid = kernel.fork_into(group)
    except OSError as error:
        # The kernel refuses a fork into a pid namespace whose first process has ended.
        os.write(status, b"137\n")
        raise ProcessGoneError from error
    if pid == 0:
        _become(request, account, (null, out, err), limits)
    for fd in (out, err, null, group, *limits):
        os.close(fd)
    reply(mark)
    _, how = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(how)
    with contextlib.suppress(OSError):
        # The worker may be gone, and the pipe's read end with it.
        os.write(status, b"%d\n" % (code if code >= 0 else 128 - code))


def enter(request: dict[str, Any], namespaces: int) -> None:
    """Enter namespaces of a sandbox. Raise `ProcessGoneError` if it no longer runs."""
    handle = open_process(request["pid"], request["started"])
    if handle is None:
        raise ProcessGoneError
    try:
        kernel.setns(handle, namespaces)
    except ProcessLookupError as error:
        raise ProcessGoneError from error
    finally:
        os.close(handle)


def enter_for_files(request: dict[str, Any]) -> None:
    """Enter a sandbox to see its files as its root does, with no more rights. Raise `ProcessGoneError` if it has ended.

    A path of the sandbox may lead to the kernel's own files, where root of the host may read more than root inside.
    """
    enter(request, kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    kernel.keep_capabilities(kernel.CAPABILITIES.values())


def _mark_started(directory: int, mark: dict[str, Any]) -> bool:
    """Create the mark as a whole unless there is one. Return whether it was created, so that the command may start."""
    part = f".{STARTED}.{mark['pid']}"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=directory)
    with open(fd, "w") as file:
        file.write(json.dumps(mark))
    try:
        os.link(part, STARTED, src_dir_fd=directory, dst_dir_fd=directory)
    except FileExistsError:
        return False
    finally:
        os.unlink(part, dir_fd=directory)
    return True


def _become(request: dict[str, Any], account: CommandUser, streams: tuple[int, int, int], limits: list[int]) -> None:
    """Turn into the command. Never returns."""
    code = NOT_STARTED
    try:
        os.setsid()
        for limit in limits:
            os.write(limit, b"0")
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(3, 65536)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        confine(kernel.CAPABILITIES.values())
        # As root, as in a container: a command may start in a directory that its user may not enter.
        os.chdir(request["cwd"])
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        argv = request["argv"]
        os.execvpe(argv[0], argv, {"PATH": PATH, "HOME": account.home, "PWD": request["cwd"]} | request["env"])
    except FileNotFoundError as error:
        code = NOT_STARTED if error.filename == request["cwd"] else NOT_FOUND
        _report_error(error, request)
    except BaseException as error:
        _report_error(error, request)
    os._exit(code)


def _report_error(error: BaseException, request: dict[str, Any]) -> None:
    """Write the reason why a command can't be started to its stderr."""
    name = getattr(error, "filename", None) or request["argv"][0]
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    why = getattr(error, "strerror", None) or str(error)
    # After a search along PATH the error names the last directory searched, which would mislead.
    shown = name if name == request["cwd"] else request["argv"][0]
    # Nothing may read stderr, or the disk may be full; this process must still exit, with its own status.
    with contextlib.suppress(OSError):
        os.write(2, f"{shown}: {why}\n".encode(errors="surrogateescape"))


# --- accounts -----------------------------------------------------------------------------------------------


def find_account(user: str) -> CommandUser:
    """Return the account of a user, from the tables of the root that this process is in.

    Args:
        user: `name`, `uid`, `name:group` or `uid:gid`. A number need not be in the tables.

    Raises:
        NoSuchUserError: There is no such user or group.
    """
    name, _, group = user.partition(":")
    uid = gid = -1
    home, login = "/", name
    for row in _read_rows("/etc/passwd", 7):
        if row[0] == name or (name.isdigit() and row[2] == name):
            login, uid, gid, home = row[0], int(row[2]), int(row[3]), row[5] or "/"
            break
    if uid < 0:
        if name in ("0", "root"):
            uid, gid, home = 0, 0, "/root"
        elif name.isdigit():
            uid, gid = int(name), 0
        else:
            raise NoSuchUserError(name)
    groups = [gid]
    for row in _read_rows("/etc/group", 4):
        if group and (row[0] == group or row[2] == group):
            gid = int(row[2])
        if login in row[3].split(",") and int(row[2]) not in groups:
            groups.append(int(row[2]))
    if group and group.isdigit():
        gid = int(group)
    elif group and gid == groups[0] and not any(row[0] == group for row in _read_rows("/etc/group", 4)):
        raise NoSuchUserError(user)
    if group:
        groups = [gid]
    return CommandUser(uid, gid, groups, home)


def _read_rows(path: str, fields: int) -> list[list[str]]:
    """Return the valid rows of an account table; none if unreadable. The sandbox's root may have put anything in it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    with open(fd, errors="surrogateescape") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        rows = [line.rstrip("\n").split(":") for line in file.read(4 * 1024 * 1024).splitlines()]
    valid = [row for row in rows if len(row) == fields and row[2].isdigit() and len(row[2]) < 11]
    return [row for row in valid if fields != 7 or (row[3].isdigit() and len(row[3]) < 11)]


assert sys.platform == "linux"
