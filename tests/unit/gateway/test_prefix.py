"""Whether a session begins with its parent's conversation, and diffs that a person can read."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.replay_room import APIS, recorded_run

from benchflow.gateway.form_difference import MAX_LINES, MAX_WIDTH, is_prefix, short_diff
from benchflow.gateway.normal_form import Normaliser
from benchflow.gateway.prefix import prefix_divergence

AGENTS = sorted(APIS)


def calls(path: Path) -> list[dict[str, Any]]:
    """Bodies of the calls that belong to the task."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["request"] for line in lines if line["type"] == "request" and not line["side"]]


@pytest.mark.parametrize("agent", AGENTS)
async def test_each_call_of_a_session_begins_with_the_one_before(agent: str, tmp_path: Path) -> None:
    bodies = calls((await recorded_run(tmp_path, agent)).record.path)
    rules = Normaliser.of(agent, APIS[agent])
    for before, after in itertools.pairwise(bodies):
        found = is_prefix(before, after, rules)
        assert found
        assert (found.shared, found.diff) == (found.of, "")
        assert not is_prefix(after, before, rules)


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_session_begins_with_its_parent_of_another_process(agent: str, tmp_path: Path) -> None:
    parent, child = [calls((await recorded_run(tmp_path / str(n), agent, n)).record.path) for n in (1, 2)]
    assert is_prefix(parent[3], child[-1], Normaliser.of(agent, APIS[agent]))


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_session_that_forgot_something_does_not_begin_with_its_parent(agent: str, tmp_path: Path) -> None:
    rules = Normaliser.of(agent, APIS[agent])
    bodies = calls((await recorded_run(tmp_path, agent)).record.path)
    after = json.loads(json.dumps(bodies[5]))
    del after[rules.conversation][2]
    found = is_prefix(bodies[4], after, rules)
    assert not found
    assert found.shared == 2
    assert f"@@ {rules.conversation}[2]" in found.diff


@pytest.mark.parametrize("agent", AGENTS)
async def test_other_tools_make_another_prefix(agent: str, tmp_path: Path) -> None:
    bodies = calls((await recorded_run(tmp_path, agent)).record.path)
    found = is_prefix(bodies[0], bodies[1] | {"tools": []}, Normaliser.of(agent, APIS[agent]))
    assert not found
    assert found.shared == found.of
    assert "@@ tools" in found.diff


def test_an_identifier_that_comes_later_has_no_say() -> None:
    said = {"role": "user", "content": "see call_12345678"}
    call = {"role": "assistant", "tool_calls": [{"id": "call_12345678", "function": {}}]}
    assert is_prefix({"messages": [said]}, {"messages": [said, call]}, Normaliser.of("any", "openai-chat"))


def test_a_conversation_may_be_a_text() -> None:
    rules = Normaliser.of("any", "openai-responses")
    assert is_prefix({"input": "Hello."}, {"input": "Hello."}, rules)
    assert not is_prefix({"input": "Hello."}, {"input": "Bye."}, rules)


def test_without_a_conversation_there_is_no_prefix() -> None:
    with pytest.raises(ValueError, match="no conversation"):
        is_prefix({}, {}, Normaliser.of("any", "other"))


def test_a_diff_says_where_and_what() -> None:
    before = {"messages": [{"role": "user", "content": "one\ntwo\nthree"}]}
    after = {"messages": [{"role": "user", "content": "one\nzwei\nthree"}]}
    assert short_diff(before, after).splitlines() == [
        "@@ messages[0].content @@",
        "     content:",
        "       | one",
        "-      | two",
        "+      | zwei",
        "       | three",
        '     role: "user"',
    ]


def test_equal_documents_have_no_diff() -> None:
    assert short_diff({"a": [1, {"b": "x\ny"}]}, {"a": [1, {"b": "x\ny"}]}) == ""


def test_a_diff_stays_short_and_quick() -> None:
    before, after = ({"text": "\n".join(f"{word} {n}" for n in range(50_000))} for word in ("old", "new"))
    began = time.monotonic()
    lines = short_diff(before, after).splitlines()
    assert time.monotonic() - began < 60
    assert len(lines) == MAX_LINES + 1
    assert lines[-1].startswith("… ")


def test_a_long_line_is_shown_where_it_parts() -> None:
    before, after = ({"text": "a" * 5000 + word + "b" * 5000} for word in ("old", "new"))
    removed, added = short_diff(before, after).splitlines()[1:]
    assert "old" in removed
    assert "new" in added
    assert max(len(removed), len(added)) <= MAX_WIDTH + 3


@pytest.mark.parametrize("agent", AGENTS)
async def test_what_is_new_in_each_process_of_an_agent_makes_no_difference(agent: str, tmp_path: Path) -> None:
    first, again = [await recorded_run(tmp_path / str(seed), agent, seed) for seed in (1, 2)]
    earlier, other = (calls(run.record.path) for run in (first, again))
    api = APIS[agent]
    assert prefix_divergence(api, agent, earlier[3], [], other[4]) is None
    found = prefix_divergence(api, agent, earlier[4], [], other[3], seq=7, recorded=5)
    assert found is not None
    assert (found.seq, found.recorded) == (7, 5)


def test_what_speaks_of_the_model_is_compared_where_it_is_the_same_one() -> None:
    def body(model: str, said: str) -> dict[str, Any]:
        system = {"role": "system", "content": f"You are {model}."}
        return {"model": model, "messages": [system, {"role": "user", "content": said}], "tools": [model]}

    assert prefix_divergence("openai-chat", "any", body("a", "Hi."), [], body("b", "Hi.")) is None
    assert prefix_divergence("openai-chat", "any", body("a", "Hi."), [], body("b", "Bye.")) is not None
    same_model = body("b", "Hi.") | {"model": "a"}
    assert prefix_divergence("openai-chat", "any", body("a", "Hi."), [], same_model) is not None
