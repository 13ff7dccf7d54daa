"""`bench env check`: a manifest tried on this machine."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import Bench

from benchflow import stack
from benchflow.jobs.trial_job import NO_TASK
from benchflow.planes.sandbox import close_providers, get_provider
from benchflow.temporal import connect, make_stack_target, read_stack_id
from benchflow.testing.waiting import until

pytestmark = pytest.mark.usefixtures("module_jobs")

LOCAL = pytest.param("local", marks=pytest.mark.local)
WHERE = [pytest.param("docker", marks=pytest.mark.docker), LOCAL]
SELDOM_IN_DOCKER = [pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long]), LOCAL]

DESK = """#!/usr/bin/env python3
import http.server, json, sqlite3, sys
if "--help" in sys.argv:
    sys.exit(0)
port, path = int(sys.argv[1]), sys.argv[2]
db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
if "--restless" in sys.argv:
    db.execute("INSERT INTO notes (text) VALUES ('started')")

class Desk(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "text" not in body:
            return self.answer(422, b"no text")
        db.execute("INSERT INTO notes (text) VALUES (?)", [body["text"]])
        self.answer(201)

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

print("the desk is open", flush=True)
http.server.ThreadingHTTPServer(("0.0.0.0", port), Desk).serve_forever()
"""

DOCKERFILE = """FROM debian:bookworm-slim
COPY desk.py /usr/local/bin/desk
COPY desk.db /data/desk.db
CMD ["desk", "9001", "/data/desk.db"]
"""

STARTED = """
[environment]
name = "desk"
base_image = "desk-base:1"
owns_lifecycle = false
task_selection = { mechanism = "image" }
readiness = { timeout_sec = 120 }
[[environment.services]]
name = "desk"
command = "desk 9001 /data/desk.db"
port = 9001
[[environment.services]]
name = "phone"
command = "phone serve"
port = 9002
"""

OWNED = """
[environment]
name = "desk"
image = "desk:1"
ports = [9001]
[environment.readiness]
http = ["http://localhost:9001/health"]
timeout_sec = 120
"""

STATE = '[environment.state]\npaths = ["/data/desk.db", "/data/phone.db"]\n'
POST = 'http://localhost:9001/notes:{"text": "two"}'

DONE = ["image", "sandbox", "services", "ready", "snapshot", "write", "restore", "reset", "copy", "teardown", "removed"]
ROLLBACK = DONE[4:8]
WITHOUT_URLS = dict.fromkeys(DONE, "holds") | {"copy": "not declared"}
"""All that holds in a world of which nobody is to observe any URL."""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A directory with the image of a small world, for a manifest to be put beside it."""
    image = tmp_path / "world/image"
    image.mkdir(parents=True)
    (image / "desk.py").write_text(DESK)
    (image / "desk.py").chmod(0o755)
    (image / "Dockerfile").write_text(DOCKERFILE)
    with sqlite3.connect(image / "desk.db") as database:
        database.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
        database.execute("INSERT INTO notes (text) VALUES ('one')")
    database.close()
    return tmp_path / "world"


def manifest(world: Path, text: str) -> Path:
    (world / "environment.toml").write_text(text)
    return world / "environment.toml"


def outcomes(found: dict[str, object]) -> dict[str, str]:
    findings = found["findings"]
    assert isinstance(findings, list)
    return {finding["what"]: finding["outcome"] for finding in findings}


def detail(found: dict[str, list[dict[str, str]]], what: str) -> str:
    return next(finding["detail"] for finding in found["findings"] if finding["what"] == what)


def left(sandbox: str) -> list[str]:
    """The sandboxes of checks of the shared stack that are still there."""

    async def ask() -> list[str]:
        record = await asyncio.to_thread(stack.ensure_stack)
        mine = await read_stack_id(await connect(make_stack_target(record)))
        try:
            found = await get_provider(sandbox).owned(mine)
        finally:
            await close_providers(mine)
        return [each.name for each in found if each.labels["benchflow.task"] == NO_TASK]

    return asyncio.run(ask())


# --- check ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sandbox", SELDOM_IN_DOCKER)
def test_all_that_a_stateful_world_declares_holds(bench: Bench, world: Path, sandbox: str) -> None:
    ran = bench("env", "check", manifest(world, STARTED + STATE), "--sandbox", sandbox, "--json")
    assert ran.status == 0, ran.out
    found = ran.json
    assert outcomes(found) == WITHOUT_URLS
    assert all(finding["seconds"] is not None for finding in found["findings"] if finding["what"] != "copy")
    assert "not in this image: phone" in detail(found, "services")
    assert "not in this image: /data/phone.db" in detail(found, "snapshot")
    assert [service["state"] for service in found["world"]["services"]] == ["running", "left_out"]
    assert (found["ok"], found["sandbox"], found["failure"]) == (True, sandbox, None)
    assert left(sandbox) == []


@pytest.mark.long
@pytest.mark.parametrize("sandbox", WHERE)
def test_a_service_may_be_what_writes(bench: Bench, world: Path, sandbox: str) -> None:
    file = manifest(world, STARTED + STATE)
    ran = bench("env", "check", file, "--sandbox", sandbox, "--write", POST, "--json")
    assert ran.status == 0, ran.out
    assert detail(ran.json, "write") == "POST http://localhost:9001/notes: HTTP 201; the state has changed"


@pytest.mark.parametrize("sandbox", SELDOM_IN_DOCKER)
def test_a_world_whose_entrypoint_owns_the_services_is_rolled_back_while_it_runs(
    bench: Bench, world: Path, sandbox: str
) -> None:
    ran = bench("env", "check", manifest(world, OWNED + STATE), "--sandbox", sandbox, "--write", POST, "--json")
    assert ran.status == 0, ran.out
    assert outcomes(ran.json) == WITHOUT_URLS
    assert "a no-op" in detail(ran.json, "reset")
    assert left(sandbox) == []


@pytest.mark.docker
@pytest.mark.agents
@pytest.mark.long
def test_an_image_without_python_is_worked_on_by_a_mounted_one(bench: Bench, world: Path) -> None:
    dockerfile = DOCKERFILE.replace("CMD", "RUN rm -f /usr/bin/python3*\nCMD").replace(
        '"desk", "9001", "/data/desk.db"', '"sleep", "600"'
    )
    (world / "image/Dockerfile").write_text(dockerfile)
    file = manifest(world, '[environment]\nname = "desk"\nimage = "desk:1"\n' + STATE)
    ran = bench("env", "check", file, "--sandbox", "docker", "--json")
    assert ran.status == 0, ran.out
    assert detail(ran.json, "sandbox") == "docker; a mounted Python reads the state"
    assert outcomes(ran.json)["restore"] == "holds"
    ran = bench("env", "check", file, "--sandbox", "docker", "--write", "http://127.0.0.1:9001", "--json")
    assert "no answer: [Errno 111] Connection refused" in detail(ran.json, "write")


@pytest.mark.local
def test_the_table_says_what_holds_and_what_is_not_declared(bench: Bench, world: Path) -> None:
    ran = bench("env", "check", manifest(world, STARTED), "--sandbox", "local")
    assert ran.status == 0, ran.err
    lines = {line.split()[1]: line for line in ran.out.splitlines() if line.strip()[:1] in "✓✗–·" and line.strip()}
    assert list(lines) == DONE
    for what in ROLLBACK:
        assert "– " in lines[what] and "not declared: there is no [environment.state]" in lines[what]
    assert "– " in lines["copy"] and "no environment.state.observe" in lines["copy"]
    assert "✓ ready" in lines["ready"] and "HTTP 200" in lines["ready"]
    assert "s" in lines["ready"].split()[3]


@pytest.mark.local
def test_a_world_that_does_not_get_ready_shows_its_log_and_leaves_nothing(bench: Bench, world: Path) -> None:
    text = STARTED.replace("/data/desk.db", "/missing/desk.db") + STATE
    ran = bench("env", "check", manifest(world, text), "--sandbox", "local", "--json")
    assert ran.status == 1
    expected = ["holds"] * 3 + ["fails"] + ["not tried"] * 6 + ["holds"]
    assert outcomes(ran.json) == dict(zip(DONE, expected, strict=True))
    assert "unable to open database file" in ran.json["failure"]["log_tail"]
    assert left("local") == []


@pytest.mark.long
@pytest.mark.local
def test_a_restore_is_held_to_the_rows_of_the_snapshot(bench: Bench, world: Path) -> None:
    text = STARTED.replace("desk.db", "desk.db --restless") + STATE
    ran = bench("env", "check", manifest(world, text), "--sandbox", "local", "--json")
    assert ran.status == 1
    assert outcomes(ran.json)["restore"] == "fails"
    assert "/data/desk.db: notes: 1 added" in detail(ran.json, "restore")
    assert outcomes(ran.json)["teardown"] == "holds"


@pytest.mark.local
@pytest.mark.parametrize(
    ("paths", "write", "said"),
    [
        ("/data/desk.db", "http://localhost:9001/notes:{}", "HTTP 422: no text"),
        pytest.param("/data/other.db", POST, "the declared state is what it was before", marks=pytest.mark.long),
        pytest.param("/data/desk.db", "http://localhost:9007/notes", "no answer", marks=pytest.mark.long),
    ],
)
def test_a_write_that_does_not_arrive_in_the_state_fails(
    bench: Bench, world: Path, paths: str, write: str, said: str
) -> None:
    file = manifest(world, STARTED + f'[environment.state]\npaths = ["{paths}"]')
    ran = bench("env", "check", file, "--sandbox", "local", "--write", write, "--json")
    assert ran.status == 1
    assert outcomes(ran.json)["write"] == "fails"
    assert said in detail(ran.json, "write")
    assert ran.json["failure"]["remedy"]


@pytest.mark.docker
def test_an_image_that_cannot_be_had_is_told_with_the_manifests_key(bench: Bench, tmp_path: Path) -> None:
    file = manifest(tmp_path, OWNED.replace("desk:1", "nobody/has-this:1"))
    ran = bench("env", "check", file, "--sandbox", "docker", "--json")
    assert ran.status == 1
    assert outcomes(ran.json)["image"] == "fails"
    assert (ran.json["failure"]["file"], ran.json["failure"]["key"]) == (str(file), "environment.image")


def task_of(tmp_path: Path, dockerfile: str) -> Path:
    root = tmp_path / "tasks/one"
    (root / "environment").mkdir(parents=True)
    (root / "verifier").mkdir()
    (root / "environment/Dockerfile").write_text(dockerfile)
    (root / "verifier/test.sh").write_text("#!/bin/sh\n")
    head = "sandbox: {setup_commands: [{command: 'echo set up > /data/done'}]}"
    (root / "task.md").write_text(f"---\n{head}\n---\nDo it.\n")
    return root


@pytest.mark.docker
@pytest.mark.long
def test_a_tasks_own_image_and_setup_are_tried(bench: Bench, world: Path, tmp_path: Path) -> None:
    task = task_of(tmp_path, "FROM desk-base:1\nRUN cp /usr/local/bin/desk /usr/local/bin/phone\n")
    text = STARTED.replace("phone serve", "phone 9002 /data/desk.db && test -e /data/done") + STATE
    ran = bench("env", "check", manifest(world, text), "--task", task, "--sandbox", "docker", "--json")
    assert ran.status == 0, ran.out
    assert [service["state"] for service in ran.json["world"]["services"]] == ["running", "running"]


def test_a_task_that_builds_from_elsewhere_does_not_fit(bench: Bench, world: Path, tmp_path: Path) -> None:
    task = task_of(tmp_path, "FROM other\n")
    ran = bench("env", "check", manifest(world, STARTED), "--task", task, "--sandbox", "noop")
    assert ran.status == 2
    assert "builds FROM other, not FROM desk-base:1" in ran.err


def test_a_wrong_manifest_is_a_wrong_request(bench: Bench, world: Path) -> None:
    ran = bench("env", "check", manifest(world, STARTED.replace("port = 9001", "port = 0")))
    assert ran.status == 2
    assert "environment.toml:11: environment.services[0].port: 0 is not a port" in ran.err


def test_a_variable_that_is_not_set_is_asked_for(bench: Bench, world: Path) -> None:
    file = manifest(world, STARTED + '[environment.forward_env]\nkeys = ["NOBODY_HAS_SET_THIS"]\n')
    ran = bench("env", "check", file, "--sandbox", "noop")
    assert ran.status == 2
    assert "NOBODY_HAS_SET_THIS is not set" in ran.err


@pytest.mark.docker
@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_a_check_that_is_interrupted_removes_its_sandbox(world: Path, name: str) -> None:
    text = STARTED.replace("desk 9001", "desk 9003")
    command = [sys.executable, "-m", "benchflow.cli", "env", "check", manifest(world, text), "--sandbox", "docker"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            asyncio.run(until(lambda: asyncio.to_thread(_is_tried, process)))
            process.send_signal(getattr(signal, name))
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    address, _, end = errors.partition("\n\n")
    assert (process.returncode, end.strip()) == (130, "interrupted")
    assert address.startswith("Web UI")
    assert left("docker") == []


def _is_tried(process: subprocess.Popen[str]) -> bool:
    """Whether a check has a sandbox by now."""
    assert process.poll() is None
    return left("docker") != []
