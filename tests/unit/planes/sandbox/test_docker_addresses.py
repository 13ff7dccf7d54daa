"""Where the ports of containers are reached, and where they are published, by where the daemon is."""

from __future__ import annotations

import pytest

from benchflow.planes.sandbox.docker.container_config import find_daemon_host, find_publish_address


@pytest.mark.parametrize(
    ("address", "host", "bound"),
    [
        (None, "127.0.0.1", "127.0.0.1"),
        ("unix:///run/docker.sock", "127.0.0.1", "127.0.0.1"),
        ("tcp://localhost:2375", "127.0.0.1", "127.0.0.1"),
        ("tcp://builder.example:2376", "builder.example", "0.0.0.0"),
        ("ssh://me@builder.example", "builder.example", "0.0.0.0"),
    ],
)
def test_with_a_daemon_elsewhere_its_host_is_answered(monkeypatch, address, host, bound):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    if address:
        monkeypatch.setenv("DOCKER_HOST", address)
    assert (find_daemon_host(), find_publish_address()) == (host, bound)
