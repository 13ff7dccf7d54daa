r"""Scripts as data: the replies of the model, and their conditions.

A script is a list of replies. By default (`follow: calls`) each call gets the first reply that has uses left and whose
`when` holds. With `follow: conversation` the position is read off the request itself, from how often the model has
spoken in it: many rollouts at once, retries and forked sessions each get the reply that belongs to their place.

    models: [scripted]                 # names in the model list
    follow: calls
    replies:
      - text: I will write the file.
        thinking: The user wants a greeting.
        tools:
          - {tool: write_file, arguments: {path: /app/hello.txt, content: "Hello\n"}}
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

from pydantic import Field, model_validator

from benchflow.contracts.base import Model
from benchflow.errors import ConfigError
from benchflow.testing.scripted_model.model_request import DialectName
from benchflow.user_files.problems import ProblemError
from benchflow.user_files.user_document import UserDocument, read_text
from benchflow.user_files.user_model import require_model

Finish = Literal["stop", "length", "tools", "filtered"]
"""Reason why the model stops."""


class ToolUse(Model):
    """One tool call of a reply: either `tool` or `name` is given."""

    tool: str | None = None
    """Generic name (`shell`, `write_file`, `read_file`, `edit_file`, `ask_user`), translated to a tool that the agent
    offers. Any other name is sent unchanged.
    """

    name: str | None = None
    """Exact name, never translated."""

    arguments: dict[str, Any] | str = {}
    """Arguments. A string is sent as raw text: for malformed JSON, or for tools that take free text."""

    id: str | None = None
    """Id of the call; by default one that is unique in the server."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Check that exactly one of `tool` and `name` is given."""
        if (self.tool is None) == (self.name is None):
            raise ValueError("a tool call has either `tool` (generic) or `name` (exact)")
        return self


class When(Model):
    """Conditions on a call; all that are given must hold."""

    contains: str | None = None
    """Text in the user messages after the model's last one."""

    tool_result: str | None = None
    """Text in the results of the last tool calls."""

    anywhere: str | None = None
    """Text in the whole conversation, the system prompt included."""

    offers: str | None = None
    """Name of a tool that the request offers."""

    model: str | None = None
    """Glob for the name of the model."""

    dialect: DialectName | None = None
    """API dialect of the request."""

    call: int | None = Field(default=None, ge=1)
    """Number of the call, from 1, side calls not counted."""

    turn: int | None = Field(default=None, ge=0)
    """Number of turns that the model has had in the conversation."""


class TokenCounts(Model):
    """Token counts of a reply."""

    input: int = 100
    """Tokens of the prompt, those from a cache included."""

    output: int = 20
    """Tokens of the reply, those of reasoning included."""

    cached: int = 0
    """Those of `input` that count as read from a cache."""

    reasoning: int = 0
    """Those of `output` that count as reasoning."""


class HTTPError(Model):
    """An HTTP error, sent in the shape of the request's dialect."""

    status: int = Field(default=500, ge=400, le=599)
    """HTTP status."""

    message: str = "scripted error"
    """Text of the error."""

    type: str | None = None
    """Type of the error in the dialect's words; by default the one for the status."""

    retry_after: float | None = None
    """Seconds for the header `retry-after`; None leaves it out."""


class Fault(Model):
    """A fault in the transfer of a reply."""

    kind: Literal["stall", "truncate", "garbage"]
    """`stall`: nothing more is sent until the client gives up. `truncate`: the connection is closed in the middle.
    `garbage`: `text` is sent in place of the rest.
    """

    after: int = Field(default=0, ge=0)
    """Number of events of a stream that are sent before it. A reply that is not streamed is cut in half for `truncate`
    and replaced as a whole for `garbage`.
    """

    text: str = "\x00<html>not a model</html>"
    """Text of `garbage`."""


class Reply(Model):
    """The reply to a call. A string stands for a reply of that text."""

    when: When = When()
    """Conditions on the call."""

    times: int | Literal["always"] = 1
    """Number of calls that it may answer. With `follow: conversation` this limits only replies that fail."""

    text: str = ""
    """Text of the message."""

    thinking: str = ""
    """Reasoning, sent as the dialect sends it."""

    tools: tuple[ToolUse, ...] = ()
    """Tool calls of the message."""

    finish: Finish | None = None
    """Why the model stops; by default `tools` with tool calls, else `stop`."""

    usage: TokenCounts = TokenCounts()
    """Token counts."""

    chunks: int | None = Field(default=None, ge=1)
    """Number of pieces in which text, thinking and arguments are streamed each; by default pieces of 20 characters."""

    delay: float = Field(default=0, ge=0)
    """Seconds before the first byte."""

    pace: float = Field(default=0, ge=0)
    """Seconds between two events of a stream."""

    hold: str | None = None
    """Name under which the reply waits for `ScriptedModel.release(name)`."""

    error: HTTPError | None = None
    """Error to send in place of the reply."""

    fault: Fault | None = None
    """Fault in the transfer of the reply."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Accept a string as the text of a reply."""
        return {"text": value} if isinstance(value, str) else value

    @property
    def fails(self) -> bool:
        """Return whether the client gets no usable reply, so that the conversation doesn't advance."""
        return self.error is not None or self.fault is not None


class SideCalls(Model):
    """Rules for side calls, which are no part of the task, and their reply. They never use up the script."""

    without_tools: bool = True
    """Whether every call that offers no tools is a side call. False for scripts of a judge or a plain chat."""

    known: bool = True
    """Whether calls that agents are known to make (titles, topic checks, suggestions) are side calls."""

    contains: tuple[str, ...] = ()
    """Texts by which further side calls are recognised, anywhere in the call."""

    reply: Reply = Reply(text="Scripted title", usage=TokenCounts(input=10, output=3), times="always")
    """Reply to every side call."""


class Script(Model):
    """A whole script; the module's docstring shows one as YAML."""

    models: tuple[str, ...] = ("scripted",)
    """Names in the model list."""

    follow: Literal["calls", "conversation"] = "calls"
    """Basis of the choice of a reply: the calls so far, or the turns in the request's conversation."""

    replies: tuple[Reply, ...] = ()
    """Replies, in order."""

    side: SideCalls = SideCalls()
    """Rules for side calls, and their reply."""

    otherwise: Reply | None = None
    """Reply to calls beyond the script; None answers them with an error."""

    @classmethod
    def from_yaml(cls, path: str | Path) -> Script:
        """Read a script file. Raise `ConfigError`, with the file and the key, for one that is no script."""
        path = Path(path)
        try:
            data = UserDocument(path, read_text(path), "yaml").data
        except ProblemError as error:
            raise error.as_error(ConfigError) from error
        return cls.parse(data, file=str(path))

    @classmethod
    def parse(cls, data: Any, *, file: str | None = None) -> Script:
        """Make a script of plain data.

        Args:
            data: The script as a mapping, or its list of replies.
            file: Path for error messages.

        Raises:
            ConfigError: The data is no script; names the key.
        """
        if isinstance(data, Sequence) and not isinstance(data, str):
            data = {"replies": list(data)}
        if not isinstance(data, Mapping):
            raise ConfigError(
                f"a script is a mapping or a list of replies, not {type(data).__name__}",
                file=file,
                remedy="start with `replies:` and a list under it",
            )
        return require_model(cls, dict(data), lambda fault: fault.as_error(ConfigError, file))
