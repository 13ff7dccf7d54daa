"""Small agents that speak like the real ones, with their noise, and a record of what they said: what replays stand on.

A run's seed decides its noise: identifiers, days, durations, marks, the order of members. Two runs of one agent through
one script differ in nothing else.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchflow.contracts.gateway import Api, CallError, CallTiming, RequestLine, ResponseLine
from benchflow.gateway.hook import Recorded

Json = dict[str, Any]
Model = Callable[[Json, bytes], Awaitable[Recorded | None]]

APIS: dict[str, Api] = {
    "claude-agent-acp": "anthropic-messages",
    "codex-acp": "openai-responses",
    "gemini": "gemini",
    "opencode": "openai-chat",
    "openhands": "openai-chat",
    "policy": "openai-chat",
}
PATHS: dict[Api, str] = {
    "anthropic-messages": "/v1/messages?beta=true",
    "gemini": "/v1beta/models/scripted:streamGenerateContent?alt=sse",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}
DAYS = ("2026-11-20", "2026-11-21")


class Noise:
    """What is another one in every run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.day = DAYS[seed % 2]

    def hex(self, count: int) -> str:
        # One of each, so that it is neither a number nor a word.
        return "a1" + "".join(self._random.choices("0123456789abcdef", k=count - 2))

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def seconds(self) -> str:
        return f"{self._random.random() * 9:.4f}"

    def number(self) -> int:
        return self._random.randrange(10_000, 99_999)

    def shuffled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.shuffled(value[key]) for key in self._random.sample(sorted(value), len(value))}
        return [self.shuffled(item) for item in value] if isinstance(value, list) else value


class SmallAgent:
    """The bodies that an agent sends. Of each call of a tool the script says the command and what comes of it."""

    def __init__(self, name: str, seed: int, *, cwd: str = "/app") -> None:
        self.name, self.api, self.cwd = name, APIS[name], cwd
        self.noise = Noise(seed)
        self.items: list[Json] = []
        self._session = self.noise.uuid()
        self._first = True

    def say(self, text: str) -> None:
        """A prompt of the user's."""
        opening = self._opening() if self._first else ""
        self._first = False
        if self.api == "gemini":
            self.items.append(
                {"role": "user", "parts": [{"text": opening}, {"text": text}] if opening else [{"text": text}]}
            )
        elif self.api == "openai-responses":
            blocks = [{"type": "input_text", "text": part} for part in (opening, text) if part]
            self.items.append({"type": "message", "role": "user", "id": f"msg_{self.noise.uuid()}", "content": blocks})
        elif self.api == "anthropic-messages":
            blocks = [{"type": "text", "text": part} for part in (opening, text) if part]
            self.items.append({"role": "user", "content": blocks})
        else:
            self.items += [{"role": "system", "content": opening}] if opening else []
            self.items.append({"role": "user", "content": text})

    def called(self, call: str, command: str, output: str) -> None:
        """The model's call of a tool, and its result."""
        noise, result = self.noise, self._result(output)
        if self.api == "gemini":
            made = {"functionCall": {"id": call, "name": "run", "args": {"command": command}}, "thoughtSignature": "x"}
            self.items.append({"role": "model", "parts": [made]})
            response = {"id": call, "name": "run", "response": {"output": result}}
            self.items.append({"role": "user", "parts": [{"functionResponse": response}]})
        elif self.api == "openai-responses":
            made = {"type": "function_call", "name": "run", "arguments": json.dumps({"cmd": command}), "call_id": call}
            self.items.append(made)
            given = {"type": "function_call_output", "call_id": call, "id": f"fco_{noise.uuid()}", "output": result}
            self.items.append(given)
        elif self.api == "anthropic-messages":
            used = {"type": "tool_use", "id": call, "name": "run", "input": {"command": command}}
            self.items.append({"role": "assistant", "content": [used]})
            given = {"type": "tool_result", "tool_use_id": call, "content": result}
            self.items.append({"role": "user", "content": [given]})
        else:
            function = {"name": "run", "arguments": json.dumps({"command": command})}
            self.items.append(
                {"role": "assistant", "tool_calls": [{"id": call, "type": "function", "function": function}]}
            )
            self.items.append({"role": "tool", "tool_call_id": call, "content": result})

    def heard(self, text: str) -> None:
        """The model's last word in a turn."""
        if self.api == "gemini":
            self.items.append({"role": "model", "parts": [{"text": text}]})
        elif self.api == "openai-responses":
            block = {"type": "output_text", "text": text}
            self.items.append(
                {"type": "message", "role": "assistant", "id": f"msg_{self.noise.hex(12)}", "content": [block]}
            )
        else:
            self.items.append({"role": "assistant", "content": text})

    def body(self) -> Json:
        """The next request."""
        noise, items = self.noise, json.loads(json.dumps(self.items))
        tool = {"name": "run", "description": "Runs a command.", "parameters": {"type": "object"}}
        if self.api == "gemini":
            body: Json = {"contents": items, "systemInstruction": {"parts": [{"text": "You act."}]}}
            body |= {"tools": [{"functionDeclarations": [tool]}], "generationConfig": {"temperature": 1}}
        elif self.api == "openai-responses":
            body = {"model": "scripted", "input": items, "instructions": "You act.", "tools": [tool], "stream": True}
            body |= {
                "prompt_cache_key": self._session,
                "client_metadata": {"turn": noise.uuid(), "thread": self._session},
            }
        elif self.api == "anthropic-messages":
            last = items[-1]
            if isinstance(last["content"], str):
                last["content"] = [{"type": "text", "text": last["content"]}]
            last["content"][-1]["cache_control"] = {"type": "ephemeral"}
            mark = f"x-anthropic-billing-header: cc_version=2.1.316.{noise.hex(3)}; cc_entrypoint=sdk-ts;"
            system = [{"type": "text", "text": mark}, {"type": "text", "text": "You act."}]
            body = {"model": "scripted", "messages": items, "system": system, "tools": [tool], "stream": True}
            body["metadata"] = {"user_id": json.dumps({"device": noise.hex(64), "session_id": self._session})}
        else:
            body = {"model": "scripted", "messages": items, "tools": [tool], "stream": True}
        return noise.shuffled(body)

    def title_body(self) -> Json:
        """A side call."""
        said = [{"role": "user", "content": "Name this session."}]
        return {"model": "scripted", "messages": said, "input": said, "contents": said}

    def _opening(self) -> str:
        noise = self.noise
        year, _, day = noise.day.split("-")
        where = f"In {self.cwd}."
        return {
            "claude-agent-acp": f"{where}\n - OS Version: Linux 6.1.{noise.number()}\n\nRecent commits:\n"
            f"{noise.hex(7)} first\n\nToday's date is {noise.day}.",
            "codex-acp": f"<cwd>{self.cwd}</cwd>\n<current_date>{noise.day}</current_date>",
            "gemini": f"{where}\nToday's date is Saturday, November {day}, {year} (formatted for you).",
            "opencode": f"{where}\n  Today's date: Sat Nov {day} {year}\n</env>",
            "openhands": f"{where}\nThe current date and time is: {noise.day}T10:58:35.{noise.number()}\n"
            f"(kernel 6.1.{noise.number()})",
            "policy": where,
        }[self.name]

    def _result(self, output: str) -> str:
        noise = self.noise
        if self.name == "codex-acp":
            return f"Chunk ID: {noise.hex(6)}\nWall time: {noise.seconds()} seconds\nOutput:\n{output}"
        if self.name == "gemini":
            return f"Output: {output}\nProcess Group PGID: {noise.number()}"
        if self.name == "claude-agent-acp":
            agent = noise.hex(17)
            told = f"agentId: {agent} (use SendMessage with to: '{agent}')"
            return f"{output}\n{told}\nfile: /tmp/{noise.uuid()}/tasks/{agent}.output"
        if self.name == "opencode":
            return f'{output}\n<task id="ses_{noise.hex(12)}{noise.hex(14)}" state="completed">'
        return output


class RecordFile:
    """Writes a record as the gateway does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = 0

    def line(self, agent: SmallAgent, body: Any, **options: Any) -> Json:
        """The request line of the next call, not written yet."""
        number, self._next = self._next, self._next + 1
        given: Json = {"id": f"call-{number}", "seq": number, "ts": "2026-11-21T00:00:00.000Z", "node": "root/1"}
        given |= {"role": None, "turn": 1, "side": False, "side_reason": None, "api": agent.api, "method": "POST"}
        given |= {"path": PATHS[agent.api], "model": "scripted", "stream": True, "sampling_applied": None}
        given |= {"source": "live", "request": body} | options
        made = RequestLine.model_validate(given).model_dump()
        return {name: value for name, value in made.items() if name not in ("request", "request_text") or name in given}

    def asked(self, line: Json) -> Json:
        self._write(line)
        return line

    def answered(self, line: Json, answer: Recorded | None, error: str | None = None, **options: Any) -> None:
        """Its response; None: the agent was given nothing."""
        wrong = CallError(kind=error, message="it went wrong") if error else None
        given: Json = {
            "id": line["id"],
            "ts": line["ts"],
            "timing": CallTiming(total_ms=1),
            "error": wrong,
            "status": None,
        }
        if answer is not None:
            given |= {"status": answer.status, "headers": dict(answer.headers), "response": answer.body.decode()}
        self._write(ResponseLine.model_validate(given | options).model_dump())

    def call(
        self, agent: SmallAgent, body: Any, answer: Recorded | None, error: str | None = None, **options: Any
    ) -> None:
        """A whole call."""
        self.answered(self.asked(self.line(agent, body, **options)), answer, error)

    def _write(self, line: Json) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def says(text: str, status: int = 200, **headers: str) -> Recorded:
    return Recorded(status, {"content-type": "text/event-stream", **headers}, f"data: {text}\n\n".encode())


STEPS = (("ls", "hello.txt"), ("cat hello.txt", "Hello"), ("make", "built"))
"""What the model does in a turn, and what comes of it."""


class Run:
    """An agent at work, and the record of its calls."""

    def __init__(self, directory: Path, agent: str, seed: int, **options: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.agent = SmallAgent(agent, seed, **options)
        self.record = RecordFile(directory / "llm_trajectory.jsonl")
        self.heard: list[bytes] = []

    async def ask(self, model: Model, body: Any = None, *, source: str = "live", **options: Any) -> Recorded | None:
        """One call, recorded with its answer."""
        body = self.agent.body() if body is None else body
        line = self.record.line(self.agent, body, **options)
        answer = await model(line, json.dumps(body).encode())
        self.record.answered(self.record.asked(line | {"source": source}), answer)
        return answer

    async def turn(self, model: Model, prompt: str, node: str, **options: Any) -> None:
        """One turn: the model acts some times, and says that it is done."""
        self.agent.say(prompt)
        for command, output in STEPS:
            self.agent.called(await self._next(model, node, **options), command, f"{output} for {prompt}")
        await self._next(model, node, **options)
        self.agent.heard(f"Did {prompt}")

    async def _next(self, model: Model, node: str, **options: Any) -> str:
        answer = await self.ask(model, node=node, **options)
        assert isinstance(answer, Recorded), answer
        self.heard.append(answer.body)
        return answer.body.decode().removeprefix("data: ").strip()


def scripted(seed: int) -> Model:
    """A model that gives each call a name of its own, which the agent repeats in its next one."""
    noise = Noise(seed)

    async def model(line: Json, body: bytes) -> Recorded:
        return says(f"call_{noise.hex(20)}", **{"request-id": f"req_{line['seq']}"})

    return model


async def recorded_run(directory: Path, agent: str, seed: int = 1, turns: int = 2, **options: Any) -> Run:
    """A run of so many turns, `root/1` and on, with a title at its beginning."""
    run = Run(directory, agent, seed, **options)
    model = scripted(seed)
    await run.ask(model, run.agent.title_body(), side=True, side_reason="title")
    for number in range(1, turns + 1):
        await run.turn(model, f"Do task {number}.", f"root/{number}")
    return run
