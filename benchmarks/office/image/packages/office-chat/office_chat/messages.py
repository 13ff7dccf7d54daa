"""Messages: reading, searching, writing, reacting."""

from __future__ import annotations

from datetime import datetime

from office_core.errors import Forbidden, Invalid, NotFound
from office_core.search import Query, instant, like, localized, moment
from office_core.service import Call

from office_chat.channels import VISIBLE, add_channel, open_channel, visible_channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

OPERATORS = ("from", "in", "before", "after")
TIME = instant("posted_at")


def message(call: Call, id: str) -> Row:
    """A message in a channel that I may know of. Raises `NotFound`."""
    found = call.store.get("messages", id)
    if found is None or not call.store.rows(
        f"select 1 from channels where id = ? and {VISIBLE}", found["channel"], call.handle
    ):
        raise NotFound(f"there is no message {id!r}")
    return found


def shown(call: Call, row: Row) -> dict[str, Any]:
    """A message as callers see it, with the number of its replies."""
    return {**row, "replies": call.store.value("select count(*) from messages where thread = ?", row["id"])}


# --- reading --------------------------------------------------------------------------------------------


def list_channel_messages(
    call: Call,
    channel: str,
    after: datetime | None = None,
    before: datetime | None = None,
    limit: int = 50,
    offset: int = 0,
) -> dict[str, Any]:
    conditions, parameters = ["channel = ?", "thread is null"], [visible_channel(call, channel)["id"]]
    for time, sign in ((after, ">="), (before, "<")):
        if time is not None:
            conditions.append(f"{TIME} {sign} {instant('?')}")
            parameters.append(localized(call.store, time))
    rows, total = call.store.page("messages", conditions, parameters, f"{TIME} desc, id desc", limit, offset)
    return {"messages": [shown(call, row) for row in reversed(rows)], "total": total}


def read_message(call: Call, id: str) -> dict[str, Any]:
    return shown(call, message(call, id))


def read_message_thread(call: Call, id: str) -> dict[str, Any]:
    first = message(call, id)
    if first["thread"] is not None:
        first = message(call, first["thread"])
    replies = call.store.rows(f"select * from messages where thread = ? order by {TIME}, id", first["id"])
    return {"message": shown(call, first), "replies": [shown(call, row) for row in replies]}


def search_chat(call: Call, q: str, limit: int = 50, offset: int = 0) -> dict[str, Any]:
    query = Query(q, OPERATORS)
    conditions, parameters = query.conditions(("text",))
    conditions.append(f"channel in (select id from channels where {VISIBLE})")
    parameters.append(call.handle)
    for operator, value in query.filters:
        if operator == "from":
            conditions.append("author like ? escape '\\'")
            parameters.append(like(value.lstrip("@")))
        elif operator == "in":
            conditions.append("channel = ?")
            parameters.append(value.lstrip("#"))
        else:
            conditions.append(f"{TIME} {'<' if operator == 'before' else '>='} {instant('?')}")
            parameters.append(moment(call.store, operator, value))
    rows, total = call.store.page("messages", conditions, parameters, f"{TIME} desc, id desc", limit, offset)
    return {"messages": [shown(call, row) for row in rows], "total": total}


# --- writing --------------------------------------------------------------------------------------------


def _post(call: Call, channel: str, text: str, thread: str | None = None) -> dict[str, Any]:
    row = {"id": call.store.new_id("msg-"), "channel": channel, "author": call.handle, "text": text}
    call.store.insert("messages", {**row, "posted_at": call.now, "edited": False, "thread": thread, "reactions": []})
    return shown(call, message(call, str(row["id"])))


def post_message(call: Call, channel: str, text: str) -> dict[str, Any]:
    return _post(call, open_channel(call, channel)["id"], text)


def reply_to_message(call: Call, id: str, text: str) -> dict[str, Any]:
    """Threads are one level deep: an answer to an answer is in the same thread."""
    first = message(call, id)
    return _post(call, open_channel(call, first["channel"])["id"], text, first["thread"] or first["id"])


def send_direct_message(call: Call, to: list[str], text: str) -> dict[str, Any]:
    members = sorted({call.handle, *to})
    if len(members) < 2:
        raise Invalid("to: must name somebody else")
    id = "direct-" + "-".join(members)
    if call.store.get("channels", id) is None:
        add_channel(call, id, "direct", "", members)
    return _post(call, id, text)


def _mine(call: Call, id: str) -> Row:
    found = message(call, id)
    if found["author"] != call.handle:
        raise Forbidden(f"{id} is a message of {found['author']}")
    return found


def edit_message(call: Call, id: str, text: str) -> dict[str, Any]:
    _mine(call, id)
    call.store.update("messages", id, {"text": text, "edited": True})
    return shown(call, message(call, id))


def delete_message(call: Call, id: str) -> dict[str, Any]:
    """Its answers go with it."""
    found = shown(call, _mine(call, id))
    call.store.run("delete from messages where id = ? or thread = ?", id, id)
    return found


# --- reactions ------------------------------------------------------------------------------------------


def add_reaction(call: Call, id: str, emoji: str) -> dict[str, Any]:
    found = message(call, id)
    open_channel(call, found["channel"])
    by_emoji = {one["emoji"]: one["people"] for one in found["reactions"]}
    people = by_emoji.setdefault(emoji.strip(":"), [])
    if call.handle not in people:
        people.append(call.handle)
    return _react(call, id, by_emoji)


def remove_reaction(call: Call, id: str, emoji: str) -> dict[str, Any]:
    by_emoji = {one["emoji"]: one["people"] for one in message(call, id)["reactions"]}
    people = by_emoji.get(emoji.strip(":"), [])
    if call.handle not in people:
        raise NotFound(f"you have not reacted to {id} with {emoji!r}")
    people.remove(call.handle)
    return _react(call, id, by_emoji)


def _react(call: Call, id: str, by_emoji: dict[str, list[str]]) -> dict[str, Any]:
    reactions = [{"emoji": emoji, "people": people} for emoji, people in by_emoji.items() if people]
    call.store.update("messages", id, {"reactions": reactions})
    return shown(call, message(call, id))
