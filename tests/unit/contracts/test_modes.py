"""Modes of jobs: what each stands for, and what cannot be one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from benchflow.contracts.branch import AfterSteps, Group
from benchflow.contracts.job_modes import GrpoMode, JobMode, ValueMode

MODE: TypeAdapter[JobMode] = TypeAdapter(JobMode)


def test_a_group_begins_at_one_state_where_the_rollout_stops() -> None:
    mode = MODE.validate_python({"kind": "grpo", "n": 100, "at": 1})
    assert mode == GrpoMode(n=100, at=1)
    assert mode.branch.policy == Group(n=100, at=1)
    assert (mode.branch.then, mode.branch.max_depth, mode.branch.max_children) == ("stop", 1, 100)


def test_values_are_of_the_states_of_one_trunk_which_goes_on_by_itself() -> None:
    mode = MODE.validate_python({"kind": "value", "depths": [2, 0], "n": 40})
    assert mode == ValueMode(depths=(2, 0), n=40)
    assert mode.branch.policy == AfterSteps(steps=(0, 2), n=40)
    assert (mode.branch.then, mode.branch.max_depth, mode.branch.max_children) == ("itself", 1, 80)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"kind": "grpo", "n": 1}, "greater than or equal to 2"),
        ({"kind": "grpo", "n": 1001}, "less than or equal to 1000"),
        ({"kind": "grpo", "depths": [0]}, "Extra inputs"),
        ({"kind": "value"}, "Field required"),
        ({"kind": "value", "depths": []}, "at least 1 item"),
        ({"kind": "value", "depths": [-1]}, "greater than or equal to 0"),
        ({"kind": "value", "depths": [1, 2, 1]}, "depth 1 is given twice"),
        ({"kind": "value", "depths": [1, 2], "n": 501}, "501 children at 2 depths are more than 1000"),
    ],
)
def test_what_is_no_mode_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MODE.validate_python(said)
