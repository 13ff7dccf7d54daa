"""Answering a rollout's calls from the record of an earlier one."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.replay_room import APIS, RecordFile, Run, SmallAgent, recorded_run, says, scripted

from benchflow.errors import ConfigError
from benchflow.gateway.hook import Diverged, MakeReplayer, Recorded, Replayer
from benchflow.gateway.recording import LOST
from benchflow.gateway.replay import Replay, UnrecordedSideCall, divergence_report, make_replayer

AGENTS = sorted(APIS)
CALLS = 8
"""Of the task, in a recorded run of two turns."""


def talk(*said: str, agent: str = "opencode") -> dict[str, Any]:
    """A short conversation's body."""
    made = SmallAgent(agent, 1)
    for text in said:
        made.say(text)
    return made.body()


class Table:
    """A record made by hand, and an agent that asks for what is in it."""

    def __init__(self, directory: Path, agent: str = "opencode") -> None:
        self.agent = SmallAgent(agent, 1)
        self.before = RecordFile(directory / "before.jsonl")
        self.now = RecordFile(directory / "now.jsonl")

    def has(self, said: str, answer: Recorded | None, error: str | None = None, **options: Any) -> None:
        self.before.call(self.agent, talk(said), answer, error, **options)

    def replay(self, **options: Any) -> Replay:
        return Replay.open(self.before.path, "opencode", **options)

    async def ask(self, replay: Replay, said: str, **options: Any) -> Recorded | Diverged | None:
        body = talk(said)
        return await replay.answer(self.now.line(self.agent, body, **options), json.dumps(body).encode())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


async def replayed(directory: Path, agent: str, replay: Replay, seed: int = 2) -> Run:
    """The same run with other noise, answered from the record only."""
    run = Run(directory, agent, seed)

    async def model(line: Any, body: bytes) -> Recorded:
        answer = await replay.answer(line, body)
        assert isinstance(answer, Recorded), answer
        return answer

    await run.ask(model, run.agent.title_body(), side=True, source="replay")
    for number in (1, 2):
        await run.turn(model, f"Do task {number}.", f"root/{number}", source="replay")
    return run


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_run_is_answered_byte_for_byte_from_its_record(agent: str, tmp_path: Path) -> None:
    before = await recorded_run(tmp_path / "before", agent)
    replay = Replay.open(before.record.path, agent, strict=True)
    assert (replay.status().state, replay.status().left) == ("replaying", CALLS)
    after = await replayed(tmp_path / "after", agent, replay)
    assert after.heard == before.heard
    status = replay.status()
    assert (status.state, status.answered, status.left, status.divergence) == ("replaying", CALLS + 1, 0, None)


async def test_status_and_headers_are_the_recorded_ones(table: Table) -> None:
    table.has("Go.", says("slow down", 429, **{"retry-after": "1", "request-id": "req_1"}))
    answer = await table.ask(table.replay(), "Go.")
    assert answer == says("slow down", 429, **{"retry-after": "1", "request-id": "req_1"})


async def test_bytes_that_are_no_text_come_back(table: Table) -> None:
    packed = bytes(range(256))
    given = {"status": 200, "response_base64": base64.b64encode(packed).decode()}
    line = table.before.asked(table.before.line(table.agent, talk("Go.")))
    table.before.answered(line, None, headers={"Content-Encoding": "gzip"}, **given)
    assert await table.ask(table.replay(), "Go.") == Recorded(200, {"content-encoding": "gzip"}, packed)


async def test_a_body_that_is_no_json_is_matched_too(table: Table) -> None:
    table.before.call(table.agent, None, says("what?", 400), request_text="not json")
    line = table.now.line(table.agent, None, request_text="not json")
    assert await table.replay().answer(line, b"not json") == says("what?", 400)


async def test_a_line_without_a_body_is_read_off_the_bytes(table: Table) -> None:
    table.has("Go.", says("yes"))
    line = table.now.line(table.agent, None)
    del line["request"]
    assert await table.replay().answer(line, json.dumps(talk("Go.")).encode()) == says("yes")


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_calls_at_the_same_time_may_come_in_any_order(table: Table, order: tuple[int, ...]) -> None:
    for number in range(4):
        table.has(f"Subagent {number}.", says(f"answer {number}"))
    replay = table.replay(strict=True)
    got = await asyncio.gather(*(table.ask(replay, f"Subagent {number}.") for number in order))
    assert got == [says(f"answer {number}") for number in order]


async def test_large_calls_at_the_same_time_do_not_take_each_others_answers(table: Table) -> None:
    texts = [f"{number} " + "word " * 60_000 for number in range(4)]
    for number, text in enumerate(texts):
        table.has(text, says(f"answer {number}"))
    replay = table.replay(strict=True)
    got = await asyncio.gather(*(table.ask(replay, text) for text in reversed(texts)))
    assert got == [says(f"answer {number}") for number in (3, 2, 1, 0)]


async def test_a_call_that_is_repeated_gets_the_recorded_answers_in_their_order(table: Table) -> None:
    answers = [says("busy", 429), says("broken", 500), says("done")]
    for answer in answers:
        table.has("Go.", answer)
    replay = table.replay()
    assert [await table.ask(replay, "Go.") for _ in answers] == answers


async def test_a_call_that_is_repeated_more_often_than_recorded_diverges(table: Table) -> None:
    table.has("Go.", says("done"))
    table.has("And then?", says("more"))
    replay = table.replay(strict=True)
    await table.ask(replay, "Go.")
    answer = await table.ask(replay, "Go.")
    assert isinstance(answer, Diverged)
    assert answer.divergence.recorded == 0
    assert "asked more often now" in answer.divergence.message


# --- side calls


async def test_a_side_call_may_come_early_late_often_or_not_at_all(table: Table) -> None:
    table.has("A title?", says("Title"), side=True)
    table.has("Go.", says("done"))
    table.has("A suggestion?", says("Suggestion"), side=True)
    replay = table.replay(strict=True)
    assert await table.ask(replay, "A suggestion?", side=True) == says("Suggestion")
    assert await table.ask(replay, "Go.") == says("done")
    assert await table.ask(replay, "A suggestion?", side=True) == says("Suggestion")
    assert replay.status().state == "replaying"
    assert (replay.status().answered, replay.status().left) == (3, 0)


async def test_a_side_call_that_is_asked_again_gets_what_comes_next_and_then_the_last(table: Table) -> None:
    table.has("A title?", says("busy", 429), side=True)
    table.has("A title?", says("Title"), side=True)
    table.has("Go.", says("done"))
    replay = table.replay()
    got = [await table.ask(replay, "A title?", side=True) for _ in range(3)]
    assert got == [says("busy", 429), says("Title"), says("Title")]


@pytest.mark.parametrize("strict", [False, True])
async def test_a_side_call_that_is_not_recorded_leaves_the_replay_as_it_is(table: Table, strict: bool) -> None:
    table.has("Go.", says("done"))
    replay = table.replay(strict=strict)
    answer = await table.ask(replay, "A title?", side=True, node="root/7")
    assert isinstance(answer, UnrecordedSideCall)
    assert answer.divergence.message == "side call 0 (root/7) is not in the record"
    assert await table.ask(replay, "Go.") == says("done")
    assert (replay.status().state, replay.status().divergence) == ("replaying", None)


async def test_what_asks_no_model_counts_as_a_side_call(table: Table) -> None:
    options = {"api": "other", "method": "GET", "path": "/v1/models"}
    table.before.call(table.agent, None, says("models"), **options)
    table.has("Go.", says("done"))
    replay = table.replay(strict=True)
    for _ in range(2):
        assert await replay.answer(table.now.line(table.agent, None, **options), b"") == says("models")
    assert replay.status().left == 1


async def test_the_same_body_to_another_path_is_another_call(table: Table) -> None:
    table.has("Go.", says("done"))
    line = table.now.line(table.agent, talk("Go."), path="/v1/embeddings")
    assert isinstance(await table.replay().answer(line, b""), Diverged)


# --- divergence


async def test_a_divergence_tells_the_call_the_node_and_what_differs(tmp_path: Path) -> None:
    before = await recorded_run(tmp_path / "before", "claude-agent-acp")
    replay = Replay.open(before.record.path, "claude-agent-acp", strict=True)
    run = Run(tmp_path / "after", "claude-agent-acp", 2)

    async def model(line: Any, body: bytes) -> Recorded | None:
        answer = await replay.answer(line, body)
        return answer if isinstance(answer, Recorded) else None

    run.agent.say("Do task 1.")
    answer = await run.ask(model, node="root/1")
    assert answer is not None
    run.agent.called(answer.body.decode().removeprefix("data: ").strip(), "ls", "hallo.txt for Do task 1.")
    assert await run.ask(model, node="root/1") is None
    status = replay.status()
    assert status.state == "diverged"
    assert status.divergence is not None
    # A title was recorded before the others.
    assert (status.divergence.seq, status.divergence.recorded) == (1, 2)
    assert status.divergence.message == "call 1 (root/1) is not the recorded call 2 (root/1)"
    changed = [line for line in status.divergence.diff.splitlines() if line.startswith(("-", "+"))]
    assert [line[0] + line[1:].strip() for line in changed] == [
        "-| hello.txt for Do task 1.",
        "+| hallo.txt for Do task 1.",
    ]
    assert "messages[2].content[0].content" in status.divergence.diff


async def test_the_diff_is_with_the_recorded_call_that_is_nearest(table: Table) -> None:
    table.before.call(table.agent, talk("Another thing."), says("no"))
    table.before.call(table.agent, talk("First.", "Second."), says("yes"))
    body = talk("First.", "Zweitens.")
    answer = await table.replay().answer(table.now.line(table.agent, body), b"")
    assert isinstance(answer, Diverged)
    assert answer.divergence.recorded == 1
    assert "Zweitens." in answer.divergence.diff


async def test_after_a_divergence_everything_is_live(table: Table) -> None:
    for said in ("One.", "Two."):
        table.has(said, says(said))
    replay = table.replay()
    assert isinstance(await table.ask(replay, "Zwei."), Diverged)
    assert await table.ask(replay, "One.") is None
    assert await table.ask(replay, "A title?", side=True) is None
    assert replay.status().state == "diverged"


async def test_a_strict_replay_refuses_everything_after_a_divergence(table: Table) -> None:
    for said in ("One.", "Two."):
        table.has(said, says(said))
    replay = table.replay(strict=True)
    first = await table.ask(replay, "Zwei.")
    assert isinstance(first, Diverged)
    assert await table.ask(replay, "One.") == first
    assert await table.ask(replay, "A title?", side=True) == first


# --- the end


async def test_after_the_last_recorded_call_it_is_live(table: Table) -> None:
    table.has("Go.", says("done"))
    replay = table.replay()
    await table.ask(replay, "Go.")
    assert await table.ask(replay, "And then?") is None
    assert (replay.status().state, replay.status().divergence) == ("live", None)


async def test_a_strict_replay_does_not_go_beyond_its_record(table: Table) -> None:
    table.has("Go.", says("done"))
    replay = table.replay(strict=True)
    await table.ask(replay, "Go.")
    answer = await table.ask(replay, "And then?")
    assert isinstance(answer, Diverged)
    assert "comes after the last one that is recorded" in answer.divergence.message


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("until", ["root/1", "4"])
@pytest.mark.parametrize("agent", AGENTS)
async def test_until_a_node_it_is_answered_and_live_from_then_on(
    agent: str, until: str, strict: bool, tmp_path: Path
) -> None:
    before = await recorded_run(tmp_path / "before", agent)
    replay = Replay.open(before.record.path, agent, until=until, strict=strict)
    assert replay.status().left == CALLS // 2
    run = Run(tmp_path / "after", agent, 2)
    live = scripted(3)
    from_record: list[bool] = []

    async def model(line: Any, body: bytes) -> Recorded | None:
        answer = await replay.answer(line, body)
        assert not isinstance(answer, Diverged)
        from_record.append(answer is not None)
        return answer or await live(line, body)

    for number in (1, 2):
        await run.turn(model, f"Do task {number}.", f"root/{number}")
    assert from_record == [True] * (CALLS // 2) + [False] * (CALLS // 2)
    assert replay.status().state == "live"


async def test_a_node_that_is_not_in_the_record_is_refused_with_those_that_are(tmp_path: Path) -> None:
    before = await recorded_run(tmp_path, "policy")
    with pytest.raises(ConfigError) as caught:
        Replay.open(before.record.path, "policy", until="root/9")
    assert caught.value.key == "until"
    assert caught.value.remedy == "name one of root/1, root/2"


# --- answers that are none


@pytest.mark.parametrize("error", ["client_closed", "stalled", "truncated", *sorted(LOST)])
async def test_an_answer_that_broke_off_is_left_out(table: Table, error: str) -> None:
    table.has("Go.", says("do"), error)
    table.has("Go.", says("done"))
    replay = table.replay(strict=True)
    assert replay.status().left == 1
    assert await table.ask(replay, "Go.") == says("done")


@pytest.mark.parametrize("error", ["upstream_status", "unreachable", "incomplete"])
async def test_an_answer_that_the_agent_got_whole_is_given_again(table: Table, error: str) -> None:
    table.has("Go.", says("bad gateway", 502), error)
    assert await table.ask(table.replay(), "Go.") == says("bad gateway", 502)


async def test_a_call_whose_answer_nobody_has_diverges_and_says_why(table: Table) -> None:
    table.has("Before.", says("yes"))
    table.before.asked(table.before.line(table.agent, talk("Go.")))
    table.has("Go on.", says("limit", 400), "budget_exhausted")
    table.has("After.", says("yes"))
    for said, why in (("Go.", "it was not answered"), ("Go on.", "it ended with budget_exhausted")):
        answer = await table.ask(table.replay(), said)
        assert isinstance(answer, Diverged)
        assert answer.divergence.message.endswith(f"to which there is no answer: {why}")


async def test_a_last_line_that_a_crash_cut_is_left_out(table: Table) -> None:
    table.has("Go.", says("done"))
    with table.before.path.open("a") as file:
        file.write('{"type": "request", "id"')
    assert await table.ask(table.replay(), "Go.") == says("done")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("garbage\n", "is not JSON"), ('{"type": "request"}\n', "is no line of a record")],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "record.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        Replay.open(path, "opencode")
    assert caught.value.file == str(path)


async def test_a_record_that_changes_meanwhile_is_noticed(table: Table) -> None:
    table.has("Go.", says("done"))
    replay = table.replay()
    table.before.path.write_text("{}\n" * 1000)
    with pytest.raises(ConfigError):
        await table.ask(replay, "Go.")


# --- a report


async def test_a_report_says_how_far_two_runs_are_the_same(tmp_path: Path) -> None:
    one, same = [await recorded_run(tmp_path / str(n), "codex-acp", n) for n in (1, 2)]
    other = await recorded_run(tmp_path / "3", "codex-acp", 3, cwd="/elsewhere")
    report = divergence_report(one.record.path, same.record.path, agent="codex-acp")
    assert report == "9 calls as recorded, 0 recorded ones not asked for"
    report = divergence_report(one.record.path, other.record.path, agent="codex-acp")
    assert report.splitlines()[:2] == [
        "1 calls as recorded, 8 recorded ones not asked for",
        "call 1 (root/1) is not the recorded call 1 (root/1)",
    ]
    assert "| <cwd>/elsewhere</cwd>" in report


def test_it_is_what_the_gateway_calls(table: Table) -> None:
    table.has("Go.", says("done"))
    made: MakeReplayer = make_replayer
    replayer: Replayer = table.replay()
    assert callable(made)
    assert replayer.status().left == 1
