"""Sandboxes of commands: whoever starts next removes those whose process has ended, and no other."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import pytest

from benchflow.cli import world
from benchflow.contracts.sandbox import OwnedSandbox, SandboxProvider
from benchflow.planes.sandbox.local.machine import OWNER_LABEL, owned_by_this_process
from benchflow.rescoring import sandboxes
from benchflow.testing.noop_sandbox import NoopProvider

OWNERS = {
    "in use": owned_by_this_process(),
    "of a process that had this one's id before": {OWNER_LABEL: f"{os.getpid()}:1"},
    "of a process that cannot be told": {OWNER_LABEL: "any"},
    "of nobody": {},
}


class Provider(NoopProvider):
    """Has a sandbox of each owner. deadline: when a check of it should have been over, in seconds of the wall clock."""

    def __init__(self, deadline: str) -> None:
        self.left = {name: labels | {"benchflow.deadline": deadline} for name, labels in OWNERS.items()}

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        return [OwnedSandbox(name=name, handle=name, labels=labels) for name, labels in self.left.items()]

    async def remove(self, name: str) -> None:
        del self.left[name]


@pytest.mark.parametrize("remove_left", [sandboxes.remove_left, world._remove_left], ids=["rescoring", "check"])
async def test_what_a_living_process_uses_stays_however_late_the_clock_says_it_is(
    remove_left: Callable[[SandboxProvider], Awaitable[None]],
) -> None:
    provider = Provider(deadline="0")
    await remove_left(provider)
    assert [*provider.left] == ["in use"]
