"""The files that sandboxes get instead of the host's own: accounts without people, names, resolvers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTNAME = "sandbox"
NOBODY = 65534
FIRST_PERSON = 1000

MACHINE_ID = hashlib.sha256(b"benchflow sandbox").hexdigest()[:32]
"""The same in every sandbox, so that it tells nothing of the host."""

HOSTS = f"""127.0.0.1 localhost
127.0.1.1 {HOSTNAME}
::1 localhost ip6-localhost ip6-loopback
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
"""


@dataclass(frozen=True)
class Account:
    """A line of the host's passwd."""

    name: str
    uid: int
    gid: int
    gecos: str
    home: str
    shell: str

    @property
    def person(self) -> bool:
        """Whether somebody works as this account, so that its home is not for sandboxes."""
        return self.uid == 0 or (self.uid >= FIRST_PERSON and self.uid != NOBODY)


@dataclass(frozen=True)
class Group:
    name: str
    gid: int
    members: tuple[str, ...]


class Accounts:
    """What the host's passwd and group say, and what of it sandboxes see: system accounts, all locked."""

    def __init__(self, root: Path) -> None:
        self.everyone = list(_accounts(root))
        self._shell = "/bin/bash" if (root / "bin/bash").exists() or (root / "usr/bin/bash").exists() else "/bin/sh"
        superuser = Account("root", 0, 0, "root", "/root", self._shell)
        system = [found for found in self.everyone if found.uid and _of_system(found.uid)]
        self.kept = [superuser, *system]
        names = {account.name for account in self.kept}
        self.groups = [
            Group(group.name, group.gid, tuple(member for member in group.members if member in names))
            for group in _groups(root)
            if _of_system(group.gid)
        ] or [Group("root", 0, ())]

    def passwd(self) -> str:
        return _lines(f"{one.name}:x:{one.uid}:{one.gid}:{one.gecos}:{one.home}:{one.shell}" for one in self.kept)

    def shadow(self) -> str:
        return _lines(f"{account.name}:*:19700:0:99999:7:::" for account in self.kept)

    def group(self) -> str:
        return _lines(f"{group.name}:x:{group.gid}:{','.join(group.members)}" for group in self.groups)

    def gshadow(self) -> str:
        return _lines(f"{group.name}:*::{','.join(group.members)}" for group in self.groups)

    @property
    def shadow_group(self) -> int:
        """The group that may read shadow; root's where the host has none."""
        return next((group.gid for group in self.groups if group.name == "shadow"), 0)

    def overrides(self, text: str) -> str:
        """dpkg's statoverride without lines of accounts that sandboxes lack: dpkg would refuse to run at all."""
        users = {account.name for account in self.kept}
        groups = {group.name for group in self.groups}

        def known(line: str) -> bool:
            user, group, *_ = [*line.split(), "", ""]
            return (user in users or user.startswith("#")) and (group in groups or group.startswith("#"))

        return _lines(line for line in text.splitlines() if known(line))


def resolv_conf(nameservers: Sequence[str]) -> str:
    return _lines(f"nameserver {address}" for address in nameservers)


def _accounts(root: Path) -> Iterator[Account]:
    for fields in _table(root / "etc/passwd", 7):
        name, _, uid, gid, gecos, home, shell = fields
        if uid.isdecimal() and gid.isdecimal():
            yield Account(name, int(uid), int(gid), gecos, home, shell)


def _groups(root: Path) -> Iterator[Group]:
    for name, _, gid, members in _table(root / "etc/group", 4):
        if gid.isdecimal():
            yield Group(name, int(gid), tuple(filter(None, members.split(","))))


def _table(file: Path, columns: int) -> Iterator[list[str]]:
    text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.is_file() else ""
    for line in text.splitlines():
        fields = line.split(":")
        # Directory services add lines that begin with a sign.
        if len(fields) == columns and fields[0] and fields[0][0] not in "+-#":
            yield fields


def _of_system(number: int) -> bool:
    return number < FIRST_PERSON or number == NOBODY


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
