"""Network links of sandboxes, made with the kernel's own messages (rtnetlink): a pair of virtual interfaces each.

One end, `eth0`, is in the sandbox's network namespace. The other, `bfl<n>`, is on the host, and its name is the
allocator: the process that creates the name owns the n-th pair of addresses of the subnet, and any other one gets
EEXIST from the kernel. So there is no record that could go stale: the pair vanishes with its namespace.

A message is a header (length, type, flags, sequence number, 0), a fixed part that its type defines, and attributes
(length, type, value, padded to four bytes; an attribute's value may again be attributes). All numbers are in the
machine's byte order, addresses in the network's. Standard library only, and no threads: it runs in forked children.

A link takes 1.3 ms this way, 28 ms by the program `ip` (iproute2 6.1, three batches), and 23 ms by pyroute2 0.9, whose
import costs 24 MB and 0.3 s.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

PREFIX = "bfl"
"""Prefix of the names of the host's ends."""

_OURS = re.compile(rf"{PREFIX}\d+")
_INSIDE = "eth0"

# The interface to the world is the one that routes to this address, which is reserved for documentation (RFC 5737).
_SOMEWHERE = "198.51.100.1"
_USUAL_MTU = 1500

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence number, port
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, which flags to change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst length, src length, tos, table, protocol, scope, type, flags
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type

_REQUEST, _ACK, _DUMP, _EXCL, _CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
_INTERRUPTED, _ACK_HAS_TEXT = 0x10, 0x200  # flags of answers
_ERROR, _DONE = 2, 3
_NEWLINK, _DELLINK, _GETLINK, _SETLINK, _NEWADDR, _NEWROUTE, _GETROUTE = 16, 17, 18, 19, 20, 24, 26

_IFF_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_PID = 1, 3, 4, 18, 19
_IFLA_AF_SPEC, _IFLA_EXT_MASK, _IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 26, 29, 31, 32
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_INET6_ADDR_GEN_MODE, _GENERATE_NONE = 8, 1
_SKIP_STATISTICS = 8
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_UNIVERSE = 254, 4, 0
_RTN_UNICAST, _RTN_LOCAL, _RTN_UNREACHABLE = 1, 2, 7
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11

_numbers = itertools.count(1)


class Link(NamedTuple):
    """A link between the host and a sandbox."""

    name: str
    """Name of the host's end."""
    host_address: str
    """IPv4 address of the host's end."""
    address: str
    """IPv4 address of the sandbox's end."""


class Route(NamedTuple):
    """An IPv4 route of the host."""

    destination: str
    """Destination, as `a.b.c.d/n`."""
    device: str
    """Name of its interface; empty if it has none or several."""
    local: bool
    """Whether the destination is an address of the host itself."""


def open_socket() -> socket.socket:
    """Open a netlink socket to the caller's current network namespace. It stays with that namespace."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    # Errors have a text, and no copy of the request.
    sock.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
    sock.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
    sock.bind((0, 0))
    return sock


def open_low_ports() -> None:
    """Let every user of the caller's network namespace bind any port and use ping sockets, as in a container.

    Programs in a sandbox, root's included, have no privileges over its network namespace. `/proc` must be the caller's
    own.
    """
    for name, value in (("ip_unprivileged_port_start", "0"), ("ping_group_range", "0 2147483647")):
        with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(value)


def bring_up_loopback(sock: socket.socket) -> None:
    """Bring up `lo`, number 1 in every namespace. The kernel then gives it 127.0.0.1 and ::1."""
    _bring_up(sock, 1)


def connect(host: socket.socket, inside: socket.socket, pid: int, subnet: str, limit: int | None = None) -> Link:
    """Link a network namespace with the host, route its traffic through the link, and return it. A failure leaves none.

    The n-th link has the addresses 2n (host) and 2n + 1 of the subnet.

    Args:
        host: Socket to the host's namespace.
        inside: Socket to the namespace to link.
        pid: A process in the namespace to link.
        subnet: IPv4 subnet, `a.b.0.0/16`.
        limit: Maximum number of links; None for as many as the subnet has pairs of addresses.

    Raises:
        FileExistsError: The namespace has an eth0 already.
        OSError: EADDRNOTAVAIL if every pair is in use; other errors of the kernel.
    """
    base, pairs = _split_subnet(subnet)
    mtu = min(_find_uplink(host)[1], _USUAL_MTU)
    for n in _shuffle_pairs(pairs if limit is None else min(limit, pairs)):
        link = Link(f"{PREFIX}{n}", _format_address(base + 2 * n), _format_address(base + 2 * n + 1))
        try:
            _make_pair(host, link, pid, mtu)
        except FileExistsError:
            # Either end may exist already. Usually it is the host's; then the next pair is tried.
            if _exists(inside, _INSIDE):
                raise
            continue
        try:
            _set_up(host, link.name, link.host_address)
            index = _set_up(inside, _INSIDE, link.address)
            # The host drops packets to siblings. With this route they fail at once instead of by a timeout.
            _add_route(inside, subnet, _RTN_UNREACHABLE)
            _add_route(inside, "0.0.0.0/0", _RTN_UNICAST, index, link.host_address)
        except BaseException:
            remove(host, link.name)
            raise
        return link
    raise OSError(errno.EADDRNOTAVAIL, f"every pair of addresses of {subnet} is in use")


def remove(sock: socket.socket, name: str) -> None:
    """Remove both ends of the link with this name, and wait until the kernel is done. Missing is success."""
    try:
        _request(sock, _DELLINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + _pack_text(_IFLA_IFNAME, name))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


def list_links(sock: socket.socket) -> list[str]:
    """Return the names of all links of sandboxes on this host, of all state directories."""
    return [name for name in _list_devices(sock).values() if _OURS.fullmatch(name)]


def list_routes(sock: socket.socket) -> list[Route]:
    """Return the IPv4 routes of all tables, without those of sandboxes' links and without default routes."""
    devices = _list_devices(sock)
    found = []
    for fixed, attributes in _dump(sock, _GETROUTE, _ROUTE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0), _ROUTE):
        length, kind = fixed[1], fixed[7]
        device = devices.get(_unpack_number(attributes.get(_RTA_OIF)), "")
        if length and not _OURS.fullmatch(device):
            destination = socket.inet_ntoa(attributes.get(_RTA_DST, bytes(4)))
            found.append(Route(f"{destination}/{length}", device, kind == _RTN_LOCAL))
    return found


def find_uplink(sock: socket.socket) -> str:
    """Return the name of the host's interface to the world; empty if there is none."""
    return _find_uplink(sock)[0]


# --- the messages --------------------------------------------------------------------------------------


def _make_pair(host: socket.socket, link: Link, pid: int, mtu: int) -> None:
    """Create both ends of a link: RTM_NEWLINK, create and exclusive, with ifinfomsg and the host's end's attributes.

        IFLA_IFNAME, _MTU, _ADDRESS, _NUM_TX_QUEUES, _NUM_RX_QUEUES
        IFLA_LINKINFO { IFLA_INFO_KIND "veth", IFLA_INFO_DATA { VETH_INFO_PEER { ifinfomsg, the same of the other end,
                                                                                 IFLA_NET_NS_PID } } }

    The other end is created in its namespace, not moved there, which would cost the kernel a grace period. One queue:
    the kernel's default is one for each processor. Hardware addresses are given, because systemd changes random ones.
    """
    peer = _format_end(_INSIDE, link.address, mtu) + _pack_word(_IFLA_NET_NS_PID, pid)
    kind = _pack_text(_INFO_KIND, "veth") + _pack_attribute(_INFO_DATA, _pack_attribute(_VETH_PEER, peer))
    _request(
        host,
        _NEWLINK,
        _CREATE | _EXCL,
        _format_end(link.name, link.host_address, mtu) + _pack_attribute(_IFLA_LINKINFO, kind),
    )


def _format_end(name: str, address: str, mtu: int) -> bytes:
    """Return ifinfomsg and the attributes of one end."""
    return (
        _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        + _pack_text(_IFLA_IFNAME, name)
        + _pack_word(_IFLA_MTU, mtu)
        # The second bit of the first byte says that the address is administered locally.
        + _pack_attribute(_IFLA_ADDRESS, b"\x02\xbf" + socket.inet_aton(address))
        + _pack_word(_IFLA_NUM_TX_QUEUES, 1)
        + _pack_word(_IFLA_NUM_RX_QUEUES, 1)
    )


def _set_up(sock: socket.socket, name: str, address: str) -> int:
    """Give an interface its address of a pair (/31), bring it up, and return its index."""
    index = _read_link(sock, name)[0]
    _refuse_ipv6(sock, index)
    _add_address(sock, index, address)
    _bring_up(sock, index)
    return index


def _bring_up(sock: socket.socket, index: int) -> None:
    """Bring an interface up: RTM_SETLINK, ifinfomsg with the flag IFF_UP, and a mask so that only this flag changes."""
    _request(sock, _SETLINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, index, _IFF_UP, _IFF_UP))


def _refuse_ipv6(sock: socket.socket, index: int) -> None:
    """Turn off an interface's automatic IPv6 address, before it is up, which is when it would be made.

    RTM_SETLINK: ifinfomsg, IFLA_AF_SPEC { AF_INET6 { IFLA_INET6_ADDR_GEN_MODE none } }. Without IPv6, do nothing.
    """
    mode = _pack_attribute(_INET6_ADDR_GEN_MODE, struct.pack("=B", _GENERATE_NONE))
    family = _pack_attribute(_IFLA_AF_SPEC, _pack_attribute(socket.AF_INET6, mode))
    try:
        _request(sock, _SETLINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0) + family)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EOPNOTSUPP):
            raise


def _add_address(sock: socket.socket, index: int, address: str) -> None:
    """Add an IPv4 address: RTM_NEWADDR, ifaddrmsg, IFA_LOCAL and IFA_ADDRESS.

    The kernel adds the route to the other address of the pair.
    """
    packed = socket.inet_aton(address)
    fixed = _ADDRESS.pack(socket.AF_INET, 31, 0, _SCOPE_UNIVERSE, index)
    _request(
        sock,
        _NEWADDR,
        _CREATE | _EXCL,
        fixed + _pack_attribute(_IFA_LOCAL, packed) + _pack_attribute(_IFA_ADDRESS, packed),
    )


def _add_route(sock: socket.socket, to: str, kind: int, index: int | None = None, gateway: str | None = None) -> None:
    """Add a route: RTM_NEWROUTE, rtmsg, RTA_DST unless it is the default route; RTA_GATEWAY and RTA_OIF if given."""
    destination, _, length = to.partition("/")
    body = _ROUTE.pack(socket.AF_INET, int(length), 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, kind, 0)
    if int(length):
        body += _pack_attribute(_RTA_DST, socket.inet_aton(destination))
    if index is not None and gateway is not None:
        body += _pack_attribute(_RTA_GATEWAY, socket.inet_aton(gateway)) + _pack_word(_RTA_OIF, index)
    _request(sock, _NEWROUTE, _CREATE | _EXCL, body)


def _find_uplink(sock: socket.socket) -> tuple[str, int]:
    """Return name and MTU of the interface to the world: RTM_GETROUTE, rtmsg, RTA_DST; the response has RTA_OIF."""
    body = _ROUTE.pack(socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0) + _pack_attribute(
        _RTA_DST, socket.inet_aton(_SOMEWHERE)
    )
    try:
        answer = _request(sock, _GETROUTE, 0, body)[0]
    except OSError as error:
        # No route, or an explicit unreachable, prohibit or blackhole route.
        if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
            raise
        return "", _USUAL_MTU
    index = _unpack_number(_parse_attributes(answer[_ROUTE.size :]).get(_RTA_OIF))
    return _read_link(sock, index)[1:] if index else ("", _USUAL_MTU)


def _read_link(sock: socket.socket, which: str | int) -> tuple[int, str, int]:
    """Return index, name and MTU of an interface: RTM_GETLINK, ifinfomsg with the index, or IFLA_IFNAME.

    IFLA_EXT_MASK leaves out the statistics.
    """
    index = which if isinstance(which, int) else 0
    body = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0) + _pack_word(_IFLA_EXT_MASK, _SKIP_STATISTICS)
    if isinstance(which, str):
        body += _pack_text(_IFLA_IFNAME, which)
    answer = _request(sock, _GETLINK, 0, body)[0]
    attributes = _parse_attributes(answer[_LINK.size :])
    return _LINK.unpack_from(answer)[2], _unpack_string(attributes[_IFLA_IFNAME]), _unpack_number(attributes[_IFLA_MTU])


def _exists(sock: socket.socket, name: str) -> bool:
    """Return whether an interface of this name exists."""
    try:
        _read_link(sock, name)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return False
    return True


def _list_devices(sock: socket.socket) -> dict[int, str]:
    """Return the names of all interfaces by index: RTM_GETLINK, dump."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + _pack_word(_IFLA_EXT_MASK, _SKIP_STATISTICS)
    found = _dump(sock, _GETLINK, body, _LINK)
    return {fixed[2]: _unpack_string(attributes[_IFLA_IFNAME]) for fixed, attributes in found}


# --- the allocator -------------------------------------------------------------------------------------


def _split_subnet(subnet: str) -> tuple[int, int]:
    """Return the first address of a subnet, as a number, and its number of pairs of addresses."""
    address, _, length = subnet.partition("/")
    base = int.from_bytes(socket.inet_aton(address), "big")
    size = 1 << (32 - int(length))
    if base % size:
        raise ValueError(f"{subnet} is not a subnet: its address has bits beyond its length")
    return base, size // 2


def _shuffle_pairs(pairs: int) -> Iterator[int]:
    """Return all numbers of pairs, from a random one on: the first is nearly always free, addresses are rarely reused.

    The kernel's randomness is used, because children forked from one process share Python's.
    """
    first = int.from_bytes(os.urandom(4), "big")
    return ((first + step) % pairs for step in range(pairs))


def _format_address(address: int) -> str:
    return socket.inet_ntoa(address.to_bytes(4, "big"))


# --- sending and receiving -----------------------------------------------------------------------------


def _request(sock: socket.socket, kind: int, flags: int, body: bytes) -> list[bytes]:
    """Send a request and return the bodies of the kernel's response, up to its acknowledgement."""
    return _exchange(sock, kind, flags | _ACK, body)[0]


def _dump(
    sock: socket.socket, kind: int, body: bytes, fixed: struct.Struct
) -> list[tuple[tuple[int, ...], dict[int, bytes]]]:
    """Return all objects of a kind. The request is repeated if they changed while the kernel wrote them."""
    for _ in range(100):
        answers, whole = _exchange(sock, kind, _DUMP, body)
        if whole:
            return [(fixed.unpack_from(each), _parse_attributes(each[fixed.size :])) for each in answers]
    raise OSError(errno.EAGAIN, "the host's interfaces change faster than they can be listed")


def _exchange(sock: socket.socket, kind: int, flags: int, body: bytes) -> tuple[list[bytes], bool]:
    """Send a request; return the bodies of the response, and whether the kernel marked it as consistent."""
    number = next(_numbers) & 0xFFFFFFFF
    sock.send(_HEADER.pack(_HEADER.size + len(body), kind, flags | _REQUEST, number, 0) + body)
    said: list[bytes] = []
    whole = True
    while True:
        # The kernel fills at most 32 KiB a datagram.
        data = sock.recv(65536)
        while data:
            length, answer, marks, of, _ = _HEADER.unpack_from(data)
            content, data = data[_HEADER.size : length], data[_align(length) :]
            if of != number:
                continue
            whole = whole and not marks & _INTERRUPTED
            if answer in (_ERROR, _DONE):
                _raise_if_refused(content, marks)
                return said, whole
            said.append(content)


def _raise_if_refused(content: bytes, marks: int) -> None:
    """Raise an NLMSG_ERROR: a negative errno (0: done), the request's header, then NLMSGERR_ATTR_MSG if it has text."""
    (code,) = struct.unpack_from("=i", content) if len(content) >= 4 else (0,)
    if code < 0:
        words = _parse_attributes(content[4 + _HEADER.size :]).get(1) if marks & _ACK_HAS_TEXT else None
        raise OSError(-code, f"{os.strerror(-code)}: {_unpack_string(words)}" if words else os.strerror(-code))


def _pack_attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute with padding."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_align(length) - length)


def _pack_text(kind: int, value: str) -> bytes:
    """Return an attribute with a C string."""
    return _pack_attribute(kind, value.encode() + b"\0")


def _pack_word(kind: int, value: int) -> bytes:
    """Return an attribute with a 32-bit number."""
    return _pack_attribute(kind, struct.pack("=I", value))


def _parse_attributes(data: bytes) -> dict[int, bytes]:
    """Parse attributes, by type."""
    found: dict[int, bytes] = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        # The two highest bits say how the value is encoded.
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[_align(length) :]
    return found


def _align(length: int) -> int:
    return (length + 3) & ~3


def _unpack_string(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def _unpack_number(value: bytes | None) -> int:
    return int(struct.unpack("=I", value)[0]) if value else 0
