"""What other users of this host, and pages in a browser, reach of a stack and its jobs: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.other_user import NOBODY, tries
from support.paths import ROOT

from benchflow import stack
from benchflow.log_files import LIMIT_BYTES, find_retained_part
from benchflow.paths import StatePaths
from benchflow.stack_processes import MAX_OPEN_FILES
from benchflow.tasks import init_task
from benchflow.temporal import connect, make_stack_target
from benchflow.testing.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try what another user can")

PACKAGES = f"{ROOT}:{sysconfig.get_path('purelib')}"
OWNER = 47_111
"""A user of the host without rights and without an account."""


@dataclass(frozen=True)
class Owned:
    """A stack with a job that is over, in directories that every user of the host can reach but for its own modes."""

    root: Path
    job: dict[str, Any]

    @property
    def paths(self) -> StatePaths:
        return StatePaths(self.root / "state")

    @property
    def record(self) -> stack.StackRecord:
        found = stack.find_running(self.paths)
        assert found is not None
        return found

    def pids(self) -> list[int]:
        """Return the processes of the stack."""
        mark = f"BENCHFLOW_STATE_DIR={self.paths.root}\0".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found

    def ports(self) -> set[int]:
        """Return the ports on which processes of the stack listen in the network namespace of this process."""
        listening = {}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    listening[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
        found = set()
        for pid in self.pids():
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                if (name := str(descriptor.readlink())) in listening:
                    found.add(listening[name])
        return found

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        """Get a page through the door: status, headers, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.record.ui_port, timeout=60)
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode(errors="replace")


def bench(
    state: Path, cwd: Path, *arguments: str, before: tuple[str, ...] = (), python: str = sys.executable, **options: Any
) -> Any:
    """Run `bench` with a state directory, as somebody with the usual umask. Returns what it prints as JSON."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "BENCHFLOW_"))}
    env |= {"BENCHFLOW_STATE_DIR": str(state), "HOME": str(cwd), "PYTHONPATH": PACKAGES}
    env["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    command = [*before, python, "-m", "benchflow.cli", *arguments, "--json"]
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, umask=0o022, **options)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def interpreter_for(**user: Any) -> str:
    """Return an interpreter that another user can start: this one may lie in root's home."""
    # A compiled package tells whether the others are for this interpreter, in a tenth of the time.
    code = "import benchflow, pydantic_core"
    for python in (sys.executable, shutil.which("python3", path=os.defpath)):
        with contextlib.suppress(PermissionError):
            ran = subprocess.run(
                [str(python), "-c", code], cwd="/", env={"PYTHONPATH": PACKAGES}, capture_output=True, **user
            )
            if ran.returncode == 0:
                return str(python)
    pytest.skip("another user can start no interpreter with these packages")


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A directory that all users of the host can search: pytest's own are closed."""
    root = Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def owned(public: Path) -> Iterator[Owned]:
    state = public / "state"
    # Of an earlier version.
    state.mkdir(mode=0o755)
    (state / "host-id").write_text("0123456789ab")
    init_task(public, "greet")
    # As many open files as a flood could use up.
    few = ("prlimit", "--nofile=256:")
    job = bench(state, public, "submit", "greet", "--sandbox", "noop", "--agent", "oracle", before=few)
    yield Owned(public, job)
    stack.stop_stack(StatePaths(state))


@pytest.fixture(scope="module")
def status(owned: Owned) -> dict[str, Any]:
    """What its owner is told of the stack."""
    found: dict[str, Any] = bench(owned.paths.root, owned.root, "stack", "status")
    return found


def below(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


def test_another_user_reaches_nothing_of_a_stack(owned: Owned) -> None:
    record = owned.record
    paths = [*below(owned.paths.root), *below(owned.root / "jobs")]
    assert {"temporal.db", "stack.json", "server.sock", "ui.sock", "ui-token", "results.jsonl"} <= {
        p.name for p in paths
    }
    done = tries(
        ports=owned.ports() | {record.port},
        sockets=[path for path in paths if path.is_socket()],
        files=[path for path in paths if path.is_file()],
        directories=[path for path in paths if path.is_dir()],
        pids=owned.pids(),
        pages=[
            f"127.0.0.1:{record.ui_port}/{page}"
            for page in ("", "api/v1/namespaces/benchflow/workflows", "namespaces/benchflow", "?token=", "?token=x")
        ],
    )
    assert done == {}


def test_nothing_of_a_stack_listens_on_the_host_but_the_door_of_its_web_ui(owned: Owned) -> None:
    assert owned.ports() == {owned.record.ui_port}


async def test_its_own_user_sees_its_workflows_and_is_told_that_nobody_else_does(
    owned: Owned, status: dict[str, Any]
) -> None:
    client = await connect(make_stack_target(owned.record))
    assert owned.job["job"]["id"] in {execution.id async for execution in client.list_workflows()}
    assert status["reachable_by"] == "this user alone"


def test_what_is_written_for_a_job_is_for_its_user_alone(owned: Owned) -> None:
    open_to_others = [
        f"{stat.filemode(path.lstat().st_mode)} {path}"
        for root in (owned.paths.root, owned.root / "jobs")
        for path in below(root)
        if not path.is_symlink() and path.lstat().st_mode & 0o077 and "tasks" not in path.relative_to(root).parts
    ]
    # A task's files keep its modes, which its sandboxes see; an earlier version's keep theirs. Both lie below 0700.
    assert open_to_others == [f"-rw-r--r-- {owned.paths.host_id}"]


def test_the_door_of_the_web_ui_lets_in_who_has_the_token(owned: Owned, status: dict[str, Any]) -> None:
    path = status["ui"].partition(f":{owned.record.ui_port}")[2]
    assert path.startswith("/namespaces/benchflow/workflows?token=")
    answered, headers, _ = owned.get(path)
    cookie, _, attributes = headers["Set-Cookie"].partition("; ")
    assert (answered, headers["Location"]) == (303, "/namespaces/benchflow/workflows")
    assert {"HttpOnly", "SameSite=Strict"} <= {*attributes.split("; ")}
    answered, headers, body = owned.get("/namespaces/benchflow/workflows", Cookie=cookie)
    assert (answered, "<!doctype html>" in body.lower()) == (200, True)
    answered, _, body = owned.get("/api/v1/namespaces/benchflow/workflows", Cookie=f"x=y; {cookie}")
    assert answered == 200 and owned.job["job"]["id"] in [
        execution["execution"]["workflowId"] for execution in json.loads(body)["executions"]
    ]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {"Cookie": ""}),
        (401, {"Cookie": "benchflow-ui-1=TOKEN"}),
        (401, {"Cookie": "benchflow-ui-PORT=TOKEN"}),
        (401, {"Authorization": "Bearer TOKEN"}),
        (403, {"Cookie": "OWN", "Host": "attacker.example:PORT"}),
        (403, {"Cookie": "OWN", "Host": "127.0.0.1"}),
        (403, {"Cookie": "OWN", "Origin": "http://127.0.0.1:1"}),
        (403, {"Cookie": "OWN", "Origin": "null"}),
        (403, {"Cookie": "OWN", "Sec_Fetch_Site": "same-site"}),
        (403, {"Cookie": "OWN", "Sec_Fetch_Site": "cross-site"}),
    ],
)
def test_the_door_keeps_out_everything_else_and_says_where_the_address_is(
    owned: Owned, status: int, headers: dict[str, str]
) -> None:
    token, port = owned.paths.ui_token.read_text(), str(owned.record.ui_port)
    own = owned.get(f"/?token={token}")[1]["Set-Cookie"].partition("; ")[0]
    assert token not in own
    given = {
        name: value.replace("OWN", own).replace("TOKEN", token).replace("PORT", port) for name, value in headers.items()
    }
    found, answered, body = owned.get("/api/v1/namespaces", **given)
    assert (found, "bench stack status" in body) == (status, True)
    assert not [name for name in answered if name.lower().startswith(("access-control", "set-cookie"))]


def test_the_door_leads_to_no_other_host(owned: Owned) -> None:
    status, headers, _ = owned.get(f"//attacker.example/?token={owned.paths.ui_token.read_text()}")
    assert (status, headers["Location"]) == (303, "/attacker.example/")


def log_in(owned: Owned) -> str:
    """Return the cookie of who has the token."""
    return owned.get(f"/?token={owned.paths.ui_token.read_text()}")[1]["Set-Cookie"].partition("; ")[0]


def test_a_flood_of_the_web_uis_port_costs_the_stack_nothing_and_its_owner_comes_through(owned: Owned) -> None:
    cookie = log_in(owned)
    before, logged = owned.record, sum(path.stat().st_size for path in owned.paths.logs.iterdir())
    assert before.door is not None
    malformed = b"GET / HTTP/1.1\r\nHost: x\r\nX\0: y\r\n\r\n"
    with contextlib.ExitStack() as stack_of_clients:

        def send(content: bytes) -> None:
            with contextlib.suppress(ConnectionError):
                client = socket.create_connection(("127.0.0.1", before.ui_port), timeout=60)
                stack_of_clients.enter_context(client).sendall(content)

        # The second kind stays open, and never becomes a request.
        for content in (malformed, b"GET / HTTP/1.1\r\nHost") * 300:
            send(content)
        assert owned.get("/api/v1/namespaces/benchflow/workflows", Cookie=cookie)[0] == 200
        assert len([*Path(f"/proc/{before.door.pid}/fd").iterdir()]) < 200
    assert owned.record == before
    assert sum(path.stat().st_size for path in owned.paths.logs.iterdir()) < logged + 10_000
    limits = {Path(f"/proc/{pid}/limits").read_text().partition("Max open files")[2].split()[0] for pid in owned.pids()}
    assert limits == {str(min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], MAX_OPEN_FILES))}


async def test_a_door_that_dies_is_opened_again_for_who_was_logged_in(owned: Owned) -> None:
    cookie = log_in(owned)
    before = owned.record
    assert before.door is not None
    os.kill(before.door.pid, signal.SIGKILL)
    await until(lambda: owned.record.restarts.get("door"))
    assert (await asyncio.to_thread(owned.get, "/api/v1/namespaces", Cookie=cookie))[0] == 200
    again = owned.record
    assert again.door not in (None, before.door)
    assert (again.server, again.worker, again.supervisor) == (before.server, before.worker, before.supervisor)


async def test_no_log_of_a_stack_grows_without_bound(owned: Owned) -> None:
    # The file of a process that is not ours, and writes what others cause.
    log = owned.paths.logs / "server.log"
    os.truncate(log, LIMIT_BYTES + 1)
    await until(lambda: find_retained_part(log).exists())
    assert log.stat().st_size < 10_000
    assert find_retained_part(log).stat().st_size <= LIMIT_BYTES + 1
    find_retained_part(log).unlink()


def test_the_token_is_in_its_file_and_nowhere_else(owned: Owned) -> None:
    token = owned.paths.ui_token.read_bytes()
    files = [path for root in (owned.paths.root, owned.root / "jobs") for path in below(root) if path.is_file()]
    assert [path for path in files if token in path.read_bytes()] == [owned.paths.ui_token]
    seen = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in owned.pids() for name in ("cmdline", "environ")]
    assert not [content for content in seen if token in content]


def test_a_user_without_rights_has_a_stack_too_and_not_even_its_jobs_are_open(public: Path) -> None:
    home = public / "home"
    made = home / "jobs"
    made.mkdir(parents=True)
    made.chmod(0o755)
    init_task(home, "greet")
    for path in below(home):
        os.chown(path, OWNER, OWNER)
    options: dict[str, Any] = {"user": OWNER, "group": OWNER, "extra_groups": []}
    options["python"] = interpreter_for(**options)
    state = home / "state"
    try:
        found = bench(state, home, "submit", "greet", "--sandbox", "noop", "--job-name", "own", **options)
        assert found["summary"]["passed"] == 1
        unprivileged = Owned(home, found)
        record = unprivileged.record
        attempts: dict[str, Any] = {"directories": [state, made / "own"], "files": [unprivileged.paths.database]}
        if record.exposure is None:
            assert unprivileged.ports() == {record.ui_port}
            attempts |= {"ports": unprivileged.ports(), "sockets": [unprivileged.paths.server_socket]}
        else:
            # The kernel of this machine gives its users no namespaces.
            assert "refuses it a network namespace" in record.exposure
        assert tries(**attempts) == {}
        # A directory for jobs that the user has made keeps its mode.
        assert [oct(path.stat().st_mode & 0o777) for path in (made, made / "own")] == ["0o755", "0o700"]
    finally:
        stack.stop_stack(StatePaths(state))


def test_without_namespaces_the_stack_is_on_loopback_and_says_who_reaches_it(public: Path) -> None:
    root = public / "without"
    root.mkdir()
    no_more = 'echo 0 >/proc/sys/user/max_net_namespaces && exec "$@"'
    before = ("unshare", "--user", "--map-root-user", "sh", "-c", no_more, "sh")
    state = root / "state"
    try:
        status = bench(state, root, "stack", "start", before=before)
        refused = "the kernel refuses it a network namespace (unshare: No space left on device)"
        assert status["reachable_by"] == f"every user of this host: {refused}"
        found = Owned(root, {})
        # This is what the words are about: its port is open, and nothing else.
        port = found.record.port
        assert tries(ports=[port], directories=[state], files=[found.paths.database]) == {"ports": [port]}
        assert asyncio.run(connect(make_stack_target(found.record))).namespace == "benchflow"
    finally:
        stack.stop_stack(StatePaths(state))


def test_a_state_directory_of_another_user_is_refused(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = public / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(stack.ConfigError, match=f"belongs to user {NOBODY}") as caught:
        stack.ensure_stack(StatePaths(theirs))
    assert caught.value.key == "BENCHFLOW_STATE_DIR"
    assert [*theirs.iterdir()] == []
    shared = public / "sticky"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(stack.ConfigError, match="is shared by all users"):
        stack.ensure_stack(StatePaths(shared))
    assert shared.stat().st_mode & 0o7777 == 0o1777
