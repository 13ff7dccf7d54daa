"""What the Web UI is given as Markdown of a rollout whose task and agent would like to write some."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from support.hostile_text import FORGED, RAW

from benchflow.contracts.rollout_records import Failure, Option, Question
from benchflow.workflows.operator import format_rollout_details, format_rollout_summary
from benchflow.workflows.rollout_state import RolloutState

EVIL = f"{FORGED}\n\n# Forged\n\n[click](https://evil.example) <img src=x> | ` **"


def spec(name: str) -> Any:
    return SimpleNamespace(
        task=SimpleNamespace(name=name),
        agent=SimpleNamespace(label=name),
        repeat=0,
        attempt=1,
        name="r",
        branch=None,
        restart=None,
        begins_at=("n0", 0),
    )


def details(name: str) -> str:
    step = SimpleNamespace(verify=None, step=SimpleNamespace(name=name), turn=SimpleNamespace(stop_reason=name))
    state = RolloutState(
        spec(name),
        question=Question(id="q1", kind="permission", text=name, options=[Option(id=name, name=name)]),
        error=Failure(type="E", category="agent", message=name),
    )
    state.steps = cast(Any, [step])
    return format_rollout_details(state, "**execute** ", {})


def test_names_questions_and_errors_hold_no_markup_link_or_control() -> None:
    for text in (details(EVIL), format_rollout_summary(spec(EVIL))):
        assert RAW.search(text) is None
        # Outside of code spans, in which nothing is interpreted, none of it is left.
        outside = re.sub("`[^`\n]*`", "", text)
        assert "evil" not in outside and "<" not in outside and "Forged" not in outside
        assert text.count("`") % 2 == 0
    assert details(EVIL).count("\n") == details("plain").count("\n")


def test_plain_names_stand_as_they_are() -> None:
    assert format_rollout_summary(spec("archive-newsletters")) == "archive-newsletters · archive-newsletters · repeat 0"
