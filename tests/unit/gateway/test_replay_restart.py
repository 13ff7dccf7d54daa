"""A replay whose gateway was ended: the rollout's own record says how far it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.replay_room import APIS, RecordFile, Run, SmallAgent, recorded_run, says, scripted

from benchflow.contracts import gateway as contract
from benchflow.errors import ConfigError
from benchflow.gateway.hook import Diverged, Recorded
from benchflow.gateway.replay import Replay, make_replayer

AGENTS = sorted(APIS)
CALLS = 8


class Restarting:
    """A model that answers from a record, and whose gateway is ended after each call."""

    def __init__(self, record: Path, own: Path, agent: str, **options: Any) -> None:
        self._open = lambda: Replay.open(record, agent, **options)
        self._own = own
        self._live = scripted(9)
        self.replay = self._open()
        self.from_record: list[bool] = []

    def restart(self) -> None:
        self.replay = self._open()
        self.replay.resume(self._own)

    async def __call__(self, line: dict[str, Any], body: bytes) -> Recorded | None:
        if self._own.exists():
            self.restart()
        answer = await self.replay.answer(line, body)
        self.from_record.append(isinstance(answer, Recorded))
        # The line is written after this; the gateway, too, knows only then.
        line["source"] = "replay" if isinstance(answer, Recorded) else "live"
        return answer if isinstance(answer, Recorded) else await self._live(line, body)


async def turns(run: Run, model: Restarting, prompts: tuple[str, ...] = ("Do task 1.", "Do task 2.")) -> None:
    for number, prompt in enumerate(prompts, 1):
        for_line = {"node": f"root/{number}"}
        run.agent.say(prompt)
        for command, output in (("ls", "hello.txt"), ("cat hello.txt", "Hello"), ("make", "built"), (None, "")):
            body = run.agent.body()
            line = run.record.line(run.agent, body, **for_line)
            answer = await model(line, json.dumps(body).encode())
            assert answer is not None
            run.record.answered(run.record.asked(line), answer)
            run.heard.append(answer.body)
            if command:
                call = answer.body.decode().removeprefix("data: ").strip()
                run.agent.called(call, command, f"{output} for {prompt}")
        run.agent.heard(f"Did {prompt}")


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_gateway_that_is_ended_after_every_call_answers_all_the_same(agent: str, tmp_path: Path) -> None:
    before = await recorded_run(tmp_path / "before", agent)
    run = Run(tmp_path / "after", agent, 2)
    model = Restarting(before.record.path, run.record.path, agent, strict=True)
    await turns(run, model)
    assert run.heard == before.heard
    assert model.from_record == [True] * CALLS


@pytest.mark.parametrize("agent", AGENTS)
async def test_it_stays_live_after_the_node_that_it_was_replayed_to(agent: str, tmp_path: Path) -> None:
    before = await recorded_run(tmp_path / "before", agent)
    run = Run(tmp_path / "after", agent, 2)
    model = Restarting(before.record.path, run.record.path, agent, until="root/1")
    await turns(run, model)
    assert model.from_record == [True] * (CALLS // 2) + [False] * (CALLS // 2)
    model.restart()
    assert (model.replay.status().state, model.replay.status().left) == ("live", 0)


async def test_a_divergence_is_the_same_after_a_restart(tmp_path: Path) -> None:
    before = await recorded_run(tmp_path / "before", "codex-acp")
    run = Run(tmp_path / "after", "codex-acp", 2)
    model = Restarting(before.record.path, run.record.path, "codex-acp")
    await turns(run, model, ("Do task 1.", "Do something else."))
    assert model.from_record == [True] * (CALLS // 2) + [False] * (CALLS // 2)
    model.restart()
    status = model.replay.status()
    assert status.state == "diverged"
    assert status.divergence is not None
    assert "Do something else." in status.divergence.diff
    assert status.divergence.seq == 4


class Desk:
    """A record, and the beginnings of a run's own record."""

    def __init__(self, directory: Path) -> None:
        self.agent = SmallAgent("opencode", 1)
        self.before, self.own = RecordFile(directory / "before.jsonl"), RecordFile(directory / "own.jsonl")

    def body(self, said: str) -> Any:
        agent = SmallAgent("opencode", 1)
        agent.say(said)
        return agent.body()

    def record(self, said: str, answer: Recorded, **options: Any) -> None:
        self.before.call(self.agent, self.body(said), answer, **options)

    def ran(self, said: str, answer: Recorded | None, error: str | None = None, **options: Any) -> None:
        options = {"source": "replay"} | options
        self.own.call(self.agent, self.body(said), answer, error, **options)

    def resumed(self, **options: Any) -> Replay:
        replay = Replay.open(self.before.path, "opencode", **options)
        replay.resume(self.own.path)
        return replay

    async def ask(self, replay: Replay, said: str, **options: Any) -> Recorded | Diverged | None:
        return await replay.answer(self.own.line(self.agent, self.body(said), **options), b"")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_an_answer_that_was_lost_with_the_gateway_is_given_again(desk: Desk) -> None:
    for answer in (says("busy", 429), says("done")):
        desk.record("Go.", answer)
    desk.ran("Go.", says("busy", 429))
    desk.ran("Go.", None, "gateway_restarted")
    assert await desk.ask(desk.resumed(), "Go.") == says("done")


async def test_repeated_side_calls_are_counted_as_they_were(desk: Desk) -> None:
    desk.record("A title?", says("Title"), side=True)
    desk.record("Go.", says("done"))
    for _ in range(2):
        desk.ran("A title?", says("Title"), side=True)
    replay = desk.resumed(strict=True)
    assert (replay.status().answered, replay.status().left) == (2, 1)
    assert await desk.ask(replay, "A title?", side=True) == says("Title")
    assert await desk.ask(replay, "Go.") == says("done")


@pytest.mark.parametrize(("strict", "error"), [(False, None), (True, "replay_diverged")])
async def test_a_side_call_that_was_not_recorded_ends_nothing(desk: Desk, strict: bool, error: str | None) -> None:
    desk.record("Go.", says("done"))
    desk.ran("A title?", says("Title", 400 if strict else 200), error, side=True, source="live")
    assert await desk.ask(desk.resumed(strict=strict), "Go.") == says("done")


async def test_what_a_strict_replay_has_refused_stays_refused(desk: Desk) -> None:
    desk.record("Go.", says("done"))
    desk.ran("Stop.", says("no", 400), "replay_diverged", source="live")
    replay = desk.resumed(strict=True)
    assert replay.status().state == "diverged"
    assert isinstance(await desk.ask(replay, "Go."), Diverged)


def test_a_run_that_was_answered_from_another_record_is_refused(desk: Desk) -> None:
    desk.record("Go.", says("done"))
    desk.ran("Stop.", says("stopped"))
    with pytest.raises(ConfigError, match="another record"):
        desk.resumed()


@pytest.mark.parametrize("done", [False, True])
async def test_the_gateway_makes_it_from_a_registration(desk: Desk, done: bool) -> None:
    desk.record("One.", says("1"), node="root/1")
    desk.record("Two.", says("2"), node="root/1")
    desk.record("Three.", says("3"), node="root/2")
    desk.ran("One.", says("1"))
    settings = contract.ReplaySettings(record=str(desk.before.path), until="root/1", strict=True)
    given = {"id": "r", "job_id": "j", "agent": "opencode", "api": "openai-chat", "base_url": "http://127.0.0.1:1/v1"}
    registration = contract.Registration.model_validate(
        {**given, "token": "bfg-" + "0" * 32, "record": str(desk.own.path), "replay": settings}
    )
    head = {"id": "call-0", "seq": 0, "source": "replay"}
    replay = make_replayer(registration, [head] if done else [])
    assert replay.status().left == (1 if done else 2)
    assert await desk.ask(replay, "Two.") == says("2")
