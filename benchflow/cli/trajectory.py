"""A trajectory rendered for people: messages as paragraphs, tool calls as lines, while it is written or afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.spinner import Spinner
from rich.text import Text as StyledText

from benchflow.cli.plain import (
    coerce_list,
    coerce_table,
    find_subject,
    format_brief,
    format_output,
    format_usage,
    join_lines,
    measure_indent,
    sanitise_plain,
    wrap,
)
from benchflow.cli.terminal import Text
from benchflow.trajectories.follow import PUT_ASIDE

Event = dict[str, Any]

MAX_PARAGRAPH = 100
"""Maximum width of a paragraph, in columns."""

MAX_OPEN = 4
"""Maximum number of running tool calls that are shown."""

_PIPED_RULE = 40

_VOICES = {
    "user_message": ("❯", "bold cyan", ""),
    "agent_message": ("●", "blue", ""),
    "agent_thought": ("∴", "dim", "dim italic"),
}
"""By the type of a message: its sign, the style of the sign, and the style of the text."""

_KINDS = {
    "read": "→",
    "edit": "±",
    "delete": "×",
    "move": "⇄",
    "search": "⌕",
    "execute": "$",
    "think": "∴",
    "fetch": "↓",
    "switch_mode": "⇆",
}
_SIGNS = {"completed": ("✓", "green"), "failed": ("✗", "red")}
_PLAN_SIGNS = {"completed": ("✓", "green"), "in_progress": ("▸", "cyan")}
_NO_END = ("◌", "dim")
_COLUMN = 12
_SPINNER = Spinner("dots", style="cyan")


@dataclass
class _Call:
    """A tool call, as far as it is known."""

    began: str
    """Time stamp of its first event."""

    fields: Event = field(default_factory=dict)
    """All fields of its events so far."""

    @property
    def has_ended(self) -> bool:
        return str(self.fields.get("status")) in _SIGNS


@dataclass
class _Paragraph:
    """Text of a message that may continue."""

    voice: str
    """Type of the message."""

    rest: str = ""
    """The row that is not complete."""

    rows: int = 0
    """Number of complete rows."""

    wrapped: bool = False
    """Whether `rest` continues the line of the row before it."""

    hang: int = 0
    """Indent of wrapped rows, in columns."""

    blank: bool = False
    """Whether a blank row precedes the next one."""


class Rendering:
    """A renderer: takes events, and returns rows."""

    def __init__(self, width: int | None) -> None:
        """Make it for so many columns; with None, rows are not wrapped or cut."""
        self._width = width
        self._calls: dict[str, _Call] = {}
        self._ended: set[str] = set()
        self._paragraph: _Paragraph | None = None
        self._asked: tuple[str, Event] | None = None
        self._usage: Event | None = None
        self._plan: Any = None
        self._where: tuple[str, str] | None = None
        self._last = ""

    def take(self, event: Event) -> list[Text]:
        """Return the rows that an event completes."""
        kind = str(event.get("type"))
        if kind == PUT_ASIDE:
            return self._begin_anew()
        rows: list[Text] = []
        where = (str(event.get("node", "")), str(event.get("role", "")))
        if where != self._where:
            rows += self._close_node()
            self._where = where
            rows += self._header(where)
        if kind in _VOICES:
            return rows + self._speak(kind, str(event.get("text", "")))
        show = getattr(self, f"_take_{kind}", None)
        return rows + list(self._note(f"{kind}  {self._rest_of(event)}") if show is None else show(event))

    def end(self) -> list[Text]:
        """Return the rows of everything that is incomplete."""
        rows = self._close_node()
        self._where = None
        return rows

    def pending(self) -> list[Text]:
        """Return rows that may still change: the row being written, running tool calls, an open question."""
        rows = []
        if self._paragraph is not None and (self._paragraph.rest or not self._paragraph.rows):
            rows.append(self._row(self._paragraph, self._paragraph.rest))
        elif self._last not in ("", "doing", "header") and (self._calls or self._asked):
            rows.append(Text())
        running = [call for call in self._calls.values() if not call.has_ended]
        for call in running[:MAX_OPEN]:
            rows.append(self._head(call, None, since=_measure_seconds(call.began, None)))
        if len(running) > MAX_OPEN:
            rows.append(Text(f"{'':{_COLUMN - 2}}{len(running) - MAX_OPEN} more running", "dim"))
        if self._asked is not None:
            rows.append(self._cut(self._question(*self._asked).append("  waits for an answer", "yellow")))
        return rows

    # --- text ----------------------------------------------------------------------------------------

    def _speak(self, voice: str, text: str) -> list[Text]:
        rows: list[Text] = []
        if self._paragraph is None or self._paragraph.voice != voice:
            rows += self._block("")
            self._paragraph = _Paragraph(voice)
        *whole, rest = (self._paragraph.rest + sanitise_plain(text)).split("\n")
        for line in whole:
            rows += self._wrap(self._paragraph, line, ended=True)
        return rows + self._wrap(self._paragraph, rest, ended=False)

    def _wrap(self, paragraph: _Paragraph, line: str, *, ended: bool) -> list[Text]:
        """Return the rows that a line fills. ended: the line is complete, so that its last row is returned, too."""
        if self._width is None:
            rows = [line]
        else:
            width = max(10, min(self._width - 3, MAX_PARAGRAPH))
            paragraph.hang = paragraph.hang if paragraph.wrapped else min(measure_indent(line), width // 2)
            further = width - paragraph.hang
            rows = wrap(line, further if paragraph.wrapped else width, further=further)
        shown = []
        for row in rows[:-1]:
            shown += self._complete(paragraph, row)
            paragraph.wrapped = True
        paragraph.rest = rows[-1]
        if ended:
            shown += self._complete(paragraph, rows[-1])
            paragraph.rest, paragraph.wrapped = "", False
        return shown

    def _complete(self, paragraph: _Paragraph, row: str) -> list[Text]:
        """Return a complete row. Blank rows are dropped at the ends of a paragraph, and repeated ones are merged."""
        if not row.strip():
            paragraph.blank = paragraph.rows > 0
            return []
        rows = [Text()] if paragraph.blank else []
        paragraph.blank = False
        rows.append(self._row(paragraph, row))
        paragraph.rows += 1
        return rows

    def _row(self, paragraph: _Paragraph, row: str) -> Text:
        sign, sign_style, style = _VOICES[paragraph.voice]
        indent = " " * paragraph.hang if paragraph.wrapped else ""
        return Text.assemble((f"{'' if paragraph.rows else sign:2}", sign_style), (indent + row, style))

    def _end_paragraph(self) -> list[Text]:
        paragraph, self._paragraph = self._paragraph, None
        if paragraph is None:
            return []
        self._last = "paragraph"
        return self._complete(paragraph, paragraph.rest.rstrip())

    def _block(self, name: str) -> list[Text]:
        """End the paragraph. Return its rows, and a blank row unless the last block is none or has the same name."""
        rows = self._end_paragraph()
        if self._last and not (name and name == self._last):
            rows.append(Text())
        self._last = name
        return rows

    def _header(self, where: tuple[str, str]) -> list[Text]:
        rows = self._block("")
        name = join_lines(" · ".join(part for part in where if part))
        room = (self._width or _PIPED_RULE) - cell_len(name) - 5
        self._last = "header"
        return [*rows, Text.assemble(("── ", "dim"), (name, "bold"), (" " + "─" * max(2, room), "dim"))]

    # --- tool calls ----------------------------------------------------------------------------------

    def _take_tool_call(self, event: Event) -> Iterator[Text]:
        number = str(event.get("tool_call_id"))
        if number in self._ended and event["type"] == "tool_call_update":
            return
        call = self._calls.setdefault(number, _Call(str(event.get("ts", ""))))
        call.fields |= {key: value for key, value in event.items() if value not in (None, "")}
        yield from self._end_paragraph()
        if call.has_ended:
            del self._calls[number]
            self._ended.add(number)
            yield from self._call(call, _SIGNS[call.fields["status"]])

    _take_tool_call_update = _take_tool_call

    def _take_oracle(self, event: Event) -> Iterator[Text]:
        code = event.get("return_code")
        title = f"{event.get('command', '')}" + (f" (ended with {code})" if code else "")
        shown = {**event, "kind": "execute", "title": title, "raw_output": event.get("stdout", "")}
        yield from self._call(_Call(str(event.get("ts", "")), shown), _SIGNS["failed" if code else "completed"])

    def _call(self, call: _Call, sign: tuple[str, str]) -> Iterator[Text]:
        yield from self._block("doing")
        yield self._head(call, sign, since=_measure_seconds(call.began, call.fields.get("ts")))
        for row in format_output(call.fields):
            yield self._cut(Text.assemble((f"{'':{_COLUMN - 2}}│ ", "dim"), row))

    def _head(self, call: _Call, sign: tuple[str, str] | None, since: float) -> Text:
        """Return `12:34:56  ✓ $ make test  1.2 s`, on one row. since: the seconds at its end."""
        fields = call.fields
        title, about = join_lines(fields.get("title", "")), find_subject(fields.get("raw_input"))
        icon = _KINDS.get(str(fields.get("kind")), "•")
        head = Text.assemble(_format_clock(call.began), sign or _draw_spinner(), " ", (icon, "cyan"), " ")
        head.append(title or about or join_lines(fields.get("kind", "tool")))
        if title and about and about.rpartition("/")[2] not in title:
            head.append(f"  {about}", "dim")
        took = f"  {since:.1f} s" if since >= 0.1 else ""
        if self._width is not None:
            head.truncate(self._width - 1 - len(took), overflow="ellipsis")
        return head.append(took, "dim")

    # --- questions -----------------------------------------------------------------------------------

    def _take_permission_request(self, event: Event) -> Iterator[Text]:
        yield from self._end_paragraph()
        self._asked = (str(event.get("ts", "")), coerce_table(event.get("params")))

    _take_elicitation_request = _take_permission_request

    def _take_permission_answer(self, event: Event) -> Iterator[Text]:
        began, params = self._asked or (str(event.get("ts", "")), {})
        self._asked = None
        outcome = coerce_table(coerce_table(event.get("result")).get("outcome"))
        chosen = outcome.get("optionId")
        options = [coerce_table(option) for option in coerce_list(params.get("options"))]
        option = next((option for option in options if option.get("optionId") == chosen), {})
        kind = str(option.get("kind", ""))
        style = "green" if kind.startswith("allow") else "red" if kind.startswith("reject") else "yellow"
        answer = join_lines(option.get("name") or chosen or outcome.get("outcome") or "no answer")
        yield from self._answer(self._question(began, params), answer, style, event.get("error"))

    def _take_elicitation_answer(self, event: Event) -> Iterator[Text]:
        began, params = self._asked or (str(event.get("ts", "")), {})
        self._asked = None
        result = coerce_table(event.get("result"))
        content = [
            f"{join_lines(key)}: {format_brief(value)}" for key, value in coerce_table(result.get("content")).items()
        ]
        answer = ", ".join(content) or join_lines(result.get("action", "no answer"))
        style = "green" if result.get("action") == "accept" else "yellow"
        yield from self._answer(self._question(began, params), answer, style, event.get("error"))

    def _question(self, began: str, params: Event) -> Text:
        about = params.get("message") or coerce_table(params.get("toolCall")).get("title") or "permission"
        return Text.assemble(_format_clock(began), ("? ", "bold yellow"), join_lines(about))

    def _answer(self, question: Text, answer: str, style: str, error: Any) -> Iterator[Text]:
        yield from self._block("doing")
        yield self._cut(question.append("  → ", "dim").append(answer, style))
        if error:
            yield self._cut(Text(f"{'':{_COLUMN - 2}}│ {join_lines(error)}", "red"))

    # --- everything else -----------------------------------------------------------------------------

    def _take_plan(self, event: Event) -> Iterator[Text]:
        entries = [coerce_table(entry) for entry in coerce_list(event.get("entries"))]
        if entries == self._plan:
            return
        self._plan = entries
        yield from self._block("plan")
        for entry in entries:
            sign, style = _PLAN_SIGNS.get(str(entry.get("status")), ("○", "dim"))
            done = entry.get("status") == "completed"
            yield self._cut(
                Text.assemble("  ", (sign, style), " ", (join_lines(entry.get("content", "")), "dim" if done else ""))
            )

    def _take_usage(self, event: Event) -> Iterator[Text]:
        self._usage = (self._usage or {}) | event
        yield from ()

    def _take_update(self, event: Event) -> Iterator[Text]:
        update = coerce_table(event.get("update"))
        kind = str(update.get("sessionUpdate", "update"))
        if kind == "usage_update":
            self._usage = (self._usage or {}) | update
            return
        content = coerce_table(update.get("content"))
        about = content.get("uri") or content.get("mimeType") or content.get("type") or ""
        yield from self._note(f"{kind}  {about}")

    def _take_notification(self, event: Event) -> Iterator[Text]:
        yield from self._note(f"{event.get('method')}  {self._rest_of(event.get('params'))}")

    def _take_client_request(self, event: Event) -> Iterator[Text]:
        params = coerce_table(event.get("params"))
        about = " ".join(
            [str(params.get("command") or params.get("path") or ""), *map(str, coerce_list(params.get("args")))]
        )
        yield from self._note(f"{event.get('method')}  {about}", str(event.get("ts", "")))

    def _take_noise(self, event: Event) -> Iterator[Text]:
        yield from self._note(str(event.get("text", "")))

    def _take_agent_timeout(self, event: Event) -> Iterator[Text]:
        limit = event.get("timeout_sec")
        within = f" in {limit:g} s" if isinstance(limit, int | float) else ""
        said = {"idle": f"the agent said nothing{within}", "wall_clock": f"the agent did not finish{within}"}
        yield from self._error(said.get(str(event.get("reason")), f"the agent was stopped: {event.get('reason')}"))

    def _take_error(self, event: Event) -> Iterator[Text]:
        yield from self._error(str(event.get("message") or event.get("error") or "error"))

    _take_agent_error = _take_error

    def _error(self, said: str) -> Iterator[Text]:
        yield from self._close_calls()
        yield from self._block("error")
        first, *more = sanitise_plain(said).split("\n")
        yield Text.assemble(("! ", "bold red"), (first, "red"))
        for line in more:
            yield self._cut(Text(f"  │ {line}", "dim"))

    def _note(self, said: str, moment: str | None = None) -> Iterator[Text]:
        yield from self._block("doing")
        time_of_day = _format_clock(moment) if moment else Text(" " * (_COLUMN - 2))
        yield self._cut(Text.assemble(time_of_day, (f"· {join_lines(said)}", "dim")))

    def _rest_of(self, event: Any) -> str:
        told = {
            key: value for key, value in coerce_table(event).items() if key not in ("seq", "ts", "node", "role", "type")
        }
        return format_brief(told) if told else ""

    def _close_calls(self) -> list[Text]:
        """Return the rows of running tool calls and of an open question. The agent has stopped: they get no end."""
        rows: list[Text] = []
        calls, self._calls = self._calls, {}
        for call in calls.values():
            rows += self._call(call, _NO_END)
        asked, self._asked = self._asked, None
        if asked is not None:
            rows += self._answer(self._question(*asked), "no answer", "yellow", None)
        return rows

    def _close_node(self) -> list[Text]:
        rows = self._end_paragraph() + self._close_calls()
        self._ended.clear()
        if self._usage is not None:
            usage, self._usage = format_usage(self._usage), None
            rows += [*self._block("usage"), self._cut(Text(f"  {usage}", "dim"))] if usage else []
        return rows

    def _begin_anew(self) -> list[Text]:
        rows = self.end() + self._block("")
        self._last, self._plan = "header", None
        return [*rows, Text("The rollout is run again; what was shown so far lies in attempts/.", "yellow")]

    def _cut(self, row: Text) -> Text:
        if self._width is not None:
            row.truncate(self._width - 1, overflow="ellipsis")
        return row


def _parse_moment(stamp: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(stamp))
    except ValueError:
        return None


def _format_clock(stamp: object) -> Text:
    """Return the local time of day of a time stamp, as the first column."""
    moment = _parse_moment(stamp)
    return Text(f"{moment.astimezone():%H:%M:%S}  " if moment else " " * (_COLUMN - 2), "dim")


def _measure_seconds(began: object, ended: object) -> float:
    """Return the seconds from one time stamp to another, or to now."""
    first, last = _parse_moment(began), _parse_moment(ended)
    if first is None:
        return 0.0
    return max(0.0, (last.timestamp() if last else time.time()) - first.timestamp())


def _draw_spinner() -> StyledText:
    frame = _SPINNER.render(time.monotonic())
    return frame if isinstance(frame, StyledText) else Text("·")


def format_waiting(since: float) -> Text:
    """Return the row shown while there are no events yet. since: seconds of the wait."""
    return Text.assemble(_draw_spinner(), (f" waiting  {since:.0f} s", "dim"))
