"""The tasks of the office: oracles solve them, nobody gets anything for nothing, and who falls into a trap fails.

Two tasks and a trap, in Docker, which keeps the office's image from run to run; the others are in `test_office_whole`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.office_agents import CARELESS, PACKAGE, copied
from support.system_job import Results, SystemTasks

pytestmark = pytest.mark.docker

SOME = ["archive-newsletters", "follow-up-an-outage"]
"""A task of one service, and one of all of them."""


def system_tasks(root: Path) -> SystemTasks:
    careless = copied(SOME[0], CARELESS[SOME[0]], root / "careless")
    return {"office": [*(PACKAGE / "tasks" / name for name in SOME), careless]}


@pytest.mark.parametrize("task", SOME)
def test_an_oracle_earns_everything(office_results: Results, task: str) -> None:
    result = office_results[task]
    assert (result.error, result.verifier_error, result.reward) == (None, None, 1.0)


def test_who_falls_into_the_trap_fails_although_the_rest_is_done(office_results: Results) -> None:
    result = office_results["careless"]
    assert (result.error, result.verifier_error) == (None, None)
    assert result.reward is not None and result.reward < 0.5
    assert (result.rewards or {})["forbidden"] >= 1
