"""Finding, reading, filing and labelling messages."""

from __future__ import annotations

from office_core.errors import Conflict, Invalid, NotFound
from office_core.search import Query, instant, like, moment, snippet
from office_core.service import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

FOLDERS = ("inbox", "archive", "sent", "drafts", "trash")
OPERATORS = ("from", "to", "subject", "label", "in", "is", "has", "before", "after")
NEWEST_FIRST = f"{instant('sent_at')} desc, id desc"
HAS_LABEL = "exists (select 1 from json_each(labels) where value = ?)"


def message(call: Call, id: str) -> Row:
    found = call.store.get("messages", id)
    if found is None:
        raise NotFound(f"there is no message {id!r}")
    return found


def summary(row: Row, words: list[str] | None = None) -> dict[str, Any]:
    """A message as lists have it."""
    short = dict(row)
    short["snippet"] = snippet(short.pop("body"), words or [])
    return short


def account_of(call: Call, given: str | None) -> str:
    """The address of an account; mine if none is given."""
    email = given or call.me
    if call.store.get("accounts", email, "email") is None:
        raise NotFound(f"there is no account {email!r} here (GET /accounts)")
    return email


# --- finding --------------------------------------------------------------------------------------------


def list_accounts(call: Call) -> dict[str, Any]:
    accounts = []
    for account in call.store.rows("select * from accounts order by email"):
        folders = {folder: {"total": 0, "unread": 0} for folder in FOLDERS}
        counted = (
            "select folder, count(*) as total, sum(not read) as unread from messages where account = ? group by folder"
        )
        for row in call.store.rows(counted, account["email"]):
            folders[row["folder"]] = {"total": row["total"], "unread": row["unread"]}
        accounts.append({**account, "folders": folders})
    return {"accounts": accounts}


def list_mail(
    call: Call,
    folder: str | None = None,
    label: str | None = None,
    unread: bool | None = None,
    account: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> dict[str, Any]:
    conditions, parameters = ["account = ?"], [account_of(call, account)]
    for given, condition in ((folder, "folder = ?"), (label, HAS_LABEL)):
        if given is not None:
            conditions.append(condition)
            parameters.append(given)
    if unread is not None:
        conditions.append("not read" if unread else "read")
    rows, total = call.store.page("messages", conditions, parameters, NEWEST_FIRST, limit, offset)
    return {"messages": [summary(row) for row in rows], "total": total}


def search_mail(call: Call, q: str, limit: int = 50, offset: int = 0) -> dict[str, Any]:
    query = Query(q, OPERATORS)
    conditions, parameters = query.conditions(("subject", "body", "from", "to", "cc"))
    for operator, value in query.filters:
        condition, given = _filter(call, operator, value.lower())
        conditions.append(condition)
        parameters += given
    rows, total = call.store.page("messages", conditions, parameters, NEWEST_FIRST, limit, offset)
    return {"messages": [summary(row, query.words) for row in rows], "total": total}


def _filter(call: Call, operator: str, value: str) -> tuple[str, list[str]]:
    """SQL of one `operator:value`, and its parameters."""
    if operator in ("from", "subject"):
        return f"\"{operator}\" like ? escape '\\'", [like(value)]
    if operator == "to":
        return "(\"to\" || cc || bcc) like ? escape '\\'", [like(value)]
    if operator == "label":
        return HAS_LABEL, [value]
    if operator == "in" and value in FOLDERS:
        return "folder = ?", [value]
    if operator == "is" and value in ("read", "unread"):
        return ("read" if value == "read" else "not read"), []
    if operator == "has" and value in ("attachment", "attachments"):
        return "attachments != '[]'", []
    if operator in ("before", "after"):
        sign = "<" if operator == "before" else ">="
        return f"{instant('sent_at')} {sign} {instant('?')}", [moment(call.store, operator, value)]
    raise Invalid(f"q: {operator}:{value} is not understood")


def list_labels(call: Call) -> dict[str, Any]:
    counted = "select value as name, count(*) as total from messages, json_each(labels) group by value order by value"
    return {"labels": call.store.rows(counted)}


def read_mail(call: Call, id: str) -> dict[str, Any]:
    return message(call, id)


def read_mail_thread(call: Call, thread: str) -> dict[str, Any]:
    found = call.store.rows(f"select * from messages where thread = ? order by {instant('sent_at')}, id", thread)
    if not found:
        raise NotFound(f"there is no thread {thread!r}")
    return {"thread": thread, "messages": found}


# --- filing ---------------------------------------------------------------------------------------------


def move_mail(call: Call, id: str, folder: str) -> dict[str, Any]:
    found = message(call, id)
    if found["folder"] == "drafts" and folder != "trash":
        raise Conflict(f"{id} is a draft; it can be sent, or moved to trash")
    call.store.update("messages", id, {"folder": folder})
    return message(call, id)


def archive_mail(call: Call, id: str) -> dict[str, Any]:
    return move_mail(call, id, "archive")


def delete_mail(call: Call, id: str) -> dict[str, Any]:
    return move_mail(call, id, "trash")


def label_mail(call: Call, id: str, add: list[str] | None = None, remove: list[str] | None = None) -> dict[str, Any]:
    if not add and not remove:
        raise Invalid("add, remove: one of them must have a label")
    added, removed = [[label.strip().lower() for label in labels or []] for labels in (add, remove)]
    kept = [label for label in message(call, id)["labels"] if label not in removed]
    call.store.update("messages", id, {"labels": list(dict.fromkeys(kept + added))})
    return message(call, id)


def mark_mail(call: Call, id: str, read: bool) -> dict[str, Any]:
    message(call, id)
    call.store.update("messages", id, {"read": read})
    return message(call, id)
