"""The office services, run from the source tree: seeding, starting, calling, and checking what they answer."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from support.paths import BENCHMARKS

from benchflow.testing.waiting import until

PACKAGE = BENCHMARKS / "office"
PACKAGES = sorted((PACKAGE / "image" / "packages").iterdir())
WORLDS = PACKAGE / "image" / "worlds"
SERVICES = ("mail", "chat", "calendar", "documents", "files")

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


def program(name: str, *arguments: str) -> list[str]:
    """A console script, without an installation: `office-mail` and so on."""
    entry = {"office-seed": "office_core.seeding", "office-check": "office_check.command"}
    module = entry.get(name, name.replace("-", "_") + ".command")
    code = f"import sys; sys.argv[0] = {name!r}; from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(name, *arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=600)


def write_worlds(directory: Path, task: str, text: str = "") -> Path:
    """The base company, with one task of this text."""
    (directory / "base").mkdir(parents=True)
    for path in (WORLDS / "base").iterdir():
        (directory / "base" / path.name).write_text(path.read_text())
    (directory / f"{task}.toml").write_text(text)
    return directory


class Answer:
    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body

    @property
    def code(self) -> str:
        """Of an error."""
        return str(self.body["error"]["code"])


class Running:
    """A started service. seconds, cpu_seconds: until it was healthy."""

    def __init__(self, name: str, database: Path, process: subprocess.Popen[str], port: int, seconds: float) -> None:
        self.name = name
        self.database = database
        self.process = process
        self.port = port
        self.seconds = seconds

    @property
    def token(self) -> str:
        return self.database.with_suffix(".admin").read_text().strip()

    def call(self, route: str, headers: dict[str, str] | None = None, **arguments: Any) -> Answer:
        """`POST /messages` with these arguments, in the query or in the body. `from_` is the argument `from`."""
        method, path = route.split()
        arguments = {name.rstrip("_"): value for name, value in arguments.items()}
        body = None
        if method in ("GET", "DELETE") and arguments:
            path += "?" + urlencode({name: _in_query(value) for name, value in arguments.items()})
        elif arguments:
            body = json.dumps(arguments)
        return self.request(method, path, body, headers)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request(method, quote(path, safe="/?&=%+"), body, headers or {})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        is_json = (response.getheader("Content-Type") or "").startswith("application/json")
        return Answer(response.status, json.loads(data) if is_json and data else data.decode())

    def get(self, path: str, **arguments: Any) -> Any:
        """What a GET answers, which must succeed."""
        answer = self.call(f"GET {path}", **arguments)
        assert answer.status == 200, answer.body
        return answer.body

    def admin(self, page: str) -> Any:
        answer = self.call(f"GET /admin/{page}", headers={"Authorization": f"Bearer {self.token}"})
        assert answer.status == 200
        return answer.body

    def tables(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin("state")["tables"]
        return found

    def actions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin("actions")["actions"]
        return found

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(600)


def _in_query(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list) else str(value)


@contextmanager
def serving(name: str, database: Path, *arguments: str) -> Iterator[Running]:
    """A service on a port of its own, until the block ends."""
    began = time.monotonic()
    command = program(f"office-{name}", "--db", str(database), "serve", "--port", "0", *arguments)
    log = database.with_suffix(".log")
    with log.open("w") as stderr:
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=stderr, text=True)
    try:
        port = _announced_port(process, log)
        yield Running(name, database, process, port, time.monotonic() - began)
    finally:
        process.kill()
        process.wait()


def _announced_port(process: subprocess.Popen[str], log: Path) -> int:
    """The service prints its address when it listens."""
    asyncio.run(until(lambda: "\n" in log.read_text() or process.poll() is not None, every=0.005))
    said = log.read_text()
    assert process.poll() is None, said
    return int(said.partition("127.0.0.1:")[2].partition(",")[0])


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def problem_with(value: Any, schema: dict[str, Any], document: dict[str, Any], where: str = "$") -> str | None:
    """How a value breaks a JSON Schema, of the part of it that the services use; None if it doesn't."""
    if "$ref" in schema:
        return problem_with(
            value, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document, where
        )
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    known: dict[str, Any] = {
        "string": str,
        "integer": int,
        "boolean": bool,
        "array": list,
        "object": dict,
        "null": type(None),
    }
    if not any(type(value) is known[name] for name in types):
        return f"{where} is {value!r}, not {types}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {value!r}, not one of {schema['enum']}"
    if isinstance(value, list):
        found = [problem_with(one, schema["items"], document, f"{where}[{i}]") for i, one in enumerate(value)]
        return next(filter(None, found), None)
    if not isinstance(value, dict):
        return None
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    missing, unknown = [*schema.get("required", [])], value.keys() - properties.keys()
    if any(name not in value for name in missing) or (others is False and unknown):
        return f"{where} has {sorted(value)}, not {sorted(properties)}"
    schemas = {name: properties.get(name, others) for name in value}
    found = [problem_with(value[name], one, document, f"{where}.{name}") for name, one in schemas.items()]
    return next(filter(None, found), None)
