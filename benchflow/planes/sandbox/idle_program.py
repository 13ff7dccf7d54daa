"""The idle program: a sandbox's first process, which waits for ever.

It is a file of some 300 bytes without libraries, because the image of a sandbox that was forked or restored has what an
agent left there: a shell, a `sleep` or a loader of the agent's would be a process that no verifier ends.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_BASE = 0x400000
"""Address at which the program is loaded."""

_HEADERS = 64 + 2 * 56
"""Bytes of the ELF header and of two program headers."""

_MAX_PAGE = 0x10000
"""Largest page size of the machines: the segment's alignment."""


class _Code(NamedTuple):
    """Machine code of one machine, in hex.

    Args:
        machine: Number of the machine in the ELF header.
        hide: `prctl(PR_SET_DUMPABLE, 0)`.
        code: `rt_sigaction(SIGCHLD, action, 0, 8)` with the action that precedes all code, then `ppoll(0, 0, 0, 0)` in
            a loop.
        flags: Flags in the ELF header.
        order: Byte order, as in `struct`.
    """

    machine: int
    hide: str
    code: str
    flags: int = 0
    order: str = "<"


_CODES = {
    "x86_64": _Code(
        62,
        "b89d000000 bf04000000 31f6 0f05",
        "b80d000000 bf11000000 488d35c1ffffff 31d2 41ba08000000 0f05b80f010000 31ff 31f6 31d2 4531d2 0f05 ebee",
    ),
    "aarch64": _Code(
        183,
        "e81480d2 800080d2 e1031faa 010000d4",
        "c81080d2 200280d2 41feff10 e2031faa 030180d2 010000d4"
        "280980d2 e0031faa e1031faa e2031faa e3031faa 010000d4 faffff17",
    ),
    "riscv64": _Code(
        243,
        "9308700a 13054000 93050000 73000000",
        "93086008 13051001 97050000 938585fc 13060000 93068000 73000000"
        "93089004 13050000 93050000 13060000 93060000 73000000 6ff09ffe",
    ),
    "loongarch64": _Code(
        258,
        "0b9c8202 04108002 05008002 00002b00",
        "0b188202 04448002 45feff19 06008002 07208002 00002b00"
        "0b248102 04008002 05008002 06008002 07008002 00002b00 ffebff53",
        flags=0x43,
    ),
    "ppc64le": _Code(
        21,
        "ab000038 04006038 00008038 02000044",
        "ad000038 11006038 4000803c b0008460 0000a038 0800c038 02000044"
        "19010038 00006038 00008038 0000a038 0000c038 02000044 e8ffff4b",
        flags=2,
    ),
    "s390x": _Code(
        22,
        "a7290004 a7390000 0aac",
        "a7290011 c030ffffffe9 a7490000 a7590008 0aaea719012e a7290000 a7390000 a7490000 a7590000 0a00 a7f4fff5",
        order=">",
    ),
}

MACHINES = tuple(_CODES)
"""Machines for which there is a program, as the kernel names them."""


def build_program(machine: str, *, is_hidden: bool = True) -> bytes:
    """Return the program for a machine, as an ELF file without sections.

    Args:
        machine: Machine, one of `MACHINES`.
        is_hidden: Whether no process inside may trace it or read its environment. The kernel allows or forbids both
            together.
    """
    kind, hide, code, flags, order = _CODES[machine]
    # SIG_IGN for SIGCHLD: the kernel then reaps the orphans of the sandbox, which is otherwise a PID 1's task.
    action = struct.pack(f"{order}QQQQ", 1, 0, 0, 0)
    text = action + bytes.fromhex(hide + code)
    identity = b"\x7fELF" + bytes([2, 1 if order == "<" else 2, 1]) + bytes(9)
    entry = _BASE + _HEADERS + len(action) + (0 if is_hidden else len(bytes.fromhex(hide)))
    header = struct.pack(f"{order}HHIQQQIHHHHHH", 2, kind, 1, entry, 64, 0, flags, 64, 56, 2, 0, 0, 0)
    size = _HEADERS + len(text)
    load = struct.pack(f"{order}IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, _MAX_PAGE)
    # Without this header (PT_GNU_STACK) its stack would be executable.
    stack = struct.pack(f"{order}IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return identity + header + load + stack + text
