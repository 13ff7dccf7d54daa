"""Worlds as data: TOML files of a company, and of what a task adds to it or changes.

`World.load` merges them; services read their items with the methods of `Item`, which resolve people and times, and
which notice keys that nobody asked for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from office_core.errors import WorldError
from office_core.people import ADDRESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEYS = {
    "people": "handle",
    "mail": "id",
    "channels": "id",
    "chat": "id",
    "calendars": "id",
    "events": "id",
    "documents": "id",
    "folders": "path",
    "files": "id",
}
"""The sections of a world, and the field that names an item."""
COMPANY = ("name", "domain", "timezone", "now", "me")


class World:
    """A company at the moment when a task begins."""

    def __init__(self, task: str, company: Mapping[str, Any], sections: dict[str, dict[str, Item]]) -> None:
        self.task = task
        self.name = str(company["name"])
        self.domain = str(company["domain"])
        self.timezone = str(company["timezone"])
        self.me = str(company["me"])
        self._zone = ZoneInfo(self.timezone)
        self._sections = sections
        self.emails = {one["handle"]: self._email(one) for one in self.people()}
        self.handles: dict[str, str] = {email: handle for handle, email in self.emails.items()}
        self.now = self.time(company["now"])
        if self.me not in self.emails:
            raise WorldError(f"{task}: company.me is {self.me!r}, who is nobody in [[people]]")

    @classmethod
    def load(cls, directory: Path, task: str) -> World:
        """The world of a task: the files of `base`, then the task's own. Raises `WorldError`."""
        own = directory / f"{task}.toml"
        if "/" in task or not own.is_file():
            known = ", ".join(sorted(path.stem for path in directory.glob("*.toml"))) or "none"
            raise WorldError(f"there is no task {task!r} in {directory}; there is {known}")
        company: dict[str, Any] = {}
        sections: dict[str, dict[str, Item]] = {section: {} for section in KEYS}
        for path in [*sorted((directory / "base").glob("*.toml")), own]:
            _merge(path, company, sections)
        missing = [key for key in COMPANY if key not in company]
        if missing:
            raise WorldError(f"{directory}: [company] lacks {', '.join(missing)}")
        world = cls(task, company, sections)
        for items in sections.values():
            for item in items.values():
                item.world = world
        return world

    def items(self, section: str) -> list[Item]:
        return list(self._sections[section].values())

    def has(self, section: str, key: str) -> bool:
        return key in self._sections[section]

    def people(self) -> list[dict[str, Any]]:
        return [item.fields for item in self.items("people")]

    def _email(self, one: Mapping[str, Any]) -> str:
        return str(one.get("email") or f"{one['name'].lower().replace(' ', '.')}@{self.domain}")

    def time(self, value: Any) -> str:
        """RFC 3339, with the company's offset where the value has none."""
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime):
            raise WorldError(f"{value!r} is not a time")
        return (value if value.tzinfo else value.replace(tzinfo=self._zone)).isoformat(timespec="seconds")


def _merge(path: Path, company: dict[str, Any], sections: dict[str, dict[str, Item]]) -> None:
    """One file into what the files before it gave."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise WorldError(f"{path}: {problem}") from None
    if content.pop("task", path.stem) != path.stem:
        raise WorldError(f"{path}: task must be the name of the file, {path.stem!r}")
    content.pop("about", None)
    _known(path, "company", content.get("company", {}), COMPANY)
    company.update(content.pop("company", {}))
    removed = content.pop("remove", {})
    _known(path, "the file", content, tuple(KEYS))
    _known(path, "remove", removed, tuple(KEYS))
    for section, keys in removed.items():
        for key in keys:
            if sections[section].pop(key, None) is None:
                raise WorldError(f"{path}: remove.{section} names {key!r}, which is not there")
    for section, items in content.items():
        _add(path, section, items, sections[section])


def _add(path: Path, section: str, items: Sequence[Mapping[str, Any]], known: dict[str, Item]) -> None:
    seen = set()
    for fields in items:
        key = fields.get(KEYS[section])
        if not isinstance(key, str):
            raise WorldError(f"{path}: an item of [[{section}]] has no {KEYS[section]!r}")
        if key in seen:
            raise WorldError(f"{path}: [[{section}]] has {key!r} twice")
        seen.add(key)
        before = known[key].fields if key in known else {}
        known[key] = Item(f"{path}: [[{section}]] {key}", {**before, **fields})


def _known(path: Path, where: str, found: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key in found:
        if key not in allowed:
            raise WorldError(f"{path}: {where} has {key!r}; it may have {', '.join(allowed)}")


class Item:
    """One table of a world file. where: for messages. fields: as written; `done` refuses those that were not read."""

    world: World

    def __init__(self, where: str, fields: Mapping[str, Any]) -> None:
        self.where = where
        self.fields = dict(fields)
        self._read: set[str] = set()

    def problem(self, text: str) -> WorldError:
        return WorldError(f"{self.where}: {text}")

    def value(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self.fields.get(key, default)

    def needed(self, key: str) -> Any:
        if self.value(key) is None:
            raise self.problem(f"{key!r} is missing")
        return self.fields[key]

    def text(self, key: str, default: str | None = None) -> str:
        """A text, without the line break that ends a text of several lines. Needed if there is no default."""
        value = self.needed(key) if default is None else self.value(key, default)
        if not isinstance(value, str):
            raise self.problem(f"{key!r} must be a text")
        return value[:-1] if value.endswith("\n") else value

    def choice(self, key: str, values: Sequence[str], default: str) -> str:
        value = self.text(key, default)
        if value not in values:
            raise self.problem(f"{key!r} is {value!r}, not one of {', '.join(values)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.problem(f"{key!r} must be true or false")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.value(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.problem(f"{key!r} must be a list of texts")
        return value

    def time(self, key: str, default: str | None = None) -> str:
        value = self.needed(key) if default is None else self.value(key, default)
        try:
            return self.world.time(value)
        except (WorldError, ValueError) as problem:
            raise self.problem(f"{key!r}: {problem}") from None

    def address(self, given: str) -> str:
        """Of an address, or of a handle."""
        found = self.world.emails.get(given, given)
        if not ADDRESS.fullmatch(found):
            raise self.problem(f"{given!r} is neither an address nor a handle of [[people]]")
        return found

    def member(self, given: str) -> str:
        """The handle of somebody in [[people]]."""
        handle: str = self.world.handles.get(given, given)
        if handle not in self.world.emails:
            raise self.problem(f"{given!r} is nobody in [[people]]")
        return handle

    def addresses(self, key: str) -> list[str]:
        return [self.address(one) for one in self.texts(key)]

    def objects(self, key: str, fields: Sequence[str]) -> list[dict[str, str]]:
        """A list of tables that have exactly these fields, all texts."""
        value = self.value(key, [])
        for one in value:
            if set(one) != set(fields) or not all(isinstance(part, str) for part in one.values()):
                raise self.problem(f"{key!r} must have {', '.join(fields)}, all texts, not {one}")
        return list(value)

    def shared(self, roles: Sequence[str]) -> list[dict[str, str]]:
        """The field `shared`: who has which role."""
        found = self.objects("shared", ("email", "role"))
        for one in found:
            if one["role"] not in roles:
                raise self.problem(f"shared has the role {one['role']!r}, not one of {', '.join(roles)}")
        return [{"email": self.address(one["email"]), "role": one["role"]} for one in found]

    def part(self, key: str, fields: Mapping[str, Any]) -> Item:
        """One of the tables inside this one."""
        item = Item(f"{self.where}: {key} {fields.get('id', '')}", fields)
        item.world = self.world
        return item

    def done(self) -> None:
        unknown = sorted(self.fields.keys() - self._read)
        if unknown:
            raise self.problem(f"has {unknown[0]!r}; it may have {', '.join(sorted(self._read))}")
