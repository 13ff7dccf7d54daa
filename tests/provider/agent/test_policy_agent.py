"""The turn of the agent `policy`: its loop, its tools, and what a model or an endpoint may get wrong."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path

import pytest
from support.acp_room import CWD
from support.policy_process import (
    GOAL,
    PATIENCE,
    Message,
    RefusedError,
    Start,
    asleep,
    run_tool,
    running,
    sent,
    told,
    tool,
    use,
)

from benchflow.planes.agent.toolbox import Toolbox
from benchflow.testing.sandbox_conformance.sandbox_fixtures import nap
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until


@pytest.fixture
def start(runtime: Toolbox, tmp_path: Path) -> Start:
    """Return a function that runs the agent, for `async with start(model, max_steps=3) as agent`."""
    return functools.partial(running, runtime.root / "bin" / "node", tmp_path)


# --- a turn ----------------------------------------------------------------------------------------------


async def test_it_reaches_a_goal_by_reading_writing_and_running(start: Start, tmp_path: Path) -> None:
    script = json.loads(json.dumps(GOAL).replace(CWD, str(tmp_path / "work")))
    async with ScriptedModel(script) as model, start(model) as agent:
        (agent.work / "in.txt").write_text("three\n")
        answer = await agent.prompt()
        assert answer["stopReason"] == "end_turn"
        assert answer["usage"] == {
            "inputTokens": 600,
            "outputTokens": 33,
            "totalTokens": 633,
            "cachedReadTokens": 160,
            "thoughtTokens": 4,
        }
        assert (agent.work / "sub" / "out.txt").read_text() == "3\n"
        assert agent.said("agent_thought_chunk") == ["I should look first."]
        assert agent.said() == ["Looking.", "It is done."]
        calls = [update for update in agent.updates if update["sessionUpdate"] == "tool_call"]
        assert [(call["kind"], call["status"]) for call in calls] == [
            ("read", "in_progress"),
            ("edit", "in_progress"),
            ("execute", "in_progress"),
        ]
        assert calls[0]["rawInput"] == {"path": f"{agent.work}/in.txt"}
        assert calls[1]["locations"] == [{"path": f"{agent.work}/sub/out.txt"}]
        assert agent.outputs() == [
            ("completed", "three\n"),
            ("completed", f"wrote 2 bytes to {agent.work}/sub/out.txt"),
            ("completed", f"3\nsaid\n{agent.work}\n[exit status 0]"),
        ]
        assert agent.updates[-2]["rawOutput"]["exitCode"] == 0
        assert [update["toolCallId"] for update in agent.updates if "rawOutput" in update] == [
            call["toolCallId"] for call in calls
        ]
        assert sent(model)[2]["reasoning_content"] == "I should look first."


async def test_what_the_user_chose_reaches_the_model_and_no_command(start: Start) -> None:
    settings = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 77, "seed": 7, "api_key": "sk-canary"}
    async with ScriptedModel(use(run_tool("env"))) as model, start(model, system_prompt="Be.", **settings) as agent:
        await agent.prompt("hello")
        call = model.main_calls[0]
        chosen = {name: call.body[name] for name in ("model", "temperature", "top_p", "max_tokens", "seed")}
        assert chosen == {"model": "scripted", "temperature": 0.5, "top_p": 0.9, "max_tokens": 77, "seed": 7}
        assert sent(model, 0) == [{"role": "system", "content": "Be."}, {"role": "user", "content": "hello"}]
        assert call.headers["authorization"] == "Bearer sk-canary"
        assert "stream" not in call.body
        assert "HOME=" in told(model)[0] and "POLICY_" not in told(model)[0]


async def test_what_is_not_chosen_is_left_to_the_endpoint(start: Start) -> None:
    async with ScriptedModel(["Hi."]) as model, start(model, system_prompt="", seed="") as agent:
        assert (await agent.prompt())["stopReason"] == "end_turn"
        assert set(model.main_calls[0].body) == {"model", "tools", "messages"}
        assert sent(model) == [{"role": "user", "content": "go"}]
        assert "authorization" not in model.main_calls[0].headers


async def test_after_so_many_model_calls_the_turn_ends(start: Start) -> None:
    script = [{"tools": [run_tool("echo once more >> log")], "times": "always"}]
    async with ScriptedModel(script) as model, start(model, max_steps=2) as agent:
        assert (await agent.prompt())["stopReason"] == "max_turn_requests"
        assert len(model.main_calls) == 2
        assert (agent.work / "log").read_text().count("once more") == 2


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_tokens"), ("filtered", "refusal")])
async def test_what_a_reply_that_was_cut_short_asks_for_is_not_done(start: Start, finish: str, reason: str) -> None:
    script = [{"text": "And so", "tools": [run_tool("touch done")], "finish": finish}, "Better."]
    async with ScriptedModel(script) as model, start(model) as agent:
        assert (await agent.prompt())["stopReason"] == reason
        assert agent.said() == ["And so"]
        assert not (agent.work / "done").exists()
        assert (await agent.prompt("again"))["stopReason"] == "end_turn"
        assert told(model) == ["not carried out: the reply was cut short"]


# --- what a model gets wrong -----------------------------------------------------------------------------


NONSENSE = [
    ("read", '{"path": "a.txt', "the arguments are not JSON"),
    ("read", '["a.txt"]', "not a JSON object"),
    ("read", "", "not JSON"),
    ("read", "{}", "`path` is missing"),
    ("read", '{"path": 3}', "`path` is not a string"),
    ("read", '{"path": "a.txt", "line": 0}', "`line` is not a whole number from 1"),
    ("write", '{"path": "a.txt", "content": "", "mode": "x"}', "no argument `mode`"),
    ("run", '{"command": null}', "`command` is not a string"),
    ("browse", '{"url": "x"}', 'there is no tool "browse": use read, write, run'),
    ("constructor", "{", 'there is no tool "constructor"'),
]


async def test_a_call_that_makes_no_sense_is_told_to_the_model(start: Start) -> None:
    script = use(*({"name": name, "arguments": arguments} for name, arguments, _ in NONSENSE))
    async with ScriptedModel(script) as model, start(model) as agent:
        assert (await agent.prompt())["stopReason"] == "end_turn"
        for (_, _, says), output in zip(NONSENSE, told(model), strict=True):
            assert output.startswith("error: ") and says in output
        assert [status for status, _ in agent.outputs()] == ["failed"] * len(NONSENSE)
        calls = next(message for message in sent(model) if message["role"] == "assistant")["tool_calls"]
        assert [call["function"]["arguments"] for call in calls] == [arguments for _, arguments, _ in NONSENSE]


async def test_calls_of_one_id_are_told_apart(start: Start) -> None:
    script = [{"tools": [{**run_tool(f"echo {n}"), "id": "call_0"}]} for n in range(3)]
    async with ScriptedModel([*script, "Done."]) as model, start(model) as agent:
        await agent.prompt()
        assert {message["tool_call_id"] for message in sent(model) if message["role"] == "tool"} == {"call_0"}
        names = [update["toolCallId"] for update in agent.updates if update["sessionUpdate"] == "tool_call_update"]
        assert names[0] == "call_0" and len(set(names)) == 3


# --- an endpoint in trouble ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble", [{"error": {"status": 429, "retry_after": 0.01}}, {"fault": {"kind": "truncate"}}], ids=["429", "cut"]
)
async def test_a_model_call_that_failed_in_passing_is_made_again(start: Start, trouble: Message) -> None:
    async with ScriptedModel([trouble, "Hi."]) as model, start(model) as agent:
        assert (await agent.prompt())["stopReason"] == "end_turn"
        first, second = model.main_calls
        assert first.body == second.body
        assert agent.said() == ["Hi."]


async def test_an_endpoint_that_stays_broken_fails_the_turn_and_not_the_session(start: Start) -> None:
    trouble = {"error": {"status": 503, "message": "no GPU today", "retry_after": 0}, "times": 7}
    async with ScriptedModel([trouble, "Hi."]) as model, start(model) as agent:
        with pytest.raises(RefusedError, match=r"-32603: .* answered 503: .*no GPU today"):
            await agent.prompt()
        assert len(model.main_calls) == 7
        assert (await agent.prompt("again"))["stopReason"] == "end_turn"
        assert [message["content"] for message in sent(model)[1:]] == ["go", "again"]


async def test_a_request_that_is_refused_is_not_made_again_and_no_key_is_repeated(start: Start) -> None:
    trouble = {"error": {"status": 401, "message": "not this one: sk-canary"}, "times": "always"}
    async with ScriptedModel([trouble]) as model, start(model, api_key="sk-canary") as agent:
        with pytest.raises(RefusedError, match=r"answered 401: .*not this one: \[the key\]"):
            await agent.prompt()
        assert len(model.main_calls) == 1


async def test_an_answer_that_is_none_fails_the_turn(start: Start) -> None:
    async with ScriptedModel([{"fault": {"kind": "garbage", "text": "<html>"}}]) as model, start(model) as agent:
        with pytest.raises(RefusedError, match="answered without a message: <html>"):
            await agent.prompt()


# --- cancelling ------------------------------------------------------------------------------------------


async def test_a_model_call_is_left_when_the_turn_is_cancelled(start: Start) -> None:
    async with ScriptedModel([{"text": "late", "hold": "it"}, "Hi."]) as model, start(model) as agent:
        turn = agent.begin()
        await model.arrived(1)
        agent.cancel()
        assert (await asyncio.wait_for(turn, PATIENCE))["stopReason"] == "cancelled"
        await asyncio.to_thread(model.wait_until_quiet)
        assert model.calls[0].client_left
        agent.cancel()
        assert (await agent.prompt("again"))["stopReason"] == "end_turn"
        assert agent.said() == ["Hi."]


async def test_a_command_is_killed_with_all_its_processes_when_the_turn_is_cancelled(start: Start) -> None:
    length = nap()
    command = f"echo so far; sleep {length} & touch running; sleep {length}; touch over"
    async with ScriptedModel(use(run_tool(command), run_tool("touch more"))) as model, start(model) as agent:
        turn = agent.begin()
        await until((agent.work / "running").exists)
        agent.cancel()
        answer = await asyncio.wait_for(turn, PATIENCE)
        assert answer["stopReason"] == "cancelled" and answer["usage"]["totalTokens"] == 120
        await until(lambda: not asleep(length))
        assert not (agent.work / "over").exists() and not (agent.work / "more").exists()
        assert agent.outputs() == [
            ("failed", "so far\n[cancelled]"),
            ("failed", "not carried out: the turn was cancelled"),
        ]
        # Every call has a result, or the endpoint would refuse to go on.
        assert (await agent.prompt("again"))["stopReason"] == "end_turn"
        assert told(model) == [text for _, text in agent.outputs()]


# --- the tools -------------------------------------------------------------------------------------------


async def test_a_command_that_takes_too_long_is_killed(start: Start) -> None:
    length = nap()
    script = use(run_tool(f"echo so far; sleep {length}; echo over"))
    async with ScriptedModel(script) as model, start(model, command_timeout_sec=2) as agent:
        await agent.prompt()
        assert agent.outputs() == [("failed", "so far\n[killed after 2 s]")]
        await until(lambda: not asleep(length))


async def test_a_command_may_leave_a_service_running(start: Start) -> None:
    length = nap()
    script = use(run_tool(f"sleep {length} & echo up"), run_tool("exit 3"))
    async with ScriptedModel(script) as model, start(model) as agent:
        await agent.prompt()
        assert agent.outputs() == [("completed", "up\n[exit status 0]"), ("failed", "[exit status 3]")]
        # It was forked, and becomes what it is called as soon as it has its turn.
        await until(lambda: asleep(length))
        (service,) = asleep(length)
        service.kill()


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(start: Start) -> None:
    async with ScriptedModel(use(run_tool("seq 1 2000000; exit 1"))) as model, start(model) as agent:
        await agent.prompt()
        (output,) = told(model)
        assert output.startswith("1\n2\n3\n") and output.endswith("1999999\n2000000\n[exit status 1]")
        assert "bytes left out]" in output
        assert len(output) < 25_000


READS: list[tuple[Message, str]] = [
    ({"path": "five"}, "1\n2\n3\n4\n5"),
    ({"path": "five", "line": 2, "limit": 2}, "2\n3\n[the file goes on: line 4]"),
    ({"path": "five", "line": 4, "limit": 2}, "4\n5"),
    ({"path": "five", "line": 9}, "[the file ends before line 9]"),
    ({"path": "empty"}, ""),
    ({"path": "wide"}, "x" * 24_000 + "\n[too much at once: line 1 goes on]"),
    ({"path": "/dev/zero"}, "error: /dev/zero is not a regular file"),
    ({"path": "."}, "is a directory"),
    ({"path": "not-there"}, "error: ENOENT"),
]


async def test_a_file_is_read_in_parts(start: Start) -> None:
    script = use(*(tool("read", **arguments) for arguments, _ in READS))
    async with ScriptedModel(script) as model, start(model) as agent:
        (agent.work / "five").write_text("1\n2\n3\n4\n5")
        (agent.work / "empty").write_text("")
        (agent.work / "wide").write_text("x" * 200_000 + "\nsecond\n")
        await agent.prompt()
        for (arguments, expected), output in zip(READS, told(model), strict=True):
            fits = expected in output if "error" in output else expected == output
            assert fits, (arguments, output[-200:])
