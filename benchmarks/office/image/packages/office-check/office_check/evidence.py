"""Where a check reads the state of the world: the files that the framework left for it, else the services themselves.

Both give, for each service, the rows of all tables now and as they were when the agent came.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from office_core.admin_token import token_file
from office_core.command_line import DEFAULT_WORLD, load_service
from office_core.seeding import SERVICES, seed
from office_core.store import Store
from office_core.worlds import World

from office_check.rows import key_of

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]

PASSING = frozenset({"actions", "meta"})
"""Tables that change with every call."""


class Evidence:
    """now, before: rows by service and table."""

    def __init__(self, now: dict[str, Tables], before: dict[str, Tables]) -> None:
        self.now = now
        self.before = before

    @classmethod
    def of_files(cls, directory: Path) -> Evidence:
        """From `state.json` and `diff.json`."""
        state = json.loads((directory / "state.json").read_text())
        diff = json.loads((directory / "diff.json").read_text())
        now = {_service(one["path"]): _tables(one) for one in state["databases"] if one["present"]}
        changes = {
            _service(one["path"]): {table["name"]: table for table in one["tables"]} for one in diff["databases"]
        }
        before = {
            service: {
                name: _undone(service, name, rows, changes.get(service, {}).get(name)) for name, rows in tables.items()
            }
            for service, tables in now.items()
        }
        return cls(now, before)

    @classmethod
    def of_services(cls, data: Path, worlds: Path = Path(DEFAULT_WORLD)) -> Evidence:
        """From the services' admin pages, and a fresh seed of the task that they were seeded for."""
        names = [name for name in SERVICES if (data / f"{name}.db").exists()]
        now = {name: _ask(name, data, "state")["tables"] for name in names}
        task = next(row["value"] for row in now[names[0]]["meta"] if row["key"] == "task")
        return cls(now, _seeded(World.load(worlds, task), names))


def _service(path: str) -> str:
    return Path(path).stem


def _tables(database: dict[str, Any]) -> Tables:
    tables = {}
    for table in database["tables"]:
        values = table["values"]
        if values is None and table["rows"]:
            # More rows than are handed over: the service still has them.
            path = Path(database["path"])
            values = _ask(_service(database["path"]), path.parent, "state")["tables"][table["name"]]
            tables[table["name"]] = values
            continue
        names = list(enumerate(table["columns"]))
        tables[table["name"]] = [{name: row[i] for i, name in names} for row in values or []]
    return tables


def _undone(service: str, table: str, rows: Rows, change: dict[str, Any] | None) -> Rows:
    """The rows of a table before a change."""
    if change is None:
        return rows
    if change["left_out"] and table not in PASSING:
        raise ValueError(f"{service}.{table}: {change['left_out']} changes are left out of diff.json")
    found = {key_of(table, row): row for row in rows}
    for row in change["added"]:
        found.pop(key_of(table, row), None)
    for row in change["removed"]:
        found[key_of(table, row)] = row
    for one in change["changed"]:
        found[key_of(table, one["before"])] = one["before"]
    return list(found.values())


def _ask(service: str, data: Path, page: str) -> dict[str, Any]:
    """An admin page of a running service."""
    token = Path(token_file(str(data / f"{service}.db"))).read_text().strip()
    url = f"http://127.0.0.1:{load_service(service).port}/admin/{page}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def _seeded(world: World, names: Iterable[str]) -> dict[str, Tables]:
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            path = Path(directory) / f"{name}.db"
            seed(load_service(name), world, path)
            store = Store(str(path))
            found[name] = store.tables()
            store.close()
    return found
