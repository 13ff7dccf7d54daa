"""Finding providers, and the one that does nothing."""

from __future__ import annotations

import pytest

from benchflow.contracts.images import ImageConfig
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ConfigError, SandboxUnavailableError
from benchflow.planes.sandbox import get_provider, list_provider_names
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider


def test_providers_are_found_by_name_and_made_once():
    assert {"docker", "noop"} <= set(list_provider_names())
    assert isinstance(get_provider("docker"), DrivenProvider)
    assert get_provider("docker") is get_provider("docker")
    assert isinstance(get_provider("noop"), DrivenProvider)


@pytest.mark.parametrize("name", ["docker", "noop"])
def test_providers_keep_the_contract(name):
    assert isinstance(get_provider(name), SandboxProvider)
    assert get_provider(name).capabilities().provider == name


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="dokcer") as caught:
        get_provider("dokcer")
    assert "docker" in caught.value.remedy


async def test_without_a_daemon_the_check_says_what_to_do(state, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    provider = DrivenProvider(DockerDriver())
    with pytest.raises(SandboxUnavailableError) as caught:
        await provider.check()
    assert "DOCKER_HOST" in caught.value.remedy and "start" in caught.value.remedy
    await provider.close()


async def test_a_daemon_that_refuses_the_connection_is_told_the_same_way(state, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    provider = DrivenProvider(DockerDriver())
    with pytest.raises(SandboxUnavailableError) as caught:
        await provider.build(ImageConfig(image="x"))
    assert "DOCKER_HOST" in caught.value.remedy
    await provider.close()


async def test_the_noop_sandbox_does_nothing_and_scores_one(tmp_path):
    provider = get_provider("noop")
    image = await provider.build(ImageConfig(image="x"))
    sandbox = await provider.start(SandboxSpec(name="n", image=image), host_id="h", queue="q")
    assert isinstance(sandbox, Sandbox)
    assert (await sandbox.exec(["rm", "-rf", str(tmp_path)])).return_code == 0
    assert tmp_path.exists()
    assert [chunk.return_code async for chunk in sandbox.exec_stream(["x"])] == [0]
    assert await sandbox.download("/logs/verifier", tmp_path / "v")
    assert (tmp_path / "v" / "reward.txt").read_text() == "1.0"
    assert await sandbox.read_bytes("/logs/verifier/reward.txt") == b"1.0"
    assert not await sandbox.download("/logs/artifacts", tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        await sandbox.read_bytes("/etc/passwd")
    assert await provider.owned("stack") == []
