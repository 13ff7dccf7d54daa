"""The Docker provider against the suite that every provider must pass, with images in containerd's store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.counted_task import BASE_IMAGE
from support.second_daemon import SecondDaemon
from support.world_readiness import WorldReadiness

from benchflow.testing.sandbox_conformance import SandboxConformance

pytestmark = [pytest.mark.docker, pytest.mark.long]

OUT_OF_REACH = "this host reaches no container of a daemon in a network namespace of its own"


class TestDockerWithContainerdStore(SandboxConformance, WorldReadiness):
    provider_path = "benchflow.planes.sandbox.docker:DockerDriver"
    base_image = BASE_IMAGE

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def daemon(cls, containerd_store: SecondDaemon) -> Iterator[None]:
        """The only daemon of these tests, and of the processes that they start."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", containerd_store.address)
            yield

    @pytest.fixture
    def needs_public(self) -> None:
        pytest.skip(OUT_OF_REACH)

    async def test_a_port_of_each_of_two_sandboxes_is_reached_from_this_host(self) -> None:
        pytest.skip(OUT_OF_REACH)
