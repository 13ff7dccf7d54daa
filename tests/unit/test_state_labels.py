"""What the states of a world after the steps of a task are called."""

from __future__ import annotations

from benchflow.paths import make_state_label
from benchflow.planes.environment.world_state import _NAME


def test_a_plain_name_of_a_step_is_told() -> None:
    assert (make_state_label("check.it-1"), make_state_label(None)) == ("step-check.it-1", "final")


def test_any_name_of_a_step_gives_a_label_of_its_own_that_a_snapshot_can_have() -> None:
    names = ["ünï step", "ünï  step", "第一步", "a'b\"c$", "-x", "a" * 200, "b" * 200]
    labels = {make_state_label(name) for name in names}
    assert len(labels) == len(names)
    assert all(_NAME.fullmatch(f"{'e' * 100}{label}") for label in labels)
