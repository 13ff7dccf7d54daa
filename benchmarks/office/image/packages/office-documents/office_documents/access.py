"""Who may do what with a document."""

from __future__ import annotations

from office_core.errors import Conflict, Forbidden, NotFound
from office_core.service import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from office_core.store import Row

ROLES = ("reader", "commenter", "writer")
VISIBLE = "(owner = ? or exists (select 1 from json_each(shared) where json_extract(value, '$.email') in (?, ?)))"


def identities(call: Call) -> tuple[str, str]:
    """My address, and that of everyone."""
    return call.me, f"everyone@{call.store.meta('domain')}"


def visible_parameters(call: Call) -> list[str]:
    me, everyone = identities(call)
    return [me, me, everyone]


def document(call: Call, id: str, role: str = "reader") -> Row:
    """A document that I have this role in. Raises `NotFound`, `Forbidden`, and `Conflict` for writing in the trash."""
    rows = call.store.rows(f"select * from documents where id = ? and {VISIBLE}", id, *visible_parameters(call))
    if not rows:
        raise NotFound(f"there is no document {id!r}")
    found = rows[0]
    mine = "writer" if found["owner"] == call.me else _role(call, found)
    if ROLES.index(mine) < ROLES.index(role):
        raise Forbidden(f"you are a {mine} of {id}; this needs a {role}")
    if found["trashed"] and role != "reader":
        raise Conflict(f"{id} is in the trash")
    return found


def _role(call: Call, row: Row) -> str:
    given: list[str] = [one["role"] for one in row["shared"] if one["email"] in identities(call)]
    return max(given, key=ROLES.index)


def owned_document(call: Call, id: str) -> Row:
    found = document(call, id, "writer")
    if found["owner"] != call.me:
        raise Forbidden(f"only the owner of {id} may do this: {found['owner']}")
    return found
