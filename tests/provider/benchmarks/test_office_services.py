"""What all services of the office world have in common: command line, HTTP, log, clock, administration."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.office_services import ENVIRONMENT, PACKAGE, SERVICES, Running, cpu_of_children, run, serving, write_worlds

from benchflow.testing.waiting import until

Start = Callable[..., Running]

every_service = pytest.mark.parametrize("name", SERVICES)
mail_in_every_run = pytest.mark.parametrize(
    "name", [name if name == "mail" else pytest.param(name, marks=pytest.mark.long) for name in SERVICES]
)


# --- the command line -----------------------------------------------------------------------------------


@every_service
def test_help_tells_of_serve_and_seed(name: str) -> None:
    answer = run(f"office-{name}", "--help")
    assert answer.returncode == 0
    assert f"office-{name} [--db PATH] serve" in answer.stdout and "seed" in answer.stdout


def test_help_imports_next_to_nothing() -> None:
    code = "import sys; from office_mail.command import main; sys.argv = ['x', '--help']; main(); print(*sys.modules)"
    seen = subprocess.run(
        [sys.executable, "-S", "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert not {"json", "sqlite3", "re", "argparse", "socket"} & set(seen.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "usage"),
        (["dance"], "'dance' is not understood"),
        (["--port", "9101"], "serve, seed is missing"),
        (["serve", "--port"], "--port needs a value"),
        (["serve", "--port", "many"], "--port must be a number"),
        (["seed"], "--task is missing"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_says_why(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    answer = run("office-mail", "--db", str(tmp_path / "mail.db"), *arguments) if arguments else run("office-mail")
    assert answer.returncode == 2
    assert complaint in answer.stderr + answer.stdout


def test_a_database_that_is_not_there_is_not_made_by_serving(tmp_path: Path) -> None:
    answer = run("office-mail", "--db", str(tmp_path / "mail.db"), "serve", "--port", "0")
    assert answer.returncode == 1
    assert "make it with `seed`" in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_named(start: Start, seeded: Path, tmp_path: Path) -> None:
    running = start("mail")
    shutil.copy(seeded / "chat.db", tmp_path / "chat.db")
    answer = run("office-chat", "--db", str(tmp_path / "chat.db"), "serve", "--port", str(running.port))
    assert answer.returncode == 1
    assert f"127.0.0.1:{running.port}" in answer.stderr


# --- starting and stopping ------------------------------------------------------------------------------


def test_services_start_in_a_moment(seeded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for name in SERVICES:
        shutil.copy(seeded / f"{name}.db", tmp_path / f"{name}.db")
        before = cpu_of_children()
        with serving(name, tmp_path / f"{name}.db") as running:
            assert running.get("/health") == {"status": "ok", "service": name, "task": "plain"}
        lines.append(f"{name}: {running.seconds * 1000:.0f} ms, {(cpu_of_children() - before) * 1000:.0f} ms of CPU")
    with capsys.disabled():
        print("\n" + "\n".join(lines))


@mail_in_every_run
def test_sigterm_ends_a_service_with_its_database_in_one_file(start: Start, name: str) -> None:
    running = start(name)
    running.get("/me")
    assert running.stop() == 0
    assert not running.database.with_name(running.database.name + "-wal").exists()


def test_a_request_that_is_half_here_at_sigterm_is_still_answered(seeded: Path, tmp_path: Path) -> None:
    shutil.copy(seeded / "mail.db", tmp_path / "mail.db")
    body = json.dumps({"to": ["dirk"], "subject": "s", "body": "b"}).encode()
    head = f"POST /messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with (
        serving("mail", tmp_path / "mail.db", "--grace", "600") as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=600) as connection,
    ):
        connection.sendall(head + body[:10])
        _wait_until_read(connection)
        running.process.send_signal(signal.SIGTERM)
        _wait_until_closed(running.port)
        connection.sendall(body[10:])
        assert connection.recv(100).startswith(b"HTTP/1.1 201")
        assert running.process.wait(600) == 0


def _wait_until_read(connection: socket.socket) -> None:
    """Until the service has taken in what was sent, as the kernel tells of both ends of the connection."""
    ours, theirs = (f":{end[1]:04X}" for end in (connection.getsockname(), connection.getpeername()))
    # One look tells of the ends one after the other: that it has arrived is seen before that it was taken.
    asyncio.run(until(lambda: [sending for sending, _ in _queues(ours, theirs)] == ["00000000"]))
    asyncio.run(until(lambda: [received for _, received in _queues(theirs, ours)] == ["00000000"]))


def _wait_until_closed(port: int) -> None:
    asyncio.run(until(lambda: not any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in _sockets())))


def _queues(own: str, other: str) -> list[list[str]]:
    """What one end of a connection has still to send, and what it has received and nobody read, in bytes."""
    return [row[4].split(":") for row in _sockets() if row[1].endswith(own) and row[2].endswith(other)]


def _sockets() -> list[list[str]]:
    return [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]


# --- HTTP -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    [
        ("GET", "/nowhere", None, 404, "not_found", "GET / tells"),
        ("PUT", "/messages", None, 405, "method_not_allowed", "GET, POST"),
        ("POST", "/health", None, 405, "method_not_allowed", "GET"),
        ("GET", "/messages/m-9999", None, 404, "not_found", "m-9999"),
        ("POST", "/messages", "{", 400, "invalid_argument", "not JSON"),
        ("POST", "/messages", "[]", 400, "invalid_argument", "JSON object"),
        ("POST", "/messages", '{"to": ["dirk"], "subject": "s"}', 400, "invalid_argument", "body: is required"),
        ("POST", "/messages/m-0001/archive", '{"id": "m-0002"}', 400, "invalid_argument", "by the path"),
        ("GET", "/messages?colour=red", None, 400, "invalid_argument", "colour"),
        ("GET", "/messages?limit=0", None, 400, "invalid_argument", "limit"),
        ("GET", "/messages?limit=few", None, 400, "invalid_argument", "whole number"),
        ("GET", "/messages?unread=maybe", None, 400, "invalid_argument", "true or false"),
        ("GET", "/messages?folder=spam", None, 400, "invalid_argument", "one of inbox"),
        ("GET", "/messages?folder=%ff", None, 400, "invalid_argument", "UTF-8"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    office: Start, method: str, path: str, body: str | None, status: int, code: str, message: str
) -> None:
    running = office("mail")
    before = _without_log(running.tables())
    answer = running.request(method, path, body)
    assert (answer.status, answer.code) == (status, code)
    assert message in answer.body["error"]["message"]
    assert _without_log(running.tables()) == before


def _without_log(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: rows for name, rows in tables.items() if name != "actions"}


def test_bodies_may_come_in_chunks_slowly_and_several_on_one_connection(start: Start) -> None:
    running = start("mail")
    body = json.dumps({"to": ["dirk"], "subject": "ü", "body": "in chunks"}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    post = b"POST /messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    get = b"GET /messages?folder=sent&limit=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=600) as connection:
        for i in range(0, len(post), 11):
            connection.sendall(post[i : i + 11])
        connection.sendall(get)
        received = connection.makefile("rb").read()
    assert received.count(b"HTTP/1.1 ") == 2
    assert '"subject": "ü"'.encode() in received.rpartition(b"HTTP/1.1 200")[2]


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(start: Start) -> None:
    running = start("mail")
    body = b'{"to": ["dirk"], "subject": "s", "body": "b"}'
    with socket.create_connection(("127.0.0.1", running.port), timeout=600) as connection:
        connection.sendall(b"POST /messages HTTP/1.1\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(body))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 201")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"POST /messages HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /messages HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /" + b"a" * 40_000, b"413"),
        (b"HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
    ],
)
def test_odd_requests_get_a_status_and_the_connection_ends(office: Start, sent: bytes, status: bytes) -> None:
    running = office("mail")
    with socket.create_connection(("127.0.0.1", running.port), timeout=600) as connection:
        connection.sendall(sent)
        assert connection.makefile("rb").read().split(b" ")[1] == status
    assert running.get("/health")["status"] == "ok"


def test_twenty_clients_at_once_are_all_served(start: Start) -> None:
    running = start("chat")

    def client(number: int) -> list[str]:
        sent = [running.call("POST /channels/operations/messages", text=f"{number}: {i}").body["id"] for i in range(15)]
        assert running.get("/channels")["total"] > 5
        return sent

    with ThreadPoolExecutor(20) as pool:
        ids = [id for sent in pool.map(client, range(20)) for id in sent]
    assert len(set(ids)) == 300
    log = running.actions()
    assert [entry["n"] for entry in log] == list(range(1, 321))
    assert {entry["status"] for entry in log} == {200, 201}


def test_idle_connections_keep_nobody_out(office: Start) -> None:
    running = office("files")
    idle = [socket.create_connection(("127.0.0.1", running.port), timeout=600) for _ in range(60)]
    assert running.get("/folders")["path"] == "/"
    for connection in idle:
        connection.close()


# --- descriptions ---------------------------------------------------------------------------------------


@every_service
def test_openapi_describes_every_operation_and_refers_to_what_is_there(office: Start, name: str) -> None:
    document = office(name).get("/openapi.json")
    assert document["openapi"] == "3.1.0"
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            in_path = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert ("requestBody" in operation) <= (method in ("post", "put", "patch"))
            assert [status for status in operation["responses"] if status in ("200", "201")]
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        found = document
        for step in reference.split("/"):
            found = found[step]
    assert "admin" not in json.dumps(document)


@every_service
def test_the_reference_page_has_the_operations_that_there_are(office: Start, name: str) -> None:
    document = office(name).get("/openapi.json")
    reference = (PACKAGE / "API.md").read_text()
    common, own = (
        reference.split("Common operations")[1].split("\n## 2.")[0],
        reference.split(f"\n## {2 + SERVICES.index(name)}.")[1],
    )
    rows = re.findall(r"^\| `(\w+)` \| `(\w+) (\S+)` \|(.*?)\| ", common + own.split("\n## ")[0], re.MULTILINE)
    written = {
        (operation, method, path): set(re.findall(r"`(\w+)`\*?", arguments))
        for operation, method, path, arguments in rows
    }
    described = {
        (operation["operationId"], method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert written.keys() == described.keys()
    for key, operation in described.items():
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        names = {one["name"] for one in operation["parameters"] if one["in"] == "query"} | schema.get(
            "properties", {}
        ).keys()
        assert names <= written[key], key


@every_service
def test_the_front_page_lists_all_routes(office: Start, name: str) -> None:
    running = office(name)
    page = running.get("/")
    for path in running.get("/openapi.json")["paths"]:
        assert re.search(rf"^[A-Z]+ {re.escape(path)} ", page, re.MULTILINE), path
    assert "admin" not in page


# --- log, clock, seeds ----------------------------------------------------------------------------------


def test_everything_asked_is_in_the_log_also_what_was_refused(start: Start) -> None:
    running = start("mail")
    running.get("/messages/m-0045")
    running.call("POST /messages/m-0045/move", folder="archive")
    running.call("POST /messages/m-0045/move", folder="attic")
    assert [(one["n"], one["operation"], one["arguments"], one["status"], one["via"]) for one in running.actions()] == [
        (1, "read_mail", {"id": "m-0045"}, 200, "http"),
        (2, "move_mail", {"id": "m-0045", "folder": "archive"}, 200, "http"),
        (3, "move_mail", {"id": "m-0045", "folder": "attic"}, 400, "http"),
    ]
    assert {one["actor"] for one in running.actions()} == {"maya"}
    assert [one["at"][-14:-6] for one in running.actions()] == ["09:00:01", "09:00:02", "09:00:03"]


def test_the_same_calls_give_the_same_world(seeded: Path, tmp_path: Path) -> None:
    found = []
    for place in (tmp_path / "one", tmp_path / "two"):
        place.mkdir()
        shutil.copy(seeded / "documents.db", place / "documents.db")
        with serving("documents", place / "documents.db") as running:
            made = running.call("POST /documents", title="Plan", body="One.").body["id"]
            running.call(f"POST /documents/{made}/edit", append="Two.")
            found.append(running.tables())
    assert found[0] == found[1]


def test_seeds_are_equal_byte_for_byte_and_for_root_alone(seeded: Path, tmp_path: Path) -> None:
    worlds = write_worlds(tmp_path / "worlds", "plain")
    assert run("office-seed", "--world", str(worlds), "plain", "--data", str(tmp_path / "data")).returncode == 0
    for name in SERVICES:
        again = tmp_path / "data" / f"{name}.db"
        assert _digest(again) == _digest(seeded / f"{name}.db")
        assert stat.S_IMODE(again.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_database_that_is_busy_for_another_is_waited_for(start: Start) -> None:
    running = start("mail")
    other = sqlite3.connect(running.database, isolation_level=None)
    other.execute("begin immediate")
    with socket.create_connection(("127.0.0.1", running.port), timeout=600) as connection:
        connection.sendall(b"POST /messages/m-0045/archive HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        _wait_until_read(connection)
        other.execute("rollback")
        other.close()
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_world_that_is_put_back_below_a_running_service_is_seen_at_once(start: Start, seeded: Path) -> None:
    running = start("mail")
    running.call("POST /messages/m-0045/archive")
    source, target = sqlite3.connect(seeded / "mail.db"), sqlite3.connect(running.database)
    source.backup(target)
    source.close()
    target.close()
    assert running.get("/messages/m-0045")["folder"] == "inbox"
    assert [one["n"] for one in running.actions()] == [1]


# --- administration -------------------------------------------------------------------------------------


@every_service
def test_admin_pages_do_not_exist_without_the_token(office: Start, name: str) -> None:
    running = office(name)
    before = running.actions()
    for page in ("state", "actions"):
        for headers in (
            {},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer ü"},
            {"Authorization": running.token},
        ):
            answer = running.call(
                f"GET /admin/{page}", headers={k: v.encode("latin-1").decode("latin-1") for k, v in headers.items()}
            )
            assert (answer.status, answer.code) == (404, "not_found")
    assert running.admin("state")["service"] == name
    assert running.actions() == before


def test_the_token_is_for_root_alone_and_stays_when_the_service_starts_again(start: Start) -> None:
    running = start("mail")
    token = running.token
    assert stat.S_IMODE(running.database.with_suffix(".admin").stat().st_mode) == 0o600
    assert len(token) == 48
    running.stop()
    assert start("mail").token == token


@every_service
def test_the_state_is_all_tables_with_the_columns_of_the_reference_page(office: Start, name: str) -> None:
    tables = office(name).tables()
    section = (PACKAGE / "API.md").read_text().split("\n## 7.")[1].split("\n## 8.")[0]
    for database, table, columns in re.findall(r"^\| (\w+) \| `(\w+)` \| ([^|]*) \|$", section, re.MULTILINE):
        if database == name and tables[table]:
            assert list(tables[table][0]) == [re.sub(r" \(.*", "", column.strip()) for column in columns.split(",")]
