"""The demo agent, driven by the official client; each message that it sends is checked against the official schema."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, spawn_agent_process, text_block
from acp import schema as s
from acp.client.connection import ClientSideConnection
from acp.connection import StreamDirection, StreamEvent
from pydantic import TypeAdapter

from benchflow.testing import demo_agent
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until

AGENT = Path(demo_agent.__file__)

RESULTS: dict[str, Any] = {
    "initialize": s.InitializeResponse,
    "authenticate": s.AuthenticateResponse,
    "session/new": s.NewSessionResponse,
    "session/load": s.LoadSessionResponse,
    "session/resume": s.ResumeSessionResponse,
    "session/fork": s.ForkSessionResponse,
    "session/list": s.ListSessionsResponse,
    "session/close": s.CloseSessionResponse,
    "session/set_mode": s.SetSessionModeResponse,
    "session/set_config_option": s.SetSessionConfigOptionResponse,
    "session/prompt": s.PromptResponse,
}
REQUESTS: dict[str, Any] = {
    "session/update": s.SessionNotification,
    "session/request_permission": s.RequestPermissionRequest,
    "fs/read_text_file": s.ReadTextFileRequest,
    "fs/write_text_file": s.WriteTextFileRequest,
    "terminal/create": s.CreateTerminalRequest,
    "terminal/output": s.TerminalOutputRequest,
    "terminal/wait_for_exit": s.WaitForTerminalExitRequest,
    "terminal/release": s.ReleaseTerminalRequest,
    "terminal/kill": s.KillTerminalRequest,
    "elicitation/create": s.CreateFormSessionElicitationRequest,
}


def must_fit(model: Any, data: Any) -> None:
    """Valid, and nothing in it that the schema doesn't know: the official models drop what they can't read."""
    adapter = TypeAdapter(model)
    read = adapter.validate_python(data)
    assert adapter.dump_python(read, mode="json", by_alias=True, exclude_unset=True) == data


@dataclass
class Client:
    """The other end: serves files from memory, answers as it is told, checks all that comes in."""

    answer: str = "allow"
    updates: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    strict: bool = True
    _sent: dict[Any, str] = field(default_factory=dict)

    def observe(self, event: StreamEvent) -> None:
        message = event.message
        if event.direction is StreamDirection.OUTGOING:
            if "method" in message and "id" in message:
                self._sent[message["id"]] = message["method"]
        elif "method" in message:
            if message["method"] == "session/update":
                self.updates.append(message["params"]["update"])
            if self.strict:
                must_fit(REQUESTS[message["method"]], message["params"])
        elif "error" in message:
            must_fit(s.Error, message["error"])
        elif self.strict:
            must_fit(RESULTS[self._sent[message["id"]]], message["result"])

    def said(self, kind: str = "agent_message_chunk") -> list[str]:
        return [update["content"]["text"] for update in self.updates if update["sessionUpdate"] == kind]

    def calls(self) -> list[dict[str, Any]]:
        return [update for update in self.updates if update["sessionUpdate"].startswith("tool_call")]

    # --- what the official client calls

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        return None

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        self.asked.append(tool_call.title)
        if self.answer == "never":
            await asyncio.Event().wait()
        if self.answer == "cancelled":
            return s.RequestPermissionResponse(outcome=s.DeniedOutcome(outcome="cancelled"))
        return s.RequestPermissionResponse(outcome=s.AllowedOutcome(outcome="selected", option_id=self.answer))

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        self.asked.append(message)
        return s.AcceptElicitationResponse(action="accept", content={"colour": "green"})

    async def read_text_file(self, path: str, **_: Any) -> Any:
        return s.ReadTextFileResponse(content=self.files[path])

    async def write_text_file(self, path: str, content: str, **_: Any) -> Any:
        self.files[path] = content
        return s.WriteTextFileResponse()

    async def create_terminal(self, command: str, **_: Any) -> Any:
        self.asked.append(command)
        return s.CreateTerminalResponse(terminal_id="t1")

    async def terminal_output(self, terminal_id: str, **_: Any) -> Any:
        status = s.TerminalExitStatus(exit_code=3)
        return s.TerminalOutputResponse(output="from the terminal", truncated=False, exit_status=status)

    async def wait_for_terminal_exit(self, terminal_id: str, **_: Any) -> Any:
        return s.WaitForTerminalExitResponse(exit_code=3)

    async def kill_terminal(self, terminal_id: str, **_: Any) -> Any:
        self.asked.append("kill")

    async def release_terminal(self, terminal_id: str, **_: Any) -> Any:
        self.asked.append("release")

    def on_connect(self, conn: Any) -> None:
        return None


Connect = Callable[..., Any]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def connect(place: Path) -> Connect:
    """Return a function that starts the agent under the official client, for `async with connect(script) as …`."""

    @asynccontextmanager
    async def open_connection(
        script: dict[str, Any], client: Client | None = None, env: dict[str, str] | None = None
    ) -> AsyncIterator[tuple[Client, ClientSideConnection]]:
        client = client or Client()
        environment = {"HOME": str(place / "home"), "DEMO_AGENT_SCRIPT": json.dumps(script), **(env or {})}
        problems: list[BaseException] = []

        def observe(event: StreamEvent) -> None:
            try:
                client.observe(event)
            except BaseException as problem:
                problems.append(problem)

        async with spawn_agent_process(
            client,  # type: ignore[arg-type]
            sys.executable,
            str(AGENT),
            env=environment,
            transport_kwargs={"limit": 64 << 20},
            observers=[observe],
            use_unstable_protocol=True,
        ) as (connection, _):
            yield client, connection
        assert not problems, problems[0]

    return open_connection


async def start(connection: ClientSideConnection, place: Path) -> str:
    await connection.initialize(protocol_version=1, client_capabilities=s.ClientCapabilities())
    return (await connection.new_session(cwd=str(place / "work"), mcp_servers=[])).session_id


async def ask(connection: ClientSideConnection, session: str, text: str = "go") -> s.PromptResponse:
    async with asyncio.timeout(300):
        return await connection.prompt(session_id=session, prompt=[text_block(text)])


async def run(connect: Connect, place: Path, actions: list[Any], client: Client | None = None) -> tuple[Client, Any]:
    """One turn in a session of its own."""
    async with connect({"turns": [actions]}, client) as (client, connection):
        assert client is not None
        return client, await ask(connection, await start(connection, place))


# --- talk


async def test_it_says_thinks_and_plans(connect: Connect, place: Path) -> None:
    actions = [
        {"think": "hm, let me see", "chunks": 2},
        {"plan": ["look", {"content": "act", "priority": "high", "status": "in_progress"}]},
        {"say": "All is well.", "chunks": 4},
        {"usage": {"used": 10, "size": 100, "cost": {"amount": 0.5, "currency": "USD"}}},
        {"update": {"sessionUpdate": "session_info_update", "title": "A title"}},
        {"end": "max_tokens", "usage": {"totalTokens": 3, "inputTokens": 2, "outputTokens": 1}},
        {"say": "never reached"},
    ]
    client, response = await run(connect, place, actions)
    assert client.said() == ["All", " is", " we", "ll."]
    assert client.said("agent_thought_chunk") == ["hm, let", " me see"]
    assert [update["sessionUpdate"] for update in client.updates[-2:]] == ["usage_update", "session_info_update"]
    assert response.stop_reason == "max_tokens"
    assert response.usage.total_tokens == 3


async def test_each_prompt_of_a_session_gets_the_next_turn(connect: Connect, place: Path) -> None:
    script = {
        "turns": [[{"say": "one"}], {"when": "special", "do": [{"say": "two"}]}, [{"say": "three"}]],
        "otherwise": [{"say": "more"}],
    }
    async with connect(script) as (client, connection):
        session = await start(connection, place)
        for text in ("go", "something special", "go", "go"):
            await ask(connection, session, text)
    assert client.said() == ["one", "two", "three", "more"]


async def test_it_does_the_work_itself_and_reports_it(connect: Connect, place: Path) -> None:
    actions = [
        {"write": "src/a.txt", "content": "old\n"},
        {"edit": "src/a.txt", "old": "old", "new": "new"},
        {"run": "cat src/a.txt; exit 2", "record": "record.jsonl"},
        {"write": "b.txt", "content": "quiet", "silent": True},
        {"delete": "b.txt"},
        {"tool_call": {"title": "Search", "kind": "search"}, "updates": [{"status": "in_progress"}, {"rawOutput": 1}]},
        {"tool_call": {"toolCallId": "mine"}, "announce": False, "updates": [{"status": None}]},
    ]
    client, response = await run(connect, place, actions)
    work = place / "work"
    assert (work / "src/a.txt").read_text() == "new\n"
    assert not (work / "b.txt").exists()
    assert json.loads((work / "record.jsonl").read_text())["result"] == {"output": "new\n", "code": 2}
    kinds = [(call["sessionUpdate"], call.get("kind"), call.get("status")) for call in client.calls()]
    assert kinds == [
        ("tool_call", "edit", "pending"),
        ("tool_call_update", None, "completed"),
        ("tool_call", "edit", "pending"),
        ("tool_call_update", None, "completed"),
        ("tool_call", "execute", "in_progress"),
        ("tool_call_update", None, "failed"),
        ("tool_call", "delete", "pending"),
        ("tool_call_update", None, "completed"),
        ("tool_call", "search", "pending"),
        ("tool_call_update", None, "in_progress"),
        ("tool_call_update", None, "completed"),
        ("tool_call_update", None, None),
    ]
    assert client.calls()[3]["content"][0]["oldText"] == "old\n"
    assert response.stop_reason == "end_turn"


async def test_it_asks_the_client_for_files_and_terminals(connect: Connect, place: Path) -> None:
    target = str(place / "work/x.txt")
    environment = [{"name": "A", "value": "1"}]
    actions = [
        {"client_write": "x.txt", "content": "kept by the client"},
        {"client_read": "x.txt", "line": 1, "record": "record.jsonl"},
        {
            "client_run": "make",
            "args": ["-k"],
            "env": environment,
            "kill_after": 0,
            "record": "record.jsonl",
        },
    ]
    client, _ = await run(connect, place, actions)
    assert client.files == {target: "kept by the client"}
    assert client.asked == ["make", "kill", "release"]
    read, ran = (json.loads(line)["result"] for line in (place / "work/record.jsonl").read_text().splitlines())
    assert read == {"content": "kept by the client"}
    assert ran["exit"]["exitCode"] == 3 and ran["output"]["output"] == "from the terminal"


@pytest.mark.parametrize(("answer", "said"), [("yes", "you said yes"), ("no", "you said no"), ("cancelled", "nobody")])
async def test_it_asks_for_permission_and_notes_the_answer(
    connect: Connect, place: Path, answer: str, said: str
) -> None:
    options = [["no", "reject_once"], {"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    then = {"yes": [{"say": "you said yes"}], "no": [{"say": "you said no"}], "cancelled": [{"say": "nobody"}]}
    actions = [{"ask": "May I?", "options": options, "then": then, "record": "answers.jsonl"}]
    client, _ = await run(connect, place, actions, Client(answer=answer))
    assert client.asked == ["May I?"]
    assert client.said() == [said]
    assert json.loads((place / "work/answers.jsonl").read_text()) == {"action": "ask", "result": answer}


async def test_it_elicits(connect: Connect, place: Path) -> None:
    colour = {"type": "string", "oneOf": [{"const": "green", "title": "Green"}]}
    schema = {"type": "object", "properties": {"colour": colour}, "required": ["colour"]}
    client, _ = await run(connect, place, [{"elicit": "Which?", "schema": schema, "record": "answers.jsonl"}])
    assert client.asked == ["Which?"]
    result = json.loads((place / "work/answers.jsonl").read_text())["result"]
    assert result == {"action": "accept", "content": {"colour": "green"}}


async def test_it_repeats_with_numbers_and_waits_for_files(connect: Connect, place: Path) -> None:
    actions = [{"say": "first"}, {"wait_for": "go.txt"}, {"repeat": 300, "do": [{"say": "update {i}"}, {"wait": 0}]}]
    async with connect({"turns": [actions]}) as (client, connection):
        session = await start(connection, place)
        turn = asyncio.create_task(ask(connection, session))
        await until(client.said)
        (place / "work/go.txt").touch()
        await turn
    assert client.said() == ["first", *(f"update {number}" for number in range(300))]


async def test_it_calls_a_model(connect: Connect, place: Path) -> None:
    script = {"replies": ["from the model", "and again"], "side": {"without_tools": False}}
    turns = [[{"model": True}], [{"model": True, "stream": True, "name": "large"}]]
    with ScriptedModel(script) as model:
        env = {"OPENAI_BASE_URL": model.openai_base_url, "OPENAI_API_KEY": "key"}
        async with connect({"turns": turns}, env=env) as (client, connection):
            session = await start(connection, place)
            await ask(connection, session, "first question")
            await ask(connection, session, "second question")
        assert "".join(client.said()) == "from the modeland again"
        second = model.main_calls[1]
        assert second.headers["authorization"] == "Bearer key"
        assert [message["content"] for message in second.body["messages"]] == [
            "first question",
            "from the model",
            "second question",
        ]
        assert second.model == "large"


# --- sessions


SCRIPT = {"turns": [[{"say": "one"}, {"write": "a.txt", "content": "1"}], [{"say": "two"}], [{"say": "three"}]]}


async def test_a_session_is_loaded_by_another_process_with_its_history(connect: Connect, place: Path) -> None:
    async with connect(SCRIPT) as (client, connection):
        session = await start(connection, place)
        await ask(connection, session, "do one")
        lived = list(client.updates)
    async with connect(SCRIPT) as (client, connection):
        await connection.initialize(protocol_version=1)
        await connection.load_session(cwd=str(place / "work"), session_id=session, mcp_servers=[])
        assert client.updates == [
            {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "do one"}},
            *lived,
        ]
        client.updates.clear()
        await ask(connection, session)
        assert client.said() == ["two"]


async def test_a_resumed_session_goes_on_without_its_history(connect: Connect, place: Path) -> None:
    async with connect(SCRIPT) as (_, connection):
        session = await start(connection, place)
        await ask(connection, session)
    async with connect(SCRIPT) as (client, connection):
        await connection.initialize(protocol_version=1)
        await connection.resume_session(cwd=str(place / "work"), session_id=session, mcp_servers=[])
        assert client.updates == []
        await ask(connection, session)
        assert client.said() == ["two"]


async def test_a_fork_goes_its_own_way(connect: Connect, place: Path) -> None:
    async with connect(SCRIPT) as (client, connection):
        session = await start(connection, place)
        await ask(connection, session)
        fork = (await connection.fork_session(cwd=str(place / "work"), session_id=session)).session_id
        assert fork != session
        client.updates.clear()
        await ask(connection, fork)
        await ask(connection, fork)
        await ask(connection, session)
        assert client.said() == ["two", "three", "two"]
        listed = await connection.list_sessions()
        assert {entry.session_id for entry in listed.sessions} == {session, fork}


async def test_a_copied_home_holds_the_same_sessions(connect: Connect, place: Path) -> None:
    async with connect(SCRIPT) as (_, connection):
        session = await start(connection, place)
        await ask(connection, session)
    copy = place / "copy"
    shutil.copytree(place / "home", copy)
    async with connect(SCRIPT, env={"HOME": str(copy)}) as (client, connection):
        await connection.initialize(protocol_version=1)
        await connection.load_session(cwd=str(place / "work"), session_id=session, mcp_servers=[])
        assert client.said() == ["one"]


async def test_an_unknown_session_is_not_found(connect: Connect, place: Path) -> None:
    async with connect({}) as (_, connection):
        await connection.initialize(protocol_version=1)
        with pytest.raises(RequestError) as error:
            await connection.load_session(cwd="/", session_id="no-such", mcp_servers=[])
        assert error.value.code == -32002


async def test_sessions_can_need_authentication(connect: Connect, place: Path) -> None:
    script = {"auth_required": True, "auth_methods": [{"id": "key", "name": "A key"}]}
    async with connect(script) as (_, connection):
        with pytest.raises(RequestError) as error:
            await start(connection, place)
        assert error.value.code == -32000
        with pytest.raises(RequestError):
            await connection.authenticate(method_id="other")
        await connection.authenticate(method_id="key")
        assert await start(connection, place)


async def test_settings_are_offered_kept_and_checked(connect: Connect, place: Path) -> None:
    effort = {
        "id": "effort",
        "name": "Effort",
        "type": "select",
        "currentValue": "low",
        "options": [{"value": "low", "name": "Low"}, {"value": "high", "name": "High"}],
    }
    script = {"modes": ["ask", "code"], "config_options": [effort]}
    async with connect(script) as (client, connection):
        await connection.initialize(protocol_version=1)
        opened = await connection.new_session(cwd=str(place / "work"), mcp_servers=[])
        assert opened.modes and opened.modes.current_mode_id == "ask"
        await connection.set_session_mode(session_id=opened.session_id, mode_id="code")
        await connection.set_config_option(session_id=opened.session_id, config_id="effort", value="high")
        loaded = await connection.load_session(cwd=str(place / "work"), session_id=opened.session_id, mcp_servers=[])
        assert loaded and loaded.modes and loaded.modes.current_mode_id == "code"
        assert loaded.config_options and loaded.config_options[0].current_value == "high"
        with pytest.raises(RequestError, match="no such mode"):
            await connection.set_session_mode(session_id=opened.session_id, mode_id="fly")
    assert client.updates == [{"sessionUpdate": "current_mode_update", "currentModeId": "code"}]


# --- cancelling


async def test_a_cancelled_turn_ends_as_cancelled(connect: Connect, place: Path) -> None:
    for actions in ([{"say": "now"}, {"hang": True}], [{"say": "now"}, {"wait": 600}], [{"say": "now"}, {"ask": "?"}]):
        async with connect({"turns": [actions]}, Client(answer="never")) as (client, connection):
            session = await start(connection, place)
            turn = asyncio.create_task(ask(connection, session))
            await until(client.said)
            if "ask" in actions[1]:
                await until(lambda client=client: client.asked)
            await connection.cancel(session_id=session)
            assert (await turn).stop_reason == "cancelled"


async def test_it_can_ignore_a_cancel(connect: Connect, place: Path) -> None:
    actions = [{"ignore_cancel": True}, {"say": "now"}, {"wait_for": "go.txt"}, {"say": "still here"}]
    async with connect({"turns": [actions]}) as (client, connection):
        session = await start(connection, place)
        turn = asyncio.create_task(ask(connection, session))
        await until(client.said)
        await connection.cancel(session_id=session)
        (place / "work/go.txt").touch()
        assert (await turn).stop_reason == "end_turn"
        assert client.said()[-1] == "still here"
