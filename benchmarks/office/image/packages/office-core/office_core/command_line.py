"""The command line of a service: `office-mail --db PATH serve` and `office-mail --db PATH seed`.

`--help` answers before anything is imported, because whoever starts a world asks every service for it first.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from office_core.service import Service
    from office_core.store import Store

HELP = """\
usage: office-{name} [--db PATH] serve [--host HOST] [--port PORT] [--no-mcp] [--grace SEC]
       office-{name} [--db PATH] seed [--world DIRECTORY] --task ID [--force]

The {name} service of the office world.

  serve           answer HTTP until SIGTERM
    --host HOST   address to listen at (127.0.0.1)
    --port PORT   ({port})
    --no-mcp      without the MCP endpoint
    --grace SEC   how long a request that is half here may take after SIGTERM (2)
  seed            make the database as a task begins
    --world DIR   where worlds are (/opt/office/worlds)
    --task ID     the task
    --force       overwrite a database that is there
  --db PATH       the database (/data/{name}.db)
"""
VALUES = ("--db", "--host", "--port", "--grace", "--world", "--task")
FLAGS = ("--no-mcp", "--force")
DEFAULT_WORLD = "/opt/office/worlds"


def run(name: str, port: int) -> int:
    """The exit code: 2 for a wrong command line, 1 for a world or a database that cannot be used."""
    words = sys.argv[1:]
    if not words or "--help" in words or "-h" in words:
        print(HELP.format(name=name, port=port), end="")
        return 0 if words else 2
    from office_core.errors import WorldError

    try:
        command, options = parse(words, ("serve", "seed"), VALUES, FLAGS)
        return _serve(name, port, options) if command == "serve" else _seed(name, options)
    except UsageError as problem:
        print(f"office-{name}: {problem}; see office-{name} --help", file=sys.stderr)
        return 2
    except WorldError as problem:
        print(f"office-{name}: {problem}", file=sys.stderr)
        return 1


class UsageError(Exception):
    """A command line that makes no sense."""


def parse(
    words: list[str], commands: tuple[str, ...], values: tuple[str, ...], flags: tuple[str, ...]
) -> tuple[str, dict[str, str]]:
    """The command and the options. `argparse` would cost its import at every start."""
    command, options, rest = "", {}, list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in values:
            if not equals and not rest:
                raise UsageError(f"{option} needs a value")
            options[option] = value if equals else rest.pop(0)
        elif word in flags:
            options[word] = "yes"
        elif word in commands and not command:
            command = word
        else:
            raise UsageError(f"{word!r} is not understood")
    if not command:
        raise UsageError(f"one of {', '.join(commands)} is missing")
    return command, options


def load_service(name: str) -> Service:
    """The `Service` that the package of this name makes."""
    from importlib import import_module

    service: Service = import_module(f"office_{name}.service").SERVICE
    return service


# --- serve ----------------------------------------------------------------------------------------------


def _serve(name: str, port: int, options: dict[str, str]) -> int:
    from office_core.admin_token import read_or_make
    from office_core.application import Application
    from office_core.errors import WorldError
    from office_core.server import GRACE_SECONDS, Server

    path = options.get("--db", f"/data/{name}.db")
    host, port_text = options.get("--host", "127.0.0.1"), options.get("--port", str(port))
    if not port_text.isdigit():
        raise UsageError(f"--port must be a number, not {port_text!r}")
    grace = options.get("--grace", str(GRACE_SECONDS))
    if not grace.replace(".", "", 1).isdigit():
        raise UsageError(f"--grace must be a number, not {grace!r}")
    store = open_store(path)
    application = Application(load_service(name), store, read_or_make(path), with_mcp="--no-mcp" not in options)
    try:
        server = Server(host, int(port_text), application.answer, float(grace))
    except OSError as problem:
        raise WorldError(f"cannot listen at {host}:{port_text}: {problem.strerror}") from None
    print(f"office-{name}: http://{host}:{server.port}, task {store.meta('task')}", file=sys.stderr)
    server.run()
    store.close()
    return 0


def open_store(path: str) -> Store:
    """A database that was seeded. Raises `WorldError`."""
    import sqlite3

    from office_core.errors import WorldError
    from office_core.store import SCHEMA_VERSION, Store

    try:
        store = Store(path)
        version = store.meta("schema")
    except sqlite3.DatabaseError as problem:
        raise WorldError(f"{path} is no database of this service ({problem}); make it with `seed`") from None
    if version != SCHEMA_VERSION:
        raise WorldError(
            f"{path} has schema {version}, this program needs {SCHEMA_VERSION}; make it anew with `seed --force`"
        )
    return store


# --- seed -----------------------------------------------------------------------------------------------


def _seed(name: str, options: dict[str, str]) -> int:
    from pathlib import Path

    from office_core.seeding import seed
    from office_core.worlds import World

    if "--task" not in options:
        raise UsageError("--task is missing")
    world = World.load(Path(options.get("--world", DEFAULT_WORLD)), options["--task"])
    seed(load_service(name), world, Path(options.get("--db", f"/data/{name}.db")), force="--force" in options)
    return 0
