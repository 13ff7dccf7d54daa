"""Networks: connections between sandboxes, this host and the Internet."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import get_args

import pytest

from benchflow.contracts.sandbox import NetworkMode, Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxError, UnsupportedFeatureError
from benchflow.testing.sandbox_conformance.sandbox_fixtures import PATIENCE, SandboxFixtures, Start
from benchflow.testing.waiting import until

PORT = 9001
"""Port of the server of `SERVE`."""

SERVE = "mkdir -p /page && cd /page && echo {} >index.html && (python3 -m http.server 9001 >/dev/null 2>&1 &)"
"""Starts an HTTP server in the background. A test fills in the text of its page."""

TRY = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1); print('reached')"
"""Program that prints `reached` if it can connect to an address and a port."""

OUTSIDE = os.environ.get("BENCHFLOW_TEST_OUTSIDE", "example.com")
"""Host on the Internet that serves HTTPS, for the test of public sandboxes on machines that reach it."""

HTTPS = (
    "import socket, ssl, sys\n"
    "name = sys.argv[1]\n"
    "context = ssl._create_unverified_context()\n"
    "with context.wrap_socket(socket.create_connection((name, 443), 10), server_hostname=name) as there:\n"
    "    print(there.version())\n"
)
"""Program that prints the TLS version of a host, without a check of its certificate."""


async def fetched(address: tuple[str, int]) -> bytes:
    """Return the body of the page at an address, polling until its server is up."""

    async def page() -> bytes:
        try:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            said = await reader.read()
            writer.close()
        except OSError:
            return b""
        return said

    return (await until(page)).rpartition(b"\r\n\r\n")[2]


class NetworkTests(SandboxFixtures):
    """Tests of `network_mode` and `expose_port`."""

    @pytest.fixture
    def needs_public(self, provider: SandboxProvider) -> None:
        """Skip the test if the provider has no public network."""
        if "public" not in provider.capabilities().network_modes:
            pytest.skip("this provider has no public network")

    @pytest.fixture
    def needs_none(self, provider: SandboxProvider) -> None:
        """Skip the test if the provider cannot start a sandbox without a network."""
        if "no-network" not in provider.capabilities().network_modes:
            pytest.skip("this provider cannot do without a network")

    async def test_a_mode_that_is_not_offered_is_refused(
        self, start: Start, provider: SandboxProvider, stack: str
    ) -> None:
        for mode in set(get_args(NetworkMode)) - set(provider.capabilities().network_modes):
            with pytest.raises(UnsupportedFeatureError) as caught:
                await start(network_mode=mode)
            assert caught.value.key == "network_mode"
        assert await provider.owned(stack) == []
        # Sandboxes of the other two modes start in the tests below.
        if "allowlist" in provider.capabilities().network_modes:
            assert (await (await start(network_mode="allowlist")).exec(["true"])).return_code == 0

    @pytest.mark.usefixtures("needs_public")
    async def test_the_host_reaches_the_same_port_of_each_sandbox_and_no_sandbox_anothers(
        self, start: Start, other: SandboxProvider
    ) -> None:
        sandboxes = await asyncio.gather(*(start(network_mode="public") for _ in range(2)))
        for n, sandbox in enumerate(sandboxes):
            assert (await sandbox.exec(["sh", "-c", SERVE.format(n)])).return_code == 0
        addresses = [await sandbox.expose_port(PORT) for sandbox in sandboxes]
        assert [await fetched(address) for address in addresses] == [b"0\n", b"1\n"]
        # Any process may ask for the address, repeatedly.
        assert await fetched(await (await other.attach(sandboxes[1].ref)).expose_port(PORT)) == b"1\n"
        (host, port), (server, client) = addresses[0], sandboxes
        own = (await server.exec(["hostname", "-I"])).stdout.split()
        # Its own server at that port must not be taken for the other sandbox's.
        await client.kill_processes(keep="nothing")
        for address in {host, *own} - {"127.0.0.1"}:
            for at in {port, PORT}:
                assert (await client.exec(["python3", "-c", TRY, address, str(at)])).return_code != 0
        assert (await server.exec(["python3", "-c", TRY, "127.0.0.1", str(PORT)])).stdout == "reached\n"

    @pytest.mark.usefixtures("needs_public")
    async def test_a_public_sandbox_reaches_out_if_this_host_does(self, start: Start) -> None:
        try:
            socket.create_connection((OUTSIDE, 443), 5).close()
        except OSError as error:
            pytest.skip(f"this host does not reach {OUTSIDE} itself: {error}")
        sandbox = await start(network_mode="public")

        async def reached() -> bool:
            # Retried, since a packet may be lost between this host and that one.
            return (await sandbox.exec(["python3", "-c", HTTPS, OUTSIDE], timeout=30)).stdout.startswith("TLS")

        await until(reached)

    @pytest.mark.usefixtures("needs_none")
    async def test_no_network_means_only_loopback(self, sandbox: Sandbox) -> None:
        said = await sandbox.exec(["sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"])
        assert "lo" in said.stdout.split()
        assert set(said.stdout.split()) <= {"lo", "tunl0", "sit0", "ip6tnl0"}
        assert (await sandbox.exec(["python3", "-c", TRY, "192.0.2.1", "80"])).return_code != 0

    @pytest.mark.usefixtures("needs_none")
    async def test_a_service_without_a_network_is_there_for_its_own_sandbox_only(
        self, own: Sandbox, sandbox: Sandbox
    ) -> None:
        server, other = own, sandbox
        await server.exec(["sh", "-c", SERVE.format("hello")])
        wait = f'until python3 -c "$0" 127.0.0.1 {PORT} 2>/dev/null; do :; done; python3 -c "$0" localhost {PORT}'
        assert (await server.exec(["sh", "-c", wait, TRY], timeout=PATIENCE)).stdout.endswith("reached\n")
        assert (await other.exec(["python3", "-c", TRY, "127.0.0.1", str(PORT)])).return_code != 0
        try:
            address = await server.expose_port(PORT)
        except SandboxError as error:
            assert error.key == "network_mode" and error.remedy
        else:
            assert await fetched(address) == b"hello\n"

    async def test_this_hosts_own_services_are_out_of_reach(
        self, start: Start, sandbox: Sandbox, provider: SandboxProvider
    ) -> None:
        abstract = f"\0benchflow-{secrets.token_hex(8)}"
        with socket.create_server(("127.0.0.1", 0)) as local, socket.socket(socket.AF_UNIX) as named:
            named.bind(abstract)
            named.listen()
            port = str(local.getsockname()[1])
            reach = "import socket, sys; socket.socket(socket.AF_UNIX).connect(chr(0) + sys.argv[1])"
            sandboxes = [sandbox]
            if "public" in provider.capabilities().network_modes:
                sandboxes.append(await start(network_mode="public"))
            for one in sandboxes:
                assert (await one.exec(["python3", "-c", TRY, "127.0.0.1", port])).return_code != 0
                assert (await one.exec(["python3", "-c", reach, abstract[1:]])).return_code != 0
