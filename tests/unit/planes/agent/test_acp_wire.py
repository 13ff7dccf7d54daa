"""The files between us and an agent: whoever writes and reads them, and whatever a crash left in them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchflow.errors import ACPError, AgentOutputError
from benchflow.planes.agent import bounds
from benchflow.planes.agent.acp.wire import PIECE, OutputLine, Wire
from benchflow.planes.agent.bounds import MAX_VALUES, require_small
from benchflow.planes.agent.notes import Message, SessionFiles


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    made = Wire(SessionFiles.from_directory(tmp_path / "agent"))
    made.make()
    return made


def request(number: object, method: str = "session/prompt") -> Message:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": {}}


def answer(number: object, result: object = None) -> Message:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def sent(wire: Wire) -> list[Message]:
    return [json.loads(line) for line in (wire.sent.file).read_bytes().splitlines()]


def say(wire: Wire, text: bytes) -> None:
    with (wire.files.shared / "out").open("ab") as file:
        file.write(text)


async def hear(wire: Wire, offset: int = 0) -> list[OutputLine]:
    """All whole lines that are there."""
    heard = []
    async for line in wire.follow(offset):
        if line is None:
            break
        heard.append(line)
    return heard


# --- what we say -----------------------------------------------------------------------------------------


def test_the_files_are_for_root_alone(wire: Wire) -> None:
    for directory in (wire.files.shared, wire.files.own_notes):
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_a_request_goes_out_once(wire: Wire) -> None:
    assert wire.send(request("p0"))
    assert not wire.send(request("p0"))
    assert not Wire(wire.files).send(request("p0"))
    assert sent(wire) == [request("p0")]


def test_an_answer_goes_out_once_and_the_first_one_counts(wire: Wire) -> None:
    assert wire.send(answer(7, "yes"))
    assert not Wire(wire.files).send(answer(7, "no"))
    assert wire.find_answer(7) == answer(7, "yes")
    assert sent(wire) == [answer(7, "yes")]


def test_a_request_and_an_answer_may_have_the_same_id(wire: Wire) -> None:
    assert wire.send(answer(1))
    assert wire.find_answer(1) is not None and not wire.was_sent(1)
    assert wire.send(request(1))
    assert wire.was_sent(1)


def test_an_id_that_is_a_number_is_not_the_same_one_as_text(wire: Wire) -> None:
    assert wire.send(answer(1, "number"))
    assert wire.send(answer("1", "text"))
    assert (wire.find_answer(1), wire.find_answer("1")) == (answer(1, "number"), answer("1", "text"))


def test_a_notification_goes_out_as_often_as_it_is_sent(wire: Wire) -> None:
    notification = {"jsonrpc": "2.0", "method": "session/cancel", "params": {}}
    assert wire.send(notification) and wire.send(notification)
    assert sent(wire) == [notification] * 2


def test_what_another_worker_sent_is_known(wire: Wire) -> None:
    other = Wire(wire.files)
    assert other.send(request("p0"))
    assert wire.was_sent("p0") and not wire.was_sent("p1")
    assert not wire.send(request("p0"))


def test_a_half_line_is_replaced_by_a_whole_one(wire: Wire) -> None:
    wire.send(request("p0"))
    with (wire.sent.file).open("ab") as file:
        file.write(json.dumps(request("p1")).encode()[:20])
    after = Wire(wire.files)
    assert not after.was_sent("p1")
    assert after.send(request("p1"))
    assert sent(wire) == [request("p0"), request("p1")]


def test_what_a_sandbox_cuts_is_not_written_again_with_each_message(wire: Wire) -> None:
    wire.send(request("p0"))
    os.truncate(wire.files.shared / "in", 0)
    with pytest.raises(ACPError, match="was cut: in"):
        wire.send(request("p1"))


def test_half_of_a_character_can_be_sent(wire: Wire) -> None:
    assert wire.send(answer(1, "\ud83d"))
    assert wire.find_answer(1) == answer(1, "\ud83d")


def test_two_writers_at_once_send_everything_once(wire: Wire) -> None:
    barrier = threading.Barrier(2)

    def send_all() -> None:
        mine = Wire(wire.files)
        barrier.wait()
        for number in range(200):
            mine.send(request(f"p{number}"))

    # The lock is of an open file: it keeps threads apart as it does processes.
    with ThreadPoolExecutor(2) as pool:
        for writer in [pool.submit(send_all) for _ in range(2)]:
            writer.result()
    assert [message["id"] for message in sent(wire)] == [f"p{number}" for number in range(200)]


# --- what the agent says ---------------------------------------------------------------------------------


async def test_lines_are_heard_in_order_with_the_offset_behind_each(wire: Wire) -> None:
    say(wire, b'{"a": 1}\n{"b": 2}\n')
    heard = await hear(wire)
    assert [line.message for line in heard] == [{"a": 1}, {"b": 2}]
    assert [line.end for line in heard] == [9, 18]
    assert [line.message for line in await hear(wire, heard[0].end)] == [{"b": 2}]


async def test_half_a_line_is_heard_when_it_is_whole(wire: Wire) -> None:
    say(wire, b'{"a": 1}\n{"b"')
    following = wire.follow(0)
    first = await anext(following)
    assert first is not None and first.message == {"a": 1}
    assert await anext(following) is None
    say(wire, b': "\xc3')
    assert await anext(following) is None
    say(wire, b'\xa4"}\n')
    second = await anext(following)
    assert second is not None and second.message == {"b": "ä"}
    await following.aclose()  # type: ignore[attr-defined]


async def test_what_is_no_json_object_is_heard_as_it_came(wire: Wire) -> None:
    lines = [b"hello", b"[1]", b'{"a"', b'"text"', b'{"a": "\xff"}', b"[" * 100_000]
    say(wire, b"\n".join(lines) + b"\n")
    heard = await hear(wire)
    assert [line.raw for line in heard] == lines
    assert {line.message is None for line in heard} == {True}


async def test_empty_lines_are_passed_over(wire: Wire) -> None:
    say(wire, b"\n \n\r\n{}\n")
    assert [(line.message, line.end) for line in await hear(wire)] == [({}, 8)]


async def test_numbers_that_are_none_are_heard_as_nothing(wire: Wire) -> None:
    say(wire, b'{"a": NaN, "b": -Infinity, "c": 1e999}\n')
    assert [line.message for line in await hear(wire)] == [{"a": None, "b": None, "c": None}]


async def test_a_line_of_fifteen_megabytes_is_a_line(wire: Wire) -> None:
    text = "x" * 15_000_000
    say(wire, json.dumps({"text": text}).encode() + b"\n{}\n")
    heard = await hear(wire)
    assert [line.message for line in heard] == [{"text": text}, {}]


@pytest.mark.parametrize("piece", [PIECE // 2, PIECE, PIECE + 1, 5 * PIECE])
async def test_lines_are_heard_whole_wherever_the_pieces_end_that_they_come_in(wire: Wire, piece: int) -> None:
    sizes = [3, PIECE - 2, 1, PIECE - 1, PIECE, PIECE + 1, 0, 2 * PIECE, 3 * PIECE + 7, 5]
    lines = [bytes([97 + number]) * size for number, size in enumerate(sizes)]
    whole = b"".join(line + b"\n" for line in lines)
    pieces = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    heard = []
    async for line in wire.follow(0):
        if line is not None:
            heard.append(line)
        elif pieces:
            say(wire, pieces.pop(0))
        else:
            break
    assert [line.raw for line in heard] == [line for line in lines if line]
    assert heard[-1].end == len(whole)


async def test_output_without_end_is_an_error_whatever_is_said_or_not(wire: Wire) -> None:
    bounded = Wire(wire.files, max_output=1000)
    say(wire, b"{}\n" * 300)
    assert len(await hear(bounded)) == 300
    os.truncate(wire.files.shared / "out", 1001)
    with pytest.raises(AgentOutputError, match="more than 1000 bytes"):
        await hear(bounded, 900)
    with pytest.raises(AgentOutputError, match="more than 1000 bytes"):
        bounded.append("out", 1001, b"{}\n")


async def test_a_message_of_very_many_values_is_an_error_and_a_text_of_the_same_is_none(wire: Wire) -> None:
    nested = "[" + "{}," * MAX_VALUES + "0]"
    say(wire, json.dumps({"text": f'"{nested}\\'}).encode() + b"\n")
    (heard,) = await hear(wire)
    assert heard.message == {"text": f'"{nested}\\'}
    say(wire, f'{{"values": {nested}}}\n'.encode())
    with pytest.raises(ACPError, match=f"more than {MAX_VALUES} values"):
        await hear(wire, heard.end)


async def test_a_line_without_end_is_an_error_with_the_tail_of_the_log(wire: Wire) -> None:
    (wire.files.shared / "err").write_text("it goes on and on")
    say(wire, b"x" * 5_000_000)
    with pytest.raises(ACPError, match="a line of more than 3000000 bytes") as caught:
        await hear(Wire(wire.files, max_line=3_000_000))
    assert caught.value.log_tail == "it goes on and on"


async def test_a_follower_hears_what_comes_while_it_follows(wire: Wire) -> None:
    async def talk() -> None:
        for number in range(50):
            say(wire, json.dumps({"n": number}).encode() + b"\n")
            await asyncio.sleep(0)

    talking = asyncio.create_task(talk())
    heard: list[Message | None] = []
    async for line in wire.follow(0):
        heard += [line.message] if line else []
        if len(heard) == 50:
            break
    await talking
    assert heard == [{"n": number} for number in range(50)]


def test_the_position_is_the_next_workers_too(wire: Wire) -> None:
    assert wire.position == 0
    wire.position = 18
    assert Wire(wire.files).position == 18


# --- how it ended, and what we note ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"code": 3, "signal": None}, "exit status 3"),
        ({"code": None, "signal": "SIGKILL"}, "signal SIGKILL"),
        ({"start": False, "error": "it could not be started: ENOENT"}, "it could not be started: ENOENT"),
    ],
)
def test_the_end_is_said_in_words(wire: Wire, how: Message, said: str) -> None:
    assert wire.describe_end() is None
    (wire.files.shared / "exit").write_text(json.dumps(how))
    assert wire.describe_end() == said


def test_the_log_tail_is_the_end_of_a_long_log(wire: Wire) -> None:
    assert wire.read_log_tail() is None
    (wire.files.shared / "err").write_bytes(b"x" * 100_000 + b"\xff the end\n")
    tail = wire.read_log_tail()
    assert tail is not None and tail.endswith("\ufffd the end") and len(tail) < 5000


@pytest.fixture
def notes(wire: Wire) -> Iterator[list[Message]]:
    yield [wire.notes.write_once("mark", {"from": 1}), Wire(wire.files).notes.write_once("mark", {"from": 2})]


def test_the_first_note_counts(wire: Wire, notes: list[Message]) -> None:
    assert notes == [{"from": 1}] * 2
    assert wire.notes.read("mark") == {"from": 1}
    assert wire.notes.read("other") is None


def test_notes_leave_nothing_else_behind(wire: Wire, notes: list[Message]) -> None:
    assert {path.name for path in wire.files.own_notes.iterdir()} == {"in", "mark.json"}
    assert {path.name for path in wire.files.shared.iterdir()} == {"in", "out", "err"}


async def test_a_flood_of_short_lines_keeps_nobody_waiting(wire: Wire) -> None:
    say(wire, b"z\n" * 200_000)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    try:
        heard = await hear(wire)
    finally:
        counting.cancel()
    assert len(heard) == 200_000
    # Taking them in takes far longer than one slice; without slices there is one turn for each megabyte.
    assert turns > 5


# --- the directory that the sandbox may fill --------------------------------------------------------------


def test_a_shared_directory_is_measured_by_what_it_takes_of_the_disk(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_SHARED", 1_000_000)
    say(wire, b"x" * 100_000)
    os.truncate(wire.files.shared / "err", 1_000_000_000_000)
    require_small(wire.files.shared)
    (wire.files.shared / "more").mkdir()
    (wire.files.shared / "more" / "full").write_bytes(b"x" * 1_000_000)
    with pytest.raises(AgentOutputError, match="more than 1000000 bytes"):
        require_small(wire.files.shared)


def test_a_shared_directory_of_many_files_is_too_large(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_SHARED_FILES", 5)
    require_small(wire.files.shared)
    for number in range(5):
        (wire.files.shared / str(number)).mkdir()
    with pytest.raises(AgentOutputError, match="more than 5 files"):
        require_small(wire.files.shared)


def test_a_shared_directory_that_is_gone_is_small(wire: Wire, tmp_path: Path) -> None:
    require_small(tmp_path / "gone")
