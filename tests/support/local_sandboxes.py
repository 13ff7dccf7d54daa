"""What the tests of the local sandbox's promises stand on: sandboxes over the bare host, and programs that try."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchflow.contracts.sandbox import ImageRef, Sandbox
from benchflow.planes.sandbox.local.images import BARE
from benchflow.testing.sandbox_conformance.fixtures import Fixtures

AGENT = 61000
EVERYBODY = pytest.mark.parametrize("user", [None, AGENT], ids=["root", "agent"])


class OverTheHost(Fixtures):
    """The conformance suite's fixtures for local sandboxes that start from the host as it is."""

    provider_path = "benchflow.planes.sandbox.local.provider:LocalProvider"

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls) -> ImageRef:
        return ImageRef(reference=BARE)


async def tried(sandbox: Sandbox, script: str, *arguments: str, user: int | None = None) -> Any:
    """What a Python program in the sandbox prints: one JSON value."""
    said = await sandbox.exec(["python3", "-c", script, *arguments], user=user, cwd="/", timeout=600)
    assert said.return_code == 0, said.stderr
    return json.loads(said.stdout)
