"""The normal form of a call: what two runs have in common, and nothing that tells two calls apart is lost."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.replay_room import APIS, PATHS, Noise, SmallAgent, recorded_run

from benchflow.gateway.normal_form import NormalFormRule, Normaliser, call_form, canonical, digest
from benchflow.gateway.selectors import Selectors, parse_selector

AGENTS = sorted(APIS)


def bodies(path: Path) -> list[Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["request"] for line in lines if line["type"] == "request"]


@pytest.mark.parametrize("agent", AGENTS)
async def test_two_runs_that_do_the_same_have_the_same_forms(agent: str, tmp_path: Path) -> None:
    runs = [await recorded_run(tmp_path / str(seed), agent, seed) for seed in (1, 2)]
    rules = Normaliser.of(agent, APIS[agent])
    first, second = (bodies(run.record.path) for run in runs)
    assert [digest(rules(body)) for body in first] == [digest(rules(body)) for body in second]
    assert first[1:] != second[1:]
    # Each call of a run is another one.
    assert len({digest(rules(body)) for body in first}) == len(first)


@pytest.mark.parametrize("agent", AGENTS)
async def test_where_an_agent_works_is_a_difference(agent: str, tmp_path: Path) -> None:
    runs = [await recorded_run(tmp_path / str(seed), agent, 1, cwd=f"/app{seed}") for seed in (1, 2)]
    rules = Normaliser.of(agent, APIS[agent])
    first, second = (bodies(run.record.path)[1] for run in runs)
    assert rules(first) != rules(second)


def test_behind_acpx_an_agent_has_the_same_rules() -> None:
    agent = SmallAgent("codex-acp", 1)
    agent.say("Go.")
    assert Normaliser("acpx/codex-acp", "openai-responses")(agent.body()) == Normaliser(
        "codex-acp", "openai-responses"
    )(agent.body())


# --- properties, on documents made at random

SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 40))]

WORDS = (
    "Write a file, and say so.",
    "size 1048576 of 2026-11-21, at 10:40",
    "deadbeef facade 0xff #c0ffee",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "version 1.2.3-rc.4, row-12, step <3>, [main]",
    "call_1",
    "⟦ and ⟧ are brackets",
    "ünïcödé \ud83d",
    "",
)


def random_ids(chance: random.Random, count: int) -> list[str]:
    return [f"{chance.choice(['call_', 'toolu_', 'msg-', ''])}{chance.getrandbits(64):016x}z" for _ in range(count)]


def random_body(api: str, chance: random.Random, ids: list[str], *, strays: bool = True) -> dict[str, Any]:
    """A conversation in which identifiers stand where they belong, and in texts. strays: also some only in texts."""
    used = chance.choices(ids, k=chance.randrange(1, 9))
    spoken = ids if strays else used

    def text() -> str:
        parts = chance.choices(WORDS, k=2) + chance.choices(spoken, k=chance.randrange(3))
        chance.shuffle(parts)
        return chance.choice(["\n", " ", ", "]).join(parts)

    items: list[Any] = []
    for id_ in used:
        if api == "openai-chat":
            items.append({"role": "assistant", "tool_calls": [{"id": id_, "function": {"arguments": text()}}]})
            items.append({"role": "tool", "tool_call_id": id_, "content": text()})
        elif api == "openai-responses":
            items.append({"type": "function_call", "id": chance.choice(spoken), "call_id": id_, "arguments": text()})
            items.append({"type": "function_call_output", "call_id": id_, "output": text()})
        elif api == "anthropic-messages":
            items.append({"role": "assistant", "content": [{"type": "tool_use", "id": id_, "input": {"a": text()}}]})
            given = {"type": "tool_result", "tool_use_id": id_, "content": [{"type": "text", "text": text()}]}
            items.append({"role": "user", "content": [given]})
        else:
            items.append({"role": "model", "parts": [{"functionCall": {"id": id_, "args": {"a": text()}}}]})
            items.append({"role": "user", "parts": [{"functionResponse": {"id": id_, "response": {"output": text()}}}]})
    name = Normaliser.of("any", api).conversation
    assert name is not None
    return {name: items, "system": text(), "tools": [{"name": "run", "description": text()}]}


@pytest.mark.parametrize("api", sorted(PATHS))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_form_is_its_own_form(api: str, seed: int) -> None:
    chance = random.Random(seed)
    for agent in AGENTS:
        rules = Normaliser.of(agent, api)
        form = rules(random_body(api, chance, random_ids(chance, 5)))
        assert canonical(rules(form)) == canonical(form)


@pytest.mark.parametrize("api", sorted(PATHS))
@pytest.mark.parametrize("seed", SEEDS)
def test_renaming_can_be_undone(api: str, seed: int) -> None:
    chance = random.Random(seed)
    ids = random_ids(chance, 5)
    body = random_body(api, chance, ids)
    text = canonical(Normaliser.of("any", api)(body)).decode("utf-8", "surrogatepass")
    # The same document with names that the rules do not touch shows which identifier has which name.
    flat = canonical(Normaliser.of("any", "other")(body)).decode("utf-8", "surrogatepass")
    if api == "anthropic-messages":
        flat = re.sub(r'\[\{"text":("(?:[^"\\]|\\.)*"),"type":"text"\}\]', r"\1", flat)
    pairs: dict[str, str] = {}
    for id_, name in zip(
        re.findall("|".join(ids), flat), re.findall(r"⟦[a-z]+-\d+⟧|" + "|".join(ids), text), strict=True
    ):
        assert pairs.setdefault(id_, name) == name
    assert len(set(pairs.values())) == len(pairs)
    for id_, name in pairs.items():
        text = text.replace(name, id_)
    assert text == flat


@pytest.mark.parametrize("api", sorted(PATHS))
@pytest.mark.parametrize("seed", SEEDS)
def test_other_identifiers_in_the_same_places_make_the_same_form(api: str, seed: int) -> None:
    ids = [random_ids(random.Random(seed), 5), random_ids(random.Random(seed + 1000), 5)]
    one, other = (random_body(api, random.Random(seed), given, strays=False) for given in ids)
    assert one != other
    assert Normaliser.of("any", api)(one) == Normaliser.of("any", api)(other)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("text", [word for word in WORDS if word])
def test_what_people_write_stays_as_it_is(agent: str, text: str) -> None:
    talk = SmallAgent(agent, 1)
    talk.say("Hello.")
    talk.say(text)
    form = Normaliser.of(agent, APIS[agent])(talk.body())
    assert json.dumps(text)[1:-1] in json.dumps(form)


def test_the_body_itself_stays_as_it_is() -> None:
    agent = SmallAgent("claude-agent-acp", 1)
    agent.say("Go.")
    body = agent.body()
    before = json.dumps(body)
    Normaliser.of(agent.name, agent.api)(body)
    assert json.dumps(body) == before


def test_who_answers_whom_is_kept() -> None:
    def body(first: str, second: str) -> dict[str, Any]:
        calls = [{"id": "call_aaaaaaa1", "function": {}}, {"id": "call_bbbbbbb2", "function": {}}]
        results = [{"role": "tool", "tool_call_id": id_, "content": "ok"} for id_ in (first, second)]
        return {"messages": [{"role": "assistant", "tool_calls": calls}, *results]}

    rules = Normaliser.of("any", "openai-chat")
    straight, crossed = body("call_aaaaaaa1", "call_bbbbbbb2"), body("call_bbbbbbb2", "call_aaaaaaa1")
    assert rules(straight) != rules(crossed)


def test_a_short_identifier_is_renamed_where_it_belongs_and_not_in_prose() -> None:
    call = {"id": "1", "function": {"arguments": '{"n": 1}'}}
    form = Normaliser.of("any", "openai-chat")({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    made = form["messages"][0]["tool_calls"][0]
    assert (made["id"], made["function"]["arguments"]) == ("⟦call-1⟧", '{"n": 1}')


@pytest.mark.parametrize("key", ["temperature", "metadata", "prompt_cache_key"])
def test_what_the_gateway_may_set_and_who_asks_are_no_difference(key: str) -> None:
    rules = Normaliser.of("any", "openai-chat")
    assert rules({"messages": [], key: "x"}) == rules({"messages": []})


@pytest.mark.parametrize("key", ["model", "tools", "stream", "tool_choice", "reasoning_effort"])
def test_everything_else_is_a_difference(key: str) -> None:
    rules = Normaliser.of("any", "openai-chat")
    assert rules({"messages": [], key: "x"}) != rules({"messages": []})


RESULTS = [
    ("[master a1b2c3d] first", "[master ⟦commit-1⟧] first"),
    ("[main (root-commit) a1b2c3d] first", "[main (root-commit) ⟦commit-1⟧] first"),
    ("a1b2c3d first\nd4e5f6a second", "⟦commit-1⟧ first\n⟦commit-2⟧ second"),
    ("Date:   Sat Nov 21 10:40:00 2026 +0000", "Date:   ⟦time⟧"),
    ("===== 3 passed in 0.12s =====", "===== 3 passed in ⟦duration⟧ ====="),
    ("Ran 3 tests in 0.001s", "Ran 3 tests in ⟦duration⟧"),
    ("real\t0m0.003s", "real\t⟦duration⟧"),
    ("-rw-r--r-- 1 root root 6 Nov 21 10:40 hello.txt", "-rw-r--r-- 1 root root 6 ⟦time⟧ hello.txt"),
    ("Sat Nov 21 10:40:15 UTC 2026", "⟦time⟧"),
    ("2026-11-21T10:40:15.123Z started", "⟦time⟧ started"),
    ("<Foo object at 0x7f3a2b1c>", "<Foo object at ⟦address-1⟧>"),
    ("made /tmp/tmp.AbCdEfGh12 and /tmp/tmpab12_xyz", "made ⟦tmp-1⟧ and ⟦tmp-2⟧"),
]


@pytest.mark.parametrize(("text", "form"), RESULTS)
def test_the_results_of_tools_lose_their_times(text: str, form: str) -> None:
    body = {"messages": [{"role": "tool", "tool_call_id": "1", "content": text}]}
    assert Normaliser.of("any", "openai-chat")(body)["messages"][0]["content"] == form


@pytest.mark.parametrize("text", [text for text, form in RESULTS if "⟦tmp" not in form])
def test_times_in_a_prompt_are_part_of_it(text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}]}
    assert Normaliser.of("any", "openai-chat")(body) == body


@pytest.mark.parametrize("text", ["10485760 big.bin", "1234567 first", "exit 1", "total 12", "in 3 files", "a1b2c3d"])
def test_what_a_tool_found_out_stays_as_it_is(text: str) -> None:
    body = {"messages": [{"role": "tool", "tool_call_id": "1", "content": text}]}
    assert Normaliser.of("any", "openai-chat")(body)["messages"][0]["content"] == text


def test_an_image_is_no_text() -> None:
    noise = Noise(1)
    image = noise.hex(200_000) + noise.uuid()
    body = {"messages": [{"role": "user", "content": image}]}
    assert Normaliser.of("any", "openai-chat")(body) == body


def test_a_body_that_is_no_document_is_a_text() -> None:
    line = {"method": "POST", "path": "/v1/messages?beta=true", "api": "anthropic-messages"}
    id_ = Noise(1).uuid()
    assert call_form(line, f"<{id_}>", "any") == {"call": "POST /v1/messages", "body": "<⟦uuid-1⟧>"}


@pytest.mark.parametrize("text", ["", "a.", "**", "a[", "a[*", ".a", "a[b]"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a selector"):
        parse_selector(text)


def test_a_selector_means_what_it_says() -> None:
    def meant(text: str, *path: tuple[str | int, Any]) -> bool:
        hit, selectors = False, Selectors.of([text])
        for key, value in path:
            hit, selectors = selectors.down(key, value)
        return hit

    assert meant("a.b", ("a", {}), ("b", 1))
    assert not meant("a.b", ("a", {}), ("c", 1))
    assert meant("a[*].b", ("a", []), (3, {}), ("b", 1))
    assert meant("a[role=tool].b", ("a", []), (0, {"role": "tool"}), ("b", 1))
    assert not meant("a[role=tool].b", ("a", []), (0, {"role": "user"}), ("b", 1))
    assert meant("**.b", ("x", {}), (0, {}), ("b", 1))
    assert meant("**.b", ("b", 1))
    assert not meant("**.b", ("x", {}), ("c", 1))


@pytest.mark.parametrize(
    "rule",
    [
        {"drop": ["a"], "ids": ["b"]},
        {"replace": "x"},
        {"drop": ["a["]},
        {"rename": "("},
        {"unknown": 1, "drop": ["a"]},
        {},
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NormalFormRule.model_validate({"why": "it differs", **rule})
