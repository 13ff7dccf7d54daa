"""The Docker provider against the suite that every provider must pass."""

from __future__ import annotations

import os

import pytest
from support.world_readiness import WorldReadiness

from benchflow.testing.sandbox_conformance import SandboxConformance


@pytest.mark.docker
class TestDocker(SandboxConformance, WorldReadiness):
    provider_path = "benchflow.planes.sandbox.docker:DockerProvider"
    base_image = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")
    long = frozenset({"test_thirty_generations_are_as_good_as_one"})
