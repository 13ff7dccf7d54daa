#!/usr/bin/env python3
"""A scripted agent that speaks the Agent Client Protocol (version 1) on its standard streams.

One file, Python 3.9 or newer, standard library only: copy it into any sandbox and start it as
`python3 demo_agent.py script.json` (or with DEMO_AGENT_SCRIPT=<path, or the JSON itself>).

The script is an object; every key is optional:

    turns          one entry a prompt of the session: a list of actions, or {"when": text in the prompt, "do": [...]},
                   which is skipped if the text is missing. The position in the list survives load and fork
    otherwise      the actions of a prompt beyond the list (default: say "Done.")
    log            a file for every received line, a JSON line each: {ts, pid, line} (or DEMO_AGENT_LOG)
    name, version, protocol_version, capabilities, auth_methods   values in the response to `initialize`
    auth_required  sessions are refused until `authenticate`
    modes, models  lists of ids; the first is the current one
    config_options list of config options as they are sent

An action is an object named by its first key; `"record": file` on any of them appends its result as a JSON line.
Paths are relative to the session's directory; `{i}` in a repeated action is the number of the round.

    say, think       text; chunks: n pieces; pace: seconds between them
    plan             list of texts or wire entries
    tool_call        {title, kind, rawInput, content, locations, ...} as on the wire; updates: list of wire updates
                     (default one: completed); announce: false leaves out the first message; toolCallId
    write, edit, delete, run     path + content; path + old, new; path; command: done by the agent, reported as a call
                     unless silent: true; run: timeout
    client_read, client_write, client_run   the same, asked of the client (fs/*, terminal/*); client_read: line, limit;
                     client_run: args, env, cwd, output_byte_limit, kill_after: seconds
    ask              title; options: wire options or [id, kind] pairs; then: {option id or "cancelled": actions}
    elicit           message; schema: the requested schema
    model            prompt, or true for the session's conversation: one call to OPENAI_BASE_URL, its text is sent;
                     name, stream, body: more request keys
    wait, wait_for   seconds; a file (pace: seconds between polls)
    repeat           n; do: actions; pace
    usage            {used, size, cost}
    update           any session update, known or not
    end              stop reason; usage: the response's.   error: message; code: JSON-RPC error instead of an end

Trouble: flood (bytes; line: bytes a line), line (one valid line of so many bytes), invalid_utf8, raw (text as a line),
wrong_id (a response without a request), half_line (then exit; code), exit (code; negative: by that signal), hang
(true, or "stopped": the whole process), ignore_cancel, ignore_sigterm, daemon (a shell command that outlives the
agent; keeps_stdout), stderr (text; times), hog (MiB that the agent's own process takes).

Sessions are JSON lines files in $HOME/.demo-agent/sessions. Other processes with this home, or a copy, can load them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
"""A JSON object."""

DEFAULT_OPTIONS = [["allow", "allow_once"], ["reject", "reject_once"]]
"""Options of a question without any, as pairs of id and kind."""

SIGTERM_IGNORED = threading.Event()
"""Read by the signal's handler: only the main thread may set a handler, and turns run in other threads."""


class RpcError(Exception):
    """An error that is sent to the client as a JSON-RPC response."""

    def __init__(self, code: int, message: str) -> None:
        """Make an error of a JSON-RPC code and a message."""
        super().__init__(message)
        self.code = code


class EarlyTurnEnd(Exception):  # noqa: N818 - no error: how a script ends a turn
    """Raised to end a turn with a given response."""

    def __init__(self, stop_reason: str, usage: Json | None = None) -> None:
        """Make the response from a stop reason and, if given, the usage."""
        super().__init__(stop_reason)
        self.response = {"stopReason": stop_reason, **({"usage": usage} if usage else {})}


class ClientConnection:
    """The agent's end of the connection: it writes messages to stdout, and receives the responses to its requests."""

    def __init__(self, log: str | None) -> None:
        """Make it. log: file for received lines; None for none."""
        self._log = log
        self._out = threading.Lock()
        self.changed = threading.Condition()
        self._answers: dict[int, Json] = {}
        self._next = 0

    def write(self, data: bytes) -> None:
        """Write bytes to stdout, and exit if the client has closed it. Threads don't mix their writes."""
        with self._out:
            try:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                os._exit(1)

    def send(self, **message: Any) -> None:
        """Write a JSON-RPC message with these fields as a line."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n")

    def received(self, line: bytes) -> None:
        """Append a received line to the log, if the script names one."""
        if self._log:
            entry = {"ts": time.time(), "pid": os.getpid(), "line": line.decode("utf-8", "replace").rstrip("\n")}
            append_line(Path(self._log), entry)

    def answered(self, message: Json) -> None:
        """Pass a response of the client to the thread that waits for it in `request`."""
        with self.changed:
            self._answers[message["id"]] = message
            self.changed.notify_all()

    def request(self, method: str, params: Json, given_up: Callable[[], bool]) -> Any | None:
        """Send a request to the client and return its result; None if `given_up` before it came. Raise `RpcError`."""
        with self.changed:
            number = self._next
            self._next += 1
        self.send(id=number, method=method, params=params)
        with self.changed:
            self.changed.wait_for(lambda: number in self._answers or given_up())
            answer = self._answers.pop(number, None)
        if answer is None:
            return None
        if "error" in answer:
            raise RpcError(answer["error"].get("code", -32603), f"{method}: {answer['error'].get('message')}")
        return answer.get("result")


class DemoSession:
    """A session with the client, stored in a file."""

    def __init__(self, directory: Path, session_id: str) -> None:
        """Make a handle of a session in this directory, without creating its file."""
        self.id = session_id
        self.file = directory / f"{session_id}.jsonl"
        self.cancelled = threading.Event()
        self.deaf = False

    def note(self, **entry: Any) -> None:
        """Append an entry to the session's file."""
        append_line(self.file, entry)

    def entries(self) -> list[Json]:
        """Return the entries of the file. Skips a line that is incomplete because its writer was killed."""
        entries = []
        for line in self.file.read_text(encoding="utf-8").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
        return entries

    def state(self, key: str, default: Any = None) -> Any:
        """Return the value of a key in the last entry that has it."""
        return next((entry[key] for entry in reversed(self.entries()) if key in entry), default)

    def updates(self) -> list[Json]:
        """Return all session updates that were noted."""
        return [entry["update"] for entry in self.entries() if "update" in entry]

    def given_up(self) -> bool:
        """Return whether the turn was cancelled, and the script doesn't ignore that."""
        return self.cancelled.is_set() and not self.deaf


def append_line(path: Path, entry: Any) -> None:
    """Append an entry to a file as a JSON line, with one write, so that writers in other processes don't mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, json.dumps(entry, ensure_ascii=False).encode() + b"\n")
    finally:
        os.close(handle)


def text_block(text: str) -> Json:
    """Return a text as an ACP content block."""
    return {"type": "text", "text": text}


def pieces(text: str, count: int) -> list[str]:
    """Split a text into at most `count` pieces of equal size."""
    size = max(1, -(-len(text) // max(1, count)))
    return [text[start : start + size] for start in range(0, len(text), size)]


def numbered(value: Any, number: int) -> Any:
    """Return an action with `{i}` replaced by the number of its round, in every text."""
    if isinstance(value, str):
        return value.replace("{i}", str(number))
    if isinstance(value, list):
        return [numbered(item, number) for item in value]
    if isinstance(value, dict):
        return {key: numbered(item, number) for key, item in value.items()}
    return value


class DemoTurn:
    """Performer of a prompt's actions. Each method `do_NAME` is the action of that name; its result can be recorded."""

    def __init__(self, wire: ClientConnection, session: DemoSession, prompt: str) -> None:
        """Make it for a prompt of a session."""
        self.wire, self.session, self.prompt = wire, session, prompt
        self.cwd = Path(session.state("cwd", "."))
        self.calls = sum(update.get("sessionUpdate") == "tool_call" for update in session.updates())

    def perform(self, actions: list[Json]) -> None:
        """Carry out actions in order. Raise `EarlyTurnEnd` once cancelled, `RpcError` for an unknown action."""
        for action in actions:
            if self.session.given_up():
                raise EarlyTurnEnd("cancelled")
            name = next(iter(action))
            method = getattr(self, f"do_{name}", None)
            if method is None:
                raise RpcError(-32602, f"the script has an unknown action: {name}")
            result = method(action[name], action)
            if "record" in action:
                append_line(self.path(action["record"]), {"action": name, "result": result})
            if isinstance(action.get("then"), dict):
                self.perform(action["then"].get(result, []))

    def path(self, name: str) -> Path:
        """Return a path relative to the session's directory."""
        return self.cwd / name

    def update(self, update: Json, *, keep: bool = True) -> None:
        """Send a session update. keep: also note it in the session's file, for `session/load`."""
        if keep:
            self.session.note(update=update)
        self.wire.send(method="session/update", params={"sessionId": self.session.id, "update": update})

    def ask_client(self, method: str, **params: Any) -> Any:
        """Send a request of this session, without parameters that are None. Return its result; None if cancelled."""
        given = {key: value for key, value in params.items() if value is not None}
        return self.wire.request(method, {"sessionId": self.session.id, **given}, self.session.given_up)

    def pause(self, seconds: float) -> None:
        """Sleep for so many seconds, or until the turn is cancelled."""
        with self.wire.changed:
            self.wire.changed.wait_for(self.session.given_up, timeout=seconds)

    # --- talk

    def _chunks(self, kind: str, text: str, action: Json) -> None:
        """Send a text as updates of this kind, in as many pieces as the action says, with its pauses."""
        for piece in pieces(text, action.get("chunks", 1)):
            self.update({"sessionUpdate": kind, "content": text_block(piece)})
            if action.get("pace"):
                self.pause(action["pace"])

    def do_say(self, text: str, action: Json) -> None:
        """Send an agent message."""
        self._chunks("agent_message_chunk", text, action)

    def do_think(self, text: str, action: Json) -> None:
        """Send a thought."""
        self._chunks("agent_thought_chunk", text, action)

    def do_plan(self, entries: list[Any], action: Json) -> None:
        """Send a plan; entries that are texts are pending."""
        plain = {"priority": "medium", "status": "pending"}
        whole = [{"content": entry, **plain} if isinstance(entry, str) else entry for entry in entries]
        self.update({"sessionUpdate": "plan", "entries": whole})

    def do_usage(self, usage: Json, action: Json) -> None:
        """Send a usage update."""
        self.update({"sessionUpdate": "usage_update", **usage})

    def do_update(self, update: Json, action: Json) -> None:
        """Send any session update."""
        self.update(update)

    def do_end(self, stop_reason: str, action: Json) -> None:
        """End the turn with this stop reason."""
        raise EarlyTurnEnd(stop_reason, action.get("usage"))

    def do_error(self, message: str, action: Json) -> None:
        """End the turn with a JSON-RPC error."""
        raise RpcError(action.get("code", -32603), message)

    # --- tools

    def start_call(self, **fields: Any) -> str:
        """Send a new tool call with these fields over the defaults, and return its id."""
        self.calls += 1
        plain = {"toolCallId": f"call_{self.calls}", "title": "Demo tool", "kind": "other", "status": "pending"}
        call = {**plain, **fields}
        self.update({"sessionUpdate": "tool_call", **call})
        return str(call["toolCallId"])

    def end_call(self, call: str, **fields: Any) -> None:
        """Send the update that completes a tool call, with these fields over the defaults."""
        self.update({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed", **fields})

    def do_tool_call(self, fields: Json, action: Json) -> None:
        """Send a tool call, unless it is not announced, and its updates."""
        if action.get("announce", True):
            call = self.start_call(**fields)
        else:
            self.calls += 1
            call = fields.get("toolCallId", f"call_{self.calls}")
        for fields in action.get("updates", [{}]):
            self.end_call(call, **fields)

    def _change(self, name: str, new: str | None, action: Json) -> None:
        """Write a file, or delete it if `new` is None, and report that as a tool call with the difference."""
        path = self.path(name)
        old = path.read_text(encoding="utf-8") if path.is_file() else None
        kind = "delete" if new is None else "edit"
        call = ""
        if not action.get("silent"):
            raw = {"path": str(path), **({"content": new} if new is not None else {})}
            call = self.start_call(title=f"{kind} {name}", kind=kind, rawInput=raw, locations=[{"path": str(path)}])
        if new is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
        if call:
            diff = {"type": "diff", "path": str(path), "oldText": old, "newText": new or ""}
            self.end_call(call, content=[diff], rawOutput={"ok": True})

    def do_write(self, name: str, action: Json) -> None:
        """Write a file."""
        self._change(name, action["content"], action)

    def do_edit(self, name: str, action: Json) -> None:
        """Replace the first occurrence of a text in a file. Raise `RpcError` if there is none."""
        text = self.path(name).read_text(encoding="utf-8")
        if action["old"] not in text:
            raise RpcError(-32603, f"{name} does not contain {action['old']!r}")
        self._change(name, text.replace(action["old"], action["new"], 1), action)

    def do_delete(self, name: str, action: Json) -> None:
        """Delete a file."""
        self._change(name, None, action)

    def do_run(self, command: str, action: Json) -> Json:
        """Run a shell command, and return its output and exit status. `silent` leaves out the tool call."""
        call = ""
        if not action.get("silent"):
            call = self.start_call(title=command, kind="execute", status="in_progress", rawInput={"command": command})
        shell = ["/bin/sh", "-c", command]
        done = subprocess.run(
            shell, cwd=self.cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=action.get("timeout")
        )
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        if call:
            status = "completed" if done.returncode == 0 else "failed"
            content = [{"type": "content", "content": text_block(output)}]
            raw = {"output": output, "exitCode": done.returncode}
            self.end_call(call, status=status, content=content, rawOutput=raw)
        return {"output": output, "code": done.returncode}

    # --- requests to the client

    def do_client_read(self, name: str, action: Json) -> Any:
        """Have the client read a file, and return its response."""
        given = {"line": action.get("line"), "limit": action.get("limit")}
        return self.ask_client("fs/read_text_file", path=str(self.path(name)), **given)

    def do_client_write(self, name: str, action: Json) -> Any:
        """Have the client write a file, and return its response."""
        return self.ask_client("fs/write_text_file", path=str(self.path(name)), content=action["content"])

    def do_client_run(self, command: str, action: Json) -> Any:
        """Have the client run a command in a terminal, and return its exit status and output; None if cancelled."""
        names = {"args": "args", "env": "env", "cwd": "cwd", "outputByteLimit": "output_byte_limit"}
        given = {wire: action[key] for wire, key in names.items() if key in action}
        created = self.ask_client("terminal/create", command=command, **given)
        if created is None:
            return None
        at = {"terminalId": created["terminalId"]}
        call = self.start_call(title=command, kind="execute", content=[{"type": "terminal", **at}])
        if "kill_after" in action:
            self.pause(action["kill_after"])
            self.ask_client("terminal/kill", **at)
        status = self.ask_client("terminal/wait_for_exit", **at)
        output = self.ask_client("terminal/output", **at)
        self.ask_client("terminal/release", **at)
        self.end_call(call, rawOutput=output)
        return {"exit": status, "output": output}

    def do_ask(self, title: str, action: Json) -> str:
        """Request a permission, and return the id of the chosen option; "cancelled" for none."""
        options = [
            {"optionId": option[0], "name": option[0], "kind": option[1]} if isinstance(option, list) else option
            for option in action.get("options", DEFAULT_OPTIONS)
        ]
        call = {"toolCallId": self.start_call(title=title), "title": title, "rawInput": action.get("rawInput", {})}
        answer = self.ask_client("session/request_permission", toolCall=call, options=options)
        outcome = (answer or {}).get("outcome", {})
        chosen = str(outcome.get("optionId", "cancelled"))
        self.end_call(call["toolCallId"], rawOutput={"chosen": chosen})
        return chosen

    def do_elicit(self, message: str, action: Json) -> Any:
        """Request that the user fills in a form, and return the client's response."""
        schema = action.get("schema", {"type": "object", "properties": {}})
        return self.ask_client("elicitation/create", mode="form", message=message, requestedSchema=schema)

    # --- the model

    def do_model(self, prompt: Any, action: Json) -> str:
        """Call the model at OPENAI_BASE_URL, send its text as a message, and return it.

        The prompt `true` stands for the session's conversation so far.
        """
        roles = {"user_message_chunk": "user", "agent_message_chunk": "assistant"}
        messages: list[Json] = []
        for update in self.session.updates() if prompt is True else []:
            role, text = roles.get(update["sessionUpdate"]), update.get("content")
            if role and messages and messages[-1]["role"] == role:
                messages[-1]["content"] += text["text"] if isinstance(text, dict) else ""
            elif role and isinstance(text, dict):
                messages.append({"role": role, "content": text["text"]})
        body = {
            "model": action.get("name") or self.session.state("model") or os.environ.get("OPENAI_MODEL", "scripted"),
            "messages": messages or [{"role": "user", "content": prompt}],
            "stream": bool(action.get("stream")),
            **action.get("body", {}),
        }
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}",
            },
        )
        text = ""
        with urllib.request.urlopen(request, timeout=action.get("timeout", 600)) as response:
            if not body["stream"]:
                text = json.load(response)["choices"][0]["message"]["content"] or ""
                self.do_say(text, {})
                return text
            for line in response:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        piece = choice["delta"].get("content") or ""
                        self.do_say(piece, {})
                        text += piece
        return text

    # --- time

    def do_wait(self, seconds: float, action: Json) -> None:
        """Sleep for so many seconds, or until the turn is cancelled."""
        self.pause(seconds)

    def do_wait_for(self, name: str, action: Json) -> None:
        """Poll until a file exists, or the turn is cancelled."""
        while not self.path(name).exists() and not self.session.given_up():
            self.pause(action.get("pace", 0.02))

    def do_repeat(self, count: int, action: Json) -> None:
        """Carry out actions so many times, with their round's number in place of `{i}`."""
        for number in range(count):
            self.perform(numbered(action["do"], number))
            self.pause(action.get("pace", 0))

    # --- trouble

    def _padded(self, size: int) -> bytes:
        """Return a valid update as a line of so many bytes, the line break included."""
        update = {"sessionUpdate": "agent_message_chunk", "content": text_block("")}
        params = {"sessionId": self.session.id, "update": update}
        empty = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()
        head, _, tail = empty.rpartition(b'""')
        return head + b'"' + b"x" * max(0, size - len(empty) - 1) + b'"' + tail + b"\n"

    def do_flood(self, size: int, action: Json) -> None:
        """Write about so many bytes of valid updates, as lines."""
        line = self._padded(action.get("line", 1000))
        for _ in range(size // len(line)):
            self.wire.write(line)

    def do_line(self, size: int, action: Json) -> None:
        """Write a valid update as one line of so many bytes."""
        self.wire.write(self._padded(size))

    def do_invalid_utf8(self, wanted: bool, action: Json) -> None:
        """Write a line that is no valid UTF-8."""
        self.wire.write(self._padded(300).replace(b"xxxx", b"\xff\xfe\xc3\x28", 1))

    def do_raw(self, text: str, action: Json) -> None:
        """Write a text as a line."""
        self.wire.write(text.encode() + b"\n")

    def do_wrong_id(self, number: Any, action: Json) -> None:
        """Send a response to a request that was never received."""
        self.wire.send(id=987654 if number is True else number, result={"stopReason": "end_turn"})

    def do_half_line(self, wanted: bool, action: Json) -> None:
        """Write the first half of a line, and exit."""
        self.wire.write(self._padded(300)[:150])
        os._exit(action.get("code", 1))

    def do_exit(self, code: int, action: Json) -> None:
        """Exit with a status; a negative one is the signal to die by."""
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)

    def do_hang(self, how: Any, action: Json) -> None:
        """Do nothing until the turn is cancelled; with "stopped", stop the whole process by SIGSTOP."""
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        while not self.session.given_up():
            self.pause(3600)

    def do_ignore_cancel(self, wanted: bool, action: Json) -> None:
        """Ignore cancellations of the session from now on, or obey them again."""
        self.session.deaf = wanted

    def do_ignore_sigterm(self, wanted: bool, action: Json) -> None:
        """Ignore SIGTERM from now on, or obey it again."""
        SIGTERM_IGNORED.set() if wanted else SIGTERM_IGNORED.clear()

    def do_daemon(self, command: str, action: Json) -> int:
        """Start a shell command in a session of its own, which outlives the agent, and return its process id."""
        stream = None if action.get("keeps_stdout") else subprocess.DEVNULL
        shell = ["/bin/sh", "-c", command]
        return subprocess.Popen(
            shell, cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        ).pid

    def do_hog(self, mebibytes: int, action: Json) -> None:
        """Allocate so many MiB and write to them. They are freed at once."""
        held = bytearray()
        for _ in range(mebibytes):
            held += b"x" * 2**20

    def do_stderr(self, text: str, action: Json) -> None:
        """Write a text to stderr."""
        for _ in range(action.get("times", 1)):
            print(text, file=sys.stderr, flush=True)


class DemoAgent:
    """The agent: handles the client's messages. `methods` has a handler for each request, which returns the result."""

    def __init__(self, script: Json) -> None:
        """Make an agent that follows a script."""
        self.script = script
        self.wire = ClientConnection(os.environ.get("DEMO_AGENT_LOG") or script.get("log"))
        self.directory = Path.home() / ".demo-agent" / "sessions"
        self.sessions: dict[str, DemoSession] = {}
        self.authenticated = not script.get("auth_required")
        self.methods: dict[str, Callable[[Json], Any]] = {
            "initialize": self.initialize,
            "authenticate": self.authenticate,
            "session/new": self.new,
            "session/load": self.load,
            "session/resume": self.resume,
            "session/fork": self.fork,
            "session/list": self.list_sessions,
            "session/close": self.close_session,
            "session/set_mode": self.set_mode,
            "session/set_model": self.set_model,
            "session/set_config_option": self.set_config_option,
            "session/prompt": self.prompt,
        }

    def initialize(self, params: Json) -> Json:
        """Handle `initialize`: return version, capabilities and authentication methods."""
        capabilities = {
            "loadSession": True,
            "promptCapabilities": {"image": False, "audio": False, "embeddedContext": True},
            "sessionCapabilities": {"fork": {}, "resume": {}, "list": {}, "close": {}},
        }
        return {
            "protocolVersion": self.script.get("protocol_version", 1),
            "agentCapabilities": {**capabilities, **self.script.get("capabilities", {})},
            "agentInfo": {
                "name": self.script.get("name", "demo-agent"),
                "version": self.script.get("version", "1.0.0"),
            },
            "authMethods": self.script.get("auth_methods", []),
        }

    def authenticate(self, params: Json) -> Json:
        """Handle `authenticate`: allow sessions. Raise `RpcError` for an unknown method."""
        known = [method["id"] for method in self.script.get("auth_methods", [])]
        if params.get("methodId") not in known:
            raise RpcError(-32602, f"no such authentication method: {params.get('methodId')}")
        self.authenticated = True
        return {}

    # --- sessions

    def find(self, params: Json) -> DemoSession:
        """Return the session that a request names. Raise `RpcError` if it does not exist."""
        session_id = params["sessionId"]
        if session_id not in self.sessions:
            session = DemoSession(self.directory, session_id)
            if not session.file.exists():
                raise RpcError(-32002, f"there is no session {session_id}")
            self.sessions[session_id] = session
        return self.sessions[session_id]

    def new(self, params: Json) -> Json:
        """Handle `session/new`: return the session's id and settings."""
        return {"sessionId": self._create(params).id, **self.settings(None)}

    def _create(self, params: Json, parent: DemoSession | None = None) -> DemoSession:
        """Create a session, with the entries of its parent if it has one. Raise `RpcError` if not authenticated."""
        if not self.authenticated:
            raise RpcError(-32000, "authentication required")
        session = DemoSession(self.directory, f"demo-{uuid.uuid4()}")
        self.directory.mkdir(parents=True, exist_ok=True)
        if parent is not None:
            shutil.copyfile(parent.file, session.file)
        session.note(cwd=params["cwd"], parent=parent.id if parent else None, mcp=params.get("mcpServers", []))
        self.sessions[session.id] = session
        return session

    def load(self, params: Json) -> Json:
        """Handle `session/load`: send all updates of the session again, and return its settings."""
        session = self.find(params)
        for update in session.updates():
            self.wire.send(method="session/update", params={"sessionId": session.id, "update": update})
        return self.resume(params)

    def resume(self, params: Json) -> Json:
        """Handle `session/resume`: note the session's directory, and return its settings."""
        session = self.find(params)
        session.note(cwd=params["cwd"])
        return self.settings(session)

    def fork(self, params: Json) -> Json:
        """Handle `session/fork`: create a session with the entries of another one."""
        session = self._create(params, self.find(params))
        return {"sessionId": session.id, **self.settings(session)}

    def list_sessions(self, params: Json) -> Json:
        """Handle `session/list`: return the sessions of this home."""
        files = sorted(self.directory.glob("*.jsonl")) if self.directory.exists() else []
        sessions = [DemoSession(self.directory, file.stem) for file in files]
        return {"sessions": [{"sessionId": session.id, "cwd": session.state("cwd")} for session in sessions]}

    def close_session(self, params: Json) -> Json:
        """Handle `session/close`: cancel the turn, and forget the session. Its file stays."""
        self.cancel(params)
        self.sessions.pop(params["sessionId"], None)
        return {}

    # --- settings

    def settings(self, session: DemoSession | None) -> Json:
        """Return the modes, models and options of a session with their current values; None for the defaults."""

        def current(key: str, first: str) -> str:
            return str(session.state(key, first)) if session else first

        found: Json = {}
        modes, models = self.script.get("modes"), self.script.get("models")
        if modes:
            available = [{"id": mode, "name": mode} for mode in modes]
            found["modes"] = {"currentModeId": current("mode", modes[0]), "availableModes": available}
        if models:
            available = [{"modelId": model, "name": model} for model in models]
            found["models"] = {"currentModelId": current("model", models[0]), "availableModels": available}
        options = self.script.get("config_options")
        if options:
            chosen = session.state("config", {}) if session else {}
            found["configOptions"] = [
                {**option, "currentValue": chosen.get(option["id"], option["currentValue"])} for option in options
            ]
        return found

    def set_mode(self, params: Json) -> Json:
        """Handle `session/set_mode`, and report the new mode."""
        session = self._set(params, "mode", params["modeId"], self.script.get("modes", []))
        update = {"sessionUpdate": "current_mode_update", "currentModeId": params["modeId"]}
        self.wire.send(method="session/update", params={"sessionId": session.id, "update": update})
        return {}

    def set_model(self, params: Json) -> Json:
        """Handle `session/set_model`."""
        self._set(params, "model", params["modelId"], self.script.get("models", []))
        return {}

    def set_config_option(self, params: Json) -> Json:
        """Handle `session/set_config_option`: return all options with their values."""
        session = self.find(params)
        ids = [option["id"] for option in self.script.get("config_options", [])]
        chosen = {**session.state("config", {}), params["configId"]: params["value"]}
        if params["configId"] not in ids:
            raise RpcError(-32602, f"no such option: {params['configId']}")
        session.note(config=chosen)
        return {"configOptions": self.settings(session)["configOptions"]}

    def _set(self, params: Json, key: str, value: str, known: list[str]) -> DemoSession:
        """Note a setting of a session. Raise `RpcError` if the value is not a known one."""
        session = self.find(params)
        if value not in known:
            raise RpcError(-32602, f"no such {key}: {value}")
        session.note(**{key: value})
        return session

    # --- turns

    def cancel(self, params: Json) -> None:
        """Handle `session/cancel`: cancel the session's turn, and wake up its threads."""
        session = self.sessions.get(params["sessionId"])
        if session:
            session.cancelled.set()
            with self.wire.changed:
                self.wire.changed.notify_all()

    def prompt(self, params: Json) -> Json:
        """Handle `session/prompt`: carry out the actions of the script's next turn, and return the stop reason."""
        session = self.find(params)
        text = "\n".join(block.get("text", "") for block in params["prompt"])
        place = session.state("place", 0)
        actions, place = self.actions(text, place)
        session.note(place=place)
        session.note(update={"sessionUpdate": "user_message_chunk", "content": text_block(text)})
        try:
            DemoTurn(self.wire, session, text).perform(actions)
        except EarlyTurnEnd as end:
            return end.response
        return {"stopReason": "cancelled" if session.given_up() else "end_turn"}

    def actions(self, prompt: str, place: int) -> Any:
        """Return the actions for a prompt, and the next position in the script. place: the current position."""
        turns = self.script.get("turns", [])
        for index in range(place, len(turns)):
            turn = turns[index]
            if isinstance(turn, list):
                return turn, index + 1
            if turn.get("when", "") in prompt:
                return turn["do"], index + 1
        return self.script.get("otherwise", [{"say": "Done."}]), len(turns)

    # --- the loop

    def answer(self, number: Any, method: str, params: Json) -> None:
        """Call the handler of a request, and send its result or its error."""
        try:
            handler = self.methods.get(method)
            if handler is None:
                raise RpcError(-32601, f"method not found: {method}")
            self.wire.send(id=number, result=handler(params))
        except RpcError as error:
            self.wire.send(id=number, error={"code": error.code, "message": str(error)})
        except Exception as error:
            self.wire.send(id=number, error={"code": -32603, "message": f"{type(error).__name__}: {error}"})

    def serve(self) -> None:
        """Handle the messages on stdin, each turn in a thread of its own, and exit at its end."""
        for line in sys.stdin.buffer:
            self.wire.received(line)
            try:
                message = json.loads(line)
            except ValueError as error:
                self.wire.send(id=None, error={"code": -32700, "message": f"not JSON: {error}"})
                continue
            method = message.get("method")
            if method is None:
                self.wire.answered(message)
            elif method == "session/cancel":
                self.cancel(message["params"])
            elif "id" in message:
                arguments = (message["id"], method, message.get("params") or {})
                if method == "session/prompt":
                    # Not in the turn's thread: a cancel that follows immediately is meant for this turn.
                    with contextlib.suppress(Exception):  # The turn reports a bad session id.
                        self.find(arguments[2]).cancelled.clear()
                    threading.Thread(target=self.answer, args=arguments, daemon=True).start()
                else:
                    self.answer(*arguments)
        os._exit(0)


def on_sigterm(number: int, frame: Any) -> None:
    """Exit on a signal, unless the script ignores it."""
    if not SIGTERM_IGNORED.is_set():
        os._exit(128 + number)


def main() -> None:
    """Serve the script that the command line or the environment names, until stdin ends."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DEMO_AGENT_SCRIPT", "{}")
    text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
    signal.signal(signal.SIGTERM, on_sigterm)
    DemoAgent(json.loads(text)).serve()


if __name__ == "__main__":
    main()
