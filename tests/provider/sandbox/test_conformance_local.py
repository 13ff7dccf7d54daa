"""The local provider against the suite that every provider must pass."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_sandboxes import LOCAL, Economical
from support.rounds import MORE_ROUNDS
from support.world_readiness import WorldReadiness

from benchflow.contracts.images import ImageConfig
from benchflow.testing.sandbox_conformance import SandboxConformance
from benchflow.testing.sandbox_conformance.sandbox_fixtures import left_mounted


@pytest.mark.local
class TestLocal(Economical, SandboxConformance, WorldReadiness):
    provider_path = LOCAL
    long = frozenset(
        {
            *MORE_ROUNDS,
            "test_a_process_that_starts_a_world_may_be_killed_at_any_moment[below-3]",
            # Their guarantee is shown by the fork of which each child is one moment of the world.
            *("test_worlds_forked_again_and_again_are_whole_each_time", "test_thirty_generations_are_as_good_as_one"),
            "test_a_snapshot_may_be_taken_while_the_world_goes_on",
            # As another user as well as for root.
            "test_processes_at_the_same_moment_share_one_execution[as root]",
            "test_a_killed_callers_execution_goes_on_and_is_found_again[as root]",
            "test_a_timeout_kills_the_command_and_all_it_started[nobody]",
            "test_a_timeout_kills_what_root_started_as_another_user",
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

    @pytest.fixture(scope="class")
    @classmethod
    def image_config(cls, tmp_path_factory: pytest.TempPathFactory) -> ImageConfig:
        """A Dockerfile, for which the host stands."""
        context = tmp_path_factory.mktemp("environment")
        (context / "Dockerfile").write_text(f"FROM {cls.base_image}\n")
        return ImageConfig(context=str(context))
