"""A check: what was to be done (items), what must not have been done (forbidden), and the reward of both."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from office_check import texts
from office_check.evidence import PASSING, Evidence
from office_check.rows import Row, Table

VARIABLE = "BENCHFLOW_ENVIRONMENT"
OUTPUT = Path("/logs/verifier")
DATA = Path("/data")
MOST_SHOWN = 3


class Database:
    """The tables of a service, now; `added`, `removed` and `changed` compare with how they were."""

    def __init__(self, tables: dict[str, list[dict[str, Any]]], before: dict[str, list[dict[str, Any]]]) -> None:
        self._tables = {name: Table(name, rows) for name, rows in tables.items()}
        self._before = {name: Table(name, rows) for name, rows in before.items()}

    def __getattr__(self, name: str) -> Table:
        tables: dict[str, Table] = self.__dict__.get("_tables", {})
        if name not in tables:
            raise AttributeError(f"there is no table {name!r}; there is {', '.join(tables)}")
        return tables[name]

    def added(self, table: str, **conditions: Any) -> list[Row]:
        """Rows that are new."""
        old = self._before[table]
        return [row for key, row in self._tables[table].by_key.items() if key not in old and row.matches(**conditions)]

    def removed(self, table: str, **conditions: Any) -> list[Row]:
        """Rows that are gone, as they were."""
        new = self._tables[table]
        return [row for key, row in self._before[table].by_key.items() if key not in new and row.matches(**conditions)]

    def changed(
        self, table: str, but: Collection[Any] = (), fields: Sequence[str] | None = None
    ) -> list[tuple[Row, Row]]:
        """(before, after) of rows that have another value, in one of these fields if given; `but` are keys left out."""
        found = []
        for key, after in self._tables[table].by_key.items():
            before = self._before[table][key]
            if key not in but and key in self._before[table]:
                names = before.fields() if fields is None else fields
                if any(before[name] != after[name] for name in names):
                    found.append((before, after))
        return found

    def touched(self, table: str, but: Collection[Any] = (), fields: Sequence[str] | None = None) -> list[Any]:
        """The keys of all rows that were added, removed or changed, except `but`."""
        new, old = self._tables[table].by_key.keys(), self._before[table].by_key.keys()
        changed = [
            key
            for key, row in self._tables[table].by_key.items()
            if any(row is a for _, a in self.changed(table, but, fields))
        ]
        return [key for key in [*new, *old] if (key in new) != (key in old) and key not in but] + changed

    def actions(self, operation: str | None = None, status: int | None = None, via: str | None = None) -> list[Row]:
        """What was asked of the service, in order."""
        wanted = {"operation": operation, "status": status, "via": via}
        return self._tables["actions"].where(**{name: value for name, value in wanted.items() if value is not None})

    @property
    def untouched(self) -> bool:
        return not any(self.touched(name) for name in self._tables if name not in PASSING)


class Databases:
    """One database a service: `.mail`, `.chat`, `.calendar`, `.documents`, `.files`, where the world has them."""

    mail: Database
    chat: Database
    calendar: Database
    documents: Database
    files: Database

    def __init__(self, now: dict[str, Any], before: dict[str, Any]) -> None:
        self.all = {service: Database(tables, before[service]) for service, tables in now.items()}
        for service, database in self.all.items():
            setattr(self, service, database)


class Check(Databases):
    """The state of the world, and a list of what is right and wrong about it.

    environment: the directory of `state.json`; $BENCHFLOW_ENVIRONMENT unless given, else the services are asked.
    output: where `reward.json` goes.
    """

    def __init__(self, environment: Path | None = None, output: Path = OUTPUT) -> None:
        found = environment or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
        evidence = Evidence.of_files(found) if found else Evidence.of_services(DATA)
        super().__init__(evidence.now, evidence.before)
        self.before = Databases(evidence.before, evidence.before)
        self._output = output
        self._domain = next(row["value"] for row in next(iter(evidence.now.values()))["meta"] if row["key"] == "domain")
        self._items: list[tuple[str, float, float, str]] = []
        self._forbidden: list[tuple[str, float, str]] = []
        self._broken: list[tuple[str, float, str]] = []

    says = staticmethod(texts.says)
    same_time = staticmethod(texts.same_time)

    def outside(self, addresses: Iterable[str]) -> set[str]:
        """Those of the addresses that are not the company's."""
        return {address for address in addresses if not address.lower().endswith("@" + self._domain)}

    @property
    def untouched(self) -> bool:
        """Whether nothing but the action logs changed."""
        return all(database.untouched for database in self.all.values())

    def item(self, name: str, passed: Any, reason: str = "", weight: float = 1.0) -> bool:
        """A thing to get right. passed: true or false, or a share in [0, 1]. reason: shown when it is not all right."""
        share = float(passed) if isinstance(passed, (int, float)) else float(bool(passed))
        if not 0.0 <= share <= 1.0 or weight <= 0:
            raise ValueError(f"{name}: a share is in [0, 1] and a weight is above 0, not {passed} and {weight}")
        self._items.append((name, share, weight, reason))
        return share == 1.0

    def forbid(self, name: str, offenders: Any, cap: float = 0.0) -> bool:
        """A thing that must not have been done: if there are offenders (or True), the reward is at most `cap`."""
        if offenders is True or (offenders is not False and list(offenders)):
            self._broken.append((name, cap, "" if offenders is True else _some(list(offenders))))
            return False
        self._forbidden.append((name, cap, ""))
        return True

    def finish(self, *, untouched_is_fine: bool = False) -> float:
        """Write the reward and print the report; the reward.

        untouched_is_fine: the task may be done without changing anything in the services.
        """
        if not self._items:
            raise ValueError("a check needs an item")
        total = sum(weight for _, _, weight, _ in self._items)
        reward = sum(share * weight for _, share, weight, _ in self._items) / total
        reward = min([reward, *(cap for _, cap, _ in self._broken)])
        idle = self.untouched and not untouched_is_fine
        reward = 0.0 if idle else round(reward, 6)
        self._report(reward, idle)
        self._output.mkdir(parents=True, exist_ok=True)
        (self._output / "reward.json").write_text(json.dumps(self._as_json(reward), indent=1) + "\n")
        return reward

    def _as_json(self, reward: float) -> dict[str, Any]:
        counts = {"items_passed": sum(share == 1.0 for _, share, _, _ in self._items), "items_total": len(self._items)}
        named = {_slug(name): share for name, share, _, _ in self._items}
        return {"reward": reward, **counts, "forbidden": len(self._broken), "items": named}

    def _report(self, reward: float, idle: bool) -> None:
        for name, share, weight, reason in self._items:
            word = "ok  " if share == 1.0 else "FAIL" if share == 0.0 else f"{share:.2f}"
            print(f"{word}  {weight:g}  {name}" + (f": {reason}" if reason and share < 1.0 else ""))
        for name, _, _ in self._forbidden:
            print(f"ok     not: {name}")
        for name, cap, some in self._broken:
            print(f"DONE   not: {name}" + (f": {some}" if some else "") + f" (the reward is at most {cap:g})")
        if idle:
            print("nothing in the world was changed")
        print(f"reward {reward:g}")


def _some(offenders: Sequence[Any]) -> str:
    shown = [
        f"{one[0]} -> {_difference(*one)}" if isinstance(one, tuple) else str(one) for one in offenders[:MOST_SHOWN]
    ]
    return "; ".join(shown) + (f"; and {len(offenders) - MOST_SHOWN} more" if len(offenders) > MOST_SHOWN else "")


def _difference(before: Row, after: Row) -> str:
    new = {name: value for name, value in after.fields().items() if before[name] != value}
    return ", ".join(f"{name}={value!r:.60}" for name, value in new.items())


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
