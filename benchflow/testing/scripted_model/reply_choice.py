"""Choose the reply to a call: that of side calls first, then the script's replies in order, then `otherwise`."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from benchflow.llm_apis.side_calls import side_call_rules
from benchflow.testing.scripted_model.model_request import ModelRequest
from benchflow.testing.scripted_model.model_script import HTTPError, Reply, Script, SideCalls, When

Program = Callable[[ModelRequest], "Answer | Awaitable[Answer]"]
"""A script in Python: returns the reply to each call, or None for a call that is not expected."""

Answer = Reply | str | Mapping[str, Any] | None
"""A reply, its text, or its data; None for none."""


@dataclass(frozen=True)
class ReplyChoice:
    """The reply to a call."""

    request: ModelRequest
    """The call, with its number, or marked as a side call."""

    reply: Reply
    """The reply."""

    label: str
    """Index of the reply in the script, or `program`, `side`, `otherwise` or `unanswered`."""


class Chooser:
    """Chooses the replies of one script. Thread-safe."""

    def __init__(self, script: Script | Program, side: SideCalls | None = None) -> None:
        """Start with all replies of a script unused.

        Args:
            script: The script, or a callable in its place.
            side: Rules for side calls; None for the script's own, or the defaults for a callable.
        """
        self._script = script
        self._side = side or (script.side if isinstance(script, Script) else SideCalls())
        self._used: Counter[int] = Counter()
        self._number = 0
        self._lock = threading.Lock()

    async def choose(self, request: ModelRequest) -> ReplyChoice:
        """Choose the reply to a call, and count it as used.

        A call without a reply gets an error of status 400, because agents retry a 5xx.

        Raises:
            ValidationError: A callable returned data that is no reply.
        """
        if is_side_call(request, self._side):
            return ReplyChoice(replace(request, side=True), self._side.reply, "side")
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
        return ReplyChoice(request, Reply.model_validate(answer), "program")

    def _from_script(self, request: ModelRequest, script: Script) -> ReplyChoice:
        """Return the script's reply to a call, else `otherwise`, else an error, and count the reply as used."""
        in_order = self._by_conversation if script.follow == "conversation" else self._by_calls
        index = in_order(request, script.replies)
        if index is not None:
            self._used[index] += 1
            return ReplyChoice(request, script.replies[index], str(index))
        if script.otherwise is not None:
            return ReplyChoice(request, script.otherwise, "otherwise")
        return unanswered(request, f"none of the script's {len(script.replies)} replies is left for this call")

    def _has_uses(self, index: int, reply: Reply) -> bool:
        """Return whether the reply at an index may be used once more."""
        return reply.times == "always" or self._used[index] < reply.times

    def _by_calls(self, request: ModelRequest, replies: tuple[Reply, ...]) -> int | None:
        """Return the index of the first reply with uses left whose conditions hold; None if there is none."""
        for index, reply in enumerate(replies):
            if self._has_uses(index, reply) and matches(reply.when, request):
                return index
        return None

    def _by_conversation(self, request: ModelRequest, replies: tuple[Reply, ...]) -> int | None:
        """Return the index of the reply for the request's turn; None if there is none, or its conditions don't hold.

        Replies that fail don't count as turns: they are used up before the next reply that doesn't fail.
        """
        place = 0
        for index, reply in enumerate(replies):
            if place == request.turn:
                if reply.fails and self._has_uses(index, reply) and matches(reply.when, request):
                    return index
                if not reply.fails:
                    return index if matches(reply.when, request) else None
            place += not reply.fails
        return None


def unanswered(request: ModelRequest, why: str) -> ReplyChoice:
    """Return an error of status 400, labelled `unanswered`, for a call without a reply. why: for its message."""
    message = (
        f"scripted model: {why} (call {request.number}, turn {request.turn}, user text {request.user_text[:200]!r})"
    )
    return ReplyChoice(request, Reply(error=HTTPError(status=400, message=message)), "unanswered")


def is_side_call(request: ModelRequest, rules: SideCalls) -> bool:
    """Return whether a call is no part of the task, by the rules of `SideCalls`."""
    if rules.without_tools and not request.tools:
        return True
    if any(text in request.text for text in rules.contains):
        return True
    texts = {"system": request.system, "user": request.user_text}
    return rules.known and any(rule.where and rule.text in texts[rule.where] for rule in side_call_rules())


def matches(when: When, request: ModelRequest) -> bool:
    """Return whether every given condition holds for a call."""
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
