"""Paths, and who may do what with what is there. What is shared with a folder holds for all below it."""

from __future__ import annotations

from office_core.errors import Forbidden, Invalid, NotFound
from office_core.service import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from office_core.store import Row, Store

ROLES = ("reader", "writer")


def clean(path: str) -> str:
    """`/Finance/2026` from what is meant by it. Raises `Invalid`."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or any(part in (".", "..") for part in parts):
        raise Invalid("path: must begin with / and be without . and ..")
    return "/" + "/".join(parts)


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def above(path: str) -> list[str]:
    """The folders that a path is in, the nearest first, without `/`."""
    found = []
    while (path := parent(path)) != "/":
        found.append(path)
    return found


class Rights:
    """What I may do, by the folders as they are now."""

    def __init__(self, call: Call) -> None:
        self._me = call.me
        self._mine = (call.me, f"everyone@{call.store.meta('domain')}")
        self._folders = {row["path"]: row for row in call.store.rows("select * from folders")}

    def role(self, row: Row) -> str | None:
        """My role for a file or a folder; `owner` of what is mine or lies in a folder of mine."""
        rows = [row, *(self._folders[path] for path in above(row["path"]) if path in self._folders)]
        if any(one["owner"] == self._me for one in rows):
            return "owner"
        roles = [share["role"] for one in rows for share in one["shared"] if share["email"] in self._mine]
        return max(roles, key=ROLES.index, default=None)

    def folder(self, path: str) -> Row | None:
        """A folder, whether or not I may see it."""
        return self._folders.get(path)

    def visible_folders(self) -> list[Row]:
        return [row for row in self._folders.values() if self.role(row)]


def file(call: Call, id: str, role: str = "reader", *, trashed: bool = False) -> Row:
    """A file that I have this role for. Raises `NotFound`, `Forbidden`."""
    found = call.store.get("files", id)
    mine = Rights(call).role(found) if found else None
    if found is None or mine is None or (found["trashed"] and not trashed):
        raise NotFound(f"there is no file {id!r}" + (" outside of the trash" if found and mine else ""))
    if mine == "reader" and role != "reader":
        raise Forbidden(f"you may only read {id}")
    if mine == "writer" and role == "owner":
        raise Forbidden(f"only the owner of {id} may do this: {found['owner']}")
    return found


def folder(call: Call, path: str, role: str = "reader") -> Row:
    """A folder that I have this role for. Raises `NotFound`, `Forbidden`."""
    rights = Rights(call)
    found = rights.folder(clean(path))
    mine = rights.role(found) if found else None
    if found is None or mine is None:
        raise NotFound(f"there is no folder {path!r}")
    if mine == "reader" and role != "reader":
        raise Forbidden(f"you may only read in {found['path']}")
    return found


def writable_place(call: Call, path: str) -> str:
    """The clean path of something new: its nearest folder that exists must be one that I may write in.

    At the top everybody may make something.
    """
    place = clean(path)
    if place == "/":
        raise Invalid("path: must name something below /")
    rights = Rights(call)
    for above_it in above(place):
        found = rights.folder(above_it)
        if found is not None:
            if rights.role(found) in (None, "reader"):
                raise Forbidden(f"you may not write in {above_it}")
            break
    return place


def make_folders(store: Store, path: str, owner: str) -> None:
    """The folder of a path, and those above it, where they are missing."""
    for folder_path in (path, *above(path)):
        if folder_path != "/" and store.get("folders", folder_path, "path") is None:
            store.insert("folders", {"path": folder_path, "owner": owner, "shared": []})
