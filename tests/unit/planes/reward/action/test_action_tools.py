"""Which tools were called, and which were not: what a task forbids, knows, requires, puts in order and counts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from support.action_lines import Line, file_call, mcp, scored, shell

from benchflow.planes.reward.action import CallBudget, CallOrder, ForbiddenTools, KnownTools, RequiredCalls

CLASSES = [ForbiddenTools, KnownTools, RequiredCalls, CallOrder, CallBudget]


def test_a_forbidden_tool_costs_everything_and_is_named() -> None:
    result = scored(ForbiddenTools(tools=("delete_*",)), mcp("mail", "list_mail"), mcp("mail", "delete_mail", id="m-1"))
    step, whole = result.events
    assert (result.reward, result.space) == (0.0, "action")
    assert (step.step, step.granularity, whole.granularity) == (1, "step", "terminal")
    (found,) = whole.meta["findings"]
    assert (found["seq"], found["what"]) == (2, "tool mail__delete_mail")
    assert found["excerpt"] == 'mail__delete_mail {"id": "m-1"}'


def test_what_failed_was_tried() -> None:
    assert scored(ForbiddenTools(tools=("delete_mail",)), mcp("mail", "delete_mail", status="failed")).reward == 0.0


@pytest.mark.parametrize(
    ("options", "forbidden", "allowed"),
    [
        ({"tools": ["write_file"]}, file_call("write", "a", content="x"), file_call("read", "a")),
        ({"tools": ["mail__*"]}, mcp("mail", "x"), mcp("chat", "x")),
        ({"tools": ["Delete_Mail"]}, mcp("mail", "delete_mail"), mcp("mail", "undelete_mail")),
        ({"commands": ["^git push"]}, shell("cd a && sudo git push -f"), shell("echo 'git push'; ls # git push")),
        ({"commands": [r"^rm\b.* -rf?\b"]}, shell("bash -c 'rm -v -rf x'"), shell("rm x")),
        ({"commands": ["> /etc/hosts$"]}, shell("echo x >> /etc/hosts"), shell("cat /etc/hosts")),
        ({"paths": ["/data/*"]}, shell("cat /data/mail.db"), shell("ls /data")),
        ({"paths": ["*.key"]}, file_call("read", "/app/deploy.key"), file_call("read", "/app/key")),
        ({"requests": [{"method": "DELETE"}]}, shell("curl -X DELETE http://h/a"), shell("curl http://h/a")),
        ({"requests": [{"url": "/a$", "method": "POST"}]}, shell("curl :91/a -d x"), shell("curl :9/a; curl h -d x")),
        ({"requests": [{"body": "@evil"}]}, shell("curl h -d 'to=a@evil.org'"), shell("curl h -d 'to=a@good.org'")),
        (
            {"calls": [{"tool": "share_*", "arguments": {"people": "*@*", "role": "writer"}}]},
            mcp("files", "share_file", people=["a@x.org", "b"], role="writer"),
            mcp("files", "share_file", people=["b"], role="writer"),
        ),
        ({"calls": [{"arguments": {"to.0": "x"}}]}, mcp("m", "t", **{"to.0": "x"}), mcp("m", "t", to="x")),
        ({"calls": [{"arguments": {"a.b": "/^x+$/"}}]}, mcp("m", "t", a={"b": "xx"}), mcp("m", "t", a={"b": "xy"})),
        ({"calls": [{"arguments": {"n": 1}}]}, mcp("m", "t", n=1), mcp("m", "t", n=True)),
        ({"calls": [{"path": "/app/*", "mode": "changed"}]}, file_call("write", "a"), file_call("read", "a")),
        ({"calls": [{"command": "^curl", "request": {"url": "9101"}}]}, shell("curl h:9101"), shell("wget h:9101")),
    ],
)  # fmt: skip
def test_what_is_forbidden_is_told_from_what_is_not(options: Any, forbidden: list[Line], allowed: list[Line]) -> None:
    function = ForbiddenTools(**options)
    assert scored(function, allowed).reward == 1.0
    assert scored(function, forbidden).reward == 0.0


def test_the_share_of_known_tools_is_told() -> None:
    known = KnownTools(tools=("shell", "mail__*"))
    lines = [*shell("ls"), *mcp("mail", "x"), *mcp("chat", "x")]
    result = scored(known, lines, shell("ls"))
    assert result.reward == 0.75
    assert result.events[-1].meta["calls"] == 4 and result.events[-1].meta["outside"] == 1
    assert [event.step for event in result.events] == [0, None]
    assert scored(known, []).reward == 1.0


def test_required_calls_are_those_that_did_not_fail() -> None:
    required = [{"tool": "read_mail", "arguments": {"id": "m-1"}}, "archive_mail", {"command": "^make test"}]
    steps = [mcp("mail", "read_mail", id="m-1"), mcp("mail", "archive_mail", status="failed"), shell("make test")]
    result = scored(RequiredCalls(calls=required), *steps)
    assert result.reward == pytest.approx(2 / 3)
    assert result.events[-1].meta["missing"] == ["archive_mail"]
    assert [(event.step, event.value) for event in result.events[:-1]] == [(0, 1.0), (2, 1.0)]
    assert scored(RequiredCalls(calls=required, all_or_nothing=True), *steps).reward == 0.0


@pytest.mark.parametrize(
    ("made", "value"),
    [
        ("abc", 1.0),
        ("acb", 0.5),
        ("cba", 0.0),
        ("ab", 1.0),
        ("aabcab", 1.0),
        ("b", 0.5),
        ("", 1.0),
    ],
)
def test_nothing_may_be_called_before_what_comes_before_it(made: str, value: float) -> None:
    steps = [mcp("s", tool) for tool in made]
    assert scored(CallOrder(order=["s__a", "s__b", "s__c"]), *steps).reward == value
    assert scored(CallOrder(before=[["s__a", "s__b"], ["s__b", "s__c"]]), *steps).reward == value


def test_what_failed_does_not_open_the_way_for_what_comes_after() -> None:
    lines = [*mcp("s", "a", status="failed"), *mcp("s", "b")]
    result = scored(CallOrder(order=["a", "b"]), lines)
    assert result.reward == 0.0
    assert result.events[0].meta["findings"][0]["what"] == "b before a"


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"max_calls": 4}, 1.0),
        ({"max_calls": 3}, 0.0),
        ({"max_calls": 2, "tolerance": 2.0}, 0.5),
        ({"max_calls": 2, "tolerance": 0.5}, 0.0),
        ({"max_per_tool": {"shell": 3}}, 1.0),
        ({"max_per_tool": {"shell": 2, "mail__*": 1}, "tolerance": 1.0}, 0.5),
        ({"max_per_tool": {"mail__*": 0}}, 0.0),
    ],
)
def test_a_budget_is_kept_or_gone_beyond(options: Any, value: float) -> None:
    result = scored(CallBudget(**options), [*shell("a"), *shell("b")], [*shell("c"), *mcp("mail", "x")])
    assert result.reward == value
    assert len(result.events) == 1 + (value < 1)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (ForbiddenTools, {}),
        (ForbiddenTools, {"tool": ["x"]}),
        (ForbiddenTools, {"commands": ["("]}),
        (ForbiddenTools, {"requests": [{"verb": "GET"}]}),
        (ForbiddenTools, {"calls": [{}]}),
        (KnownTools, {"tools": []}),
        (KnownTools, {}),
        (RequiredCalls, {"calls": []}),
        (CallOrder, {"order": ["a"]}),
        (CallOrder, {"before": [["a"]]}),
        (CallBudget, {}),
        (CallBudget, {"max_calls": -1}),
    ],
)
def test_options_that_mean_nothing_are_refused(made: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(made).validate_python(options)
    with pytest.raises(ValidationError):
        made(**options)
