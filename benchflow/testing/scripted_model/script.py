"""Scripts as data: what the model replies, and when.

A script is a list of replies. By default (`follow: calls`) each call gets the first reply that has uses left and whose
`when` holds. With `follow: conversation` the position is read off the request itself, from how often the model has
spoken in it: many rollouts at once, retries and forked sessions each get the reply that belongs to their place.

    models: [scripted]                 # what the model list says
    follow: calls
    replies:
      - text: I will write the file.
        thinking: The user wants a greeting.
        tools:
          - {tool: write_file, arguments: {path: /app/hello.txt, content: "Hello\\n"}}
          - {tool: shell, arguments: {command: ls -l /app}}
      - error: {status: 429, retry_after: 1}
      - when: {tool_result: hello.txt}
        text: Done.
        usage: {input: 900, output: 12, cached: 800}
    side: {reply: A title}             # titles, suggestions: see `SideCalls`
    otherwise: Nothing left to say.    # without it, a call beyond the script is an error that says so
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from benchflow.contracts.base import Model
from benchflow.errors import ConfigError
from benchflow.testing.scripted_model.conversation import DialectName

Finish = Literal["stop", "length", "tools", "filtered"]


class ToolUse(Model):
    """One tool call of a reply.

    tool: a generic name (`shell`, `write_file`, `read_file`, `edit_file`, `ask_user`), translated to what the agent
    offers, or else a name that is sent as it is. name: an exact name, never translated; its arguments are sent as they
    are, and as raw text when they are a string (for malformed JSON, or for tools that take free text).
    """

    tool: str | None = None
    name: str | None = None
    arguments: dict[str, Any] | str = {}
    id: str | None = None

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if (self.tool is None) == (self.name is None):
            raise ValueError("a tool call has either `tool` (generic) or `name` (exact)")
        return self


class When(Model):
    """Conditions on a call; all that are given must hold.

    contains: text in what the user said since the model spoke last. tool_result: text in the results of the last tool
    calls. anywhere: text in the whole conversation, system prompt included. offers: a tool name that is offered.
    model: a glob. call: the number of the call, from 1, side calls not counted. turn: how often the model has spoken.
    """

    contains: str | None = None
    tool_result: str | None = None
    anywhere: str | None = None
    offers: str | None = None
    model: str | None = None
    dialect: DialectName | None = None
    call: int | None = Field(default=None, ge=1)
    turn: int | None = Field(default=None, ge=0)


class Usage(Model):
    """Token counts of a reply. `cached` is the part of `input` read from a cache, `reasoning` a part of `output`."""

    input: int = 100
    output: int = 20
    cached: int = 0
    reasoning: int = 0


class HTTPError(Model):
    """An error in the dialect's own shape. retry_after: seconds, sent as the header."""

    status: int = Field(default=500, ge=400, le=599)
    message: str = "scripted error"
    type: str | None = None
    retry_after: float | None = None


class Fault(Model):
    """A reply that goes wrong on the wire.

    stall: nothing more is sent until the client gives up. truncate: the connection is closed in the middle. garbage:
    `text` is sent in place of what should follow. after: so many events of the stream are sent first; a reply that is
    not streamed is cut in half for `truncate` and replaced as a whole for `garbage`.
    """

    kind: Literal["stall", "truncate", "garbage"]
    after: int = Field(default=0, ge=0)
    text: str = "\x00<html>not a model</html>"


class Reply(Model):
    """What one call gets. A string stands for a reply of that text.

    times: how many calls it answers, or `always`. chunks: in how many pieces text, thinking and arguments are streamed
    (default: pieces of 20 characters). delay: seconds before the first byte. pace: seconds between two events. hold: a
    name; the reply waits until `ScriptedModel.release(name)`.
    """

    when: When = When()
    times: int | Literal["always"] = 1
    text: str = ""
    thinking: str = ""
    tools: tuple[ToolUse, ...] = ()
    finish: Finish | None = None
    usage: Usage = Usage()
    chunks: int | None = Field(default=None, ge=1)
    delay: float = Field(default=0, ge=0)
    pace: float = Field(default=0, ge=0)
    hold: str | None = None
    error: HTTPError | None = None
    fault: Fault | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value

    @property
    def fails(self) -> bool:
        """Whether the client gets no usable reply, so that the model has not spoken."""
        return self.error is not None or self.fault is not None


class SideCalls(Model):
    """Which calls are not part of the task, and what they get: they never use up the script.

    without_tools: a call that offers no tools is one (turn it off to script a judge or a plain chat). known: those that
    agents are known to make (titles, topic checks, suggestions). contains: texts, anywhere in the call, that tell more.
    """

    without_tools: bool = True
    known: bool = True
    contains: tuple[str, ...] = ()
    reply: Reply = Reply(text="Scripted title", usage=Usage(input=10, output=3), times="always")


class Script(Model):
    """A whole script; the module's docstring shows one as YAML."""

    models: tuple[str, ...] = ("scripted",)
    follow: Literal["calls", "conversation"] = "calls"
    replies: tuple[Reply, ...] = ()
    side: SideCalls = SideCalls()
    otherwise: Reply | None = None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Script:
        """Reads a script file. Raises `ConfigError` naming the file and the key."""
        path = Path(path)
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot be read as YAML: {error}", file=str(path)) from error
        return cls.parse(data, file=str(path))

    @classmethod
    def parse(cls, data: Any, *, file: str | None = None) -> Script:
        """Makes a script of plain data: a mapping, or just the list of replies."""
        if isinstance(data, Sequence) and not isinstance(data, str):
            data = {"replies": list(data)}
        if not isinstance(data, Mapping):
            raise ConfigError(
                f"a script is a mapping or a list of replies, not {type(data).__name__}",
                file=file,
                remedy="start with `replies:` and a list under it",
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                first["msg"],
                file=file,
                key=".".join(str(part) for part in first["loc"]),
                remedy="the keys of a script are documented in benchflow.testing.scripted_model.script",
            ) from error
