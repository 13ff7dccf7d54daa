"""The networks that Docker sandboxes share."""

from __future__ import annotations

import asyncio

import pytest

from benchflow.planes.sandbox.docker.docker_networks import format_bridge_name

pytestmark = pytest.mark.docker


async def test_a_stack_has_one_bridge_however_many_start_at_once_until_its_last_sandbox_has_gone(
    start, provider, daemon, stack
):
    def bridges():
        return [network for network in daemon.networks.list() if network.name == format_bridge_name(stack)]

    *others, last = await asyncio.gather(*(start(network_mode="public") for _ in range(3)))
    (bridge,) = bridges()
    assert bridge.attrs["Options"]["com.docker.network.bridge.enable_icc"] == "false"
    assert bridge.attrs["Labels"]["benchflow.stack"] == stack
    await asyncio.gather(*(provider.remove(sandbox.ref.name) for sandbox in others))
    await provider.sweep(stack)
    assert bridges()
    await provider.remove(last.ref.name)
    for _ in range(2):
        await provider.sweep(stack)
        assert not bridges()
