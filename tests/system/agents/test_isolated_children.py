"""Siblings of one tree that do the same things at the same time: each for itself, with what their parent has left.

They write the same files, rows of the same keys, and take the same port, the same abstract socket and the same file of
a process's number. Nobody goes on before all of them have done so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import BASE_IMAGE, DOCKER, LOCAL, run_tasks
from support.model_world import policy, runs, says, write_model_task
from support.paths import SUPPORT

from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

LEDGER = SUPPORT / "ledger.py"
CHILDREN = 2
KEPT = ("~/same", "/tmp/same", "/var/tmp/same", "/app/same", "/volume/same")
"""Files that a child has from its parent: the one on a volume that the image declares, too."""

MEMORY = "/dev/shm/same"
"""What lies in memory goes with the processes that need it."""

# The parent's process holds its database open, so that what was committed is in the file beside it alone.
ACT = f"""
import json, os, socket, sqlite3, subprocess, sys, time, urllib.request, uuid

FILES = {[*KEPT, MEMORY]!r}
PORT, NAME, PID, OWN = 7000, "\\0same", "/tmp/same.pid", os.path.expanduser("~/own.db")

def read(path):
    try:
        return open(os.path.expanduser(path)).read()
    except FileNotFoundError:
        return None

def ask(family, address):
    try:
        with socket.socket(family) as sock:
            sock.connect(address)
            return sock.recv(100).decode()
    except OSError:
        return None

def listening(family, address):
    sock = socket.socket(family)
    sock.bind(address)
    sock.listen()
    sock.setblocking(False)
    return sock

def ledger(method, path):
    return json.load(urllib.request.urlopen(urllib.request.Request("http://localhost:9000" + path, method=method)))

def is_alive(pid):
    return pid is not None and "serve" in (read("/proc/" + pid + "/cmdline") or "").split("\\0")

def seen():
    db = sqlite3.connect(OWN)
    return {{
        "files": {{path: read(path) for path in FILES}},
        "rows": [text for (text,) in db.execute("SELECT text FROM rows ORDER BY n")],
        "ledger": ledger("GET", "/all"),
        "port": ask(socket.AF_INET, ("127.0.0.1", PORT)),
        "socket": ask(socket.AF_UNIX, NAME),
        "alive": is_alive(read(PID)),
    }}

def act(me, number):
    for path in FILES:
        open(os.path.expanduser(path), "w").write(me)
    subprocess.Popen([sys.executable, __file__, "serve", me, str(number)], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger("POST", "/add/" + me)
    while ask(socket.AF_UNIX, NAME) != me:
        time.sleep(0.02)

def serve(me, number):
    db = sqlite3.connect(OWN, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, text TEXT)")
    db.execute("INSERT INTO rows VALUES (?, ?)", (number, me))
    open(PID, "w").write(str(os.getpid()))
    socks = [listening(socket.AF_INET, ("127.0.0.1", PORT)), listening(socket.AF_UNIX, NAME)]
    while True:
        for sock in socks:
            try:
                there, _ = sock.accept()
            except BlockingIOError:
                continue
            with there:
                there.sendall(me.encode())
        time.sleep(0.01)

match sys.argv[1:]:
    case ["serve", me, number]:
        serve(me, int(number))
    case ["settle"]:
        act("parent", 1)
    case ["begin"]:
        me, before = uuid.uuid4().hex, seen()
        json.dump({{"me": me, "before": before}}, open("/app/begun.json", "w"))
        act(me, 2)
    case ["look"]:
        json.dump(seen(), open("/app/seen.json", "w"))
"""
DOCUMENT = """---
environment:
  network_mode: no-network
agents:
  roles:
    solver: {agent: policy}
scenes:
  - name: work
    turns:
      - {role: solver, prompt: "Settle."}
      - {role: solver, prompt: "Go on."}
---
Do as you are told.
"""
MANIFEST = f"""\
[environment]
name = "ledger"
base_image = "{BASE_IMAGE}"
owns_lifecycle = false

[environment.task_selection]
mechanism = "image"

[[environment.services]]
name = "ledger"
command = "ledger /data/ledger.db 9000"
port = 9000

[environment.state]
paths = ["/data/ledger.db"]
"""
TEST = "cp /app/begun.json /app/seen.json /logs/verifier/ && echo 1 > /logs/verifier/reward.txt\n"


def write_package(root: Path, sandbox: str) -> Path:
    task = write_model_task(root / "tasks", "together", test=TEST)
    (task / "task.toml").unlink()
    (task / "instruction.md").unlink()
    (task / "task.md").write_text(DOCUMENT)
    place = task / "environment"
    (place / "ledger").write_bytes(LEDGER.read_bytes())
    (place / "act.py").write_text(ACT)
    with (place / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("COPY ledger /usr/local/bin/ledger\nCOPY act.py /opt/\n")
        dockerfile.write("RUN chmod 755 /usr/local/bin/ledger && mkdir -p /data /volume && chmod 777 /volume\n")
        # On this machine itself there are no volumes, and the instruction is refused.
        dockerfile.write("VOLUME /volume\n" if sandbox == "docker" else "")
    (root / "environment.toml").write_text(MANIFEST)
    return task


class Together:
    """Has the children begin, and look when all of them have."""

    def __init__(self) -> None:
        self.model: ScriptedModel | None = None
        self._begun = 0

    def __call__(self, request: ModelRequest) -> dict[str, Any]:
        told = [n for n, message in enumerate(request.messages) if message.role == "user" and not message.results]
        prompt = request.messages[told[-1]].text
        done = sum(bool(message.results) for message in request.messages[told[-1] :])
        if done == 0:
            return runs(f"python3 /opt/act.py {'settle' if 'Settle' in prompt else 'begin'}")
        if done == 2 or "Settle" in prompt:
            return says()
        self._begun += 1
        if self._begun == CHILDREN:
            assert self.model is not None
            self.model.release("all have begun")
        return runs("python3 /opt/act.py look", hold="all have begun")


@pytest.mark.long
@pytest.mark.parametrize("sandbox", [LOCAL, DOCKER])
def test_siblings_see_what_their_parent_has_left_and_nothing_of_each_other(
    module_jobs: Path, tmp_path: Path, sandbox: str
) -> None:
    together = Together()
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": CHILDREN}, "min_session_rung": "load"}
    with ScriptedModel(together) as model:
        together.model = model
        ran = run_tasks(
            [write_package(tmp_path, sandbox)],
            tmp_path / "jobs",
            sandbox=sandbox,
            agents=[policy(model)],
            branch=branch,
            environment_manifest=tmp_path / "environment.toml",
        )["together"]
    assert ran.result.error is None
    assert ran.result.reward == 1.0
    names = set()
    for number in range(CHILDREN):
        place = ran.paths.child(f"n1.{number}").verifier_of(None)
        begun = json.loads((place / "begun.json").read_bytes())
        me = begun["me"]
        names.add(me)
        assert begun["before"] == {
            "files": dict.fromkeys(KEPT, "parent") | {MEMORY: None},
            "rows": ["parent"],
            "ledger": ["parent"],
            "port": None,
            "socket": None,
            "alive": False,
        }
        assert json.loads((place / "seen.json").read_bytes()) == {
            "files": dict.fromkeys((*KEPT, MEMORY), me),
            "rows": ["parent", me],
            "ledger": ["parent", me],
            "port": me,
            "socket": me,
            "alive": True,
        }
    assert len(names) == CHILDREN
