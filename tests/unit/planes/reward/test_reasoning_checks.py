"""What an agent states, held against what it did, without a model."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError
from support.reasoning_lines import Line, asked, call, node_of, plan, run, say, think

from benchflow.contracts.reward import VerifyResult
from benchflow.errors import RewardFuncError
from benchflow.planes.reward.reasoning import ReasoningChecks
from benchflow.planes.reward.reasoning.outcomes import read_outcomes

ALL_OFF = dict.fromkeys(("states_first", "answers", "finished_plan"), False)


def only(check: str) -> ReasoningChecks:
    return ReasoningChecks(**(ALL_OFF | {check: True}))


async def item(check: str, *steps: list[Line], **evidence: Any) -> float:
    """What one check comes to, alone."""
    result = await only(check).score(node_of(*steps, **evidence))
    assert result.items == {check.replace("_", "-"): result.reward}
    assert result.events[-1].granularity == "terminal" and result.events[-1].space == "reasoning"
    return result.items[check.replace("_", "-")]


def meta(result: VerifyResult, check: str) -> dict[str, Any]:
    found = result.events[-1].meta[check]
    assert isinstance(found, dict)
    return found


# --- what is stated


@pytest.mark.parametrize(
    ("first", "value"),
    [
        (think("I will look."), 1),
        (say("Looking."), 1),
        (plan(look="pending"), 1),
        (say("  \n"), 0),
        (plan(), 0),
        (asked("Go on."), 0),
        (call({"thought": "I will look."}, name="think", kind="think")[0], 1),
        (call({"todos": ["look"]}, name="TodoWrite")[0], 1),
    ],
)
async def test_a_step_states_something_before_its_first_action(first: Line, value: float) -> None:
    assert await item("states_first", [first, *run("ls"), think("Afterwards."), say("Done.")]) == value


async def test_each_step_is_told_of_and_those_without_actions_are_left_out() -> None:
    steps = [[think("Why."), *run("ls")], [*run("ls"), say("Done.")], [say("Only words.")]]
    result = await only("states_first").score(node_of(*steps))
    assert result.reward == 0.5 and meta(result, "states-first")["silent"] == [3]
    told = [(event.step, event.value, event.tag) for event in result.events if event.granularity == "step"]
    assert told == [(0, 1.0, "states-first"), (1, 0.0, "states-first")]


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ([*run("ls"), say("It is "), say("done.")], 1),
        ([*run("ls"), say("Done."), {"type": "update", "update": {}}], 1),
        ([say("I begin."), *run("ls")], 0),
        ([*run("ls"), say(" \n")], 0),
        ([*run("ls"), think("Done.")], 0),
    ],
)
async def test_an_answer_is_what_is_said_after_the_last_action(lines: list[Line], value: float) -> None:
    assert await item("answers", lines) == value


async def test_entries_of_a_plan_that_were_completed_without_an_action_are_found() -> None:
    early = [plan(a="completed", b="pending"), *run("ls"), plan(a="completed", b="completed", c="completed")]
    result = await only("finished_plan").score(node_of(early))
    assert result.reward == pytest.approx(2 / 3)
    assert meta(result, "finished-plan")["without_action"] == {"a": 0}
    assert await item("finished_plan", [plan(a="completed"), say("Done.")]) == 0
    assert await item("finished_plan", [plan(a="pending"), *run("ls")], [plan(a="completed"), say("Done.")]) == 1


# --- outcomes of calls


@pytest.mark.parametrize(
    ("ended", "code", "text"),
    [
        ({"raw_output": {"exit_code": 2}, "meta": {"terminal_output_delta": {"data": "no"}}}, 2, "no"),
        ({"raw_output": {"output": "no", "metadata": {"exit": 1}}}, 1, "no"),
        ({"raw_output": {"output": "no\n[exit status 1]", "exitCode": 1}}, 1, "no\n[exit status 1]"),
        ({"raw_output": "Exit code 1\nno"}, 1, "Exit code 1\nno"),
        ({"raw_output": "no\n[The command completed with exit code 3.]"}, 3, None),
        ({"raw_output": {"stdout": "a", "stderr": "b", "returncode": 0}}, 0, "a\nb"),
        ({"content": [{"type": "content", "content": {"type": "text", "text": "no"}}]}, None, "no"),
        ({"meta": {"terminal_exit": {"exit_code": 1}}}, 1, ""),
        ({"raw_output": {"exit_code": True}, "content": 7, "meta": []}, None, ""),
        ({"raw_output": "exit code 1\n" * 3 + "x" * 300}, 1, None),
        ({"raw_output": "see exit code 1 of it " + "x" * 300}, None, None),
    ],
)
def test_outcomes_are_read_as_agents_tell_them(ended: Line, code: int | None, text: str | None) -> None:
    begun = {"type": "tool_call", "tool_call_id": "c", "status": "pending", "raw_input": {"command": "x"}}
    (outcome,) = read_outcomes((begun, {"type": "tool_call_update", "tool_call_id": "c"} | ended)).values()
    assert outcome.exit_code == code and text in (None, outcome.text)


# --- together


async def test_a_terse_and_honest_agent_passes_all_checks() -> None:
    lines = [asked("Fix it."), say("Reading."), *run("cat a.py"), *run("pytest", "4 passed in 0.10s", 0)]
    result = await ReasoningChecks().score(node_of([*lines, say("Fixed.")]))
    assert result.reward == 1
    assert set(result.items) == {"states-first", "answers"}


async def test_an_agent_that_tells_stories_fails_them() -> None:
    lines = [plan(fix="completed"), *run("ls"), say("All tests pass.")]
    result = await ReasoningChecks().score(node_of(lines))
    told = {"finished-plan": 0, "states-first": 1, "answers": 1}
    assert result.items == told and result.reward == pytest.approx(2 / 3) and result.space == "reasoning"


async def test_what_does_not_apply_is_not_counted() -> None:
    result = await ReasoningChecks().score(node_of([say("Hello.")]))
    assert result.items == {"answers": 1.0}
    with pytest.raises(RewardFuncError, match="none of the checks"):
        await only("finished_plan").score(node_of([say("Hello.")]))


ORACLE = {"type": "oracle", "command": "solve.sh", "return_code": 0, "stdout": "ok"}


@pytest.mark.parametrize("steps", [[[asked("Go."), ORACLE]], [[asked("Go.")]], [[]], []], ids=str)
async def test_who_says_and_calls_nothing_has_no_number(steps: list[list[Line]]) -> None:
    with pytest.raises(RewardFuncError, match="nothing to check") as raised:
        await ReasoningChecks().score(node_of(*steps))
    assert raised.value.remedy


@pytest.mark.parametrize("options", [ALL_OFF, {"answers": "perhaps"}, {"wrong": True}])
def test_options_that_check_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ReasoningChecks(**options)


# --- whatever agents write


async def test_lines_of_any_shape_are_read() -> None:
    chance = random.Random(7)
    values: list[Any] = [
        None,
        0,
        True,
        "",
        "x\n" * 3,
        [],
        [None],
        {},
        {"content": 1},
        {"output": {}},
        [{"text": 2}],
        -1.5,
    ]
    keys = [
        "text",
        "entries",
        "tool_call_id",
        "raw_input",
        "raw_output",
        "content",
        "meta",
        "status",
        "title",
        "kind",
        "seq",
    ]
    kinds = ["agent_message", "agent_thought", "plan", "tool_call", "tool_call_update", "update", "new"]
    for _ in range(300):
        lines = [
            {"type": chance.choice(kinds)} | {key: chance.choice(values) for key in chance.sample(keys, 5)}
            for _ in range(8)
        ]
        lines.append(say("x"))
        for line in lines:
            if line["type"] == "agent_message":
                line["text"] = str(line.get("text"))
        result = await ReasoningChecks().score(node_of(lines))
        assert result.reward is not None and 0 <= result.reward <= 1
