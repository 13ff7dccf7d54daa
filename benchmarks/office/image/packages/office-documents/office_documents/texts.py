"""Finding, reading, writing and exporting documents, and their revisions."""

from __future__ import annotations

import re

from office_core.errors import Conflict, Invalid, NotFound
from office_core.search import Query, like, snippet
from office_core.service import Call

from office_documents.access import VISIBLE, document, owned_document, visible_parameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

CLASSIFICATIONS = ("public", "internal", "confidential")
FORMATS = {"markdown": ("md", "text/markdown"), "text": ("txt", "text/plain"), "html": ("html", "text/html")}
MARKS = re.compile(r"^(#{1,6} |> |[-*] )|\*\*|__|`", re.MULTILINE)


def shown(call: Call, row: Row) -> dict[str, Any]:
    """A document as callers see it, with its comments."""
    comments = call.store.rows("select * from comments where document = ? order by id", row["id"])
    return {**row, "comments": comments}


# --- finding and reading --------------------------------------------------------------------------------


def list_documents(
    call: Call,
    owner: str | None = None,
    classification: str | None = None,
    trashed: bool = False,
    limit: int = 50,
    offset: int = 0,
) -> dict[str, Any]:
    conditions, parameters = [VISIBLE, "trashed = ?"], [*visible_parameters(call), trashed]
    for column, value in (("owner", owner), ("classification", classification)):
        if value is not None:
            conditions.append(f"{column} = ?")
            parameters.append(value)
    rows, total = call.store.page("documents", conditions, parameters, "title, id", limit, offset)
    return {"documents": [_without_body(row) for row in rows], "total": total}


def _without_body(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "body"}


def search_documents(call: Call, q: str, limit: int = 50, offset: int = 0) -> dict[str, Any]:
    query = Query(q, ("owner", "title"))
    conditions, parameters = query.conditions(("title", "body"))
    conditions += [VISIBLE, "not trashed"]
    parameters += visible_parameters(call)
    for column, value in query.filters:
        conditions.append(f"{column} like ? escape '\\'")
        parameters.append(like(value))
    rows, total = call.store.page("documents", conditions, parameters, "title, id", limit, offset)
    found = [{**_without_body(row), "snippet": snippet(row["body"], query.words)} for row in rows]
    return {"documents": found, "total": total}


def read_document(call: Call, id: str, revision: int | None = None) -> dict[str, Any]:
    """revision: text and title as they were then."""
    found = document(call, id)
    if revision is not None:
        old = _revision(call, id, revision)
        found.update(revision=revision, title=old["title"], body=old["body"], updated_at=old["at"])
    return shown(call, found)


def _revision(call: Call, id: str, revision: int) -> Row:
    rows = call.store.rows("select * from revisions where document = ? and revision = ?", id, revision)
    if not rows:
        raise NotFound(f"{id} has no revision {revision}")
    return rows[0]


def list_revisions(call: Call, id: str) -> dict[str, Any]:
    document(call, id)
    columns = "revision, title, author, at, summary"
    return {"revisions": call.store.rows(f"select {columns} from revisions where document = ? order by revision", id)}


def export_document(call: Call, id: str, format: str = "markdown") -> dict[str, Any]:
    found = document(call, id)
    ending, media_type = FORMATS[format]
    content = f"# {found['title']}\n\n{found['body']}\n"
    if format == "text":
        content = MARKS.sub("", content)
    elif format == "html":
        content = _as_html(found)
    name = re.sub(r"[^a-z0-9]+", "-", found["title"].lower()).strip("-") or id
    return {"name": f"{name}.{ending}", "media_type": media_type, "content": content}


def _as_html(row: Row) -> str:
    """Headings, lists and paragraphs; inline marks stay as they are."""
    from html import escape

    parts = [f"<h1>{escape(row['title'])}</h1>"]
    for block in re.split(r"\n\s*\n", row["body"].strip()):
        heading = re.fullmatch(r"(#{1,6}) (.*)", block)
        points = block.splitlines()
        if heading:
            level = len(heading.group(1))
            parts.append(f"<h{level}>{escape(heading.group(2))}</h{level}>")
        elif all(point.startswith(("- ", "* ")) for point in points):
            parts.append("<ul>" + "".join(f"<li>{escape(point[2:])}</li>" for point in points) + "</ul>")
        else:
            parts.append(f"<p>{escape(block)}</p>")
    return "\n".join(parts) + "\n"


# --- writing --------------------------------------------------------------------------------------------


def create_document(call: Call, title: str, body: str, classification: str = "internal") -> dict[str, Any]:
    row = {
        "id": call.store.new_id("d-"),
        "title": title,
        "body": body,
        "owner": call.me,
        "classification": classification,
    }
    times = {"created_at": call.now, "updated_at": call.now}
    call.store.insert("documents", {**row, "shared": [], "revision": 1, **times, "trashed": False})
    _keep(call, document(call, str(row["id"])), "created")
    return read_document(call, str(row["id"]))


def edit_document(
    call: Call,
    id: str,
    old: str | None = None,
    new: str | None = None,
    all: bool = False,
    append: str | None = None,
    body: str | None = None,
) -> dict[str, Any]:
    found = document(call, id, "writer")
    ways = [old is not None or new is not None, append is not None, body is not None]
    if sum(ways) != 1 or (old is None) != (new is None):
        raise Invalid("give one of: old and new, append, body")
    if append is not None:
        return _write(call, found, "appended", body=found["body"].rstrip("\n") + "\n" + append)
    if body is not None:
        return _write(call, found, "rewritten", body=body)
    times = found["body"].count(str(old)) if old else 0
    if times == 0:
        raise Conflict(f"old: does not occur in {id}")
    if times > 1 and not all:
        raise Conflict(f"old: occurs {times} times in {id}; give more of the text, or all")
    return _write(call, found, "edited", body=found["body"].replace(str(old), str(new)))


def update_document(call: Call, id: str, title: str | None = None, classification: str | None = None) -> dict[str, Any]:
    given = (("title", title), ("classification", classification))
    changes = {name: value for name, value in given if value is not None}
    if not changes:
        raise Invalid("title, classification: one of them must be given")
    return _write(call, document(call, id, "writer"), ", ".join(f"{name} changed" for name in changes), **changes)


def _write(call: Call, row: Row, summary: str, **changes: Any) -> dict[str, Any]:
    """Change a document, as a new revision."""
    fields = {**changes, "revision": row["revision"] + 1, "updated_at": call.now}
    call.store.update("documents", row["id"], fields)
    _keep(call, {**row, **fields}, summary)
    return read_document(call, row["id"])


def _keep(call: Call, row: Row, summary: str) -> None:
    kept = {"document": row["id"], "revision": row["revision"], "title": row["title"], "body": row["body"]}
    call.store.insert("revisions", {**kept, "author": call.me, "at": call.now, "summary": summary})


def restore_revision(call: Call, id: str, revision: int) -> dict[str, Any]:
    found = document(call, id, "writer")
    old = _revision(call, id, revision)
    return _write(call, found, f"revision {revision} restored", title=old["title"], body=old["body"])


def delete_document(call: Call, id: str) -> dict[str, Any]:
    owned_document(call, id)
    call.store.update("documents", id, {"trashed": True})
    return read_document(call, id)
