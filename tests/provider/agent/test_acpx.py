"""Agents behind acpx: which there are, and a session with one in a real sandbox, with the acpx that npm has."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from support.acp_room import CWD, KINDS, SELDOM_ON_DOCKER, USER
from support.acpx_room import HOME, AcpxRoom, acpx_room_in, acpx_worker, small_record

from benchflow.contracts.agent import Choice
from benchflow.errors import ACPError, AgentExitError, ConfigError, UnsupportedFeatureError
from benchflow.paths import StatePaths
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.limits import Limits
from benchflow.planes.agent.acp.process import RUN_DIRECTORY
from benchflow.planes.agent.acp.wire import Heard, Message
from benchflow.planes.agent.acpx import Choices, choices_of
from benchflow.planes.agent.acpx.session import AGENT_LOG
from benchflow.planes.agent.acpx.stream import Stream
from benchflow.planes.agent.registry import all_agents, find_agent
from benchflow.planes.agent.settings import settings_for
from benchflow.planes.agent.toolbox import Toolbox, ensure_toolbox
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal

LOCALLY = pytest.mark.parametrize("kind", KINDS[:1], indirect=True)


@pytest.fixture(scope="session")
def toolbox(kept: StatePaths) -> Toolbox:
    """acpx and a small package."""
    built = asyncio.run(ensure_toolbox(small_record(), kept))
    assert built is not None
    return built


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def room(
    kind: str,
    state: Path,
    tmp_path: Path,
    runtime: Toolbox,
    toolbox: Toolbox,
    python_toolbox: Toolbox,
    base_image: str,
) -> AsyncIterator[AcpxRoom]:
    directory = tmp_path / "agent"
    async with acpx_room_in(kind, directory, runtime, toolbox, base_image, python_toolbox.mount) as made:
        # Not every image has a Python of its own.
        made.python = (f"{python_toolbox.mount_path}/bin/python3",)
        yield made


# --- which there are -------------------------------------------------------------------------------------


def test_an_agent_behind_acpx_is_the_agent_with_acpx_beside_it() -> None:
    inner, record = find_agent("opencode"), find_agent("acpx/opencode")
    assert record.name == "acpx/opencode"
    assert record.protocol == "acpx"
    assert record.version == f"0.19.1-{inner.version}"
    assert record.install is not None and inner.install is not None
    assert record.install.packages == {**inner.install.packages, "acpx": "0.19.1"}
    assert record.mount_path == f"/opt/benchflow/agents/acpx-opencode-0.19.1-{inner.version}"
    assert (record.launch, record.endpoints, record.model) == (inner.launch, inner.endpoints, inner.model)
    assert record.env.items() > inner.env.items()
    assert set(record.session.hazards) > set(inner.session.hazards)
    assert record.home_dirs == (*inner.home_dirs, ".acpx")


def test_an_alias_may_stand_behind_acpx() -> None:
    assert find_agent("acpx/claude").name == "acpx/claude-agent-acp"


def test_a_name_behind_acpx_that_nobody_has_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no agent 'acpx/opncode'") as caught:
        find_agent("acpx/opncode")
    assert "did you mean 'acpx/opencode'?" in str(caught.value)


@pytest.mark.parametrize("name", ["oracle", "nop", "openhands"])
def test_an_agent_that_acpx_cannot_drive_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"agent '{name}'"):
        find_agent(f"acpx/{name}")


def test_acpx_is_no_agent_by_itself() -> None:
    assert "acpx" not in all_agents()
    with pytest.raises(ConfigError, match="there is no agent 'acpx'"):
        find_agent("acpx")


def test_a_user_cannot_name_an_agent_as_if_it_were_behind_acpx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path))
    table = 'name = "acpx/mine"\ndescription = "Mine."\nprotocol = "acp"\nlaunch = ["mine"]\n'
    (tmp_path / "mine.toml").write_text(table)
    with pytest.raises(ConfigError, match="acpx/"):
        find_agent("mine")


def test_what_a_session_is_told_is_what_its_record_leaves_to_sessions() -> None:
    claude, codex, pi = find_agent("acpx/claude"), find_agent("acpx/codex"), find_agent("acpx/pi")
    assert choices_of(claude, "opus", "high") == Choices("opus", None, {"effort": "high"})
    assert choices_of(codex, "gpt", "high") == Choices(None, "agent-full-access")
    assert choices_of(pi, "model", "low") == Choices(None, None, {"thought_level": "low"})
    by_mode = pi.model_copy(update={"effort": Choice(by="mode", value="{effort}")})
    assert choices_of(by_mode, "model", "low") == Choices(None, "low")


# --- what is heard ---------------------------------------------------------------------------------------


def heard(*messages: Message | bytes) -> tuple[Stream, list[Message]]:
    stream, lines = Stream(Reading()), []
    for message in messages:
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        lines += stream.lines(Heard(0, raw, None if isinstance(message, bytes) else message))
    return stream, lines


def said(text: str) -> Message:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}}


PROMPT: Message = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {}}
END: Message = {"jsonrpc": "2.0", "id": 2, "result": {"stopReason": "end_turn", "usage": {"inputTokens": 7}}}


def test_an_answer_to_the_agent_is_not_taken_for_the_end_of_the_turn() -> None:
    ask: Message = {"jsonrpc": "2.0", "id": 2, "method": "session/request_permission", "params": {"toolCall": {}}}
    answer: Message = {"jsonrpc": "2.0", "id": 2, "result": {"outcome": {"outcome": "cancelled"}}}
    stream, lines = heard(PROMPT, ask, answer)
    assert [line["type"] for line in lines] == ["permission_request", "permission_answer"]
    assert stream.result is None
    stream, _ = heard(PROMPT, ask, answer, END)
    assert stream.result == END["result"]


def test_a_refusal_of_what_the_agent_asked_is_not_taken_for_one_of_the_prompt() -> None:
    read: Message = {"jsonrpc": "2.0", "id": 2, "method": "fs/read_text_file", "params": {"path": "/none"}}
    refused: Message = {"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "no"}}
    stream, lines = heard(PROMPT, read, refused)
    assert [line["type"] for line in lines] == ["client_request"]
    assert stream.failure is None
    stream, _ = heard(PROMPT, read, refused, refused)
    assert isinstance(stream.failure, ACPError)


def test_what_a_session_repeats_before_the_prompt_is_not_said_in_this_turn() -> None:
    _, lines = heard(said("old"), PROMPT, said("new"), END)
    assert [line.get("text") for line in lines if line["type"] == "agent_message"] == ["new"]


def test_stray_text_is_kept() -> None:
    _, lines = heard(PROMPT, b"Warning: hm", END)
    assert lines == [{"type": "noise", "text": "Warning: hm"}]


@pytest.mark.parametrize("what", [b'{"jsonrpc": "2.0", "id"', b"\xff\xfe", {"jsonrpc": "2.0"}, {"id": 3}])
def test_garbage_ends_the_turn(what: Message | bytes) -> None:
    with pytest.raises(ACPError, match="acpx wrote"):
        heard(PROMPT, what)


# --- turns -----------------------------------------------------------------------------------------------


async def test_a_turn_is_heard_and_its_agent_acts_in_the_sandbox(room: AcpxRoom) -> None:
    await room.play(
        [
            {"think": "hm"},
            {"say": "Hello"},
            {"write": "made.txt", "content": "made"},
            {"ask": "may I?", "options": [["no", "reject_once"], ["yes", "allow_once"]]},
            {"usage": {"used": 10, "size": 100, "cost": {"amount": 0.5, "currency": "USD"}}},
            {"end": "end_turn", "usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}},
        ]
    )
    reading = Reading()
    turn = await room.turn(prompt='[{"not": "blocks"}]\n', reading=reading)
    assert (turn.stop_reason, turn.ended_by) == ("end_turn", None)
    assert turn.reading is reading
    assert [line["text"] for line in room.of("agent_thought")] == ["hm"]
    assert room.texts() == ["Hello"]
    assert await room.sandbox.read_file(f"{CWD}/made.txt") == b"made"
    owner = await room.sandbox.exec(["stat", "-c", "%U", f"{CWD}/made.txt"])
    assert owner.stdout.strip() == USER
    assert room.of("permission_answer")[0]["result"]["outcome"]["optionId"] == "yes"
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.output_tokens, reading.usage.cost) == (7, 3, 0.5)
    prompts = [message for message in await room.received() if message.get("method") == "session/prompt"]
    assert [message["params"]["prompt"] for message in prompts] == [[{"type": "text", "text": '[{"not": "blocks"}]\n'}]]

    await (await room.session()).kill()
    assert await room.running("[d]emo_agent") == await room.running("__[q]ueue-owner") == 0


@LOCALLY
async def test_two_turns_are_of_one_session_and_one_process(room: AcpxRoom) -> None:
    await room.play([{"say": "first"}], [{"say": "second"}], otherwise=[{"say": "lost"}])
    await room.turn(0)
    await room.turn(1)
    assert room.texts() == ["first", "second"]
    prompts = [message for message in await room.received() if message.get("method") == "session/prompt"]
    assert len({message["params"]["sessionId"] for message in prompts}) == 1
    await room.until_running("[d]emo_agent", 1)


@LOCALLY
async def test_a_turn_that_is_over_is_heard_again_and_not_taken_again(room: AcpxRoom) -> None:
    await room.play([{"say": "once"}, {"ask": "may I?"}])
    first = await room.turn()
    lines = list(room.lines)
    room.lines.clear()
    again = await room.turn()
    assert room.lines == lines
    assert again.stop_reason == first.stop_reason
    methods = [message.get("method") for message in await room.received()]
    assert methods.count("session/prompt") == 1


@LOCALLY
async def test_an_agent_that_loads_its_session_may_end_between_two_turns(room: AcpxRoom) -> None:
    await room.play([{"say": "first"}], [{"say": "second"}])
    await room.turn(0)
    await (await room.session()).kill()
    await room.turn(1)
    assert room.texts() == ["first", "second"]


@LOCALLY
async def test_an_agent_that_lost_its_session_does_not_go_on_as_if_it_had_it(room: AcpxRoom) -> None:
    await room.play([{"say": "first"}], otherwise=[{"say": "who are you?"}], capabilities={"loadSession": False})
    await room.turn(0)
    await (await room.session()).kill()
    await room.sandbox.control('rm -rf "$1/.demo-agent"', HOME)
    with pytest.raises(AgentExitError, match="between two turns"):
        await room.turn(1)
    assert await room.running("[d]emo_agent") == 0


@pytest.mark.soak
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
async def test_nobody_can_be_asked(room: AcpxRoom) -> None:
    with pytest.raises(UnsupportedFeatureError, match="cannot wait"):
        await room.session(permissions="ask")


@LOCALLY
@pytest.mark.parametrize(
    ("permissions", "chosen"), [pytest.param("auto", "yes", marks=pytest.mark.soak), ("deny", "no")]
)
async def test_permissions_are_answered_by_policy(room: AcpxRoom, permissions: str, chosen: str) -> None:
    options = [["no", "reject_once"], ["yes", "allow_once"]]
    await room.play([{"ask": "may I?", "options": options, "then": {"yes": [{"say": "yes"}], "no": [{"say": "no"}]}}])
    turn = await room.turn(permissions=permissions)
    assert turn.stop_reason == "end_turn"
    assert room.texts() == [chosen]


@LOCALLY
async def test_the_workspace_does_not_say_what_the_session_is_given(room: AcpxRoom) -> None:
    theirs = {"defaultPermissions": "approve-all", "mcpServers": [{"name": "theirs", "command": "/theirs", "args": []}]}
    await room.sandbox.write_file(f"{CWD}/.acpxrc.json", json.dumps(theirs))
    await room.play([{"say": "here"}])
    await room.turn(servers=[{"name": "ours", "command": "/ours", "args": [], "env": []}])
    new = next(message for message in await room.received() if message.get("method") == "session/new")
    assert [server["name"] for server in new["params"]["mcpServers"]] == ["ours"]


@LOCALLY
async def test_model_mode_and_options_reach_the_agent(room: AcpxRoom) -> None:
    option = {"id": "effort", "name": "Effort", "type": "select", "currentValue": "low"}
    choices = [{"value": value, "name": value} for value in ("low", "high")]
    await room.play(
        [{"say": "here"}],
        models=["small", "large"],
        modes=["ask", "code"],
        config_options=[option | {"options": choices}],
    )
    await room.turn(choices=Choices("large", "code", {"effort": "high"}))
    received = await room.received()
    prompt = next(n for n, message in enumerate(received) if message.get("method") == "session/prompt")
    told = {message["method"]: message["params"] for message in received[:prompt] if "method" in message}
    assert told["session/set_model"]["modelId"] == "large"
    assert told["session/set_mode"]["modeId"] == "code"
    assert told["session/set_config_option"]["value"] == "high"
    # The agent of the turn is another process than the one that was told first.
    starts = [n for n, message in enumerate(received) if message.get("method") == "initialize"]
    again = {message["method"] for message in received[starts[-1] : prompt] if "method" in message}
    assert {"session/set_model", "session/set_config_option"} <= again


# --- trouble ---------------------------------------------------------------------------------------------


@LOCALLY
async def test_an_agent_that_exits_ends_the_turn_with_its_log(room: AcpxRoom) -> None:
    await room.play([{"say": "so far"}, {"stderr": "out of luck\n"}, {"exit": 3}])
    with pytest.raises(AgentExitError) as caught:
        await room.turn()
    assert "out of luck" in str(caught.value.log_tail)
    assert room.texts() == ["so far"]


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
@pytest.mark.parametrize(
    ("last", "reason", "grace"),
    [({"hang": True}, "cancelled", 120.0), pytest.param({"hang": "stopped"}, "timeout", 4.0, marks=pytest.mark.soak)],
    ids=["cancels", "deaf"],
)
async def test_silence_ends_a_turn(
    room: AcpxRoom, last: Message, reason: str, grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchflow.planes.agent.acpx.session.CANCEL_GRACE", grace)
    await room.play([{"say": "so far"}, last])
    # The silence of its start is not meant: it is an heir's turn.
    begun = asyncio.ensure_future(room.turn())
    await until(lambda: room.texts() or begun.done())
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    room.lines.clear()
    turn = await room.turn(limits=Limits(idle=2))
    assert (turn.stop_reason, turn.ended_by) == (reason, "idle")
    assert room.texts() == ["so far"]
    lines = list(room.lines)
    room.lines.clear()
    again = await room.turn(limits=Limits(idle=60))
    assert (again.stop_reason, again.ended_by) == (turn.stop_reason, turn.ended_by)
    assert room.lines == lines


@LOCALLY
async def test_a_turn_may_be_cancelled_by_anybody(room: AcpxRoom) -> None:
    await room.play([{"say": "so far"}, {"hang": True}])
    task = asyncio.ensure_future(room.turn())
    await until(lambda: room.texts())
    (await room.session()).cancel(0)
    turn = await task
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", "cancelled")


@pytest.mark.crash
@pytest.mark.parametrize("kind", SELDOM_ON_DOCKER, indirect=True)
async def test_a_turn_survives_those_who_drive_it(room: AcpxRoom, kind: str, tmp_path: Path) -> None:
    parts = [[{"repeat": 60, "do": [{"say": f"{part}{{i}}"}]}, {"wait_for": f"gate-{part}"}] for part in "abc"]
    await room.play([*(action for part in parts for action in part), {"ask": "may I?"}, {"say": "done"}])
    trajectory = tmp_path / "acp_trajectory.jsonl"

    for number, part in enumerate("abc", start=1):
        async with acpx_worker(room, kind, trajectory) as process:
            await until(lambda n=number: sum("text" in line for line in read_journal(trajectory)) >= 60 * n)
            assert process.returncode is None
        assert process.returncode == -signal.SIGKILL
        await room.tell(f"gate-{part}")
    async with asyncio.timeout(300), acpx_worker(room, kind, trajectory) as last:
        out, _ = await last.communicate()

    assert json.loads(out) == {"stop_reason": "end_turn", "ended_by": None}
    written = read_journal(trajectory)
    texts = [line["text"] for line in written if line["type"] == "agent_message"]
    assert texts == [*(f"{part}{number}" for part in "abc" for number in range(60)), "done"]
    assert [line["seq"] for line in written] == list(range(len(written)))
    received = await room.received()
    assert [message.get("method") for message in received].count("session/prompt") == 1
    assert len([line for line in written if line["type"] == "permission_answer"]) == 1


# --- a real agent ----------------------------------------------------------------------------------------


# In every run it does so through the whole engine, too, for a turn.
@pytest.mark.soak
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
        settings = settings_for(
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
        room.inner, room.env = (*toolbox.argv(record), *settings.argv), settings.env
        async with ScriptedModel({"replies": replies}) as model, within_reach(room, model, PORT):
            first = await room.turn(0, prompt="Write hello.txt.", choices=choices_of(record, settings.model, None))
            second = await room.turn(1, prompt="What did you do?", choices=choices_of(record, settings.model, None))
            await (await room.session()).kill()
        assert (first.stop_reason, second.stop_reason) == ("end_turn", "end_turn")
        assert await room.sandbox.read_file(f"{CWD}/hello.txt") == b"Hello\n"
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
    server = await asyncio.start_unix_server(serve, room.directory / "model.sock")
    relaying = room.sandbox.exec_stream([inside[1], "-e", RELAY, str(port), inside[0]])
    try:
        await anext(aiter(relaying))
        yield
    finally:
        await relaying.aclose()  # type: ignore[attr-defined]
        server.close()
