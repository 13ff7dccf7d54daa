"""A session with an agent behind acpx in a real sandbox, with the acpx that npm has."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from support.acp_room import CWD, KINDS, SELDOM_IN_DOCKER, USER
from support.acpx_room import HOME, AcpxRoom, acpx_room_in, acpx_worker, small_record

from benchflow.contracts.agent import TurnLimits
from benchflow.errors import ACPError, AgentExitError
from benchflow.paths import StatePaths
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY
from benchflow.planes.agent.acp.dialogue import EndedTurn
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acpx import Choices, make_choices
from benchflow.planes.agent.acpx.acpx_session import AGENT_LOG
from benchflow.planes.agent.agent_settings import make_settings
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox import Toolbox, ensure_toolbox
from benchflow.planes.agent.turn_limits import AgentTimeouts
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.long

LOCALLY = pytest.mark.parametrize("kind", KINDS[:1], indirect=True)


@pytest.fixture(scope="session")
def toolbox(kept: StatePaths) -> Toolbox:
    """Return the toolbox of acpx with a small package."""
    built = asyncio.run(ensure_toolbox(small_record(), kept))
    assert built is not None
    return built


@pytest.fixture(params=SELDOM_IN_DOCKER)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def room(
    kind: str, state: Path, tmp_path: Path, runtime: Toolbox, toolbox: Toolbox, base_image: str
) -> AsyncIterator[AcpxRoom]:
    async with acpx_room_in(kind, tmp_path / "agent", runtime, toolbox, base_image) as made:
        yield made


# --- turns -----------------------------------------------------------------------------------------------

EFFORT = {
    "id": "effort",
    "name": "Effort",
    "type": "select",
    "currentValue": "low",
    "options": [{"value": value, "name": value} for value in ("low", "high")],
}
ASK = {"ask": "may I?", "options": [["no", "reject_once"], ["yes", "allow_once"]]}


async def test_a_session_outlives_who_drives_it_and_goes_on_in_one_process(
    room: AcpxRoom, kind: str, tmp_path: Path
) -> None:
    # What lies in the workspace has no say in what the session is given.
    theirs = {"defaultPermissions": "deny-all", "mcpServers": [{"name": "theirs", "command": "/theirs", "args": []}]}
    await room.sandbox.write_file(f"{CWD}/.acpxrc.json", json.dumps(theirs))
    room.servers = [{"name": "ours", "command": "/ours", "args": [], "env": []}]
    room.choices = Choices("large", "code", {"effort": "high"})
    await room.play(
        [
            {"repeat": 60, "do": [{"say": "a{i}"}]},
            {"wait_for": "gate"},
            {"think": "hm"},
            {"write": "made.txt", "content": "made"},
            ASK,
            {"usage": {"used": 10, "size": 100, "cost": {"amount": 0.5, "currency": "USD"}}},
            {"end": "end_turn", "usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}},
        ],
        [{"say": "second"}, ASK],
        otherwise=[{"say": "lost"}],
        models=["small", "large"],
        modes=["ask", "code"],
        config_options=[EFFORT],
    )
    prompt = '[{"not": "blocks"}]\n'
    trajectory = tmp_path / "acp_trajectory.jsonl"
    async with acpx_worker(room, kind, trajectory, prompt) as worker:
        await until(lambda: len(read_journal(trajectory)) >= 40)
        assert worker.returncode is None
    assert worker.returncode == -signal.SIGKILL
    await room.tell("gate")

    reading = Reading()
    turn = await room.turn(prompt=prompt, reading=reading)
    assert (turn.stop_reason, turn.ended_by, turn.reading) == ("end_turn", None, reading)
    assert room.texts() == [f"a{number}" for number in range(60)]
    # What the one wrote that was killed is what its heir has heard.
    written = [line["text"] for line in read_journal(trajectory) if line["type"] == "agent_message"]
    assert written == room.texts()[: len(written)]
    assert [line["text"] for line in room.of("agent_thought")] == ["hm"]
    owner = await room.sandbox.exec(["stat", "-c", "%U", f"{CWD}/made.txt"])
    assert owner.stdout.strip() == USER
    assert [line["result"]["outcome"]["optionId"] for line in room.of("permission_answer")] == ["yes"]
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.output_tokens, reading.usage.cost) == (7, 3, 0.5)

    first = list(room.lines)
    room.lines.clear()
    await room.turn(1)
    assert room.texts() == ["second"]
    # The first one is over: it is heard again, and not taken again.
    room.lines.clear()
    assert (await room.turn(prompt=prompt)).stop_reason == "end_turn"
    assert room.lines == first

    received = await room.received()
    prompts = [message["params"] for message in received if message.get("method") == "session/prompt"]
    assert [asked["prompt"] for asked in prompts] == [
        [{"type": "text", "text": prompt}],
        [{"type": "text", "text": "go"}],
    ]
    assert len({asked["sessionId"] for asked in prompts}) == 1
    begins = next(n for n, message in enumerate(received) if message.get("method") == "session/prompt")
    told = {message["method"]: message["params"] for message in received[:begins] if "method" in message}
    assert [server["name"] for server in told["session/new"]["mcpServers"]] == ["ours"]
    assert told["session/set_model"]["modelId"] == "large"
    assert told["session/set_mode"]["modeId"] == "code"
    assert told["session/set_config_option"]["value"] == "high"
    # The agent of the turn is another process than the one that was told first.
    starts = [n for n, message in enumerate(received) if message.get("method") == "initialize"]
    again = {message["method"] for message in received[starts[-1] : begins] if "method" in message}
    assert {"session/set_model", "session/set_config_option"} <= again

    await room.until_running("[d]emo_agent", 1)
    await (await room.session()).end()
    assert await room.running("[d]emo_agent") == await room.running("__[q]ueue-owner") == 0


@LOCALLY
async def test_silence_ends_a_turn_and_an_agent_that_lost_its_session_does_not_go_on_as_if_it_had_it(
    room: AcpxRoom,
) -> None:
    await room.play(
        {"when": "be silent", "do": [{"say": "so far"}, {"hang": True}]},
        otherwise=[{"say": "who are you?"}],
        capabilities={"loadSession": False},
    )
    turn = await silent_turn(room, AgentTimeouts(cancel=300))
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", "idle")

    await (await room.session()).end()
    await room.sandbox.control('rm -rf "$1/.demo-agent"', HOME)
    with pytest.raises(AgentExitError, match="between two turns"):
        await room.turn(1)
    assert await room.running("[d]emo_agent") == 0


async def silent_turn(room: AcpxRoom, timeouts: AgentTimeouts) -> EndedTurn:
    """The first turn, which says `so far` and no more, as an heir ends it for its silence, and as others hear of it."""
    # The silence of its start is not meant.
    begun = asyncio.ensure_future(room.turn(prompt="be silent"))
    await until(lambda: room.texts() or begun.done())
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    room.lines.clear()
    turn = await room.turn(prompt="be silent", limits=TurnLimits(idle=0.5), timeouts=timeouts)
    assert room.texts() == ["so far"]
    lines = list(room.lines)
    room.lines.clear()
    again = await room.turn(limits=TurnLimits(idle=60))
    assert (again.stop_reason, again.ended_by) == (turn.stop_reason, turn.ended_by)
    assert room.lines == lines
    return turn


@LOCALLY
async def test_an_agent_that_is_deaf_is_killed(room: AcpxRoom) -> None:
    await room.play([{"say": "so far"}, {"hang": "stopped"}])
    turn = await silent_turn(room, AgentTimeouts(cancel=4))
    assert (turn.stop_reason, turn.ended_by) == ("timeout", "idle")


@LOCALLY
async def test_an_agent_that_loads_its_session_may_end_between_two_turns(room: AcpxRoom) -> None:
    await room.play([{"say": "first"}], [{"say": "second"}])
    await room.turn(0)
    await (await room.session()).end()
    await room.turn(1)
    assert room.texts() == ["first", "second"]


@LOCALLY
async def test_a_session_may_begin_at_any_turn_with_an_agent_that_loads_none(room: AcpxRoom) -> None:
    await room.play(
        [{"say": "late"}], [{"say": "later"}], capabilities={"loadSession": False, "sessionCapabilities": {}}
    )
    await room.turn(3)
    await room.turn(5)
    assert room.texts() == ["late", "later"]
    assert [
        message["message"]["method"] for message in room.of("client_message") if "method" in message["message"]
    ] == [
        "initialize",
        "session/new",
    ]


@LOCALLY
@pytest.mark.parametrize(("permissions", "chosen"), [("auto", "yes"), ("deny", "no")])
async def test_permissions_are_answered_by_policy(room: AcpxRoom, permissions: str, chosen: str) -> None:
    await room.play([ASK | {"then": {"yes": [{"say": "yes"}], "no": [{"say": "no"}]}}])
    turn = await room.turn(permissions=permissions)
    assert turn.stop_reason == "end_turn"
    assert room.texts() == [chosen]


# --- trouble ---------------------------------------------------------------------------------------------


@LOCALLY
async def test_an_agent_that_does_not_start_is_told_from_its_log(room: AcpxRoom) -> None:
    room.inner = ("/bin/sh", "-c", "echo no gateway here >&2; exit 4")
    with pytest.raises(AgentExitError) as caught:
        await room.turn()
    assert caught.value.log_tail == "no gateway here"


@LOCALLY
async def test_the_log_of_an_agent_is_read_as_the_agent(room: AcpxRoom) -> None:
    await room.sandbox.write_file("/opt/secret", "the key", mode=0o600)
    room.inner = ("/bin/sh", "-c", f"ln -sf /opt/secret {HOME}/{AGENT_LOG}; exit 4")
    with pytest.raises(AgentExitError) as caught:
        await room.turn()
    assert "the key" not in str(caught.value)


@LOCALLY
async def test_an_agent_that_exits_ends_the_turn_with_its_log(room: AcpxRoom) -> None:
    await room.play([{"say": "so far"}, {"stderr": "out of luck\n"}, {"exit": 3}])
    with pytest.raises(AgentExitError) as caught:
        await room.turn()
    assert "out of luck" in str(caught.value.log_tail)
    assert room.texts() == ["so far"]


@LOCALLY
async def test_an_agent_that_refuses_the_prompt_says_why(room: AcpxRoom) -> None:
    await room.play([{"error": "no credit", "code": -32001}])
    with pytest.raises(ACPError, match="no credit"):
        await room.turn()


@LOCALLY
async def test_acpx_that_is_killed_is_an_error(room: AcpxRoom) -> None:
    await room.play([{"say": "so far"}, {"hang": True}])
    task = asyncio.ensure_future(room.turn())
    await until(lambda: room.texts())
    await room.sandbox.control(
        'kill -9 $(grep -la "[t]urn-0.json" /proc/[0-9]*/cmdline | cut -d/ -f3 | sort -n | tail -n 1)'
    )
    with pytest.raises(AgentExitError, match="without a result: signal SIGKILL"):
        await task


@LOCALLY
async def test_a_turn_may_be_cancelled_by_anybody(room: AcpxRoom) -> None:
    await room.play([{"say": "so far"}, {"hang": True}])
    task = asyncio.ensure_future(room.turn())
    await until(lambda: room.texts())
    (await room.session()).cancel(0)
    turn = await task
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", "cancelled")


# --- a real agent ----------------------------------------------------------------------------------------


# In every run it does so through the whole engine, too, for a turn.
@pytest.mark.agents
@LOCALLY
async def test_opencode_behind_acpx_works_with_a_scripted_model(
    kind: str, state: Path, tmp_path: Path, kept: StatePaths, runtime: Toolbox, base_image: str
) -> None:
    record = find_agent("acpx/opencode")
    toolbox = await ensure_toolbox(record, kept)
    assert toolbox is not None
    write = {"tool": "write_file", "arguments": {"path": f"{CWD}/hello.txt", "content": "Hello\n"}}
    replies = [{"text": "I will.", "tools": [write]}, {"text": "Done."}, {"text": "As I said."}]
    async with acpx_room_in(kind, tmp_path / "agent", runtime, toolbox, base_image) as room:
        settings = make_settings(
            record,
            home=HOME,
            workspace=CWD,
            model="openai/scripted",
            base_url=f"http://127.0.0.1:{PORT}/v1",
            api_key="test",
        )
        for path, content in settings.files.items():
            await room.sandbox.write_file(f"{HOME}/{path}", content)
        await room.sandbox.control('chown -R "$1" "$2"', USER, HOME)
        room.inner, room.env = (*toolbox.make_argv(record), *settings.argv), settings.env
        async with ScriptedModel({"replies": replies}) as model, within_reach(room, model, PORT):
            first = await room.turn(0, prompt="Write hello.txt.", choices=make_choices(record, settings.model, None))
            second = await room.turn(1, prompt="What did you do?", choices=make_choices(record, settings.model, None))
            await (await room.session()).end()
        assert (first.stop_reason, second.stop_reason) == ("end_turn", "end_turn")
        assert await room.sandbox.read_bytes(f"{CWD}/hello.txt") == b"Hello\n"
        assert "".join(room.texts()) == "I will.Done.As I said."
        assert [line["title"] for line in room.of("tool_call")] != []
        assert {call.body["model"] for call in model.main_calls} == {"scripted"}
        # The second turn knows the first.
        assert "Write hello.txt." in json.dumps(model.main_calls[-1].body)


PORT = 8099

# $1: port, $2: socket.
RELAY = """
const net = require("node:net");
net.createServer((asked) => {
  const served = net.connect(process.argv[2]);
  for (const end of [asked, served]) end.on("error", () => { asked.destroy(); served.destroy(); });
  asked.pipe(served).pipe(asked);
}).listen(Number(process.argv[1]), "127.0.0.1", () => console.log("ready"));
"""


@asynccontextmanager
async def within_reach(room: AcpxRoom, model: ScriptedModel, port: int) -> AsyncIterator[None]:
    """Have a port inside the sandbox, which has no network, lead to the model."""

    async def relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            target.write(piece)
            await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", model.port)
        await asyncio.gather(relay(reader, back), relay(there, writer), return_exceptions=True)

    inside = [f"{RUN_DIRECTORY}/model.sock", room.pump[0]]
    server = await asyncio.start_unix_server(serve, room.files.shared / "model.sock")
    relaying = room.sandbox.exec_stream([inside[1], "-e", RELAY, str(port), inside[0]])
    try:
        await anext(aiter(relaying))
        yield
    finally:
        await relaying.aclose()  # type: ignore[attr-defined]
        server.close()
