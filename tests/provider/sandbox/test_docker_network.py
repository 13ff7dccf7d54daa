"""The networks that Docker sandboxes share."""

from __future__ import annotations

import asyncio

import pytest

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.docker.networks import bridge_name

pytestmark = pytest.mark.docker


async def test_a_port_without_a_network_is_an_error_with_a_remedy(start):
    sandbox = await start(network_mode="no-network")
    with pytest.raises(SandboxError, match="no network") as caught:
        await sandbox.expose_port(8000)
    assert caught.value.key == "network_mode"


async def test_a_stack_has_one_bridge_however_many_start_at_once(start, daemon, stack):
    await asyncio.gather(*(start(network_mode="public") for _ in range(4)))
    found = [n for n in daemon.networks.list() if n.name == bridge_name(stack)]
    assert len(found) == 1
    assert found[0].attrs["Options"]["com.docker.network.bridge.enable_icc"] == "false"
    assert found[0].attrs["Labels"]["benchflow.stack"] == stack


async def test_the_bridge_goes_with_the_last_sandbox_and_not_before(start, provider, daemon, stack):
    one, two = await start(network_mode="public"), await start(network_mode="public")

    def there() -> bool:
        return any(network.name == bridge_name(stack) for network in daemon.networks.list())

    await provider.remove(one.ref.name)
    await provider.sweep(stack)
    assert there()
    await provider.remove(two.ref.name)
    await provider.sweep(stack)
    assert not there()
    await provider.sweep(stack)
