"""Sandboxes of processes: the reaper removes those whose process has ended, and no other."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from benchflow.activities.reaper import Reaper
from benchflow.contracts.sandbox_provider import OwnedSandbox
from benchflow.planes.sandbox.owners import OF_A_PROCESS, OWNER_LABEL, make_owner_labels


@pytest.mark.parametrize(
    ("labels", "is_over"),
    [
        (make_owner_labels(), False),
        # Of a process that had this one's id before, of one that cannot be told, and of nobody.
        ({OWNER_LABEL: f"{os.getpid()}:1"}, True),
        ({OWNER_LABEL: "any"}, True),
        ({}, True),
    ],
)
async def test_what_a_living_process_uses_stays_however_late_the_clock_says_it_is(
    labels: dict[str, str], is_over: bool
) -> None:
    context: Any = SimpleNamespace(options=None)
    labels = {"benchflow.stack": OF_A_PROCESS, "benchflow.deadline": "0", **labels}
    sandbox = OwnedSandbox(name="s", handle="s", labels=labels)
    assert await Reaper(context)._is_orphan(sandbox) == is_over
