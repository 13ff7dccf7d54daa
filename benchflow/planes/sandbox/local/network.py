"""The network of sandboxes: a subnet, forwarding, and the host's rules, shared by all workers of the host.

A process that starts a sandbox with a network *holds* it meanwhile: the rules are set, and are not removed before the
sandbox's link exists. `sweep` removes them once nothing holds the network and no link is left. Both agree through a
lock file for each network namespace, which also lists the subnets that rules are set for. The file is not the only
truth: a process trusts it only after it has seen the rules itself, and looks again from time to time, because a
restarted firewall may have removed them.

`net.ipv4.ip_forward` is turned on if it is off, as Docker does. It is the one thing that stays: turning it off could
cut off programs that have come to rely on it since.

A host whose firewall drops input or output is supported (answers from sandboxes to the host are accepted), and so is
one without a route to the world. IPv6 is not: sandboxes have only `::1`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow.errors import ConfigError, SandboxUnavailableError
from benchflow.host_files import lock
from benchflow.planes.sandbox.local.firewall import (
    LINK_LOCAL,
    Firewall,
    FirewallRule,
    find_firewalls,
    list_set_tags,
    make_rules,
    parse_subnets,
)
from benchflow.planes.sandbox.local.helper import netlink

SUBNET_VARIABLE = "BENCHFLOW_LOCAL_SUBNET"
"""Environment variable that names the subnet."""

_LOCKS = Path("/run")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")

# Seconds for which this process trusts that the rules which it has seen are still set.
_TRUST = 30.0

LOCK_SEC = 5.0
"""Seconds for which a sweep waits for processes that hold or prepare the network."""

# The first two are reserved for benchmarks (RFC 2544), so they hide no real network.
_CANDIDATES = (
    "198.18.0.0/16",
    "198.19.0.0/16",
    *(f"10.{second}.0.0/16" for second in range(240, 200, -1)),
    *(f"172.{second}.0.0/16" for second in range(31, 15, -1)),
)

_RESOLVERS = ("etc/resolv.conf", "run/systemd/resolve/resolv.conf", "run/NetworkManager/no-stub-resolv.conf")

# As in Docker: for a host whose only resolver can be reached from the host alone.
_PUBLIC_RESOLVERS = ("1.1.1.1", "8.8.8.8")


@dataclass(frozen=True)
class Network:
    """The network, as sandboxes use it."""

    subnet: str
    """Subnet of the links' addresses, `a.b.0.0/16`."""


# When this process last saw the rules for a network, by lock file.
_seen: dict[Path, tuple[Network, float]] = {}


def prepare() -> Network:
    """Set up the host for links and return the network. A sweep may follow at once: to link a sandbox, use `hold`."""
    with hold() as network:
        return network


@contextlib.contextmanager
def hold() -> Iterator[Network]:
    """Set up the host for links, keep it so during the context, and yield the network.

    Entering blocks while another process sets up or sweeps. It takes a few microseconds if this process has lately seen
    the rules.

    Raises:
        SandboxUnavailableError: The packet filter or forwarding can't be set up, or no subnet is free.
        ConfigError: `$BENCHFLOW_LOCAL_SUBNET` is wrong.
    """
    file = _locate_lock()
    with _open(file) as fd:
        yield _prepare(file, fd)


def sweep(patience: float = LOCK_SEC) -> None:
    """Remove the rules, orphaned ones included, if no link is left on this host and no process is about to make one.

    A link vanishes a moment after the last process of its sandbox, or at once by `netlink.remove`.

    Args:
        patience: Seconds to wait for processes that hold the network.
    """
    if os.geteuid() != 0:
        return
    file = _locate_lock()
    with _open(file) as fd:
        # If others hold the lock all the time, they sweep later.
        if not lock(fd, wait_sec=patience):
            return
        with netlink.open_socket() as sock:
            if netlink.list_links(sock):
                return
        # The list first: if this process is killed after it, the next one looks at the rules and sets what is missing.
        os.ftruncate(fd, 0)
        _seen.pop(file, None)
        for firewall in find_firewalls():
            if firewall.tags():
                firewall.replace([])


def find_nameservers(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the IPv4 resolvers that a sandbox can reach, at most three, as many as the C library asks.

    A resolver on the host itself (127.0.0.53) can't be reached: then those that it asks in turn, else public ones.

    Args:
        root: Root directory of the host.
    """
    with netlink.open_socket() as sock:
        own = [ipaddress.ip_network(route.destination) for route in netlink.list_routes(sock) if route.local]
    for file in _RESOLVERS:
        usable = [
            address
            for address in _read_resolvers(root / file)
            if not address.is_unspecified and not any(address in network for network in own)
        ]
        if usable:
            return tuple(dict.fromkeys(map(str, usable)))[:3]
    return _PUBLIC_RESOLVERS


# --- the lock file -------------------------------------------------------------------------------------


def _locate_lock() -> Path:
    """Return the lock file of this process's network namespace, to which rules belong."""
    return _LOCKS / f"benchflow-network-{Path('/proc/self/ns/net').stat().st_ino}"


@contextlib.contextmanager
def _open(file: Path) -> Iterator[int]:
    """Yield the descriptor of the lock file, which is made if missing."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SandboxUnavailableError(
            f"the network of sandboxes cannot be locked: {error.strerror}", file=str(file), remedy="run as root"
        ) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _read_subnets(fd: int) -> list[str]:
    """Return the subnets in the lock file."""
    return os.pread(fd, 65536, 0).decode().split()


# --- preparing -----------------------------------------------------------------------------------------


def _prepare(file: Path, fd: int) -> Network:
    """Return the network with the lock held as shared: from then on, no process removes the rules."""
    while True:
        lock(fd, shared=True)
        listed = _read_subnets(fd)
        network, seen = _seen.get(file, (None, 0.0))
        if network and network.subnet in listed and time.monotonic() - seen < _TRUST:
            return network
        if listed and (found := _read_network(listed)):
            _seen[file] = (found, time.monotonic())
            return found
        # The shared lock is dropped before the exclusive one is taken, and on the way back: so all is checked again.
        lock(fd)
        _seen[file] = (_set_rules(fd), time.monotonic())


def _read_network(listed: Sequence[str]) -> Network | None:
    """Return the network if everything that it needs is set; else None."""
    subnet = _choose(listed)
    firewall = _require_firewall()
    if subnet not in listed or not _is_forwarding():
        return None
    return Network(subnet) if list_set_tags(firewall, _make_rules(listed)) <= firewall.tags() else None


def _set_rules(fd: int) -> Network:
    """Set the rules for every subnet in use and for ours, and return the network. The lock is held exclusively."""
    firewall = _require_firewall()
    known = sorted({*_read_subnets(fd), *parse_subnets(firewall.tags())})
    subnet = _choose(known)
    if not _is_forwarding():
        _enable_forwarding()
    every = sorted({*known, subnet})
    firewall.replace(_make_rules(every))
    os.ftruncate(fd, 0)
    os.pwrite(fd, "\n".join(every).encode(), 0)
    return Network(subnet)


def _make_rules(subnets: Sequence[str]) -> list[FirewallRule]:
    """Return the rules for these subnets on this host."""
    link_local = ipaddress.ip_network(LINK_LOCAL)
    with netlink.open_socket() as sock:
        way_out = netlink.find_uplink(sock)
    dns = any(ipaddress.ip_address(each) in link_local for each in find_nameservers())
    return make_rules(subnets, way_out=way_out, link_local_dns=dns)


def _require_firewall() -> Firewall:
    """Return the preferred tool. Raise `SandboxUnavailableError` if there is none."""
    found = find_firewalls()
    if not found:
        raise SandboxUnavailableError(
            "sandboxes with a network need iptables or nft, and neither is installed",
            remedy="install iptables (or nftables), use tasks without a network, or use --sandbox docker",
        )
    return found[0]


def _is_forwarding() -> bool:
    """Return whether the host forwards packets."""
    return _FORWARDING.read_text().strip() == "1"


def _enable_forwarding() -> None:
    """Turn on forwarding."""
    try:
        _FORWARDING.write_text("1")
    except OSError as error:
        raise SandboxUnavailableError(
            f"packets are not forwarded on this host, and it cannot be turned on: {error.strerror}",
            file=str(_FORWARDING),
            remedy="run `sysctl -w net.ipv4.ip_forward=1` on the host",
        ) from error


def _choose(in_use: Sequence[str]) -> str:
    """Return a subnet that overlaps no route, address or resolver of the host, preferably one in use."""
    with netlink.open_socket() as sock:
        taken = [route.destination for route in netlink.list_routes(sock)]
    taken += [f"{address}/32" for address in find_nameservers()]
    asked = os.environ.get(SUBNET_VARIABLE)
    if asked:
        return _check_requested(asked, taken)
    for subnet in dict.fromkeys([*in_use, *_CANDIDATES]):
        if not _find_overlap(subnet, taken):
            return subnet
    raise SandboxUnavailableError(
        "every subnet that sandboxes could use is one that this host has a route to",
        remedy=f"set {SUBNET_VARIABLE} to a private /16 that nothing here needs, for example 10.99.0.0/16",
    )


def _check_requested(subnet: str, taken: Iterable[str]) -> str:
    """Validate the user's subnet and return it. Raise `ConfigError` if it is not a free, private /16."""
    remedy = "give a private IPv4 subnet of the form a.b.0.0/16 that this host has no route to"
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as error:
        raise ConfigError(f"not an IPv4 subnet: {subnet!r}", key=SUBNET_VARIABLE, remedy=remedy) from error
    if network.prefixlen != 16 or not network.is_private or network.is_loopback or network.is_link_local:
        raise ConfigError(f"{subnet} is not a private /16", key=SUBNET_VARIABLE, remedy=remedy)
    if overlapping := _find_overlap(str(network), taken):
        raise ConfigError(f"{subnet} overlaps {overlapping} of this host", key=SUBNET_VARIABLE, remedy=remedy)
    return str(network)


def _find_overlap(subnet: str, taken: Iterable[str]) -> str | None:
    """Return a subnet of `taken` that overlaps `subnet`; None if there is none."""
    network = ipaddress.ip_network(subnet)
    return next((each for each in taken if network.overlaps(ipaddress.ip_network(each))), None)


def _read_resolvers(file: Path) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 resolvers in a resolv.conf; none if it is missing."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                found.append(ipaddress.IPv4Address(words[1]))
            except ValueError:
                # An IPv6 address, which sandboxes can't reach.
                continue
    return found
