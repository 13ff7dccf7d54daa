"""What the tests of the local sandbox's promises stand on: sandboxes over the bare host, and programs that try."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxRef, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.planes.sandbox.local.local_images import BARE
from benchflow.testing.sandbox_conformance.sandbox_fixtures import (
    STACK_LABEL,
    SandboxFixtures,
    elsewhere,
    make_provider,
    remove_all,
)

LOCAL = "benchflow.planes.sandbox.local.local_driver:LocalDriver"
AGENT = 61000
NOT_ROOT = "setpriv --reuid=61000 --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
"""Runs a command as an ordinary user, who may read this repository all the same, wherever it lies."""
EVERYBODY = pytest.mark.parametrize("user", [None, AGENT], ids=["root", "agent"])


class Economical(SandboxFixtures):
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


@contextmanager
def mounted_store(state: Path) -> Iterator[Path]:
    """Keep a sandbox in a state directory: without one, each test would mount the store, and unmount it."""
    stack = uuid.uuid4().hex
    spec = SandboxSpec(
        name=f"benchflow-test-{stack[:12]}",
        image=ImageRef(reference=BARE),
        labels={STACK_LABEL: stack},
        network_mode="no-network",
    )

    async def begin() -> None:
        provider = make_provider(LOCAL)
        await provider.start(spec, host_id="host", queue="queue")
        await provider.close()

    async def end() -> None:
        provider = make_provider(LOCAL)
        await remove_all(provider, stack)
        await provider.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(state))
        elsewhere(begin)
    yield state
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(state))
        elsewhere(end)


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
