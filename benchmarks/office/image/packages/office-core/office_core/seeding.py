"""Databases out of worlds: `seed` makes one, `office-seed TASK` all five."""

from __future__ import annotations

import sys
from pathlib import Path

from office_core.command_line import DEFAULT_WORLD, UsageError, load_service, parse
from office_core.errors import WorldError
from office_core.service import Service
from office_core.store import COMMON_TABLES, SCHEMA_VERSION, Store
from office_core.worlds import World

SERVICES = ("mail", "chat", "calendar", "documents", "files")

HELP = f"""\
usage: office-seed TASK [--data DIRECTORY] [--world DIRECTORY] [--force]

Makes the databases of all five services as a task begins.

  --data DIR    where they go (/data)
  --world DIR   where worlds are ({DEFAULT_WORLD})
  --force       overwrite databases that are there
"""


def seed(service: Service, world: World, path: Path, *, force: bool = False) -> None:
    """Make a service's database. Raises `WorldError` if there is one, or if the world is wrong; then none is left."""
    if path.exists() and not force:
        raise WorldError(f"{path} is there already; --force overwrites it")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    _remove(fresh)
    fresh.touch(mode=0o600)  # SQLite gives its other files the same mode
    store = Store(str(fresh))
    try:
        with store.transaction():
            for statement in (COMMON_TABLES + service.tables).split(";"):
                store.run(statement)
            _fill_common_tables(world, store)
            service.seed(world, store)
        store.close()
        _remove(path)
        fresh.replace(path)
    finally:
        store.close()
        _remove(fresh)


def _remove(database: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + ending).unlink(missing_ok=True)


def _fill_common_tables(world: World, store: Store) -> None:
    known = {"schema": SCHEMA_VERSION, "task": world.task, "now": world.now, "timezone": world.timezone}
    for key, value in {**known, "company": world.name, "domain": world.domain, "me": world.me}.items():
        store.set_meta(key, value)
    for item in world.items("people"):
        handle = item.text("handle")
        email = item.address(handle)
        person = {"handle": handle, "name": item.text("name"), "email": email, "title": item.text("title", "")}
        external = item.flag("external", not email.endswith("@" + world.domain))
        item.value("email")
        store.insert("people", {**person, "team": item.text("team", ""), "external": external})
        item.done()


def seed_all(world: World, data: Path, *, force: bool = False) -> list[str]:
    """Make the databases of all services; their names."""
    present = [str(data / f"{name}.db") for name in SERVICES if (data / f"{name}.db").exists()]
    if present and not force:
        raise WorldError(f"{present[0]} is there already; --force overwrites it")
    for name in SERVICES:
        seed(load_service(name), world, data / f"{name}.db", force=force)
    return list(SERVICES)


def main() -> int:
    words = sys.argv[1:]
    if not words or "--help" in words or "-h" in words:
        print(HELP, end="")
        return 0 if words else 2
    try:
        # Options may stand before the task as well.
        tasks = tuple(
            word
            for i, word in enumerate(words)
            if word[:1] != "-" and words[i - 1 : i] not in (["--data"], ["--world"])
        )
        task, options = parse(words, tasks, ("--data", "--world"), ("--force",))
        data = Path(options.get("--data", "/data"))
        seed_all(World.load(Path(options.get("--world", DEFAULT_WORLD)), task), data, force="--force" in options)
    except UsageError as problem:
        print(f"office-seed: {problem}; see office-seed --help", file=sys.stderr)
        return 2
    except WorldError as problem:
        print(f"office-seed: {problem}", file=sys.stderr)
        return 1
    print(f"office-seed: {task} is in {data}")
    return 0
