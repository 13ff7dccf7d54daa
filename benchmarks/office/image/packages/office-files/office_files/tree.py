"""Folders and files: listing, searching, reading, writing, moving, the trash, sharing."""

from __future__ import annotations

import base64
import binascii

from office_core.errors import Conflict, Invalid, NotFound
from office_core.search import Query, snippet
from office_core.service import Call

from office_files.access import Rights, clean, file, folder, make_folders, parent, writable_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

ENCODINGS = ("text", "base64")
WITHOUT_CONTENT = (
    "id, path, owner, media_type, encoding, '' as content, size, shared, version, created_at, updated_at, trashed"
)
MEDIA_TYPES = {
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "json": "application/json",
    "html": "text/html",
    "pdf": "application/pdf",
    "png": "image/png",
    "jpg": "image/jpeg",
    "log": "text/plain",
    "yaml": "application/yaml",
}


def media_type_of(path: str, encoding: str) -> str:
    known = MEDIA_TYPES.get(path.rpartition(".")[2].lower())
    return known or ("text/plain" if encoding == "text" else "application/octet-stream")


def size_of(content: str, encoding: str) -> int:
    """Bytes. Raises `Invalid` for what is no base64."""
    if encoding == "text":
        return len(content.encode())
    try:
        return len(base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError):
        raise Invalid("content: is not base64") from None


def _summary(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "content"}


# --- finding --------------------------------------------------------------------------------------------


def list_folder(call: Call, path: str = "/", recursive: bool = False) -> dict[str, Any]:
    place, rights = clean(path), Rights(call)
    files = [row for row in _live_files(call) if rights.role(row)]
    folders = rights.visible_folders()
    below = place.rstrip("/") + "/"
    inside = [row for row in [*folders, *files] if row["path"].startswith(below)]
    if place != "/" and not inside and not any(row["path"] == place for row in folders):
        raise NotFound(f"there is no folder {path!r}")
    if not recursive:
        inside = [row for row in inside if parent(row["path"]) == place]
    return {
        "path": place,
        "folders": sorted((row for row in inside if "id" not in row), key=lambda row: row["path"]),
        "files": [_summary(row) for row in inside if "id" in row],
    }


def _live_files(call: Call) -> list[Row]:
    return call.store.rows(f"select {WITHOUT_CONTENT} from files where not trashed order by path")


def search_files(call: Call, q: str, limit: int = 50, offset: int = 0) -> dict[str, Any]:
    query, rights = Query(q, ()), Rights(call)
    conditions, parameters = query.conditions(("path", "content"))
    # What is encoded holds no words; its name does.
    in_text = [condition.replace('"content"', "iif(encoding = 'text', content, '')") for condition in conditions]
    where = " and ".join([*in_text, "not trashed"])
    rows = [
        row
        for row in call.store.rows(f"select * from files where {where} order by path", *parameters)
        if rights.role(row)
    ]
    found = [
        {**_summary(row), "snippet": snippet(row["content"], query.words) if row["encoding"] == "text" else ""}
        for row in rows[offset : offset + limit]
    ]
    return {"files": found, "total": len(rows)}


def find_file(call: Call, path: str) -> dict[str, Any]:
    rows = call.store.rows("select id from files where path = ? and not trashed", clean(path))
    if not rows:
        raise NotFound(f"there is no file {path!r}")
    return _summary(file(call, rows[0]["id"]))


def read_file(call: Call, id: str) -> dict[str, Any]:
    return file(call, id)


def list_trash(call: Call) -> dict[str, Any]:
    rights = Rights(call)
    rows = call.store.rows(f"select {WITHOUT_CONTENT} from files where trashed order by path, id")
    found = [_summary(row) for row in rows if rights.role(row)]
    return {"files": found, "total": len(found)}


# --- writing --------------------------------------------------------------------------------------------


def create_folder(call: Call, path: str) -> dict[str, Any]:
    place = writable_place(call, path)
    _require_free(call, place)
    make_folders(call.store, place, call.me)
    return folder(call, place)


def _require_free(call: Call, place: str) -> None:
    if call.store.get("folders", place, "path") or call.store.rows(
        "select 1 from files where path = ? and not trashed", place
    ):
        raise Conflict(f"{place} is there already")


def _new_place(call: Call, path: str) -> str:
    """A path for a file, with its folders made."""
    place = writable_place(call, path)
    _require_free(call, place)
    make_folders(call.store, parent(place), call.me)
    return place


def create_file(
    call: Call, path: str, content: str, encoding: str = "text", media_type: str | None = None
) -> dict[str, Any]:
    place = _new_place(call, path)
    row: Row = {"id": call.store.new_id("f-"), "path": place, "owner": call.me, "encoding": encoding, "shared": []}
    row.update(content=content, size=size_of(content, encoding))
    row.update(media_type=media_type or media_type_of(place, encoding))
    call.store.insert("files", {**row, "version": 1, "created_at": call.now, "updated_at": call.now, "trashed": False})
    return file(call, str(row["id"]))


def write_file(call: Call, id: str, content: str, encoding: str = "text") -> dict[str, Any]:
    found = file(call, id, "writer")
    changes = {"content": content, "encoding": encoding, "size": size_of(content, encoding)}
    call.store.update("files", id, {**changes, "version": found["version"] + 1, "updated_at": call.now})
    return file(call, id)


def append_to_file(call: Call, id: str, content: str) -> dict[str, Any]:
    """On a new line, whether or not the file ends with a line break."""
    found = file(call, id, "writer")
    if found["encoding"] != "text":
        raise Conflict(f"{id} is no text")
    before = found["content"]
    return write_file(call, id, before + ("\n" if before and not before.endswith("\n") else "") + content)


def move_file(call: Call, id: str, path: str) -> dict[str, Any]:
    found = file(call, id, "writer")
    place = writable_place(call, path)
    if place != found["path"]:
        call.store.update("files", id, {"path": _new_place(call, path), "updated_at": call.now})
    return file(call, id)


def copy_file(call: Call, id: str, path: str) -> dict[str, Any]:
    found = file(call, id)
    return create_file(call, path, found["content"], found["encoding"], found["media_type"])


def delete_file(call: Call, id: str) -> dict[str, Any]:
    file(call, id, "writer")
    call.store.update("files", id, {"trashed": True})
    return file(call, id, trashed=True)


def restore_file(call: Call, id: str) -> dict[str, Any]:
    found = file(call, id, "writer", trashed=True)
    if not found["trashed"]:
        raise Conflict(f"{id} is not in the trash")
    _require_free(call, found["path"])
    call.store.update("files", id, {"trashed": False})
    return file(call, id)


# --- sharing --------------------------------------------------------------------------------------------


def _with(row: Row, people: list[str], role: str) -> list[dict[str, str]]:
    roles = {one["email"]: one["role"] for one in row["shared"]}
    roles.update({email: role for email in people if email != row["owner"]})
    return [{"email": email, "role": given} for email, given in roles.items()]


def _without(row: Row, people: list[str]) -> list[dict[str, str]]:
    for email in people:
        if email not in [one["email"] for one in row["shared"]]:
            raise NotFound(f"{row['path']} is not shared with {email}")
    return [one for one in row["shared"] if one["email"] not in people]


def share_file(call: Call, id: str, people: list[str], role: str) -> dict[str, Any]:
    found = file(call, id, "writer")
    return _shared(call, "files", "id", found, _with(found, people, role))


def unshare_file(call: Call, id: str, people: list[str]) -> dict[str, Any]:
    found = file(call, id, "writer")
    return _shared(call, "files", "id", found, _without(found, people))


def share_folder(call: Call, path: str, people: list[str], role: str) -> dict[str, Any]:
    found = folder(call, path, "writer")
    return _shared(call, "folders", "path", found, _with(found, people, role))


def unshare_folder(call: Call, path: str, people: list[str]) -> dict[str, Any]:
    found = folder(call, path, "writer")
    return _shared(call, "folders", "path", found, _without(found, people))


def _shared(call: Call, table: str, key: str, row: Row, shared: list[dict[str, str]]) -> Row:
    call.store.update(table, row[key], {"shared": shared}, key)
    return {**row, "shared": shared}
