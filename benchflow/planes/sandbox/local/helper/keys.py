"""The kernel's keys: a sandbox has none, and cannot ask for any.

No namespace divides them. A session's keyring, which may hold what whoever started the engine keeps there, goes on to
all that is started from it; and every key has a number, by which root of a sandbox, being the same user to the kernel
as root of the host, could reach the host's and the other sandboxes' keys without ever having been given them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from benchflow.planes.sandbox.local.helper.kernel import syscall

_JOIN_SESSION_KEYRING = 1
_SET_MODE_FILTER = 1
_FILTER_FLAG_SPEC_ALLOW = 4

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_X32 = 0x40000000

_GENERIC = (277, (217, 218, 219))
_CALLS = {
    "x86_64": (317, (248, 249, 250)),
    "ppc64le": (358, (269, 270, 271)),
    "s390x": (348, (278, 279, 280)),
    **dict.fromkeys(("aarch64", "riscv64", "loongarch64"), _GENERIC),
}
"""By machine: the number of seccomp, and those of add_key, request_key and keyctl."""

_TABLES = {
    "x86_64": ((0xC000003E, (248, 249, 250, _X32 + 248, _X32 + 249, _X32 + 250)), (0x40000003, (286, 287, 288))),
    "aarch64": ((0xC00000B7, (217, 218, 219)), (0x40000028, (309, 310, 311))),
    "riscv64": ((0xC00000F3, (217, 218, 219)),),
    "loongarch64": ((0xC0000102, (217, 218, 219)),),
    "ppc64le": ((0xC0000015, (269, 270, 271)),),
    "s390x": ((0x80000016, (278, 279, 280)),),
}
"""By machine: the architectures whose programs it runs, as the kernel names them, each with its numbers of the same."""


MACHINES = frozenset(_CALLS)
"""The machines, as uname(2) names them, on which a sandbox can be kept from the keys."""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def give_up_keys() -> None:
    """Leave the session's keyring for an empty one, and have all further asking for keys refused, for good.

    The process can gain no privileges any more (`kernel.no_new_privileges`). On a kernel without keyrings there is
    nothing to give up; in a container that refuses them already, neither.
    """
    machine = os.uname().machine
    seccomp, (*_, keyctl) = _CALLS[machine]
    try:
        syscall("keyctl", keyctl, _JOIN_SESSION_KEYRING, None)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return
        raise
    steps = _filter(machine)
    program = _Program(len(steps) // 8, steps)
    # The flag: the filter is no reason to give up speculation, since what is refused is no secret of the process's own.
    syscall("seccomp", seccomp, _SET_MODE_FILTER, _FILTER_FLAG_SPEC_ALLOW, ctypes.byref(program))


def _filter(machine: str) -> bytes:
    """A program for the kernel's filter of system calls: a part for each architecture, and a refusal at the end."""
    parts: list[list[tuple[int, int, int, int]]] = []
    for architecture, numbers in _TABLES[machine]:
        checks = [(_JUMP_IF_EQUAL, -1, 0, number) for number in numbers]
        rest = [(_LOAD, 0, 0, _NUMBER), *checks, (_RETURN, 0, 0, _ALLOW)]
        parts.append([(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_IF_EQUAL, 0, len(rest), architecture), *rest])
    steps = [step for part in parts for step in part]
    # Of an architecture that is not in the table nothing is known, so nothing is allowed: the end is where it gets to.
    end = len(steps)
    placed = [(code, end - at - 1 if yes < 0 else yes, no, value) for at, (code, yes, no, value) in enumerate(steps)]
    return b"".join(struct.pack("=HBBI", *step) for step in [*placed, (_RETURN, 0, 0, _REFUSE)])
