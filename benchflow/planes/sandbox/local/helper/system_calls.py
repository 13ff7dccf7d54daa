"""System calls that the kernel refuses to every process of a local sandbox, each with the reason, and their numbers.

Docker's default profile is the model. By intent, io_uring, `fanotify_init`, `F_SETLEASE`, `TIOCSETD` and most socket
families are refused as well, and `ADDR_NO_RANDOMIZE` is allowed (gdb and sanitizers need it). `ptrace` is allowed: a
debugger can attach only to processes of the sandbox, and its first process is not traceable.
"""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple


class Refused(NamedTuple):
    """System calls that are refused whatever their arguments."""

    calls: tuple[str, ...]
    """Names of the calls."""
    error: int
    """The errno."""
    reason: str
    """Reason of the refusal."""


class Restricted(NamedTuple):
    """System calls that are refused by one argument. The kernel reads only its lower 32 bits, which are compared."""

    calls: tuple[str, ...]
    """Names of the calls."""
    argument: int
    """Index of the argument."""
    error: int
    """The errno."""
    reason: str
    """Reason of the refusal."""
    never: tuple[int, ...] = ()
    """Values that are refused."""
    bits: int = 0
    """Bits of which none may be set."""
    only: tuple[int, ...] = ()
    """The only values that are allowed; empty to allow all others."""


REFUSED = (
    Refused(
        ("io_uring_setup", "io_uring_enter", "io_uring_register"),
        errno.ENOSYS,
        "its operations pass by this filter; libuv, tokio and others fall back",
    ),
    Refused(("clone3",), errno.ENOSYS, "its flags are in memory, out of a filter's sight; libc falls back to clone"),
    Refused(
        ("socketcall",), errno.ENOSYS, "its arguments are in memory; 32-bit programs with newer calls use socket itself"
    ),
    Refused(("add_key", "request_key", "keyctl"), errno.EPERM, "no namespace divides the kernel's keys"),
    Refused(
        (
            *("mount", "umount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount"),
            *("open_tree", "open_tree_attr", "mount_setattr"),
        ),
        errno.EPERM,
        "the view of the host's files is made of mounts",
    ),
    Refused(("statmount", "listmount"), errno.ENOSYS, "details of mounts that nothing inside needs"),
    Refused(("setns",), errno.EPERM, "a namespace that was given away would be entered"),
    Refused(("open_by_handle_at",), errno.EPERM, "opens files by number, past the root directory"),
    Refused(("bpf", "perf_event_open", "userfaultfd"), errno.EPERM, "large, and often part of kernel exploits"),
    Refused(("kcmp",), errno.EPERM, "tells addresses of kernel objects apart"),
    Refused(("fanotify_init",), errno.EPERM, "watches file systems that the sandbox shares with the host"),
    Refused(
        (
            *("init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms"),
            *("kexec_load", "kexec_file_load"),
        ),
        errno.EPERM,
        "changes the kernel itself",
    ),
    Refused(
        (
            *("clock_settime", "clock_settime64", "clock_adjtime", "clock_adjtime64", "settimeofday", "stime"),
            *("reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "sethostname", "setdomainname"),
            *("syslog", "vhangup", "nfsservctl", "_sysctl"),
        ),
        errno.EPERM,
        "administers the host: its clock, swap, accounting, quotas, log and power",
    ),
    Refused(
        (
            *("get_mempolicy", "set_mempolicy", "set_mempolicy_home_node", "mbind", "move_pages", "migrate_pages"),
            *("ioperm", "iopl", "vm86", "vm86old", "uselib", "ustat", "sysfs", "lookup_dcookie"),
            *("pciconfig_read", "pciconfig_write", "pciconfig_iobase", "rtas", "spu_create", "spu_run"),
            *("subpage_prot", "switch_endian", "s390_pci_mmio_read", "s390_pci_mmio_write", "s390_runtime_instr"),
            "s390_sthyi",
        ),
        errno.EPERM,
        "hardware, memory nodes, or kept for old programs only",
    ),
)

_NEW_NAMESPACES = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_F_SETLEASE = 1024
_UNAME26, _ADDR_NO_RANDOMIZE, _LINUX32, _QUERY = 0x20000, 0x40000, 8, 0xFFFFFFFF

_NAMESPACES = "a namespace of one's own opens much of the kernel to its programs"

RESTRICTED = (
    Restricted(("clone",), 0, errno.EPERM, _NAMESPACES, bits=_NEW_NAMESPACES),
    Restricted(("unshare",), 0, errno.EPERM, _NAMESPACES, bits=_NEW_NAMESPACES | _NEW_TIME_NAMESPACE),
    Restricted(
        ("ioctl",),
        1,
        errno.EPERM,
        "types into another's terminal (TIOCSTI, TIOCLINUX), or loads a line discipline (TIOCSETD)",
        never=(_TIOCSTI, _TIOCLINUX, _TIOCSETD),
    ),
    Restricted(
        ("fcntl", "fcntl64"),
        1,
        errno.EPERM,
        "a lease (F_SETLEASE) on a file of output makes whoever reads it on the host wait",
        never=(_F_SETLEASE,),
    ),
    Restricted(
        ("personality",),
        0,
        errno.EPERM,
        "other flags weaken the protection of memory, or reach code for old systems",
        only=(*(flags | kind for flags in (0, _UNAME26, _ADDR_NO_RANDOMIZE) for kind in (0, _LINUX32)), _QUERY),
    ),
)

_ICMP, _TCP, _UDP, _ICMPV6, _MPTCP = 1, 6, 17, 58, 262
_ROUTE = 0
_INTERNET = (0, _ICMP, _TCP, _UDP, _ICMPV6, _MPTCP)

SOCKETS: dict[int, tuple[int, ...] | None] = {
    socket.AF_UNIX: None,
    socket.AF_INET: _INTERNET,
    socket.AF_INET6: _INTERNET,
    16: (_ROUTE,),
}
"""Socket families that are allowed, and the protocols of each; None for any.

16 is netlink, whose routes tell libc which addresses there are. Other families reach past the sandbox (vsock: the
hypervisor), or make the kernel load modules.
"""

SOCKET_CALLS = ("socket", "socketpair")

SOCKET_REASON = "families other than unix, inet, inet6 and netlink's routes reach the hypervisor, or load modules"

NEWEST = 469
"""The last call of Linux 6.18.

Since 424, calls have the same number on all machines. A later call gets ENOSYS, as from an older kernel, since it has
not been reviewed yet. The numbers of the x32 ABI are larger still.
"""

_ABIS = ("x86_64", "i386", "generic", "ppc64le", "s390x")

_NUMBERS: dict[str, tuple[int | None, ...]] = {
    "acct": (163, 51, 89, 51, 51),
    "add_key": (248, 286, 217, 269, 278),
    "bpf": (321, 357, 280, 361, 351),
    "clock_adjtime": (305, 343, 266, 347, 337),
    "clock_adjtime64": (None, 405, None, None, None),
    "clock_settime": (227, 264, 112, 245, 259),
    "clock_settime64": (None, 404, None, None, None),
    "clone": (56, 120, 220, 120, 120),
    "clone3": (435, 435, 435, 435, 435),
    "create_module": (174, 127, None, 127, 127),
    "delete_module": (176, 129, 106, 129, 129),
    "fanotify_init": (300, 338, 262, 323, 332),
    "fcntl": (72, 55, 25, 55, 55),
    "fcntl64": (None, 221, None, None, None),
    "finit_module": (313, 350, 273, 353, 344),
    "fsconfig": (431, 431, 431, 431, 431),
    "fsmount": (432, 432, 432, 432, 432),
    "fsopen": (430, 430, 430, 430, 430),
    "fspick": (433, 433, 433, 433, 433),
    "get_kernel_syms": (177, 130, None, 130, 130),
    "get_mempolicy": (239, 275, 236, 260, 269),
    "init_module": (175, 128, 105, 128, 128),
    "io_uring_enter": (426, 426, 426, 426, 426),
    "io_uring_register": (427, 427, 427, 427, 427),
    "io_uring_setup": (425, 425, 425, 425, 425),
    "ioctl": (16, 54, 29, 54, 54),
    "ioperm": (173, 101, None, 101, None),
    "iopl": (172, 110, None, 110, None),
    "kcmp": (312, 349, 272, 354, 343),
    "kexec_file_load": (320, None, 294, 382, 381),
    "kexec_load": (246, 283, 104, 268, 277),
    "keyctl": (250, 288, 219, 271, 280),
    "listmount": (458, 458, 458, 458, 458),
    "lookup_dcookie": (212, 253, 18, 235, 110),
    "mbind": (237, 274, 235, 259, 268),
    "migrate_pages": (256, 294, 238, 258, 287),
    "mount": (165, 21, 40, 21, 21),
    "mount_setattr": (442, 442, 442, 442, 442),
    "move_mount": (429, 429, 429, 429, 429),
    "move_pages": (279, 317, 239, 301, 310),
    "nfsservctl": (180, 169, 42, 168, 169),
    "open_by_handle_at": (304, 342, 265, 346, 336),
    "open_tree": (428, 428, 428, 428, 428),
    "open_tree_attr": (467, 467, 467, 467, 467),
    "pciconfig_iobase": (None, None, None, 200, None),
    "pciconfig_read": (None, None, None, 198, None),
    "pciconfig_write": (None, None, None, 199, None),
    "perf_event_open": (298, 336, 241, 319, 331),
    "personality": (135, 136, 92, 136, 136),
    "pivot_root": (155, 217, 41, 203, 217),
    "query_module": (178, 167, None, 166, 167),
    "quotactl": (179, 131, 60, 131, 131),
    "quotactl_fd": (443, 443, 443, 443, 443),
    "reboot": (169, 88, 142, 88, 88),
    "request_key": (249, 287, 218, 270, 279),
    "rtas": (None, None, None, 255, None),
    "s390_pci_mmio_read": (None, None, None, None, 353),
    "s390_pci_mmio_write": (None, None, None, None, 352),
    "s390_runtime_instr": (None, None, None, None, 342),
    "s390_sthyi": (None, None, None, None, 380),
    "seccomp": (317, 354, 277, 358, 348),
    "set_mempolicy": (238, 276, 237, 261, 270),
    "set_mempolicy_home_node": (450, 450, 450, 450, 450),
    "setdomainname": (171, 121, 162, 121, 121),
    "sethostname": (170, 74, 161, 74, 74),
    "setns": (308, 346, 268, 350, 339),
    "settimeofday": (164, 79, 170, 79, 79),
    "socket": (41, 359, 198, 326, 359),
    "socketcall": (None, 102, None, 102, 102),
    "socketpair": (53, 360, 199, 333, 360),
    "spu_create": (None, None, None, 279, None),
    "spu_run": (None, None, None, 278, None),
    "statmount": (457, 457, 457, 457, 457),
    "stime": (None, 25, None, 25, None),
    "subpage_prot": (None, None, None, 310, None),
    "swapoff": (168, 115, 225, 115, 115),
    "swapon": (167, 87, 224, 87, 87),
    "switch_endian": (None, None, None, 363, None),
    "sysfs": (139, 135, None, 135, 135),
    "_sysctl": (156, 149, None, 149, 149),
    "syslog": (103, 103, 116, 103, 103),
    "umount": (None, 22, None, 22, 22),
    "umount2": (166, 52, 39, 52, 52),
    "unshare": (272, 310, 97, 282, 303),
    "uselib": (134, 86, None, 86, 86),
    "userfaultfd": (323, 374, 282, 364, 355),
    "ustat": (136, 62, None, 62, 62),
    "vhangup": (153, 111, 58, 111, 111),
    "vm86": (None, 166, None, 113, None),
    "vm86old": (None, 113, None, None, None),
}
"""Numbers by name, one for each of `_ABIS`; None if there is no such call. generic: aarch64, riscv64, loongarch64."""


class Abi(NamedTuple):
    """The way in which programs of one kind call the kernel."""

    architecture: int
    """The kernel's number of it (AUDIT_ARCH), as filters see it."""
    numbers: str
    """Column of `_NUMBERS`."""
    is_big_endian: bool = False
    """Whether the upper half of an argument comes first."""
    clone_flags: int = 0
    """Index of the argument of `clone` that holds its flags."""

    def number(self, call: str) -> int | None:
        """Return the number of a call; None if this ABI does not have it."""
        return _NUMBERS[call][_ABIS.index(self.numbers)]


MACHINES: dict[str, tuple[Abi, ...]] = {
    "x86_64": (Abi(0xC000003E, "x86_64"), Abi(0x40000003, "i386")),
    "aarch64": (Abi(0xC00000B7, "generic"),),
    "riscv64": (Abi(0xC00000F3, "generic"),),
    "loongarch64": (Abi(0xC0000102, "generic"),),
    "ppc64le": (Abi(0xC0000015, "ppc64le"),),
    "s390x": (Abi(0x80000016, "s390x", is_big_endian=True, clone_flags=1),),
}
"""ABIs by machine, as uname(2) names it, its own first. Programs of any other are killed: 32-bit ARM's, for one."""
