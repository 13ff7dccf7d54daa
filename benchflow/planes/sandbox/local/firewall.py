"""The host's packet filter: the rules that the links of sandboxes need, and the two tools that can set them.

A rule names interfaces by their common prefix, so one set serves every sandbox. What must never pass is dropped in
the `mangle` table, which a packet meets before any rule of `filter` or of a published port can accept it; so the
order among third-party rules does not matter there. Every rule carries a comment, `benchflow:<name>:<digest>`, by
which present, outdated and orphaned rules of ours are recognized.

After the last rule is removed, the empty `mangle` table stays if iptables had to make it.

iptables is preferred. nft sets rules in a table of its own, and these cannot accept what another table drops; Docker
drops everything that it does not forward itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from benchflow.errors import SandboxUnavailableError
from benchflow.planes.sandbox.local.helper.netlink import PREFIX

LINK_LOCAL = "169.254.0.0/16"

_TAG = re.compile(r"benchflow:[\w./+-]+:[0-9a-f]{8}")
_SUBNET = re.compile(r"benchflow:out-([\d./]+):")
_NOT_A_REPLY = "-m conntrack ! --ctstate RELATED,ESTABLISHED"
_REPLY = "-m conntrack --ctstate RELATED,ESTABLISHED"
_NFT_NOT_A_REPLY = "ct state != { established, related }"

# Names that Docker gives its bridges.
_BRIDGES = ("docker", "br-")

_NFT_CHAINS = {
    "prerouting": "type filter hook prerouting priority -150; policy accept;",
    "input": "type filter hook input priority -150; policy accept;",
    "forward": "type filter hook forward priority -150; policy accept;",
    "postrouting": "type nat hook postrouting priority 100; policy accept;",
}


class FirewallRule(NamedTuple):
    """A rule for iptables, and its form for nft."""

    name: str
    """Name of the rule, unique in the set."""
    table: str
    """Table of iptables."""
    chain: str
    """Built-in chain of the table."""
    words: str
    """Matches and target, as iptables has them."""
    nft: tuple[str, str] | None
    """Chain (in `_NFT_CHAINS`) and statement for nft; None if nft needs no such rule."""

    @property
    def tag(self) -> str:
        """Return the comment that marks the rule: its name, and a digest of its content."""
        digest = hashlib.sha256("\0".join(map(str, self)).encode()).hexdigest()[:8]
        return f"benchflow:{self.name}:{digest}"


def make_rules(subnets: Iterable[str], *, way_out: str, link_local_dns: bool) -> list[FirewallRule]:
    """Return the rules of sandboxes: they may reach the world as the host does, and answer the host.

    They may not reach the host itself (published ports included), one another, the containers of Docker, and link-local
    addresses, where clouds offer a machine's credentials.

    Args:
        subnets: Subnets of sandboxes, each of which is translated to the host's address on its way out.
        way_out: The host's own interface to the world, which is not taken for a bridge of Docker.
        link_local_dns: Whether a resolver has a link-local address, as on some clouds, so that DNS may pass.
    """
    links = f"{PREFIX}+"
    nft_in, nft_out = f'iifname "{PREFIX}*"', f'oifname "{PREFIX}*"'
    local = "-m addrtype --dst-type LOCAL"
    found = [
        # In PREROUTING, since a published port is translated to the container behind it right after.
        FirewallRule("host-address", "mangle", "PREROUTING", f"-i {links} {_NOT_A_REPLY} {local} -j DROP",
             ("prerouting", f"{nft_in} {_NFT_NOT_A_REPLY} fib daddr type local drop")),
        # Packets to the host that have no address of it: broadcast, multicast.
        FirewallRule("host", "mangle", "INPUT", f"-i {links} {_NOT_A_REPLY} -j DROP",
             ("input", f"{nft_in} {_NFT_NOT_A_REPLY} drop")),
        # Only the host may open connections to a sandbox: what comes from elsewhere must be a reply.
        FirewallRule("begin", "mangle", "FORWARD", f"-o {links} {_NOT_A_REPLY} -j DROP",
             ("forward", f"{nft_out} {_NFT_NOT_A_REPLY} drop")),
    ]  # fmt: skip
    for bridge in _BRIDGES:
        if not way_out.startswith(bridge):
            found.append(
                FirewallRule(f"to-{bridge.strip('-')}", "mangle", "FORWARD", f"-i {links} -o {bridge}+ -j DROP",
                     ("forward", f'{nft_in} oifname "{bridge}*" drop'))
            )  # fmt: skip
    pass_dns = {"udp": "-p udp ! --dport 53 ", "tcp": "-p tcp ! --dport 53 "} if link_local_dns else {"all": ""}
    for protocol, words in pass_dns.items():
        but_dns = f" {protocol} dport != 53" if link_local_dns else ""
        found.append(
            # Rejected, not dropped, so that a program that looks for a cloud's metadata does not wait for a timeout.
            FirewallRule(f"refuse-{protocol}", "filter", "FORWARD", f"-i {links} -d {LINK_LOCAL} {words}-j REJECT",
                 ("forward", f"{nft_in} ip daddr {LINK_LOCAL}{but_dns} reject"))
        )  # fmt: skip
        for subnet in subnets:
            # Dropped as well, for an earlier third-party rule may have accepted it.
            drop = f"-s {subnet} -d {LINK_LOCAL} {words}-j DROP"
            found.append(FirewallRule(f"drop-{protocol}-{subnet}", "mangle", "POSTROUTING", drop, None))
    found += [
        FirewallRule("forward-out", "filter", "FORWARD", f"-i {links} -j ACCEPT", None),
        FirewallRule("forward-in", "filter", "FORWARD", f"-o {links} {_REPLY} -j ACCEPT", None),
        FirewallRule("answer", "filter", "INPUT", f"-i {links} {_REPLY} -j ACCEPT", None),
        FirewallRule("ask", "filter", "OUTPUT", f"-o {links} -j ACCEPT", None),
    ]
    for subnet in subnets:
        found.append(
            FirewallRule(f"out-{subnet}", "nat", "POSTROUTING", f"-s {subnet} ! -o {links} -j MASQUERADE",
                 ("postrouting", f"ip saddr {subnet} {nft_out.replace('oifname', 'oifname !=')} masquerade"))
        )  # fmt: skip
    return found


class Firewall(Protocol):
    """A tool that reads and sets rules of the packet filter. Methods raise `SandboxUnavailableError`."""

    def tags(self) -> set[str]:
        """Return the tags of all rules of ours that are set."""
        ...

    def replace(self, rules: Sequence[FirewallRule]) -> None:
        """Replace all rules of ours, in one step for each table. With no `rules`, none of ours is left."""
        ...


def parse_subnets(tags: Iterable[str]) -> list[str]:
    """Return the subnets that the rules with these tags translate on their way out."""
    return sorted(match[1] for tag in tags if (match := _SUBNET.match(tag)))


def list_set_tags(firewall: Firewall, rules: Sequence[FirewallRule]) -> set[str]:
    """Return the tags that `firewall` has once these rules are set: nft leaves some out."""
    return {rule.tag for rule in rules if rule.nft or not isinstance(firewall, Nft)}


def find_firewalls() -> list[Firewall]:
    """Return the tools of this host, the preferred one first; empty if there is none."""
    found: list[Firewall] = [Iptables(program) for program in _find_iptables()]
    if nft := _find_program("nft"):
        found.append(Nft(nft))
    return found


class Iptables:
    """iptables: our rules lie among third-party ones, at the head of the built-in chains.

    Args:
        program: Path of the program, beside which `-save` and `-restore` lie.
    """

    def __init__(self, program: str) -> None:
        """Make it."""
        self._program = program

    def tags(self) -> set[str]:
        """Return the tags of all rules of ours that are set."""
        return {tag for _, _, tag in self._ours()}

    def replace(self, rules: Sequence[FirewallRule]) -> None:
        """Replace all rules of ours, in one step for each table."""
        changes: dict[str, list[str]] = {}
        for table, line, _ in self._ours():
            changes.setdefault(table, []).append(f"-D {line}")
        # Each is inserted at the head of its chain, so the last one comes first, and they end up in their order.
        for rule in reversed(rules):
            line = f"-I {rule.chain} {rule.words} -m comment --comment {rule.tag}"
            changes.setdefault(rule.table, []).append(line)
        if changes:
            script = "".join("\n".join([f"*{table}", *lines, "COMMIT", ""]) for table, lines in sorted(changes.items()))
            _run([f"{self._program}-restore", "--noflush", "--wait", "20"], script)

    def _ours(self) -> list[tuple[str, str, str]]:
        """Return table, rule (without `-A`) and tag of each rule of ours."""
        found = []
        table = ""
        for line in _run([f"{self._program}-save"]).splitlines():
            if line.startswith("*"):
                table = line[1:]
            elif line.startswith("-A ") and (tag := _TAG.search(line)):
                found.append((table, line.removeprefix("-A "), tag[0]))
        return found


class Nft:
    """nft: our rules lie in a table of their own.

    Args:
        program: Path of the program.
    """

    def __init__(self, program: str) -> None:
        """Make it."""
        self._program = program

    def tags(self) -> set[str]:
        """Return the tags of all rules of ours that are set."""
        if "table ip benchflow\n" not in _run([self._program, "list", "tables"]) + "\n":
            return set()
        return set(_TAG.findall(_run([self._program, "list", "table", "ip", "benchflow"])))

    def replace(self, rules: Sequence[FirewallRule]) -> None:
        """Replace our table, or remove it if there are no `rules`.

        Raises:
            SandboxUnavailableError: Another table drops what is forwarded, or nft failed.
        """
        if not rules:
            if self.tags():
                _run([self._program, "delete", "table", "ip", "benchflow"])
            return
        self._refuse_dropped()
        script = ["add table ip benchflow", "delete table ip benchflow", "table ip benchflow {"]
        for chain, kind in _NFT_CHAINS.items():
            said = [f'{rule.nft[1]} comment "{rule.tag}"' for rule in rules if rule.nft and rule.nft[0] == chain]
            script += [f"chain {chain} {{", kind, *said, "}"]
        _run([self._program, "-f", "-"], "\n".join([*script, "}", ""]))

    def _refuse_dropped(self) -> None:
        """Raise `SandboxUnavailableError` if another table drops forwarded packets without a rule for our links."""
        chain = ""
        for line in _run([self._program, "list", "chains"]).splitlines():
            words = line.split()
            if words[:1] == ["table"] and words[1] in ("ip", "inet"):
                table = " ".join(words[1:3])
            elif words[:1] == ["table"]:
                table = ""
            elif words[:1] == ["chain"]:
                chain = words[1]
            elif table and "hook forward" in line and "policy drop" in line:
                place = [*table.split(), chain]
                if f'"{PREFIX}' not in _run([self._program, "list", "chain", *place]):
                    raise SandboxUnavailableError(
                        f"the packet filter drops what is forwarded (chain {' '.join(place)}, as Docker sets it), "
                        "and rules set with nft cannot let anything pass another table's drop",
                        remedy="install iptables; or let it pass yourself: "
                        + " && ".join(
                            f"nft insert rule {' '.join(place)} {match} accept"
                            for match in (
                                f"iifname '\"{PREFIX}*\"'",
                                f"oifname '\"{PREFIX}*\"' ct state established,related",
                            )
                        ),
                    )


def _find_iptables() -> list[str]:
    """Return the variants of iptables on this host, first the one whose FORWARD chain drops, which is Docker's own.

    A kernel can hold rules of both variants, and neither can accept what the other one drops.
    """
    # Running the legacy variant would load its modules into a kernel that does without them.
    names = ("iptables", "iptables-legacy", "iptables-nft") if _legacy_in_use() else ("iptables",)
    different: dict[str, str] = {}
    for name in names:
        if path := _variant(name):
            # `iptables` is a link to one of the others, with the same version text.
            different.setdefault(_run([path, "--version"]) if len(names) > 1 else "", path)
    found = list(different.values())
    if len(found) > 1:
        found.sort(key=lambda path: "-P FORWARD DROP" not in _run([path, "--wait", "20", "-S", "FORWARD"]))
    return found


def _legacy_in_use() -> bool:
    """Return whether the kernel holds tables of legacy iptables."""
    try:
        return bool(Path("/proc/net/ip_tables_names").read_text().strip())
    except OSError:
        return False


def _variant(name: str) -> str | None:
    """Return the path of a variant of iptables; None unless its `-save` and `-restore` exist as well."""
    path = _find_program(name)
    return path if path and _find_program(f"{name}-save") and _find_program(f"{name}-restore") else None


def _find_program(name: str) -> str | None:
    """Return the path of a program; None if there is none."""
    # The PATH of a service may lack the directories of system programs.
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _run(command: Sequence[str], script: str = "") -> str:
    """Run a command with `script` as its stdin, and return its stdout. Raise `SandboxUnavailableError` if it fails."""
    done = subprocess.run(
        command, input=script, capture_output=True, text=True, timeout=60, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise SandboxUnavailableError(
            f"the packet filter's rules for sandboxes cannot be read or set: {Path(command[0]).name}: {said}",
            remedy="run as root on a kernel with netfilter (conntrack, addrtype, comment, masquerade), "
            "or use another provider (--sandbox docker)",
        )
    return done.stdout
