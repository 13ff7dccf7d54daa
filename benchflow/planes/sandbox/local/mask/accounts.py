"""Files that replace the host's own in sandboxes: accounts without people, host names, resolvers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTNAME = "sandbox"
NOBODY = 65534
FIRST_PERSON = 1000
"""First uid of people's accounts."""

MACHINE_ID = hashlib.sha256(b"benchflow sandbox").hexdigest()[:32]
"""Machine id, the same in every sandbox, so that it does not reveal the host."""

HOSTS = f"""127.0.0.1 localhost
127.0.1.1 {HOSTNAME}
::1 localhost ip6-localhost ip6-loopback
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
"""
"""Content of /etc/hosts."""


@dataclass(frozen=True)
class PasswdEntry:
    """A line of the host's passwd."""

    name: str
    """Login name."""
    uid: int
    """User id."""
    gid: int
    """Primary group."""
    gecos: str
    """Comment."""
    home: str
    """Home directory."""
    shell: str
    """Login shell."""

    @property
    def person(self) -> bool:
        """Return whether a person uses this account, or root, so that its home is hidden from sandboxes."""
        return self.uid == 0 or (self.uid >= FIRST_PERSON and self.uid != NOBODY)


@dataclass(frozen=True)
class GroupEntry:
    """A line of the host's group."""

    name: str
    """Name of the group."""
    gid: int
    """Group id."""
    members: tuple[str, ...]
    """Login names of its members."""


class Accounts:
    """The host's accounts and groups, and those of them that sandboxes see: system accounts, all locked.

    Args:
        root: Root directory of the host.

    Attributes:
        everyone: All accounts of the host.
        kept: Accounts that sandboxes see: root with a default shell, and system accounts.
        groups: System groups, with only the members that sandboxes see.
    """

    def __init__(self, root: Path) -> None:
        """Read the host's tables."""
        self.everyone = list(_read_accounts(root))
        self._shell = "/bin/bash" if (root / "bin/bash").exists() or (root / "usr/bin/bash").exists() else "/bin/sh"
        superuser = PasswdEntry("root", 0, 0, "root", "/root", self._shell)
        system = [found for found in self.everyone if found.uid and _is_of_system(found.uid)]
        self.kept = [superuser, *system]
        names = {account.name for account in self.kept}
        self.groups = [
            GroupEntry(group.name, group.gid, tuple(member for member in group.members if member in names))
            for group in _read_groups(root)
            if _is_of_system(group.gid)
        ] or [GroupEntry("root", 0, ())]

    def passwd(self) -> str:
        """Return the content of passwd in sandboxes."""
        return _join_lines(f"{one.name}:x:{one.uid}:{one.gid}:{one.gecos}:{one.home}:{one.shell}" for one in self.kept)

    def shadow(self) -> str:
        """Return the content of shadow in sandboxes, without passwords."""
        return _join_lines(f"{account.name}:*:19700:0:99999:7:::" for account in self.kept)

    def group(self) -> str:
        """Return the content of group in sandboxes."""
        return _join_lines(f"{group.name}:x:{group.gid}:{','.join(group.members)}" for group in self.groups)

    def gshadow(self) -> str:
        """Return the content of gshadow in sandboxes, without passwords."""
        return _join_lines(f"{group.name}:*::{','.join(group.members)}" for group in self.groups)

    @property
    def shadow_group(self) -> int:
        """Return the gid of the group that may read shadow; root's if the host has none."""
        return next((group.gid for group in self.groups if group.name == "shadow"), 0)

    def overrides(self, text: str) -> str:
        """Return dpkg's statoverride without lines of accounts that sandboxes lack: with them dpkg would refuse to run.

        Args:
            text: Content of the host's file.
        """
        users = {account.name for account in self.kept}
        groups = {group.name for group in self.groups}

        def known(line: str) -> bool:
            user, group, *_ = [*line.split(), "", ""]
            return (user in users or user.startswith("#")) and (group in groups or group.startswith("#"))

        return _join_lines(line for line in text.splitlines() if known(line))


def format_resolv_conf(nameservers: Sequence[str]) -> str:
    """Return the content of resolv.conf with these resolvers."""
    return _join_lines(f"nameserver {address}" for address in nameservers)


def _read_accounts(root: Path) -> Iterator[PasswdEntry]:
    """Yield the valid accounts of passwd."""
    for fields in _read_table(root / "etc/passwd", 7):
        name, _, uid, gid, gecos, home, shell = fields
        if uid.isdecimal() and gid.isdecimal():
            yield PasswdEntry(name, int(uid), int(gid), gecos, home, shell)


def _read_groups(root: Path) -> Iterator[GroupEntry]:
    """Yield the valid groups of group."""
    for name, _, gid, members in _read_table(root / "etc/group", 4):
        if gid.isdecimal():
            yield GroupEntry(name, int(gid), tuple(filter(None, members.split(","))))


def _read_table(file: Path, columns: int) -> Iterator[list[str]]:
    """Yield the fields of each line with so many columns; none if there is no file."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.is_file() else ""
    for line in text.splitlines():
        fields = line.split(":")
        # NIS and similar services add lines that begin with a sign.
        if len(fields) == columns and fields[0] and fields[0][0] not in "+-#":
            yield fields


def _is_of_system(number: int) -> bool:
    """Return whether an id is one of the system, or nobody's."""
    return number < FIRST_PERSON or number == NOBODY


def _join_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
