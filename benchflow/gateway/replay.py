"""Replay: a rollout's calls are answered from the record of an earlier one, for as long as they match it.

A call is matched by its normal form (`normalise`), which contains the whole conversation. So the order of concurrent
calls does not matter: a call gets the first unused answer to an equal one, and a call that an agent repeats, after an
error or in a second session, gets the answers in their order. Recorded identifiers are in the recorded answers, hence
in the agent's next requests.

A main call has one of these outcomes:
- It is in the record: it gets the recorded status, headers and bytes, also errors of the upstream.
- All calls up to `until` were requested: it and all later ones go live. Without `until`, the record's end is the end; a
  strict replay cannot go on after it.
- Otherwise it diverges. Strict: it and all later ones are refused. Else they go live, since the agent does something
  else.

Side calls (titles, suggestions) come at any time: they may be left out or repeated, and a repeated one gets the last
answer again. A side call that is not in the record goes live alone; a strict replay, which asks no model, refuses it
and continues, since agents can do without a title. Recorded answers that were cut off, and the gateway's own refusals,
are not replayed: the agent has repeated the call, or its reaction is unknown.

A replay has no state beyond the rollout's own record, from which `resume` restores it.
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
from benchflow.gateway.form_difference import shared_lines, short_diff
from benchflow.gateway.hook import Diverged, Recorded
from benchflow.gateway.normal_form import call_form, digest
from benchflow.gateway.recording import LOST, RecordedCall, Recording, get_body

_CANDIDATES = 8
"""Number of next recorded calls among which the most similar one to a diverged call is searched."""

_LARGE = 256 * 1024
"""Bytes of a request from which on its normal form is computed in a thread."""


class UnrecordedSideCall(Diverged):
    """A side call that is not in the record: a strict replay refuses it, else it alone goes live."""


class Replay:
    """The replay of one rollout."""

    def __init__(self, recording: Recording, agent: str, *, until: str | None = None, strict: bool = False) -> None:
        """Start at the beginning of the record.

        Args:
            recording: The record to answer from.
            agent: Name of the agent in the registry.
            until: Id of the last node, or number of the last call, that is answered; None for all.
            strict: Whether calls that diverge are refused instead of sent to the upstream.

        Raises:
            ConfigError: No call of the record leads to the node `until`.
        """
        self._recording, self._agent = recording, agent
        self._strict, self._endless = strict, until is None
        last = recording.find_last(until) if until is not None else None
        self._calls = [call for call in recording.calls if last is None or call.seq <= last]
        self._unused: defaultdict[str, deque[RecordedCall]] = defaultdict(deque)
        for call in self._calls:
            if call.answered:
                self._unused[call.digest].append(call)
        self._used: dict[str, RecordedCall] = {}
        self._answered = 0
        self._remaining = sum(call.answered and not call.side for call in self._calls)
        self._live = False
        self._divergence: Divergence | None = None

    @classmethod
    def open(cls, record: Path, agent: str, *, until: str | None = None, strict: bool = False) -> Replay:
        """Read a record, and return its replay at the beginning. Arguments are as in `__init__`.

        Raises:
            ConfigError: The file is no record, or no call of it leads to the node `until`.
        """
        return cls(Recording(record, agent), agent, until=until, strict=strict)

    def resume(self, record_of_this_run: Path) -> None:
        """Restore the replay's state from the rollout's own record. Raise `ConfigError` if the two do not match."""
        run = Recording(record_of_this_run, self._agent)
        for call in sorted(run.calls, key=lambda call: call.request):
            if call.source == "replay":
                # An answer that did not reach the agent stays unused, for the repeated request.
                if call.error not in LOST and self._take(call.digest, call.side) is None:
                    raise ConfigError(
                        f"call {call.seq} was answered from another record than {self._recording.path}",
                        file=str(record_of_this_run),
                        remedy="do not change a record that is replayed",
                    )
            elif not call.side:
                self._end_replay(run.request(call), run.form(call))
                return

    async def answer(self, request_line: Mapping[str, Any], body: bytes) -> Recorded | Diverged | None:
        """Return the answer to a call as `hook.Replayer` describes."""
        if self._is_over:
            return self._outcome()
        recorded = _parse_body(request_line, body)
        if len(body) > _LARGE:
            form, name = await asyncio.to_thread(self._compute_form, request_line, recorded)
            # Meanwhile another call may have diverged.
            if self._is_over:
                return self._outcome()
        else:
            form, name = self._compute_form(request_line, recorded)
        side = _is_side(request_line)
        call = self._take(name, side)
        if call is not None:
            return self._recording.answer(call)
        if side:
            return UnrecordedSideCall(
                Divergence(seq=int(request_line["seq"]), message=f"{_name_call(request_line)} is not in the record")
            )
        self._end_replay(request_line, form)
        return Diverged(self._divergence) if self._divergence is not None else None

    def status(self) -> ReplayStatus:
        """Return the progress of the replay."""
        state = "diverged" if self._divergence is not None else "live" if self._live else "replaying"
        return ReplayStatus.model_validate(
            {"state": state, "answered": self._answered, "left": self._remaining, "divergence": self._divergence}
        )

    def compare(self, run: Recording) -> None:
        """Match all calls of another run, whatever their source, up to the first that diverges."""
        for call in sorted(run.calls, key=lambda call: call.request):
            if self._take(call.digest, call.side) is None and not call.side:
                self._end_replay(run.request(call), run.form(call))
                return

    @property
    def _is_over(self) -> bool:
        """Return whether the replay has ended or diverged."""
        return self._live or self._divergence is not None

    def _outcome(self) -> Diverged | None:
        """Return the outcome of calls after the end: the divergence if strict, else None, since they go live."""
        return Diverged(self._divergence) if self._divergence is not None and self._strict else None

    def _compute_form(self, line: Mapping[str, Any], body: Any) -> tuple[dict[str, Any], str]:
        """Return the normal form of a call, and its digest."""
        form = call_form(line, body, self._agent)
        return form, digest(form)

    def _take(self, name: str, side: bool) -> RecordedCall | None:
        """Return the recorded call whose answer an equal call gets now, and mark it as used; None if there is none."""
        unused = self._unused.get(name)
        if unused:
            call = self._used[name] = unused.popleft()
            self._remaining -= not call.side
        elif side and name in self._used:
            call = self._used[name]
        else:
            return None
        self._answered += 1
        return call

    def _end_replay(self, line: Mapping[str, Any], form: Mapping[str, Any]) -> None:
        """End the replay at a main call without a recorded answer: it goes live, or it is a divergence."""
        if not self._remaining and not (self._strict and self._endless):
            self._live = True
            return
        self._divergence = self._describe_divergence(line, form)

    def _describe_divergence(self, line: Mapping[str, Any], form: Mapping[str, Any]) -> Divergence:
        """Describe a divergence: no usable answer, none left, after the last call, or unlike the nearest call."""
        who, seq, name = _name_call(line), int(line["seq"]), digest(form)
        for call in self._calls:
            if call.digest == name and not call.answered:
                message = f"{who} is the recorded call {call.seq}, to which there is no answer: {call.missing_reason}"
                return Divergence(seq=seq, recorded=call.seq, message=message)
        if name in self._used:
            again = self._used[name].seq
            message = f"{who} is the recorded call {again}, whose answers were all given: it is asked more often now"
            return Divergence(seq=seq, recorded=again, message=message)
        nearest = self._nearest(form)
        if nearest is None:
            return Divergence(seq=seq, message=f"{who} comes after the last one that is recorded")
        call, recorded = nearest
        message = f"{who} is not the recorded call {call.seq}{_name_node(call.node)}"
        return Divergence(seq=seq, recorded=call.seq, message=message, diff=short_diff(recorded, form))

    def _nearest(self, form: Mapping[str, Any]) -> tuple[RecordedCall, dict[str, Any]] | None:
        """Return the one of the next `_CANDIDATES` unused calls that shares most lines with a form, and its own form.

        Side calls are no candidates. None if there is no candidate.
        """
        waiting = {id(call) for calls in self._unused.values() for call in calls}
        next_ones = [call for call in self._calls if id(call) in waiting and not call.side][:_CANDIDATES]
        forms = [(call, self._recording.form(call)) for call in next_ones]
        return max(forms, key=lambda one: shared_lines(one[1], form), default=None)


def make_replayer(registration: Registration, done: list[dict[str, Any]]) -> Replay:
    """Return the replay that a registration asks for, as `hook.MakeReplayer` describes."""
    settings = registration.replay
    if settings is None:
        raise ConfigError("the rollout is not a replay", key="replay")
    replay = Replay.open(Path(settings.record), registration.agent, until=settings.until, strict=settings.strict)
    if done:
        replay.resume(Path(registration.record))
    return replay


def divergence_report(record: Path, run: Path, *, agent: str, until: str | None = None) -> str:
    """Return a report for a person: how far a run's calls match a record, and where they diverge.

    Args:
        record: The record to compare with.
        run: The record of the run.
        agent: Name of the agent in the registry.
        until: Last node or call to compare, as in `Replay`.

    Raises:
        ConfigError: A file is no record, or no call of it leads to the node `until`.
    """
    replay = Replay.open(record, agent, until=until)
    replay.compare(Recording(run, agent))
    status = replay.status()
    text = f"{status.answered} calls as recorded, {status.left} recorded ones not asked for"
    if status.divergence is not None:
        text += f"\n{status.divergence.message}"
        text += f"\n--- recorded\n+++ now\n{status.divergence.diff}" if status.divergence.diff else ""
    return text


def _parse_body(line: Mapping[str, Any], body: bytes) -> Any:
    """Return the body as a record has it; parsed from the bytes if the line has none."""
    if "request" in line or "request_text" in line:
        return get_body(line)
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _is_side(line: Mapping[str, Any]) -> bool:
    return bool(line["side"]) or line["api"] == "other"


def _name_call(line: Mapping[str, Any]) -> str:
    """Return the name of a call for a message."""
    what = "side call" if _is_side(line) else "call"
    return f"{what} {line['seq']}{_name_node(line['node'])}"


def _name_node(node: str | None) -> str:
    return f" ({node})" if node else ""
