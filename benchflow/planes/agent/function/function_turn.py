"""A turn as a Python agent receives it: its commands in the sandbox, messages, questions and model calls.

All that touches the engine runs in the worker's event loop, one thing at a time, in the order in which the agent
requests it: two attempts with the same requests get the same names of steps, and write the same lines.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from benchflow.contracts.agent import AgentPlace, AskUser, Line, ModelRoute, TurnCounts, TurnRequest, Unanswered
from benchflow.contracts.rollout_records import AgentSession, Question
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.errors import BenchFlowError, ModelEndpointError
from benchflow.planes.agent.function.model_calls import call_model, parse_completion
from benchflow.planes.agent.function.recorded_steps import EXEC, Steps

T = TypeVar("T")

_ANSWER = "answer"
"""Field of the form with which the agent asks its user."""
_PIECE = 64 * 1024
"""Maximum characters of a file that one command writes: Linux takes 128 KiB in a variable, and a character may be
several bytes. If not all are ASCII, a quarter as many.
"""

_SHOWN = 1024 * 1024
"""Maximum characters of each output of a command, and of a written file, in the trajectory."""

_MAX_REFUSED = 100
"""Number of steps that are refused to a function that ignores the end of its turn. The next one blocks forever."""

_is_in_step: ContextVar[bool] = ContextVar("is_in_step", default=False)


class AgentTurn:
    """One turn of a Python agent.

    Each awaited step is recorded when it is done. After a crash the agent's function is called again from its
    beginning, and receives the recorded results of the steps that were done. So it must request the same steps in the
    same order: values that differ from run to run (the time, random numbers, calls of services) belong in `once`. Steps
    that are requested concurrently are done one after another.
    """

    prompt: str
    """Text of the prompt."""

    number: int
    """Number of the turn in the rollout, from 0."""

    memory: dict[str, Any]
    """JSON that the session keeps from turn to turn, and takes along where the rollout branches. No place for secrets:
    it travels with checkpoints, where they are replaced by their names.
    """

    workspace: str
    """Directory of the sandbox in which commands start."""

    env: Mapping[str, str]
    """Variables that the user gives the agent (`--agent-env`). Commands in the sandbox don't have them."""

    def __init__(
        self,
        request: TurnRequest,
        *,
        session: AgentSession,
        place: AgentPlace,
        model: ModelRoute,
        memory: dict[str, Any],
        steps: Steps,
        answer: AskUser,
        counts: TurnCounts,
    ) -> None:
        """Make it.

        Args:
            request: The turn to run.
            session: The agent's session.
            place: Place of the agent.
            model: Route to the model.
            memory: Memory of the session before the turn.
            steps: Steps of the turn.
            answer: Callback that answers questions to the user.
            counts: Counts of the turn.
        """
        self.prompt, self.number, self.memory, self.workspace = request.prompt, request.number, memory, session.cwd
        self.env = dict(place.agent_env)
        self._place = place
        self._session = session
        self._model = model
        self._steps = steps
        self._answer = answer
        self._counts = counts
        self._heard = request.heard
        self._worker = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._n_refused = 0
        self.lines = 0
        """Number of trajectory lines so far."""

        self.heard_at = time.monotonic()
        """When the last line was written or the last result received, by the monotonic clock."""

        self.is_over = False
        """Whether the turn is over: no step is started, and no line written, any more."""

        self.failure: BaseException | None = None
        """Error that ended the turn, whatever the function makes of it."""

    # --- in the sandbox --------------------------------------------------------------------------------------

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> SandboxExecResult:
        """Run a command in the sandbox, once, as the agent's user, and return its result.

        Args:
            cmd: Command line for a shell if it is a string, else program and arguments.
            env: Variables besides those of the sandbox.
            cwd: Working directory; the workspace by default.
            timeout: Seconds after which it is killed; its result then has `timed_out`. None for no limit.
        """
        argv = ["/bin/sh", "-c", cmd] if isinstance(cmd, str) else [str(word) for word in cmd]
        shown = {"kind": "execute", "title": cmd if isinstance(cmd, str) else shlex.join(argv)}
        command = self._make_command(argv, env=dict(env or {}), cwd=cwd or self.workspace, timeout=timeout)
        (result,) = await self._run_in_worker(lambda: self._run(shown | {"raw_input": {"command": argv}}, [command]))
        return result

    async def read_file(self, path: str) -> str:
        """Return the content of a text file.

        Raises:
            FileNotFoundError: The agent's user can't read such a file.
            OSError: It is longer than the output of a command may be.
        """
        shown = {"kind": "read", "title": f"read {path}", "raw_input": {"path": path}}
        (result,) = await self._run_in_worker(lambda: self._run(shown, [self._make_command(["cat", "--", path])]))
        if result.return_code != 0:
            raise FileNotFoundError(result.stderr.strip() or path)
        if result.truncated:
            raise OSError(f"{path} is longer than the output of a command may be: read it in parts")
        return result.stdout

    async def write_file(self, path: str, content: str) -> None:
        """Write a text file as the agent's user, and make its parent directories. Raise `OSError` if that fails."""
        script = 'mkdir -p -- "$(dirname -- "$1")" && printf %s "$CONTENT" >"$1"'
        shown = {"kind": "edit", "title": f"write {path}", "raw_input": {"path": path, "content": content[:_SHOWN]}}
        commands = []
        for piece in _split(content):
            commands.append(self._make_command(["/bin/sh", "-c", script, "sh", path], env={"CONTENT": piece}))
            script = 'printf %s "$CONTENT" >>"$1"'
        results = await self._run_in_worker(lambda: self._run(shown, commands))
        if results[-1].return_code != 0:
            raise OSError(results[-1].stderr.strip() or path)

    def _make_command(self, argv: list[str], **more: Any) -> dict[str, Any]:
        """Return the arguments of a command's step."""
        return {"argv": argv, "env": {}, "cwd": self.workspace, "timeout": None} | more

    async def _run(self, shown: Line, commands: Sequence[Mapping[str, Any]]) -> list[SandboxExecResult]:
        """Run commands up to the first that fails, as one tool call, and return their results."""
        results: list[SandboxExecResult] = []
        call = None
        for command in commands:
            name = self._steps.make_name()
            if call is None:
                call = self.key(name)
                self._write_line(
                    {"type": "tool_call", "tool_call_id": call, "status": "pending", "content": []} | shown
                )
            done = await self._take_step(name, {"kind": EXEC, **command}, partial(self._exec, name, command))
            results.append(SandboxExecResult.model_validate(done))
            if results[-1].return_code != 0:
                break
        status = "completed" if results[-1].return_code == 0 else "failed"
        update = {"type": "tool_call_update", "tool_call_id": call, "status": status}
        self._write_line(update | {"raw_output": _dump_result(results[-1])})
        return results

    async def _exec(self, name: str, command: Mapping[str, Any]) -> dict[str, Any]:
        result = await self._place.sandbox.exec_once(
            self.key(name),
            command["argv"],
            env={**self._place.env, **command["env"]},
            cwd=command["cwd"],
            user=self._session.user,
            timeout=command["timeout"],
        )
        return result.model_dump(mode="json")

    # --- messages and questions ------------------------------------------------------------------------------

    async def say(self, text: str) -> None:
        """Write a message to the user, as a line of the trajectory."""
        await self._write_text("agent_message", text)

    async def think(self, text: str) -> None:
        """Write a thought as a line of the trajectory, for rewards that read the reasoning."""
        await self._write_text("agent_thought", text)

    async def _write_text(self, kind: str, text: str) -> None:
        async def write() -> None:
            self._write_line({"type": kind, "text": str(text)})

        await self._run_in_worker(write)

    async def ask_user(self, text: str, options: Sequence[str] = ()) -> str | None:
        """Ask the user and return the answer, one of the options if there are any; None for a refusal.

        If the job has users asked (`permissions = "ask"`), the turn waits as long as necessary, and may branch by the
        options.
        """
        return await self._run_in_worker(lambda: self._ask(str(text), [str(option) for option in options]))

    async def _ask(self, text: str, options: Sequence[str]) -> str | None:
        name = self._steps.make_name()
        field: dict[str, Any] = {"type": "string"} | ({"enum": options} if options else {})
        form = {"type": "object", "properties": {_ANSWER: field}, "required": [_ANSWER]}
        question = Question(
            id=self.key(name),
            kind="form",
            text=text,
            options=[{"id": f"{_ANSWER}:{option}", "name": option} for option in options],
            form=form,
        )

        async def ask() -> str | None:
            answer = await self._answer(question)
            if answer.content is not None:
                given = answer.content.get(_ANSWER)
                return None if given is None else str(given)
            return answer.option.partition(":")[2] if answer.option is not None else None

        self._write_line({"type": "elicitation_request", "params": {"message": text, "requestedSchema": form}})
        answered: str | None = await self._take_step(name, {"kind": "ask_user", "text": text, "options": options}, ask)
        said = {"action": "decline"} if answered is None else {"action": "accept", "content": {_ANSWER: answered}}
        self._write_line({"type": "elicitation_answer", "result": said})
        return answered

    # --- calls -----------------------------------------------------------------------------------------------

    async def once(self, what: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a call, as JSON. It is recorded, and not called again in a later attempt.

        Args:
            what: A name of the step, for people and to distinguish it from others.
            call: The call, which runs in the agent's own thread and takes no steps of the turn. It is repeated after a
                crash in the middle of it, and after an exception, which is not recorded.
        """
        own = asyncio.get_running_loop()

        async def begin() -> Any:
            # Steps of the turn are refused within it.
            _is_in_step.set(True)
            return await call()

        async def run() -> Any:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begin(), own))

        return await self._run_in_worker(
            lambda: self._take_step(self._steps.make_name(), {"kind": "once", "what": what}, run)
        )

    async def complete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Call the agent's model through the gateway, which records and counts the call, and return the response.

        If the job names no model, the turn ends with `AgentExitError`.

        Args:
            messages: As in OpenAI's chat completions; so are `options`, and the response.
            options: Any but `stream`, which raises `ValueError`: responses are complete.

        Raises:
            ModelEndpointError: The model responded with an error.
        """
        if options.get("stream"):
            raise ValueError("`complete` returns whole answers: leave `stream` away")
        body = {"messages": [dict(message) for message in messages], **options}
        call = partial(call_model, self._model, body)
        what = {"kind": "complete", "body": body}
        return parse_completion(await self._run_in_worker(lambda: self._take_step(self._steps.make_name(), what, call)))

    # --- steps -----------------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        """Return the idempotency key of a step, unique in the sandbox."""
        return f"agent-{self._session.directory}-{name}"

    async def _take_step(self, name: str, what: dict[str, Any], act: Callable[[], Awaitable[Any]]) -> Any:
        """Do a step unless it is recorded, and return its result."""
        done = await self._steps.take(name, what, act)
        self.heard_at = time.monotonic()
        return done

    def _write_line(self, line: Line) -> None:
        """Write a line of the trajectory. Raise `CancelledError` if the turn is over."""
        # The trajectory is closed, and another worker may write its file.
        if self.is_over:
            raise asyncio.CancelledError
        self.heard_at = time.monotonic()
        if line["type"] == "tool_call":
            self._counts.tool_calls.add(line["tool_call_id"])
        self._heard([line])
        self.lines += 1

    async def _run_in_worker(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await work in the worker's event loop, after all earlier work of the turn, and return its result.

        The engine's errors end the turn: they are kept in `failure`, and the function is cancelled.
        """

        async def begin() -> T:
            if self.is_over:
                raise asyncio.CancelledError
            return await work()

        if _is_in_step.get():
            raise RuntimeError("a step of the turn is asked for within `once`, which is a step itself")
        async with self._one_at_a_time:
            if self.is_over:
                await self._refuse()
            try:
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begin(), self._worker))
            except ModelEndpointError:
                raise
            except (BenchFlowError, Unanswered) as failure:
                # The function cannot handle this, and might continue as if it had.
                self.failure, self.is_over = failure, True
                raise asyncio.CancelledError from failure

    async def _refuse(self) -> None:
        """Raise `CancelledError`; block forever after too many calls."""
        self._n_refused += 1
        if self._n_refused > _MAX_REFUSED:
            # The function ignores its end, and would keep a core busy.
            await asyncio.get_running_loop().create_future()
        raise asyncio.CancelledError


def _dump_result(result: SandboxExecResult) -> dict[str, Any]:
    """Return a result as the trajectory has it, with its outputs shortened."""
    cut = {"stdout": result.stdout[:_SHOWN], "stderr": result.stderr[:_SHOWN]}
    is_cut = result.truncated or cut["stdout"] != result.stdout or cut["stderr"] != result.stderr
    return result.model_dump(mode="json") | cut | {"truncated": is_cut}


def _split(content: str) -> list[str]:
    """Return a text in pieces that each fit in a variable; an empty text is one piece."""
    size = _PIECE if content.isascii() else _PIECE // 4
    return [content[start : start + size] for start in range(0, len(content), size)] or [""]
