"""Channels: who sees them, who is in them, making and leaving them."""

from __future__ import annotations

import re

from office_core.errors import Conflict, Forbidden, Invalid, NotFound
from office_core.service import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

KINDS = ("public", "private", "direct")
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
IS_MEMBER = "exists (select 1 from json_each(members) where value = ?)"
VISIBLE = f"(kind = 'public' or {IS_MEMBER})"


def visible_channel(call: Call, id: str) -> Row:
    """A channel that I may know of. Raises `NotFound`."""
    rows = call.store.rows(f"select * from channels where id = ? and {VISIBLE}", id.lstrip("#"), call.handle)
    if not rows:
        raise NotFound(f"there is no channel {id!r}")
    return rows[0]


def open_channel(call: Call, id: str) -> Row:
    """A channel that I may write in. Raises `Forbidden`, `Conflict`."""
    channel = visible_channel(call, id)
    if call.handle not in channel["members"]:
        raise Forbidden(f"you are not a member of {channel['id']}; join it first")
    if channel["archived"]:
        raise Conflict(f"{channel['id']} is archived")
    return channel


def list_channels(
    call: Call, kind: str | None = None, member: bool | None = None, limit: int = 50, offset: int = 0
) -> dict[str, Any]:
    conditions, parameters = [VISIBLE], [call.handle]
    if kind is not None:
        conditions.append("kind = ?")
        parameters.append(kind)
    if member is not None:
        conditions.append(IS_MEMBER if member else f"not {IS_MEMBER}")
        parameters.append(call.handle)
    rows, total = call.store.page("channels", conditions, parameters, "kind = 'direct', id", limit, offset)
    return {"channels": rows, "total": total}


def read_channel(call: Call, channel: str) -> dict[str, Any]:
    return visible_channel(call, channel)


def create_channel(
    call: Call, name: str, kind: str = "public", topic: str = "", members: list[str] | None = None
) -> dict[str, Any]:
    id = name.lstrip("#")
    if not NAME.fullmatch(id) or id.startswith("direct-"):
        raise Invalid("name: must be of small letters, digits and hyphens, and not begin with 'direct-'")
    if call.store.get("channels", id):
        raise Conflict(f"there is a channel {id} already")
    everyone = list(dict.fromkeys([call.handle, *(members or [])]))
    return add_channel(call, id, kind, topic, everyone)


def add_channel(call: Call, id: str, kind: str, topic: str, members: list[str]) -> Row:
    row = {"id": id, "kind": kind, "topic": topic, "members": members, "archived": False}
    call.store.insert("channels", row)
    return row


def set_topic(call: Call, channel: str, topic: str) -> dict[str, Any]:
    return _change(call, _group(call, channel), topic=topic)


def invite_to_channel(call: Call, channel: str, people: list[str]) -> dict[str, Any]:
    found = _group(call, channel)
    return _change(call, found, members=list(dict.fromkeys(found["members"] + people)))


def join_channel(call: Call, channel: str) -> dict[str, Any]:
    found = visible_channel(call, channel)
    if found["archived"]:
        raise Conflict(f"{found['id']} is archived")
    return _change(call, found, members=list(dict.fromkeys([*found["members"], call.handle])))


def leave_channel(call: Call, channel: str) -> dict[str, Any]:
    found = _group(call, channel)
    return _change(call, found, members=[member for member in found["members"] if member != call.handle])


def _group(call: Call, id: str) -> Row:
    """A channel that I am in and whose members may change."""
    found = open_channel(call, id)
    if found["kind"] == "direct":
        raise Conflict("direct messages have no topic and keep their members")
    return found


def _change(call: Call, channel: Row, **changes: Any) -> Row:
    call.store.update("channels", channel["id"], changes)
    return {**channel, **changes}
