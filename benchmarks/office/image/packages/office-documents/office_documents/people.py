"""What people do around a document: commenting, sharing."""

from __future__ import annotations

from office_core.errors import Conflict, NotFound
from office_core.service import Call

from office_documents.access import document
from office_documents.texts import read_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row


def comment_on_document(
    call: Call, id: str, text: str, quote: str | None = None, reply_to: str | None = None
) -> dict[str, Any]:
    found = document(call, id, "commenter")
    if quote is not None and quote not in found["body"]:
        raise Conflict(f"quote: does not occur in {id}")
    if reply_to is not None and (call.store.get("comments", reply_to) or {}).get("document") != id:
        raise NotFound(f"{id} has no comment {reply_to!r}")
    comment: Row = {"id": call.store.new_id("k-"), "document": id, "author": call.me, "text": text, "quote": quote}
    comment.update(reply_to=reply_to, resolved=False, at=call.now)
    call.store.insert("comments", comment)
    return comment


def resolve_comment(call: Call, id: str, resolved: bool = True) -> dict[str, Any]:
    found = call.store.get("comments", id)
    if found is None:
        raise NotFound(f"there is no comment {id!r}")
    document(call, found["document"], "commenter")
    call.store.update("comments", id, {"resolved": resolved})
    return {**found, "resolved": resolved}


def share_document(call: Call, id: str, people: list[str], role: str) -> dict[str, Any]:
    found = document(call, id, "writer")
    roles = {one["email"]: one["role"] for one in found["shared"]}
    roles.update({email: role for email in people if email != found["owner"]})
    return _share(call, id, roles)


def unshare_document(call: Call, id: str, people: list[str]) -> dict[str, Any]:
    roles = {one["email"]: one["role"] for one in document(call, id, "writer")["shared"]}
    for email in people:
        if roles.pop(email, None) is None:
            raise NotFound(f"{id} is not shared with {email}")
    return _share(call, id, roles)


def _share(call: Call, id: str, roles: dict[str, str]) -> dict[str, Any]:
    shared = [{"email": email, "role": role} for email, role in roles.items()]
    # What the owner gave away may include the right to give it back.
    before = read_document(call, id)
    call.store.update("documents", id, {"shared": shared})
    return {**before, "shared": shared}
