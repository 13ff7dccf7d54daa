"""Which reply a call gets: side calls first, then the script's replies in their order, then `otherwise`."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from benchflow.testing.scripted_model.conversation import ModelRequest
from benchflow.testing.scripted_model.script import HTTPError, Reply, Script, SideCalls, When
from benchflow.testing.scripted_model.tools import known_side_calls

Program = Callable[[ModelRequest], "Answer | Awaitable[Answer]"]
"""A script in Python: a reply, or what makes one, for each call; None when it has nothing to say."""
Answer = Reply | str | Mapping[str, Any] | None


@dataclass(frozen=True)
class Choice:
    """The reply to a call. label: the reply's index in the script, `program`, `side`, `otherwise` or `unanswered`."""

    request: ModelRequest
    reply: Reply
    label: str


class Chooser:
    """Goes through one script. Safe to call from several threads."""

    def __init__(self, script: Script | Program, side: SideCalls | None = None) -> None:
        self._script = script
        self._side = side or (script.side if isinstance(script, Script) else SideCalls())
        self._used: Counter[int] = Counter()
        self._number = 0
        self._lock = threading.Lock()

    async def choose(self, request: ModelRequest) -> Choice:
        """The reply to this call. Where there is none, an error that says so; status 400, as agents repeat a 5xx."""
        if is_side_call(request, self._side):
            return Choice(replace(request, side=True), self._side.reply, "side")
        with self._lock:
            self._number += 1
            request = replace(request, number=self._number)
            if isinstance(self._script, Script):
                return self._from_script(request, self._script)
        answer = self._script(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            return unanswered(request, "the program has no reply for this call")
        return Choice(request, Reply.model_validate(answer), "program")

    def _from_script(self, request: ModelRequest, script: Script) -> Choice:
        in_order = self._by_conversation if script.follow == "conversation" else self._by_calls
        index = in_order(request, script.replies)
        if index is not None:
            self._used[index] += 1
            return Choice(request, script.replies[index], str(index))
        if script.otherwise is not None:
            return Choice(request, script.otherwise, "otherwise")
        return unanswered(request, f"none of the script's {len(script.replies)} replies is left for this call")

    def _left(self, index: int, reply: Reply) -> bool:
        return reply.times == "always" or self._used[index] < reply.times

    def _by_calls(self, request: ModelRequest, replies: tuple[Reply, ...]) -> int | None:
        for index, reply in enumerate(replies):
            if self._left(index, reply) and holds(reply.when, request):
                return index
        return None

    def _by_conversation(self, request: ModelRequest, replies: tuple[Reply, ...]) -> int | None:
        """The reply that belongs after so many turns. Those that fail take no place: they come before the next one."""
        place = 0
        for index, reply in enumerate(replies):
            if place == request.turn:
                if reply.fails and self._left(index, reply) and holds(reply.when, request):
                    return index
                if not reply.fails:
                    return index if holds(reply.when, request) else None
            place += not reply.fails
        return None


def unanswered(request: ModelRequest, why: str) -> Choice:
    """An error for a call that nobody foresaw."""
    message = (
        f"scripted model: {why} (call {request.number}, turn {request.turn}, user text {request.user_text[:200]!r})"
    )
    return Choice(request, Reply(error=HTTPError(status=400, message=message)), "unanswered")


def is_side_call(request: ModelRequest, rules: SideCalls) -> bool:
    """Whether the call is no part of the task: see `SideCalls`."""
    if rules.without_tools and not request.tools:
        return True
    if any(text in request.text for text in rules.contains):
        return True
    where = {"system": request.system, "user": request.user_text}
    return rules.known and any(known.text in where[known.where] for known in known_side_calls())


def holds(when: When, request: ModelRequest) -> bool:
    """Whether every condition that is given holds for the call."""
    results = "\n".join(result.text for result in request.tool_results)
    return (
        (when.contains is None or when.contains in request.user_text)
        and (when.tool_result is None or when.tool_result in results)
        and (when.anywhere is None or when.anywhere in request.text)
        and (when.offers is None or request.tool(when.offers) is not None)
        and (when.model is None or fnmatchcase(request.model, when.model))
        and (when.dialect is None or when.dialect == request.dialect)
        and (when.call is None or when.call == request.number)
        and (when.turn is None or when.turn == request.turn)
    )
