"""The sessions of the agent `policy`: stored and loaded, the protocol, and a whole one in every sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.acp_room import CWD, PATIENT, SELDOM_IN_DOCKER, USER, room_in, take_turn
from support.policy_process import GOAL, PATIENCE, Message, RefusedError, Start, asleep, run_tool, running, told, use

from benchflow.paths import StatePaths
from benchflow.planes.agent.account import find_account
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY
from benchflow.planes.agent.agent_settings import make_settings
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox import PUMP, Toolbox, ensure_toolbox
from benchflow.testing.sandbox_conformance.sandbox_fixtures import nap
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until


@pytest.fixture
def start(runtime: Toolbox, tmp_path: Path) -> Start:
    """Return a function that runs the agent, for `async with start(model, max_steps=3) as agent`."""
    return functools.partial(running, runtime.root / "bin" / "node", tmp_path)


# --- sessions --------------------------------------------------------------------------------------------


def text_of(messages: list[Message]) -> str:
    return json.dumps(messages, ensure_ascii=False)


async def test_a_session_goes_on_in_a_copy_of_its_world_as_it_would_have(start: Start, tmp_path: Path) -> None:
    def answer(request: Any) -> Message:
        odd = run_tool("printf 'caf\\303\\251 \\377\\000'")
        calls = [odd | {"id": f"a{request.turn}"}, {"name": "run", "arguments": '{"comm', "id": f"b{request.turn}"}]
        return {"text": "ü 😀", "thinking": "h\u2028m", "tools": [] if request.turn % 2 else calls}

    async with ScriptedModel(answer) as model:
        async with start(model) as agent:
            await agent.prompt("one")
            shutil.copytree(tmp_path / "home", tmp_path / "copy")
            heard = [*agent.updates]
            await agent.prompt("two")
        async with start(model, home="copy", session=False, system_prompt="Another.") as other:
            await other.load(agent.session)
            assert other.updates.pop(0)["content"]["text"] == "one"
            assert other.updates == heard
            await other.prompt("two")
        first, second, third, fourth, *again = [call.body for call in model.main_calls]
        assert [third, fourth] == again
        assert text_of([third, fourth]) == text_of(again)
        for shorter, longer in ((first, second), (second, third), (third, fourth)):
            assert text_of(longer["messages"]).startswith(text_of(shorter["messages"])[:-1] + ", ")


async def test_a_session_whose_agent_was_killed_goes_on(start: Start) -> None:
    script = use(run_tool("echo 1"), run_tool(f"exec sleep {(length := nap())}"), run_tool("touch more"))
    async with ScriptedModel(script) as model:
        async with start(model) as agent:
            turn = agent.begin()
            await until(lambda: asleep(length))
            agent.process.kill()
            turn.cancel()
        (left,) = asleep(length)
        left.kill()
        async with start(model, session=False) as heir:
            await heir.load(agent.session)
            assert (await heir.prompt("again"))["stopReason"] == "end_turn"
            unknown = "interrupted: whether it was carried out is not known"
            assert told(model) == ["1\n[exit status 0]", unknown, unknown]
            assert [text for _, text in heir.outputs()] == told(model)
            assert not (agent.work / "more").exists()


async def test_what_it_was_doing_ends_with_it(start: Start) -> None:
    length = nap()
    script = use(run_tool(f"touch running; sleep {length} & sleep {length}"))
    async with ScriptedModel(script) as model, start(model) as agent:
        turn = agent.begin()
        await until((agent.work / "running").exists)
        agent.process.terminate()
        assert await asyncio.wait_for(agent.process.wait(), PATIENCE) == 128 + 15
        await until(lambda: not asleep(length))
        turn.cancel()


# --- the protocol ----------------------------------------------------------------------------------------


async def test_garbage_on_its_input_does_not_kill_it(start: Start) -> None:
    async with ScriptedModel(["Hi."]) as model, start(model) as agent:
        for line in (
            b"hello",
            b"\xff\xfe{",
            b"",
            b"[1, 2]",
            b"{}",
            b'"x"',
            b'{"id": 4, "result": 1}',
            b'{"method": "x"}',
        ):
            agent.write(line)
        agent.write('{"jsonrpc": "2.0", "id": 7, "method": "session/set_mode", "params": []}')
        assert (await agent.prompt())["stopReason"] == "end_turn"
        codes = [(message["id"], message["error"]["code"]) for message in agent.stray]
        broken, wrong = (None, -32700), (None, -32600)
        assert codes == [broken, broken, wrong, wrong, wrong, (7, -32601)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"base_url": ""}, "POLICY_BASE_URL is not set"),
        ({"base_url": "here"}, "not the address of an HTTP endpoint"),
        ({"model": ""}, "POLICY_MODEL is not set"),
        ({"temperature": "hot"}, "POLICY_TEMPERATURE=hot"),
        ({"max_steps": 1.5}, "POLICY_MAX_STEPS=1.5"),
    ],
)
async def test_settings_that_make_no_sense_are_named(start: Start, settings: Message, says: str) -> None:
    async with ScriptedModel([]) as model, start(model, session=False, **settings) as agent:
        await agent.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        with pytest.raises(RefusedError, match=says):
            await agent.new()


async def test_what_it_cannot_do_is_refused(start: Start) -> None:
    async with ScriptedModel([{"text": "late", "hold": "it"}]) as model, start(model) as agent:
        cwd = str(agent.work)
        picture = [{"type": "image", "data": "", "mimeType": "image/png"}]
        turn = agent.begin()
        for method, params, says in [
            ("session/new", {"cwd": f"{cwd}/not-there", "mcpServers": []}, "-32602: cwd"),
            ("session/load", {"cwd": cwd, "mcpServers": [], "sessionId": "../../x"}, "-32002"),
            ("session/load", {"cwd": cwd, "mcpServers": [], "sessionId": agent.session}, "-32600: .*in a turn"),
            ("session/prompt", {"sessionId": "x", "prompt": []}, "-32002"),
            ("session/prompt", {"sessionId": agent.session, "prompt": picture}, "-32600: .*in a turn"),
        ]:
            with pytest.raises(RefusedError, match=says):
                await agent.call(method, params)
        agent.cancel()
        await turn
        with pytest.raises(RefusedError, match=r"-32602: .*text and links"):
            await agent.call("session/prompt", {"sessionId": agent.session, "prompt": picture})


# --- in a sandbox ----------------------------------------------------------------------------------------

FORWARD = """
const net = require("node:net");
net.createServer((from) => {
  const to = net.connect(process.argv[1]);
  from.pipe(to).pipe(from);
  for (const end of [from, to]) end.on("error", () => { from.destroy(); to.destroy(); });
}).listen(8000, "127.0.0.1");
"""


@asynccontextmanager
async def let_in(model: ScriptedModel, socket: Path) -> AsyncIterator[None]:
    """The model at a socket, for a sandbox that reaches nothing of this host but its own files."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", model.port)
        await asyncio.gather(copy(reader, here), copy(there, writer))

    async with await asyncio.start_unix_server(serve, socket):
        yield


@pytest.fixture(scope="session")
def policy_toolbox(kept: StatePaths) -> Toolbox:
    """The agent's toolbox as its record says, with the pump in it."""
    record = find_agent("policy")
    assert record.install is not None and record.install.runtime == "node"
    scripts = {**record.install.scripts, PUMP: "benchflow.planes.agent.acp:pump.mjs"}
    made = asyncio.run(
        ensure_toolbox(
            record.model_copy(update={"install": record.install.model_copy(update={"scripts": scripts})}), kept
        )
    )
    assert made is not None
    return made


@pytest.mark.parametrize("kind", SELDOM_IN_DOCKER)
async def test_it_reaches_a_goal_in_a_sandbox(
    kind: str, state: Path, tmp_path: Path, policy_toolbox: Toolbox, base_image: str
) -> None:
    record = find_agent("policy")
    wanted = {"model": "openai/scripted", "base_url": "http://127.0.0.1:8000/v1", "api_key": "test"}
    settings = make_settings(record, home="/tmp", workspace=CWD, **wanted)
    async with (
        ScriptedModel(GOAL) as model,
        room_in(kind, tmp_path / "agent", policy_toolbox, base_image) as room,
        let_in(model, room.wire.files.shared / "model"),
    ):
        await room.sandbox.write_file(f"{CWD}/in.txt", "three\n", user=USER)
        node = policy_toolbox.find_program("node")
        forward = asyncio.create_task(
            room.sandbox.exec_once("forward", [*node, "-e", FORWARD, f"{RUN_DIRECTORY}/model"], user="root")
        )
        account = await find_account(room.sandbox, USER)
        env = {"HOME": "/tmp", **settings.env}
        await room.process.start(room.pump, policy_toolbox.make_argv(record), env=env, cwd=CWD, account=account)
        session = room.session()
        hello = await session.call("initialize", "initialize", {"protocolVersion": 1}, PATIENT)
        assert hello["agentInfo"]["version"] == record.version
        new = await session.call("new", "session/new", {"cwd": CWD, "mcpServers": []}, PATIENT)
        lines: list[Message] = []
        turn = await take_turn(session, "prompt-0", str(new["sessionId"]), lines.extend, PATIENT, room.process)
        assert turn.stop_reason == "end_turn", lines
        assert await room.sandbox.read_bytes(f"{CWD}/sub/out.txt") == b"3\n"
        assert turn.reading.usage is not None and turn.reading.usage.input_tokens == 600
        assert [line["text"] for line in lines if line["type"] == "agent_message"] == ["Looking.", "It is done."]
        assert [line["status"] for line in lines if line["type"] == "tool_call_update"] == ["completed"] * 3
        assert not model.unanswered
        forward.cancel()
        await asyncio.gather(forward, return_exceptions=True)
