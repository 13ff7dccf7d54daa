"""The local provider against the suite that every provider must pass."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.world_readiness import WorldReadiness

from benchflow.contracts.sandbox import ImageConfig, SandboxRef
from benchflow.testing.sandbox_conformance import SandboxConformance
from benchflow.testing.sandbox_conformance.fixtures import left_mounted


@pytest.mark.local
class TestLocal(SandboxConformance, WorldReadiness):
    provider_path = "benchflow.planes.sandbox.local.provider:LocalProvider"
    long = frozenset(
        {
            # More rounds of what is killed at any moment.
            *("test_a_process_that_starts_one_may_be_killed_at_any_moment[10]",),
            *(
                f"test_a_process_that_starts_a_world_may_be_killed_at_any_moment[{rounds}]"
                for rounds in ("first-10", "below-10", "below-3")
            ),
            "test_a_caller_may_be_killed_at_any_moment[20]",
            "test_thirty_generations_are_as_good_as_one",
        }
    )

    @pytest.fixture(scope="class")
    @classmethod
    def state_directory(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """A state directory of which nothing may be left on this host: no mount, no loop device."""
        directory = tmp_path_factory.mktemp("state")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
            yield directory
        left = left_mounted(cls.provider_path, directory)
        for line in left:
            subprocess.run(["umount", "--lazy", line.split()[1]], check=True)
        assert left == []

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def kept_open(cls, shared_ref: SandboxRef) -> None:
        """Have a sandbox all the time: without, each test would mount the store anew and take it away again."""

    @pytest.fixture(scope="class")
    @classmethod
    def image_config(cls, tmp_path_factory: pytest.TempPathFactory) -> ImageConfig:
        """A Dockerfile, since the host cannot stand for a ready image."""
        context = tmp_path_factory.mktemp("environment")
        (context / "Dockerfile").write_text(f"FROM {cls.base_image}\n")
        return ImageConfig(context=str(context))
