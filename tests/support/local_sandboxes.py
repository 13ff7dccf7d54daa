"""What the tests of the local sandbox's promises stand on: sandboxes over the bare host, and programs that try."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchflow.contracts.sandbox import ImageRef, Sandbox, SandboxProvider, SandboxRef
from benchflow.planes.sandbox.local.images import BARE
from benchflow.testing.sandbox_conformance.fixtures import Fixtures, elsewhere, make_provider

LOCAL = "benchflow.planes.sandbox.local.provider:LocalProvider"
AGENT = 61000
NOT_ROOT = "setpriv --reuid=61000 --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
"""Runs a command as an ordinary user, who may read this repository all the same, wherever it lies."""
EVERYBODY = pytest.mark.parametrize("user", [None, AGENT], ids=["root", "agent"])


class Economical(Fixtures):
    """What tests of local sandboxes need not begin anew each: the store, mounted, and the helper process."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, class_stack: str) -> Iterator[SandboxProvider]:
        """One for all tests of the class: it serves one event loop after another."""
        made = make_provider(cls.provider_path)
        yield made
        elsewhere(made.close)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def kept_open(cls, shared_ref: SandboxRef) -> None:
        """Have a sandbox all the time: without, each test would mount the store and take it away again."""


class OverTheHost(Economical):
    """The conformance suite's fixtures for local sandboxes that start from the host as it is."""

    provider_path = LOCAL

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls) -> ImageRef:
        return ImageRef(reference=BARE)


async def tried(sandbox: Sandbox, script: str, *arguments: str, user: int | None = None) -> Any:
    """What a Python program in the sandbox prints: one JSON value."""
    said = await sandbox.exec(["python3", "-c", script, *arguments], user=user, cwd="/", timeout=600)
    assert said.return_code == 0, said.stderr
    return json.loads(said.stdout)
