"""Answering a rollout's calls from the record of an earlier one, for as long as they are the recorded ones.

A call is matched by its normal form (`normalise`), which holds the whole conversation. So the order among calls at the
same time does not matter: a call gets the first answer to an equal one that nobody has got yet; one that an agent
repeats, after an error or in a second session, gets the answers in their order. Recorded identifiers are in the
recorded answers, hence in what the agent asks next.

What may happen to a call that is part of the task:
- it is in the record: it gets the recorded status, headers and bytes, errors of the upstream included;
- everything up to `until` was asked for: it and all later ones go live; without `until` the record's end is the end,
  and a strict replay has nothing to go on with then;
- else it is a divergence. Strict: it and all later ones are refused. Else they go live: the agent is on its own way.

Side calls (titles, suggestions) come when they come: they may be left out, and repeated, which gives the last answer
again. One that the record does not have goes live alone; a strict replay, which asks no model, refuses it, and goes on:
agents do without a title. Recorded answers that did not come to an end, and refusals of the gateway's own, are left out
of account: the agent has asked again, or nobody knows what it would have done.

A replay has no state but what the rollout's own record tells, so that `resume` puts it where it was.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow.contracts.gateway import Divergence, Registration, ReplayStatus
from benchflow.errors import ConfigError
from benchflow.gateway.difference import shared_lines, short_diff
from benchflow.gateway.hook import Diverged, Recorded
from benchflow.gateway.normalise import call_form, digest
from benchflow.gateway.recording import LOST, Call, Recording, body_of

_CANDIDATES = 8
"""Recorded calls, from the next one on, among which the nearest to one that diverged is looked for."""

_LARGE = 256 * 1024
"""Bytes of a request whose normal form is made beside the other calls."""


class Aside(Diverged):
    """A side call that is not in the record: a strict replay refuses it, else it alone goes live."""


class Replay:
    """One rollout's replay. until: the last node, or the number of the last call, that is answered; None for all."""

    def __init__(self, recording: Recording, agent: str, *, until: str | None = None, strict: bool = False) -> None:
        """Raises `ConfigError` for a node whose calls are not in the record."""
        self._recording, self._agent = recording, agent
        self._strict, self._endless = strict, until is None
        last = recording.last_of(until) if until is not None else None
        self._calls = [call for call in recording.calls if last is None or call.seq <= last]
        self._unasked: defaultdict[str, deque[Call]] = defaultdict(deque)
        for call in self._calls:
            if call.answered:
                self._unasked[call.digest].append(call)
        self._asked: dict[str, Call] = {}
        self._answered = 0
        self._left = sum(call.answered and not call.side for call in self._calls)
        self._live = False
        self._divergence: Divergence | None = None

    @classmethod
    def open(cls, record: Path, agent: str, *, until: str | None = None, strict: bool = False) -> Replay:
        """Reads the whole record. Raises `ConfigError` for a file that is none, and for a node that is not in it."""
        return cls(Recording(record, agent), agent, until=until, strict=strict)

    def resume(self, record_of_this_run: Path) -> None:
        """Be where the rollout's own record says that the replay was. Raises `ConfigError` when the two do not fit."""
        run = Recording(record_of_this_run, self._agent)
        for call in sorted(run.calls, key=lambda call: call.request):
            if call.source == "replay":
                # An answer that the agent has not got is there for when it asks again.
                if call.error not in LOST and self._take(call.digest, call.side) is None:
                    raise ConfigError(
                        f"call {call.seq} was answered from another record than {self._recording.path}",
                        file=str(record_of_this_run),
                        remedy="do not change a record that is replayed",
                    )
            elif not call.side:
                self._leave(run.request(call), run.form(call))
                return

    async def answer(self, request_line: Mapping[str, Any], body: bytes) -> Recorded | Diverged | None:
        """What a call gets, see `hook.Replayer`."""
        if self._over:
            return self._outcome()
        said = _said(request_line, body)
        if len(body) > _LARGE:
            form, name = await asyncio.to_thread(self._form, request_line, said)
            # Meanwhile another call may have gone another way.
            if self._over:
                return self._outcome()
        else:
            form, name = self._form(request_line, said)
        side = _is_side(request_line)
        call = self._take(name, side)
        if call is not None:
            return self._recording.answer(call)
        if side:
            return Aside(Divergence(seq=int(request_line["seq"]), message=f"{_who(request_line)} is not in the record"))
        self._leave(request_line, form)
        return Diverged(self._divergence) if self._divergence is not None else None

    def status(self) -> ReplayStatus:
        """How far it has come."""
        state = "diverged" if self._divergence is not None else "live" if self._live else "replaying"
        return ReplayStatus.model_validate(
            {"state": state, "answered": self._answered, "left": self._left, "divergence": self._divergence}
        )

    def compare(self, run: Recording) -> None:
        """Take all calls of another run for asked, wherever its answers came from, up to the first that diverges."""
        for call in sorted(run.calls, key=lambda call: call.request):
            if self._take(call.digest, call.side) is None and not call.side:
                self._leave(run.request(call), run.form(call))
                return

    @property
    def _over(self) -> bool:
        return self._live or self._divergence is not None

    def _outcome(self) -> Diverged | None:
        """What calls get once it is over."""
        return Diverged(self._divergence) if self._divergence is not None and self._strict else None

    def _form(self, line: Mapping[str, Any], body: Any) -> tuple[dict[str, Any], str]:
        form = call_form(line, body, self._agent)
        return form, digest(form)

    def _take(self, name: str, side: bool) -> Call | None:
        """The recorded call whose answer an equal one gets now."""
        unasked = self._unasked.get(name)
        if unasked:
            call = self._asked[name] = unasked.popleft()
            self._left -= not call.side
        elif side and name in self._asked:
            call = self._asked[name]
        else:
            return None
        self._answered += 1
        return call

    def _leave(self, line: Mapping[str, Any], form: Mapping[str, Any]) -> None:
        """A call of the task that gets no recorded answer: the replay is over, one way or the other."""
        if not self._left and not (self._strict and self._endless):
            self._live = True
            return
        self._divergence = self._diverged(line, form)

    def _diverged(self, line: Mapping[str, Any], form: Mapping[str, Any]) -> Divergence:
        who, seq, name = _who(line), int(line["seq"]), digest(form)
        for call in self._calls:
            if call.digest == name and not call.answered:
                message = f"{who} is the recorded call {call.seq}, to which there is no answer: {call.why_not}"
                return Divergence(seq=seq, recorded=call.seq, message=message)
        if name in self._asked:
            again = self._asked[name].seq
            message = f"{who} is the recorded call {again}, whose answers were all given: it is asked more often now"
            return Divergence(seq=seq, recorded=again, message=message)
        nearest = self._nearest(form)
        if nearest is None:
            return Divergence(seq=seq, message=f"{who} comes after the last one that is recorded")
        call, recorded = nearest
        message = f"{who} is not the recorded call {call.seq}{_at(call.node)}"
        return Divergence(seq=seq, recorded=call.seq, message=message, diff=short_diff(recorded, form))

    def _nearest(self, form: Mapping[str, Any]) -> tuple[Call, dict[str, Any]] | None:
        """Of the recorded calls that come next, the one that has most in common with this one, and its normal form."""
        waiting = {id(call) for calls in self._unasked.values() for call in calls}
        next_ones = [call for call in self._calls if id(call) in waiting and not call.side][:_CANDIDATES]
        forms = [(call, self._recording.form(call)) for call in next_ones]
        return max(forms, key=lambda one: shared_lines(one[1], form), default=None)


def make_replayer(registration: Registration, done: list[dict[str, Any]]) -> Replay:
    """The replay that a registration asks for, see `hook.MakeReplayer`. Reads the record: it may take seconds."""
    settings = registration.replay
    if settings is None:
        raise ConfigError("the rollout is not a replay", key="replay")
    replay = Replay.open(Path(settings.record), registration.agent, until=settings.until, strict=settings.strict)
    if done:
        replay.resume(Path(registration.record))
    return replay


def divergence_report(record: Path, run: Path, *, agent: str, until: str | None = None) -> str:
    """How far a run's calls are those of a record, and where they part, for a person to read.

    agent: its name in the registry. Raises `ConfigError` for files that are no records.
    """
    replay = Replay.open(record, agent, until=until)
    replay.compare(Recording(run, agent))
    status = replay.status()
    text = f"{status.answered} calls as recorded, {status.left} recorded ones not asked for"
    if status.divergence is not None:
        text += f"\n{status.divergence.message}"
        text += f"\n--- recorded\n+++ now\n{status.divergence.diff}" if status.divergence.diff else ""
    return text


def _said(line: Mapping[str, Any], body: bytes) -> Any:
    """The body as a record has it; from the bytes where the line has none."""
    if "request" in line or "request_text" in line:
        return body_of(line)
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _is_side(line: Mapping[str, Any]) -> bool:
    return bool(line["side"]) or line["api"] == "other"


def _who(line: Mapping[str, Any]) -> str:
    what = "side call" if _is_side(line) else "call"
    return f"{what} {line['seq']}{_at(line['node'])}"


def _at(node: str | None) -> str:
    return f" ({node})" if node else ""
