"""Python agents in a sandbox: whatever they do, and whoever dies, each step is done once and told once, in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support import python_agents
from support.acp_room import PROVIDERS
from support.local_sandboxes import Economical
from support.python_agents import MANY

from benchflow import AgentTurn
from benchflow.contracts.agent import AgentPlace, TurnLimits
from benchflow.contracts.rollout_records import AgentSession
from benchflow.errors import AgentDivergedError, AgentError, AgentExitError, AgentOutputError
from benchflow.planes.agent import create_agent
from benchflow.planes.agent.function.function_agent import MAX_MEMORY, FunctionAgent
from benchflow.planes.agent.question_answers import make_answerer
from benchflow.testing.agent_conformance.agent_fixtures import AgentFixtures, Taking
from benchflow.testing.sandbox_conformance.sandbox_fixtures import awake, nap
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal

pytestmark = [pytest.mark.local, pytest.mark.asyncio]

Act = Callable[[AgentTurn], Awaitable[Any]]
Given = Callable[..., Taking]


class Functions(AgentFixtures):
    provider_path = PROVIDERS["local"]
    agent = "support.python_agents:many_steps"
    talks = lasts = "go"

    @pytest.fixture
    def given(self, place: AgentPlace, held: AgentSession) -> Given:
        """A process that takes turn 0 of a function: the function, and fields of `Taking`."""

        def begin(act: Act, **more: Any) -> Taking:
            fields = {"number": 0, "prompt": "go"} | more
            return Taking(FunctionAgent(place, act), held, **fields)

        return begin


async def read(place: AgentPlace, path: str) -> str:
    return (await place.sandbox.read_bytes(f"{place.sandbox.ref.workdir}/{path}")).decode()


def said(turn: Taking) -> list[str]:
    return [line["text"] for line in turn.lines if line["type"] == "agent_message"]


async def refused(turn: Taking, kind: type[AgentError]) -> AgentError:
    """Return the error of a turn, which is the same for whoever takes it again."""
    with pytest.raises(kind) as failed:
        await turn.take()
    again = Taking(turn.agent, turn.held, turn.number, turn.prompt)
    with pytest.raises(kind) as failed_again:
        await again.take()
    assert (again.lines, failed_again.value.message) == (turn.lines, failed.value.message)
    return failed.value


class TestWorkers(Economical, Functions):
    """Processes that die, and processes that take over."""

    async def test_workers_die_and_each_step_is_done_once(
        self, place: AgentPlace, held: AgentSession, tmp_path: Path
    ) -> None:
        chance = random.Random()
        trajectory = tmp_path / "trajectory.jsonl"
        job = {
            "provider": PROVIDERS["local"],
            "held": held.model_dump(mode="json"),
            "ref": place.sandbox.ref.model_dump(mode="json"),
            "state": str(place.state),
            "directory": str(place.directory),
            "trajectory": str(trajectory),
        }
        env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

        async def begin() -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                sys.executable, python_agents.__file__, json.dumps(job), env=env
            )

        def is_past(lines: int) -> bool:
            return trajectory.exists() and len(read_journal(trajectory)) > lines

        for kill_after in sorted(chance.sample(range(3 * MANY - 6), 3)):
            worker = await begin()
            await until(lambda after=kill_after: is_past(after))
            worker.kill()
            await worker.wait()
        last = await begin()
        assert await last.wait() == 0
        assert (await read(place, "marks")).split() == [str(number) for number in range(MANY)]
        lines = read_journal(trajectory)
        kinds = ["tool_call", "tool_call_update", "agent_message"] * MANY + ["tool_call", "tool_call_update"]
        assert [line["type"] for line in lines] == kinds
        assert [line["seq"] for line in lines] == [*range(len(lines))]
        assert [line["text"] for line in lines if line["type"] == "agent_message"] == [str(n) for n in range(MANY)]
        session = await create_agent(place).session(held)
        assert await session.capture() == {"last": MANY - 1}

    async def test_an_agent_that_does_otherwise_is_refused(self, given: Given, place: AgentPlace) -> None:
        attempts = 0

        async def act(turn: AgentTurn) -> None:
            nonlocal attempts
            attempts += 1
            await turn.exec(f"echo {attempts} >>marks")
            await turn.say("waits")
            await asyncio.sleep(3600 if attempts == 1 else 0)

        async with given(act).until_it_tells() as task:
            await until(lambda: [*place.directory.rglob("step-0-1.json")] or task.done())
        with pytest.raises(AgentDivergedError, match="exec before, exec now"):
            await given(act).take()
        assert await read(place, "marks") == "1\n"

    async def test_a_worker_that_was_frozen_starts_nothing_after_the_end(self, given: Given, place: AgentPlace) -> None:
        is_frozen, thaws = threading.Event(), threading.Event()

        async def act(turn: AgentTurn) -> None:
            await turn.say("one")
            if not is_frozen.is_set():
                is_frozen.set()
                thaws.wait()
                await turn.exec("echo late >>marks")
            await turn.say("two")

        frozen = given(act)
        async with frozen.until_it_tells() as task:
            await until(is_frozen.is_set)
            heir = given(act)
            stop = await heir.take()
            thaws.set()
            assert await task == stop
        assert said(heir) == ["one", "two"]
        assert frozen.lines[:1] == heir.lines[:1]
        assert (await place.sandbox.exec(["ls"], cwd=place.sandbox.ref.workdir)).stdout == ""

    async def test_what_a_thread_says_late_is_not_heard(self, given: Given) -> None:
        goes_on, was_refused = threading.Event(), threading.Event()

        async def act(turn: AgentTurn) -> None:
            await turn.say("one")
            goes_on.wait()
            try:
                await turn.say("two")
            except asyncio.CancelledError:
                was_refused.set()
                raise

        left = given(act)
        async with left.until_it_tells():
            pass
        goes_on.set()
        await until(was_refused.is_set)
        assert said(left) == ["one"]


class TestTurns(Economical, Functions):
    """What a function may do in its turn."""

    async def test_files_of_any_size(self, given: Given, place: AgentPlace) -> None:
        texts = {"empty": "", "plain/deep": "a\n" * 200_000, "other": "ü😀\n" * 60_000, "-n": "-e \\n %s"}

        async def act(turn: AgentTurn) -> None:
            for name, text in texts.items():
                await turn.write_file(name, text)
                assert await turn.read_file(name) == text
            for name, kind in (("missing", FileNotFoundError), ("empty/below", FileNotFoundError)):
                with pytest.raises(kind):
                    await turn.read_file(name)
            with pytest.raises(OSError):
                await turn.write_file("empty/below", "")

        turn = given(act)
        assert (await turn.take()).reason == "end_turn"
        assert turn.tool_calls == 11
        owner = await place.sandbox.exec(["stat", "-c", "%U", "other"], cwd=place.sandbox.ref.workdir)
        assert owner.stdout == "agent\n"
        calls = [line for line in turn.lines if line["type"] == "tool_call"]
        assert [call["kind"] for call in calls] == ["edit", "read"] * 4 + ["read", "read", "edit"]

    async def test_a_command_has_limits_and_variables(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> None:
            slow = await turn.exec(["sleep", "3600"], timeout=0.2)
            assert slow.timed_out
            told = await turn.exec("echo $A; pwd; id -un; exit 3", env={"A": "b"}, cwd="/")
            assert (told.stdout, told.return_code) == ("b\n/\nagent\n", 3)

        assert (await given(act).take()).reason == "end_turn"

    async def test_long_output_is_the_agents_and_is_cut_in_the_trajectory(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> None:
            zeros = await turn.exec("head -c 9000000 /dev/zero")
            assert (len(zeros.stdout), zeros.truncated) == (9_000_000, False)

        turn = given(act)
        assert (await turn.take()).reason == "end_turn"
        output = turn.lines[-1]["raw_output"]
        assert (len(output["stdout"]), output["truncated"]) == (1024 * 1024, True)

    async def test_steps_at_the_same_time_are_done_one_after_another(self, given: Given) -> None:
        async def twice(turn: AgentTurn, name: str) -> list[str]:
            return [(await turn.exec(f"echo {name}{number}")).stdout.strip() for number in range(2)]

        async def act(turn: AgentTurn) -> None:
            found = await asyncio.gather(*(twice(turn, name) for name in "abc"))
            assert found == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]

        first, again = given(act), given(act)
        await asyncio.gather(first.take(), again.take())
        assert first.lines == again.lines
        assert [line["title"][-2:] for line in first.lines if "title" in line] == ["a0", "b0", "c0", "a1", "b1", "c1"]
        assert [line["type"] for line in first.lines] == ["tool_call", "tool_call_update"] * 6

    async def test_what_is_done_once(self, given: Given) -> None:
        calls: list[str] = []

        async def call() -> list[int]:
            calls.append(threading.current_thread().name)
            return [len(calls)]

        async def act(turn: AgentTurn) -> None:
            await turn.say(str(await turn.once("count", call)))
            await asyncio.sleep(0 if turn.env else 3600)

        async with given(act).until_it_tells():
            pass
        heir = given(act)
        async with heir.until_it_tells():
            pass
        assert (said(heir), calls) == (["[1]"], ["benchflow-agent"])

    async def test_a_step_within_a_step_is_refused(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> None:
            await turn.once("nested", lambda: turn.exec("true"))

        assert "within `once`" in (await refused(given(act), AgentExitError)).message

    @pytest.mark.parametrize(
        ("permissions", "said_then"), [("auto", ["red", "None"]), ("deny", ["None", "None"])], ids=["auto", "deny"]
    )
    async def test_questions_are_answered_by_rule(self, given: Given, permissions: Any, said_then: list[str]) -> None:
        async def act(turn: AgentTurn) -> None:
            await turn.say(str(await turn.ask_user("Which?", ["red", "blue"])))
            await turn.say(str(await turn.ask_user("Who?")))

        turn = given(act, answer=make_answerer(permissions))
        await turn.take()
        assert said(turn) == said_then

    async def test_it_remembers_from_turn_to_turn(self, given: Given, place: AgentPlace) -> None:
        async def act(turn: AgentTurn) -> None:
            turn.memory[turn.prompt] = len(turn.memory)
            await turn.say(json.dumps(turn.memory))
            if turn.prompt == "stuck":
                await asyncio.sleep(3600)

        await given(act, prompt="one").take()
        # What a turn that was cancelled would have remembered is not.
        stuck = given(act, prompt="stuck", number=1)
        async with stuck.until_it_tells() as task:
            (await stuck.agent.session(stuck.held)).cancel(1)
            await task
        turns = [given(act, prompt="two", number=2, is_nudge=True) for _ in range(2)]
        for turn in turns:
            await turn.take()
            assert said(turn) == ['{"one": 0, "two": 1}']
        copied = await FunctionAgent(place, act).restore(7, turns[0].held, {"one": 0})
        other = Taking(turns[0].agent, copied, 1, "other")
        await other.take()
        assert said(other) == ['{"one": 0, "other": 1}']

    async def test_there_is_no_model_where_none_is_named(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> None:
            await turn.complete([{"role": "user", "content": "hello"}])

        error = await refused(given(act), AgentExitError)
        assert (error.key, error.remedy) == ("model", "add --model MODEL")


class TestEnds(Economical, Functions):
    """Functions that go wrong, or do not end."""

    @pytest.mark.parametrize(
        "how",
        [
            *("sleep", "command"),
            pytest.param("swallow", marks=pytest.mark.long),
            pytest.param("block", marks=pytest.mark.long),
        ],
    )
    async def test_a_function_that_does_not_end_is_left(self, given: Given, place: AgentPlace, how: str) -> None:
        over, length = threading.Event(), nap()

        async def act(turn: AgentTurn) -> None:
            await turn.say("begins")
            if how == "block":
                over.wait()
            while how == "swallow":
                try:
                    await turn.exec("true")
                except BaseException:
                    await turn.think("goes on")
            await (turn.exec(f"sleep {length}") if how == "command" else asyncio.sleep(3600))

        try:
            first = given(act)
            async with first.until_it_tells() as task:
                (await first.agent.session(first.held)).cancel(0)
                assert (await task).ended_by == "cancelled"
            assert (await given(act).take()).ended_by == "cancelled"
            if how == "command":
                await awake(place.sandbox, length)
        finally:
            over.set()

    async def test_its_errors_are_its_own(self, given: Given) -> None:
        class OddError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        async def act(turn: AgentTurn) -> Any:
            await turn.say("begins")
            if turn.prompt == "number":
                return 7
            if turn.prompt == "memory":
                turn.memory["x"] = object()
                return None
            kinds: dict[str, BaseException] = {
                "error": ValueError("x" * 10**6),
                "exit": SystemExit(3),
                "odd": OddError(),
                "cancelled": asyncio.CancelledError(),
                "deep": RecursionError("deep"),
            }
            raise kinds[turn.prompt]

        for number, (prompt, message) in enumerate(
            {
                "error": "ValueError: xxx",
                "exit": "SystemExit: 3",
                "odd": "OddError",
                "cancelled": "CancelledError",
                "deep": "RecursionError: deep",
                "number": "returned int",
                "memory": "memory is no JSON",
            }.items()
        ):
            error = await refused(given(act, prompt=prompt, number=number), AgentExitError)
            assert message in error.message
            assert len(error.message) < 2000

    async def test_memory_is_bounded(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> None:
            turn.memory["x"] = "x" * MAX_MEMORY

        assert "more than" in (await refused(given(act), AgentOutputError)).message

    async def test_a_function_that_hides_the_engines_failure_fails(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> str:
            for number in range(3):
                try:
                    await turn.once(str(number), lambda: asyncio.sleep(0, object()))
                except BaseException:
                    continue
            return "end_turn"

        assert "no JSON" in (await refused(given(act), AgentExitError)).message

    async def test_a_turn_of_commands_is_idle_when_it_says_nothing(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> None:
            while True:
                await turn.exec("sleep 0.2")

        began = time.monotonic()
        stop = await given(act, limits=TurnLimits(wall=1.0, idle=1000)).take()
        assert (stop.ended_by, time.monotonic() - began > 1.0) == ("wall_clock", True)

    async def test_an_agent_that_was_ended_takes_no_turn(self, given: Given) -> None:
        async def act(turn: AgentTurn) -> None:
            await turn.say("here")

        await given(act).take()
        turn = given(act, number=1)
        await turn.agent.end(turn.held)
        with pytest.raises(AgentExitError, match="was ended"):
            await turn.take()
