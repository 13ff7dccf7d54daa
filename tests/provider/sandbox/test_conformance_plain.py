"""What the engine builds over a driver's methods alone, against the suite that every provider must pass."""

from __future__ import annotations

import os

import pytest

from benchflow.testing.sandbox_conformance import SandboxConformance


@pytest.mark.docker
@pytest.mark.long
class TestPlain(SandboxConformance):
    provider_path = "support.plain_driver:PlainDriver"
    base_image = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")

    # Docker 20.10 answers nobody about a container into which a command enters that is stopped as it does. Only a
    # driver that ends it past the daemon comes out of that.
    test_commands_that_were_stopped_as_they_entered_can_be_cancelled_and_their_sandbox_be_removed = None
    test_a_command_that_was_stopped_as_it_entered_ends_by_its_timeout_or_with_its_sandbox = None
