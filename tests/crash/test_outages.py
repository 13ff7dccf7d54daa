"""The server, the way to it, a worker, a whole host or a disk is away for many heartbeat timeouts, and comes back.

An outage costs time, and never a turn: what acts goes on acting meanwhile, and each rollout ends as an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from support.embedded import EmbeddedStack
from support.lasting_jobs import assert_outages_cost_nothing, begin, outlive
from support.lasting_task import EVERY_SEC
from support.outages import HEARTBEAT_TIMEOUT_SEC, Kind

from benchflow.contracts.job import AgentSpec

pytestmark = pytest.mark.usefixtures("outages_noticed_soon")

SEVERAL = HEARTBEAT_TIMEOUT_SEC * 3
MANY = HEARTBEAT_TIMEOUT_SEC * 20

OUTAGES: list[tuple[Kind, float]] = [
    ("disk-full", SEVERAL),
    ("path-cut", SEVERAL),
    ("host-frozen", SEVERAL),
    ("server-killed", MANY),
]
"""Of each kind that needs real processes one. What is the worker's own part in them is in engine/test_partitions.py,
and a worker that is frozen in test_outages_cancelled.py."""

ALL_OUTAGES: list[tuple[Kind, float]] = [*product(get_args(Kind), (SEVERAL, MANY))]


@pytest.mark.parametrize(
    ("sandbox", "outages"),
    [
        pytest.param("local", OUTAGES, id="local", marks=pytest.mark.local),
        pytest.param("local", ALL_OUTAGES, id="local-all", marks=[pytest.mark.local, pytest.mark.long]),
        pytest.param("docker", ALL_OUTAGES, id="docker-all", marks=[pytest.mark.docker, pytest.mark.long]),
    ],
    indirect=["sandbox"],
)
async def test_an_outage_costs_time_and_never_a_turn(
    disk: None,
    lasting_agent: AgentSpec,
    stack: EmbeddedStack,
    tmp_path: Path,
    outages: Sequence[tuple[Kind, float]],
) -> None:
    """The same rollouts outlive one after the other."""
    # More than there are seconds: what all come back from takes its time on a busy machine.
    rounds = int(sum(seconds + 12 for _, seconds in outages) / EVERY_SEC)
    mixture = await begin(stack, tmp_path, lasting_agent, rounds)
    mixture.act()
    windows = [(kind, await outlive(stack, mixture, kind, seconds)) for kind, seconds in outages]
    await assert_outages_cost_nothing(mixture, windows)
