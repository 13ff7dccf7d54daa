"""The client's side of an agent's requests: permissions, questions, files and terminals, carried out in the sandbox.

Files and terminals are accessed as the agent's user, so that the agent cannot read or write through the engine what
that user may not.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from benchflow.contracts.agent import AskUser
from benchflow.contracts.ids import short_hash
from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.planes.agent.acp.acp_questions import format_answer, parse_question
from benchflow.planes.agent.acp.dialogue import METHOD_NOT_FOUND, RefusedError
from benchflow.planes.agent.notes import Message
from benchflow.planes.agent.question_answers import make_answerer

INVALID_PARAMS = -32602
NOT_FOUND = -32002

TERMINALS = "/run/benchflow/terminals"
"""Directory in the sandbox that holds the files of terminals."""

OUTPUT_LIMIT = 1024 * 1024
"""Bytes of a terminal's output that are returned, unless the agent names a limit."""

MAX_OUTPUT_LIMIT = 8 * 1024 * 1024
"""Maximum limit that an agent can name."""

_POLL_SEC = 0.02
"""Seconds of a wait for a command to start, or for its end to be noticed."""

# $1: path, $2: first line (from 1), $3: number of lines, 0 for all.
_READ = """[ -e "$1" ] || exit 44; [ -f "$1" ] || { echo 'not a regular file' >&2; exit 45; }
[ -r "$1" ] || { echo 'permission denied' >&2; exit 45; }
if [ "$3" = 0 ]; then tail -n "+$2" -- "$1"; else tail -n "+$2" -- "$1" | head -n "$3"; fi"""
# $1: the new content, $2: path.
_WRITE = 'mkdir -p -- "$(dirname -- "$2")" && cat -- "$1" >"$2"'
# $1: directory. Prints the size of the output, its limit, and that much of its end.
_OUTPUT = """limit=$(cat "$1.limit") || exit 44
[ -e "$1/output" ] || exit 0
wc -c <"$1/output" && echo "$limit" && tail -c "$limit" -- "$1/output"
"""
# $0: output file; the rest: the command.
_RUN = 'exec >"$0" 2>&1 </dev/null; exec "$@"'
# $1: directory, which root owns: the agent must not put a link where root is going to write.
_MAKE_DIRECTORY = 'mkdir -p "$1" && chmod 0711 /run/benchflow "$(dirname "$1")" "$1"'
# $1: directory, $2: owner, $3: limit of the output in bytes.
_TERMINAL = f"""{_MAKE_DIRECTORY} &&
echo "$3" >"$1.limit" && chmod 0644 "$1.limit" && chown "$2" "$1" && chmod 0700 "$1"
"""


class Client:
    """Serves the requests of one agent. Implements `dialogue.Host`."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        user: str | int,
        cwd: str,
        answer: AskUser | None = None,
    ) -> None:
        """Make it.

        Args:
            sandbox: Sandbox of the agent.
            user: User of the agent in the sandbox.
            cwd: Directory of its session, in which terminals start.
            answer: Callback that answers its questions; by default a policy that allows.
        """
        self._sandbox = sandbox
        self._user = user
        self._cwd = cwd
        self.answer = answer or make_answerer("auto")
        """Callback that answers the agent's questions to its user."""
        self._terminals: dict[str, asyncio.Task[SandboxExecResult]] = {}

    # --- questions -----------------------------------------------------------------------------------

    async def ask(self, question: str, method: str, params: Message) -> Message:
        """Have a permission or elicitation request answered, and return the result in the protocol's form."""
        return format_answer(method, await self.answer(parse_question(question, method, params)))

    # --- files and terminals -------------------------------------------------------------------------

    async def serve(self, request: Any, method: str, params: Message) -> Message:
        """Carry out a request for a file or terminal and return its result. Raise `RefusedError` if it is invalid.

        Args:
            request: Id of the request.
            method: Method, as `fs/read_text_file`.
            params: Parameters of the request.
        """
        match method:
            case "fs/read_text_file":
                return await self._read(params)
            case "fs/write_text_file":
                return await self._write(request, params)
            case "terminal/create":
                return await self._create(request, params)
            case "terminal/output":
                return await self._read_output(params)
            case "terminal/wait_for_exit":
                return _format_exit_status(await asyncio.shield(await self._find_terminal(params)))
            case "terminal/kill" | "terminal/release":
                await self._find_terminal(params)
                await self._sandbox.kill_once(_make_key(self._parse_name(params)))
                return {}
        raise RefusedError(METHOD_NOT_FOUND, f"the client does not do {method}")

    async def _read(self, params: Message) -> Message:
        path = _require_absolute(params.get("path"))
        first, limit = max(1, int(params.get("line") or 1)), int(params.get("limit") or 0)
        result = await self._exec_as_agent(["sh", "-c", _READ, "sh", path, str(first), str(limit)])
        if result.return_code == 44:
            raise RefusedError(NOT_FOUND, f"{path}: no such file")
        if result.return_code != 0:
            raise RefusedError(INVALID_PARAMS, f"{path}: {result.stderr.strip() or 'it cannot be read'}")
        if result.truncated:
            raise RefusedError(INVALID_PARAMS, f"{path}: it is too large to be read at once: ask for some lines of it")
        return {"content": result.stdout}

    async def _write(self, request: Any, params: Message) -> Message:
        path = _require_absolute(params.get("path"))
        room = f"{TERMINALS}/write-{_make_name(request)}"
        content = str(params.get("content", "")).encode(errors="replace")
        await self._sandbox.control(_MAKE_DIRECTORY, room)
        try:
            await self._sandbox.write_file(f"{room}/content", content, mode=0o400, user=self._user)
            result = await self._exec_as_agent(["sh", "-c", _WRITE, "sh", f"{room}/content", path])
        finally:
            await self._sandbox.control('rm -rf "$1"', room)
        if result.return_code != 0:
            raise RefusedError(INVALID_PARAMS, f"{path}: {result.stderr.strip() or 'it cannot be written'}")
        return {}

    async def _create(self, request: Any, params: Message) -> Message:
        """Start a terminal's command, and return its id once the command runs."""
        command = str(params.get("command") or "")
        if not command:
            raise RefusedError(INVALID_PARAMS, "a terminal needs a command")
        name = _make_name(request)
        limit = params.get("outputByteLimit")
        wanted = max(0, min(int(OUTPUT_LIMIT if limit is None else limit), MAX_OUTPUT_LIMIT))
        await self._sandbox.control(_TERMINAL, f"{TERMINALS}/{name}", str(self._user), str(wanted))
        task = self._start(name, params)
        # The answer names it only once it runs: a worker that takes over could not know what to start.
        while not task.done() and not await self._sandbox.was_started(_make_key(name)):
            await asyncio.wait([task], timeout=_POLL_SEC)
        if task.done():
            task.result()
        return {"terminalId": name}

    def _start(self, name: str, params: Message) -> asyncio.Task[SandboxExecResult]:
        command, args = str(params["command"]), [str(arg) for arg in params.get("args") or []]
        # Some agents send a whole command line as the program.
        argv = [command, *args] if args or not any(map(str.isspace, command)) else ["sh", "-c", command]
        env = {str(row["name"]): str(row["value"]) for row in params.get("env") or []}
        task = asyncio.ensure_future(
            self._sandbox.exec_once(
                _make_key(name),
                ["sh", "-c", _RUN, f"{TERMINALS}/{name}/output", *argv],
                env=env,
                cwd=str(params.get("cwd") or self._cwd),
                user=self._user,
            )
        )
        self._terminals[name] = task
        return task

    async def _read_output(self, params: Message) -> Message:
        """Return the end of a terminal's output, and its exit status if it has ended."""
        task = await self._find_terminal(params)
        # Output that is read after the end is known is complete.
        await asyncio.wait([task], timeout=_POLL_SEC)
        ended = _format_exit_status(task.result()) if task.done() and not task.cancelled() else None
        result = await self._exec_as_agent(["sh", "-c", _OUTPUT, "sh", f"{TERMINALS}/{self._parse_name(params)}"])
        size, limit, text = (*result.stdout.split("\n", 2), "0", "")[:3] if result.stdout else ("0", "0", "")
        truncated = int(size) > int(limit)
        # The cut may split a character.
        output = text.lstrip("\ufffd") if truncated else text
        return {"output": output, "truncated": truncated} | ({"exitStatus": ended} if ended else {})

    async def _find_terminal(self, params: Message) -> asyncio.Task[SandboxExecResult]:
        """Return the task that waits for a terminal's command. Raise `RefusedError` if there is no such terminal."""
        name = self._parse_name(params)
        if name not in self._terminals and not await self._sandbox.was_started(_make_key(name)):
            raise RefusedError(INVALID_PARAMS, f"there is no terminal {name!r}")
        # A worker that has taken over attaches by the key, so that the command itself is ignored.
        return self._terminals.get(name) or self._start(name, {"command": "true"})

    def _parse_name(self, params: Message) -> str:
        name = str(params.get("terminalId") or "")
        if not name:
            raise RefusedError(INVALID_PARAMS, "a terminal is named by its terminalId")
        return name

    async def aclose(self) -> None:
        """Stop waiting for terminals. Their commands run on until the agent's processes are ended."""
        for task in self._terminals.values():
            task.cancel()
        await asyncio.gather(*self._terminals.values(), return_exceptions=True)
        self._terminals.clear()

    async def _exec_as_agent(self, cmd: list[str]) -> SandboxExecResult:
        return await self._sandbox.exec(cmd, cwd="/", user=self._user, timeout=120)


def _require_absolute(path: Any) -> str:
    """Return a path. Raise `RefusedError` unless it is absolute."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise RefusedError(INVALID_PARAMS, f"{path!r} is not an absolute path")
    return path


def _format_exit_status(result: SandboxExecResult) -> Message:
    return {"exitCode": result.return_code, "signal": None}


def _make_key(name: str) -> str:
    return f"terminal-{name}"


def _make_name(request: Any) -> str:
    """Return the id of an agent's request as the name of a directory, unique to it."""
    return str(request) if type(request) is int else short_hash(json.dumps(request), 16)
