"""The directory of people, which every service has, and who is acting."""

from __future__ import annotations

import re

from office_core.errors import Invalid
from office_core.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ADDRESS = re.compile(r"[^@\s,;<>\"]+@[^@\s,;<>\"]+\.[^@\s,;<>\"]+")
NAMED_ADDRESS = re.compile(r"[^<>]*<([^<>]+)>\s*")


class Directory:
    """Who is who in one database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def email(self, given: str) -> str:
        """The address of what is an address or a handle. Raises `Invalid`."""
        named = NAMED_ADDRESS.fullmatch(given)
        address = (named.group(1) if named else given).strip().lower()
        if ADDRESS.fullmatch(address):
            return address
        row = self._store.get("people", given.strip().lstrip("@"), "handle")
        if row is None:
            raise Invalid(f"{given!r} is neither an address nor a handle of the directory (GET /people)")
        return str(row["email"])

    def handle(self, given: str) -> str:
        """The handle of what is an address or a handle of the directory. Raises `Invalid`."""
        row = self._store.get("people", self.email(given), "email")
        if row is None:
            raise Invalid(f"{given!r} is not in the directory (GET /people)")
        return str(row["handle"])

    def is_external(self, address: str) -> bool:
        return not address.endswith("@" + self._store.meta("domain"))

    def find(self, words: str = "") -> list[dict[str, Any]]:
        """All whose handle, name, address, title or team has every word."""
        found = self._store.rows("select * from people order by external, handle")
        wanted = words.casefold().split()
        return [row for row in found if all(word in " ".join(map(str, row.values())).casefold() for word in wanted)]
