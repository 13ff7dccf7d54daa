"""Links of sandboxes on hosts made of namespaces: what passes, what does not, and what stays behind.

A *host* here has a network, a `/run` and rules of its own, and is joined to a *world* (a router with a service, which
also stands for the place where clouds offer credentials). Nothing of the machine that runs the tests is changed,
but in the one test about its Docker daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from benchflow.planes.sandbox.local import network
from benchflow.planes.sandbox.local.helper import netlink
from benchflow.testing.waiting import until

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not shutil.which("ip"), reason="needs iproute2"),
]

needs_nft = pytest.mark.skipif(not shutil.which("nft"), reason="needs nft")

WORLD, HOST, METADATA = "203.0.113.1", "203.0.113.2", "169.254.169.254"

LINK = """
import json, os, sys, time
from benchflow.planes.sandbox.local import network
from benchflow.planes.sandbox.local.helper import kernel, netlink
limit, *pids = map(int, sys.argv[1:])
with network.hold() as held, netlink.open_socket() as host:
    for pid in pids:
        kernel.setns(os.pidfd_open(pid), kernel.CLONE_NEWNET)
        with netlink.open_socket() as inside:
            netlink.bring_up_loopback(inside)
            netlink.open_low_ports()
            print(json.dumps(netlink.connect(host, inside, pid, held.subnet, limit or None)))
"""

SERVE = """
import socket, sys
kind = socket.SOCK_DGRAM if sys.argv[2] == "udp" else socket.SOCK_STREAM
server = socket.socket(socket.AF_INET, kind)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(((sys.argv[4:] or ["0.0.0.0"])[0], int(sys.argv[1])))
if kind == socket.SOCK_STREAM:
    server.listen()
print("ready", flush=True)
while True:
    if kind == socket.SOCK_STREAM:
        connection, peer = server.accept()
        connection.sendall(f"{sys.argv[3]} {peer[0]}".encode())
        connection.close()
    else:
        _, peer = server.recvfrom(100)
        server.sendto(f"{sys.argv[3]} {peer[0]}".encode(), peer)
"""

ASK = """
import socket, sys
kind = socket.SOCK_DGRAM if sys.argv[3] == "udp" else socket.SOCK_STREAM
with socket.socket(socket.AF_INET, kind) as client:
    client.settimeout(float(sys.argv[4]))
    try:
        client.connect((sys.argv[1], int(sys.argv[2])))
        if kind == socket.SOCK_DGRAM:
            client.send(b"?")
        print(client.recv(100).decode())
    except OSError as error:
        print(type(error).__name__, error.strerror)
"""


class Place:
    """A network namespace with a process in it, and, if it is a host, a mount namespace."""

    def __init__(self, *, host: bool) -> None:
        self._enter = ["-n", "-m"] if host else ["-n"]
        self._process = subprocess.Popen(["unshare", *self._enter, "sh", "-c", "echo; exec sleep infinity"], stdout=-1)
        assert self._process.stdout and self._process.stdout.readline()
        self.pid = self._process.pid
        self.path = os.environ["PATH"]
        self._servers: list[subprocess.Popen[str]] = []

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), *self._enter, "env", f"PYTHONPATH={ROOT}", f"PATH={self.path}", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words: str) -> str:
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sh(self, script: str) -> str:
        return self.run("sh", "-ec", script)

    def python(self, code: str, *words: object, env: str = "A=") -> str:
        return self.run("env", env, sys.executable, "-c", code, *map(str, words))

    def serve(self, port: int, answer: str = "hello", protocol: str = "tcp", at: str = "0.0.0.0") -> None:
        server = self.start(sys.executable, "-I", "-c", SERVE, str(port), protocol, answer, at)
        self._servers.append(server)
        assert server.stdout and server.stdout.readline() == "ready\n"

    def ask(self, address: str, port: int, protocol: str = "tcp", patience: float = 60.0) -> str:
        return self.run(sys.executable, "-I", "-c", ASK, address, str(port), protocol, str(patience)).strip()

    def asking(self, address: str, port: int, protocol: str = "tcp", patience: float = 60.0) -> Callable[[], str]:
        """Ask, and go on meanwhile; what is returned waits for the answer."""
        words = (address, str(port), protocol, str(patience))
        asked = self.start(sys.executable, "-I", "-c", ASK, *words)
        return lambda: asked.communicate()[0].strip()

    def stop(self) -> None:
        for process in (*self._servers, self._process):
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()


class Host(Place):
    def __init__(self) -> None:
        super().__init__(host=True)
        self.sh("mount --make-rprivate / && mount -t tmpfs run /run && ip link set lo up")

    def link(self, *sandboxes: Place, limit: int = 0) -> list[netlink.Link]:
        said = self.python(LINK, limit, *(each.pid for each in sandboxes))
        return [netlink.Link(*json.loads(line)) for line in said.splitlines()]

    def links(self) -> list[str]:
        said = self.sh("ip -o link show").splitlines()
        return [name for line in said if (name := line.split()[1].split("@")[0]).startswith("bfl")]

    def rules(self) -> str:
        """All rules, without counters and empty chains, as the tool in use lists them."""
        script = 'if test -x "$(command -v iptables)"; then iptables-save; else nft list ruleset; fi'
        lines = self.sh(script).splitlines()
        return "\n".join(line.strip() for line in lines if "benchflow" in line or line.startswith("-"))

    def without_iptables(self) -> None:
        self.sh("mount --bind /dev/null $(readlink -f $(command -v iptables))")

    def prepare(self, env: str = "A=") -> str:
        code = "from benchflow.planes.sandbox.local import network as n; print(n.prepare().subnet)"
        return self.python(code, env=env).strip()

    def refused(self, env: str = "A=") -> str:
        """Why the host cannot be prepared."""
        code = """if True:
            from benchflow.errors import BenchFlowError
            from benchflow.planes.sandbox.local import network
            try:
                print(network.prepare())
            except BenchFlowError as error:
                print(type(error).__name__, error)
        """
        return self.python(code, env=env)

    def sweep(self, patience: float = 60.0) -> None:
        self.python(f"from benchflow.planes.sandbox.local import network; network.sweep({patience})")


@pytest.fixture
def places() -> Iterator[Callable[..., Any]]:
    with contextlib.ExitStack() as stack:

        def make(host: bool = False) -> Place:
            made = Host() if host else Place(host=False)
            stack.callback(made.stop)
            return made

        yield make


@pytest.fixture
def world(places: Callable[..., Any]) -> Place:
    world = places()
    world.sh("ip link set lo up")
    return world  # type: ignore[no-any-return]


@pytest.fixture
def host(places: Callable[..., Any], world: Place) -> Host:
    """A host whose only way out is the world."""
    host = places(host=True)
    world.sh(f"ip link add host type veth peer name uplink netns {host.pid}")
    world.sh(f"ip addr add {WORLD}/24 dev host; ip addr add {METADATA}/32 dev lo; ip link set host up")
    host.sh(f"ip addr add {HOST}/24 dev uplink; ip link set uplink up; ip route add default via {WORLD}")
    return host  # type: ignore[no-any-return]


def need_legacy(host: Host) -> None:
    if subprocess.run(host.command("iptables-legacy", "-S", "FORWARD"), capture_output=True).returncode:
        pytest.skip("needs iptables-legacy, and a kernel that has its tables")


@pytest.fixture(
    params=["iptables", *(pytest.param(tool, marks=pytest.mark.long) for tool in ("iptables-legacy", "nft"))]
)
def any_host(request: pytest.FixtureRequest, host: Host) -> Host:
    """The same for each tool that sets rules."""
    if not shutil.which(request.param):
        pytest.skip(f"needs {request.param}")
    if request.param == "iptables-legacy":
        need_legacy(host)
        host.path = f"/run/legacy:{host.path}"
        for part in ("", "-save", "-restore"):
            host.sh(f"mkdir -p /run/legacy; ln -s $(command -v iptables-legacy{part}) /run/legacy/iptables{part}")
    if request.param == "nft":
        host.without_iptables()
    return host


@pytest.fixture
def sandboxes(places: Callable[..., Any]) -> Callable[[int], list[Place]]:
    return lambda count: [places() for _ in range(count)]


Sandboxes = Callable[[int], list[Place]]


# --- what passes ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_twenty_sandboxes_serve_the_same_port_and_the_host_reaches_each(host: Host, sandboxes: Sandboxes) -> None:
    twenty = sandboxes(20)
    links = host.link(*twenty)
    for number, sandbox in enumerate(twenty):
        sandbox.serve(9001, answer=f"number-{number}")
    answers = [host.ask(link.address, 9001) for link in links]
    assert answers == [f"number-{number} {link.host_address}" for number, link in enumerate(links)]


def test_a_sandbox_reaches_the_world_as_the_host(any_host: Host, world: Place, sandboxes: Sandboxes) -> None:
    world.serve(443)
    world.serve(53, protocol="udp")
    (sandbox,) = sandboxes(1)
    any_host.link(sandbox)
    assert sandbox.ask(WORLD, 443) == f"hello {HOST}"
    assert sandbox.ask(WORLD, 53, "udp") == f"hello {HOST}"


@pytest.mark.long
def test_a_firewall_that_drops_everything_lets_sandboxes_out_and_the_host_in(
    host: Host, world: Place, sandboxes: Sandboxes
) -> None:
    host.sh("for chain in INPUT OUTPUT FORWARD; do iptables -P $chain DROP; done")
    world.serve(443)
    (sandbox,) = sandboxes(1)
    (link,) = host.link(sandbox)
    sandbox.serve(9001)
    assert sandbox.ask(WORLD, 443) == f"hello {HOST}"
    assert host.ask(link.address, 9001) == f"hello {link.host_address}"


@pytest.mark.long
def test_without_a_way_out_sandboxes_serve_the_host_all_the_same(places: Callable[..., Any]) -> None:
    host, sandbox = places(host=True), places()
    (link,) = host.link(sandbox)
    sandbox.serve(9001)
    assert host.ask(link.address, 9001) == f"hello {link.host_address}"
    assert "unreachable" in sandbox.ask(WORLD, 443)


@pytest.mark.long
def test_a_link_has_the_size_of_the_packets_that_leave_the_host(host: Host, sandboxes: Sandboxes) -> None:
    host.sh("ip link set uplink mtu 1380")
    (sandbox,) = sandboxes(1)
    host.link(sandbox)
    assert "mtu 1380" in sandbox.sh("ip link show eth0")


@pytest.mark.long
def test_any_user_of_a_sandbox_may_bind_low_ports_and_ping(host: Host, sandboxes: Sandboxes) -> None:
    (sandbox,) = sandboxes(1)
    host.link(sandbox)
    code = """if True:
        import os, socket
        os.setgroups([]); os.setgid(61000); os.setuid(61000)
        socket.create_server(("0.0.0.0", 80))
        ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
        ping.sendto(b"\\x08" + bytes(7), ("127.0.0.1", 0))
        print(ping.recv(100)[0])
    """
    assert sandbox.python(code) == "0\n"


# --- what does not -------------------------------------------------------------------------------------


def test_the_host_s_ports_are_out_of_reach(any_host: Host, sandboxes: Sandboxes) -> None:
    any_host.serve(8080)
    any_host.serve(5353, protocol="udp")
    (sandbox,) = sandboxes(1)
    (link,) = any_host.link(sandbox)
    assert any_host.ask(HOST, 8080).startswith("hello")
    asked = [
        sandbox.asking(address, port, protocol, patience=0.5)
        for address in (link.host_address, HOST)
        for port, protocol in ((8080, "tcp"), (5353, "udp"))
    ]
    assert [answer() for answer in asked] == ["TimeoutError None"] * 4


@pytest.mark.long
def test_siblings_are_out_of_reach(any_host: Host, sandboxes: Sandboxes) -> None:
    one, other = sandboxes(2)
    links = any_host.link(one, other)
    other.serve(9001)
    address = links[1].address
    assert any_host.ask(address, 9001).startswith("hello")
    assert one.ask(address, 9001) == "OSError No route to host"
    # Also for a sandbox that had a route.
    one.sh("ip route del unreachable 198.18.0.0/16")
    assert one.ask(address, 9001, patience=0.5) == "TimeoutError None"


def test_a_cloud_s_credentials_are_refused_at_once(any_host: Host, world: Place, sandboxes: Sandboxes) -> None:
    world.serve(80)
    (sandbox,) = sandboxes(1)
    any_host.link(sandbox)
    assert any_host.ask(METADATA, 80).startswith("hello")
    assert sandbox.ask(METADATA, 80) == "ConnectionRefusedError Connection refused"


@pytest.mark.long
def test_a_cloud_s_credentials_stay_out_of_reach_behind_a_rule_that_lets_all_pass(
    host: Host, world: Place, sandboxes: Sandboxes
) -> None:
    world.serve(80)
    (sandbox,) = sandboxes(1)
    host.link(sandbox)
    host.sh("iptables -I FORWARD -j ACCEPT; iptables -I INPUT -j ACCEPT")
    assert sandbox.ask(METADATA, 80, patience=0.5) == "TimeoutError None"


@pytest.mark.long
def test_a_resolver_where_clouds_have_it_answers_but_nothing_else_there(
    any_host: Host, world: Place, sandboxes: Sandboxes
) -> None:
    any_host.sh(f"echo nameserver {METADATA} > /run/resolv; mount --bind /run/resolv $(readlink -f /etc/resolv.conf)")
    # A datagram is answered from the address that it was sent to only by who is bound to it.
    world.serve(53, protocol="udp", at=METADATA)
    world.serve(53)
    world.serve(80)
    (sandbox,) = sandboxes(1)
    any_host.link(sandbox)
    assert sandbox.ask(METADATA, 53, "udp") == f"hello {HOST}"
    assert sandbox.ask(METADATA, 53) == f"hello {HOST}"
    assert sandbox.ask(METADATA, 80) == "ConnectionRefusedError Connection refused"


def test_the_world_cannot_begin_a_conversation_with_a_sandbox(
    any_host: Host, world: Place, sandboxes: Sandboxes
) -> None:
    (sandbox,) = sandboxes(1)
    (link,) = any_host.link(sandbox)
    sandbox.serve(9001)
    world.sh(f"ip route add 198.18.0.0/16 via {HOST}")
    assert any_host.ask(link.address, 9001).startswith("hello")
    assert world.ask(link.address, 9001, patience=0.5) == "TimeoutError None"


@needs_nft
def test_a_published_port_of_the_host_is_not_for_sandboxes(any_host: Host, world: Place, sandboxes: Sandboxes) -> None:
    (sandbox,) = sandboxes(1)
    (link,) = any_host.link(sandbox)
    world.serve(80)
    any_host.sh(
        "nft add table ip published;"
        "nft add chain ip published pre '{ type nat hook prerouting priority -100; }';"
        f"nft add rule ip published pre fib daddr type local tcp dport 8080 dnat to {WORLD}:80"
    )
    asked = [sandbox.asking(address, 8080, patience=0.5) for address in (link.host_address, HOST)]
    assert [answer() for answer in asked] == ["TimeoutError None"] * 2


def test_a_sandbox_has_no_ipv6_but_its_own(host: Host, sandboxes: Sandboxes) -> None:
    (sandbox,) = sandboxes(1)
    host.link(sandbox)
    addresses = sandbox.sh("ip -6 -o addr show").splitlines()
    assert [line.split()[3] for line in addresses] == ["::1/128"]


# --- links ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.long
def test_links_made_by_four_processes_at_once_are_distinct(host: Host, sandboxes: Sandboxes, count: int) -> None:
    many = sandboxes(count)
    # Of few pairs more, so that they collide.
    limit = str(count + count // 10)
    linkers = [
        host.start(sys.executable, "-c", LINK, limit, *(str(each.pid) for each in many[start::4])) for start in range(4)
    ]
    said = [linker.communicate() for linker in linkers]
    assert [error for _, error in said if error] == []
    links = [netlink.Link(*json.loads(line)) for output, _ in said for line in output.splitlines()]
    assert len(links) == count
    for field in zip(*links, strict=True):
        assert len(set(field)) == count
    assert sorted(host.links()) == sorted(link.name for link in links)


@pytest.mark.long
def test_a_link_goes_with_its_sandbox(host: Host, sandboxes: Sandboxes) -> None:
    (sandbox,) = sandboxes(1)
    host.link(sandbox)
    assert len(host.links()) == 1
    sandbox.stop()
    # The kernel takes it away with the namespace, after those of all tests before.
    asyncio.run(until(lambda: not host.links()))


@pytest.mark.long
def test_a_removed_link_is_gone_at_once_and_removing_it_again_is_no_error(host: Host, sandboxes: Sandboxes) -> None:
    (link,) = host.link(*sandboxes(1))
    code = """if True:
        import sys
        from benchflow.planes.sandbox.local.helper import netlink
        with netlink.open_socket() as sock:
            print(netlink.list_links(sock))
            for _ in range(2):
                netlink.remove(sock, sys.argv[1])
            print(netlink.list_links(sock))
    """
    assert host.python(code, link.name).splitlines() == [str([link.name]), "[]"]


@pytest.mark.long
def test_a_namespace_is_linked_once_and_a_second_try_leaves_nothing(host: Host, sandboxes: Sandboxes) -> None:
    (sandbox,) = sandboxes(1)
    host.link(sandbox)
    with pytest.raises(AssertionError, match="FileExistsError"):
        host.link(sandbox)
    assert len(host.links()) == 1


@pytest.mark.long
def test_when_every_pair_is_in_use_it_says_so(host: Host, sandboxes: Sandboxes) -> None:
    *three, fourth = sandboxes(4)
    addresses = {link.address for link in host.link(*three, limit=3)}
    assert addresses == {"198.18.0.1", "198.18.0.3", "198.18.0.5"}
    with pytest.raises(AssertionError, match=r"every pair of addresses of 198\.18\.0\.0/16 is in use"):
        host.link(fourth, limit=3)


@pytest.mark.long
def test_the_last_pair_of_the_subnet_is_as_good_as_the_first(host: Host, sandboxes: Sandboxes) -> None:
    (sandbox,) = sandboxes(1)
    sandbox.serve(9001)
    code = """if True:
        import os, sys
        from benchflow.planes.sandbox.local.helper import kernel, netlink
        netlink._shuffle_pairs = lambda pairs: iter([pairs - 1])
        with netlink.open_socket() as host:
            kernel.setns(os.pidfd_open(int(sys.argv[1])), kernel.CLONE_NEWNET)
            with netlink.open_socket() as inside:
                print(*netlink.connect(host, inside, int(sys.argv[1]), "198.18.0.0/16"))
    """
    assert host.python(code, sandbox.pid).split() == ["bfl32767", "198.18.255.254", "198.18.255.255"]
    assert host.ask("198.18.255.255", 9001) == "hello 198.18.255.254"


# --- rules ---------------------------------------------------------------------------------------------


def test_processes_that_prepare_at_once_set_the_rules_once(any_host: Host) -> None:
    code = "from benchflow.planes.sandbox.local import network; network.prepare(); network.prepare()"
    many = [any_host.start(sys.executable, "-c", code) for _ in range(5)]
    assert [process.communicate()[1] for process in many] == [""] * 5
    tags = [word for line in any_host.rules().splitlines() for word in line.split('"') if "benchflow:" in word]
    assert len(tags) == len(set(tags)) > 5
    assert any_host.sh("cat /proc/sys/net/ipv4/ip_forward") == "1\n"


def test_a_sweep_takes_the_rules_away_with_the_last_link_and_nothing_else(any_host: Host, sandboxes: Sandboxes) -> None:
    if shutil.which("nft"):
        any_host.sh("nft add table ip theirs; nft add chain ip theirs c; nft add rule ip theirs c counter")
    any_host.sh('if test -x "$(command -v iptables)"; then iptables -A FORWARD -m comment --comment x -j ACCEPT; fi')
    before = any_host.rules()
    (sandbox,) = sandboxes(1)
    (link,) = any_host.link(sandbox)
    any_host.sweep()
    assert "benchflow:out-198.18.0.0/16:" in any_host.rules()
    any_host.sh(f"ip link del {link.name}")
    any_host.sweep()
    assert any_host.rules() == before
    if shutil.which("nft"):
        assert "theirs" in any_host.sh("nft list ruleset")
    any_host.sweep()


def test_a_sweep_leaves_the_rules_to_whoever_is_about_to_link(any_host: Host) -> None:
    code = """if True:
        import sys
        from benchflow.planes.sandbox.local import network
        with network.hold():
            print("held", flush=True)
            sys.stdin.read()
    """
    holder = subprocess.Popen(
        any_host.command(sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and holder.stdout.readline() == "held\n"
    any_host.sweep(patience=0.1)
    assert "benchflow" in any_host.rules()
    # What holds it dies with its process.
    holder.kill()
    holder.communicate()
    any_host.sweep()
    assert "benchflow" not in any_host.rules()


@pytest.mark.long
def test_a_sweep_waits_for_who_holds_the_lock_for_a_moment(any_host: Host) -> None:
    code = """if True:
        import threading
        from benchflow.planes.sandbox.local import network
        other = network.hold()
        other.__enter__()
        threading.Timer(0.3, other.__exit__, (None, None, None)).start()
        network.sweep(patience=300)
    """
    any_host.python(code)
    assert "benchflow" not in any_host.rules()


@pytest.mark.long
def test_a_process_that_had_prepared_does_so_again_after_a_sweep_by_another(any_host: Host) -> None:
    code = """if True:
        import subprocess, sys
        from benchflow.planes.sandbox.local import network
        network.prepare()
        subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
        network.prepare()
    """
    any_host.python(code, "from benchflow.planes.sandbox.local import network; network.sweep()")
    assert "benchflow:out-198.18.0.0/16:" in any_host.rules()


@pytest.mark.parametrize(
    "lost",
    [
        "iptables -F FORWARD",
        *(pytest.param(f"iptables -t {table} -F", marks=pytest.mark.long) for table in ("mangle", "nat")),
    ],
)
def test_rules_that_somebody_removed_are_set_again_and_only_those(host: Host, lost: str) -> None:
    host.prepare()
    before = host.rules()
    host.sh(lost)
    assert host.rules() != before
    host.prepare()
    assert host.rules() == before


@pytest.mark.long
def test_outdated_rules_are_replaced(host: Host) -> None:
    host.prepare()
    before = host.rules()
    host.sh("iptables -I FORWARD -i bfl+ -m comment --comment benchflow:forward-out:00000000 -j ACCEPT")
    host.sh("iptables -F OUTPUT; : > /run/benchflow-network-*")
    host.prepare()
    assert host.rules() == before


@needs_nft
def test_what_docker_drops_passes_with_iptables_and_is_an_error_with_nft(
    host: Host, world: Place, sandboxes: Sandboxes
) -> None:
    host.sh("iptables -P FORWARD DROP")
    world.serve(443)
    (sandbox,) = sandboxes(1)
    host.link(sandbox)
    assert sandbox.ask(WORLD, 443) == f"hello {HOST}"
    host.sh("iptables -F FORWARD")
    host.without_iptables()
    said = host.refused()
    assert said.startswith("SandboxUnavailableError the packet filter drops what is forwarded (chain ip filter FORWARD")
    assert "install iptables" in said
    # The other remedy it gives holds.
    host.sh(said.partition("let it pass yourself: ")[2])
    host.prepare()
    assert sandbox.ask(WORLD, 443) == f"hello {HOST}"


@pytest.mark.long
def test_what_is_dropped_in_the_legacy_tables_passes_too(host: Host, world: Place, sandboxes: Sandboxes) -> None:
    need_legacy(host)
    host.sh("iptables-legacy -P FORWARD DROP")
    world.serve(443)
    (sandbox,) = sandboxes(1)
    (link,) = host.link(sandbox)
    assert sandbox.ask(WORLD, 443) == f"hello {HOST}"
    host.sh(f"ip link del {link.name}")
    host.sweep()
    assert "bfl" not in host.sh("iptables-legacy-save")


def test_without_any_tool_the_error_says_what_to_install(host: Host) -> None:
    host.without_iptables()
    if shutil.which("nft"):
        host.sh("mount --bind /dev/null $(readlink -f $(command -v nft))")
    said = host.refused()
    assert said.startswith("SandboxUnavailableError") and "install iptables (or nftables)" in said


# --- the subnet ----------------------------------------------------------------------------------------


TAKEN = (
    "ip route add 198.18.0.0/15 dev uplink",
    "ip route add 198.18.7.0/24 dev uplink; ip addr add 198.19.3.1/32 dev uplink",
    "ip route add 198.0.0.0/8 via 203.0.113.1 table 77",
    "ip route add blackhole 198.18.0.0/15",
    "echo nameserver 198.18.0.53 > /run/r; echo nameserver 198.19.0.53 >> /run/r;"
    "mount --bind /run/r $(readlink -f /etc/resolv.conf)",
)


@pytest.mark.parametrize("taken", [TAKEN[0], *(pytest.param(each, marks=pytest.mark.long) for each in TAKEN[1:])])
def test_a_subnet_that_the_host_needs_is_not_taken(host: Host, taken: str) -> None:
    host.sh(taken)
    assert host.prepare() == "10.240.0.0/16"


@pytest.mark.long
def test_every_process_of_a_host_gets_the_subnet_in_use_unless_it_has_been_taken(
    host: Host, sandboxes: Sandboxes
) -> None:
    assert host.prepare("BENCHFLOW_LOCAL_SUBNET=10.99.0.0/16") == "10.99.0.0/16"
    host.link(*sandboxes(1))
    assert host.prepare() == "10.99.0.0/16"
    host.sh("ip route add 10.99.1.0/24 dev uplink")
    assert host.prepare() == "198.18.0.0/16"
    # The sandboxes that have an address of the first one keep their way out.
    assert "benchflow:out-10.99.0.0/16:" in host.rules()


WRONG_SUBNETS = {
    "10.0.0.0/8": "not a private /16",
    "10.1.2.0/16": "not an IPv4 subnet",
    "8.8.0.0/16": "not a private /16",
    "169.254.0.0/16": "not a private /16",
    "nonsense": "not an IPv4 subnet",
    "203.0.0.0/16": "not a private /16",
    "10.50.0.0/16": "overlaps 10.50.3.0/24 of this host",
}


def test_a_wrong_subnet_is_refused_with_the_reason(host: Host) -> None:
    host.sh("ip route add 10.50.3.0/24 dev uplink")
    code = """if True:
        import os, sys
        from benchflow.errors import ConfigError
        from benchflow.planes.sandbox.local import network
        for subnet in sys.argv[1:]:
            os.environ["BENCHFLOW_LOCAL_SUBNET"] = subnet
            try:
                print(network.prepare())
            except ConfigError as error:
                print(str(error).partition("\\n")[0])
    """
    for said, why in zip(host.python(code, *WRONG_SUBNETS).splitlines(), WRONG_SUBNETS.values(), strict=True):
        assert said.startswith("BENCHFLOW_LOCAL_SUBNET: ") and why in said


# --- resolvers -----------------------------------------------------------------------------------------


def test_resolvers_are_those_that_a_sandbox_can_reach(tmp_path: Path) -> None:
    def write(file: str, *addresses: str) -> None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("search lan\n" + "".join(f"nameserver {each}\n" for each in addresses))

    assert network.find_nameservers(tmp_path) == ("1.1.1.1", "8.8.8.8")
    write("etc/resolv.conf", "127.0.0.53")
    assert network.find_nameservers(tmp_path) == ("1.1.1.1", "8.8.8.8")
    write("run/systemd/resolve/resolv.conf", "fe80::1", "10.9.8.7", "10.9.8.7", "10.9.8.6")
    assert network.find_nameservers(tmp_path) == ("10.9.8.7", "10.9.8.6")
    write("etc/resolv.conf", "10.1.1.1", "127.0.0.1", "10.1.1.2", "10.1.1.3", "10.1.1.4")
    assert network.find_nameservers(tmp_path) == ("10.1.1.1", "10.1.1.2", "10.1.1.3")


# --- the daemon of this machine ------------------------------------------------------------------------


@pytest.mark.docker
def test_containers_of_this_host_keep_their_network_and_stay_out_of_reach(
    base_image: str, sandboxes: Sandboxes
) -> None:
    import docker

    (sandbox,) = sandboxes(1)
    client = docker.from_env()
    container = client.containers.run(
        base_image, ["python3", "-I", "-c", SERVE, "80", "tcp", "container"], detach=True, ports={"80/tcp": None}
    )
    try:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        made = subprocess.run(
            [sys.executable, "-c", LINK, "0", str(sandbox.pid)],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        link = netlink.Link(*json.loads(made.stdout))
        sandbox.serve(9001)
        asyncio.run(until(lambda: b"ready" in container.logs()))
        container.reload()
        (own,) = container.attrs["NetworkSettings"]["Networks"].values()
        address, gateway = own["IPAddress"], own["Gateway"]
        port = int(container.attrs["NetworkSettings"]["Ports"]["80/tcp"][0]["HostPort"])

        def ask(to: str, port: int) -> str:
            words = [sys.executable, "-I", "-c", ASK, to, str(port), "tcp", "60"]
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

        assert ask(address, 80).startswith("container")
        assert ask("127.0.0.1", port).startswith("container")
        assert ask(link.address, 9001).startswith("hello")
        places = ((address, 80), (link.host_address, port), (gateway, port))
        asked = [sandbox.asking(to, at, patience=0.5) for to, at in places]
        assert [answer() for answer in asked] == ["TimeoutError None"] * 3
        from_container = container.exec_run(["python3", "-I", "-c", ASK, link.address, "9001", "tcp", "0.5"])
        assert b"TimeoutError" in from_container.output or b"timeout" in from_container.output
    finally:
        container.remove(force=True)
        client.close()
        with netlink.open_socket() as sock:
            netlink.remove(sock, link.name)
        network.sweep()
