"""Writing messages: sending, replying, forwarding, drafts."""

from __future__ import annotations

from office_core.errors import Conflict, Invalid
from office_core.service import Call

from office_mail.mailbox import account_of, message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

    Attachments = list[dict[str, str]]

FORWARDED = """\
---------- Forwarded message ----------
From: {from}
Date: {sent_at}
Subject: {subject}
To: {to}

{body}"""


def _new(call: Call, account: str, folder: str, **fields: Any) -> Row:
    """Put a message of mine into a folder."""
    id = call.store.new_id("m-")
    row = {
        "id": id,
        "account": account,
        "folder": folder,
        "thread": "t-" + id[2:],
        "from": account,
        "to": [],
        "cc": [],
        "bcc": [],
        "subject": "",
        "body": "",
        "sent_at": call.now,
        "read": True,
        "labels": [],
        "attachments": [],
        "in_reply_to": None,
        **fields,
    }
    call.store.insert("messages", row)
    return message(call, id)


def _deliver(call: Call, sent: Row) -> Row:
    """Put copies into the inboxes of those recipients that have an account here."""
    if not sent["to"] + sent["cc"] + sent["bcc"]:
        raise Invalid("to: somebody must get it")
    known = {row["email"] for row in call.store.rows("select email from accounts")}
    for email in dict.fromkeys(sent["to"] + sent["cc"] + sent["bcc"]):
        if email in known:
            copy = {**sent, "id": call.store.new_id("m-"), "account": email, "folder": "inbox", "read": False}
            call.store.insert("messages", {**copy, "bcc": [], "labels": []})
    return sent


def send_mail(
    call: Call,
    to: list[str],
    subject: str,
    body: str,
    cc: list[str] | None = None,
    bcc: list[str] | None = None,
    attachments: Attachments | None = None,
    account: str | None = None,
) -> dict[str, Any]:
    fields = {"to": to, "cc": cc or [], "bcc": bcc or [], "subject": subject, "body": body}
    return _deliver(call, _new(call, account_of(call, account), "sent", attachments=attachments or [], **fields))


def reply_to_mail(
    call: Call,
    id: str,
    body: str,
    all: bool = False,
    cc: list[str] | None = None,
    attachments: Attachments | None = None,
) -> dict[str, Any]:
    original = message(call, id)
    account = original["account"]
    if original["folder"] == "drafts":
        raise Conflict(f"{id} is a draft")
    to = original["to"] if original["from"] == account else [original["from"]]
    copied = list(cc or [])
    if all:
        copied += [*original["to"], *original["cc"]]
    fields = {
        "thread": original["thread"],
        "in_reply_to": id,
        "to": to,
        "cc": [one for one in dict.fromkeys(copied) if one != account and one not in to],
        "subject": _prefixed("Re: ", original["subject"]),
        "body": body,
        "attachments": attachments or [],
    }
    return _deliver(call, _new(call, account, "sent", **fields))


def forward_mail(call: Call, id: str, to: list[str], body: str = "", cc: list[str] | None = None) -> dict[str, Any]:
    original = message(call, id)
    quoted = FORWARDED.format_map({**original, "to": ", ".join(original["to"])})
    fields = {
        "thread": original["thread"],
        "in_reply_to": id,
        "to": to,
        "cc": cc or [],
        "subject": _prefixed("Fwd: ", original["subject"]),
        "body": f"{body}\n\n{quoted}" if body else quoted,
        "attachments": original["attachments"],
    }
    return _deliver(call, _new(call, original["account"], "sent", **fields))


def _prefixed(prefix: str, subject: str) -> str:
    return subject if subject.lower().startswith(prefix.lower()) else prefix + subject


# --- drafts ---------------------------------------------------------------------------------------------


def create_draft(
    call: Call, in_reply_to: str | None = None, account: str | None = None, **fields: Any
) -> dict[str, Any]:
    if in_reply_to is not None:
        fields.update(in_reply_to=in_reply_to, thread=message(call, in_reply_to)["thread"])
    return _new(call, account_of(call, account), "drafts", **fields)


def _draft(call: Call, id: str) -> Row:
    found = message(call, id)
    if found["folder"] != "drafts":
        raise Conflict(f"{id} is not a draft; it is in {found['folder']}")
    return found


def update_draft(call: Call, id: str, **fields: Any) -> dict[str, Any]:
    _draft(call, id)
    if not fields:
        raise Invalid("there is nothing to change")
    call.store.update("messages", id, fields)
    return message(call, id)


def send_draft(call: Call, id: str) -> dict[str, Any]:
    _draft(call, id)
    call.store.update("messages", id, {"folder": "sent", "sent_at": call.now})
    return _deliver(call, message(call, id))
