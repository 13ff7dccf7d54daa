"""A task in the office whose every turn sends a mail and edits a document, so that a path through a tree shows there.

The demo agent does what its prompt chooses; a child has a prompt of its own. What a leaf's databases and their action
logs hold is therefore known from its path. A mail's text is drawn when it is written: where two leaves have the same,
they have it from the same turn.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from support.agent_task import AGENT, MARK
from support.counted_task import BASE_IMAGE
from support.paths import BENCHMARKS

from benchflow.testing import demo_agent

PACKAGE = BENCHMARKS / "office" / "image"
SERVICES = {"mail": 9101, "documents": 9104}
"""Those that the task needs."""

DOCUMENT = "d-0901"
TURNS = 3

_SERVICE = """\
[[environment.services]]
name = "{name}"
command = "office-{name} --db /data/{name}.db serve --host 0.0.0.0 --port {port}"
port = {port}
"""
_MANIFEST = f"""\
[environment]
name = "office-growing"
base_image = "{BASE_IMAGE}"
owns_lifecycle = false

[environment.task_selection]
mechanism = "image"

[environment.state]
kind = "sqlite"
paths = {json.dumps([f"/data/{name}.db" for name in SERVICES])}

{"".join(_SERVICE.format(name=name, port=port) for name, port in SERVICES.items())}"""

# The services without an installation: nothing has to be built for them.
_PROGRAM = """\
#!/bin/sh
PYTHONPATH=$(printf :%s /opt/office/packages/*) PYTHONDONTWRITEBYTECODE=1 exec python3 -c \\
    "import sys; sys.argv[0] = '$(basename "$0")'; from {module} import main; sys.exit(main())" "$@"
"""
_DOCKERFILE = f"""\
FROM {BASE_IMAGE}
RUN echo {MARK} > /mark
COPY office /opt/office
RUN cd /opt/office/bin && chmod 755 * && cp * /usr/local/bin/ && install -d -m 700 /data \\
    && {" && ".join(f"office-{it} seed --task growing" for it in SERVICES)}
WORKDIR /app
COPY demo_agent.py agent.py act.py script.json /opt/
"""
_TASK = f"""\
---
environment:
  network_mode: no-network
agents:
  roles:
    clerk: {{{{agent: {AGENT}}}}}
scenes:
  - name: work
    turns:
{{turns}}---
Do as you are told.
"""
_WORLD = f"""\
task = "growing"
about = "A document that grows by a line a turn."

[[documents]]
id = "{DOCUMENT}"
title = "Choices"
owner = "maya"
body = "Chosen:"
updated_at = 2026-03-02T10:00:00
"""
_ACT = f"""\
import json, sys, uuid
from urllib.request import Request, urlopen

def post(port, path, **body):
    data = json.dumps(body).encode()
    urlopen(Request(f"http://localhost:{{port}}{{path}}", data, {{"Content-Type": "application/json"}})).read()

choice = sys.argv[1]
post({SERVICES["mail"]}, "/messages", to=["tomas"], subject=f"choice {{choice}}", body=uuid.uuid4().hex)
post({SERVICES["documents"]}, "/documents/{DOCUMENT}/edit", append=f"choice {{choice}}")
"""
_TEST = """\
#!/usr/bin/env python3
import json, sqlite3

def actions(service, operation):
    rows = sqlite3.connect(f"/data/{service}.db").execute(
        "SELECT arguments FROM actions WHERE operation = ? ORDER BY n", (operation,))
    return [json.loads(arguments) for (arguments,) in rows]

mails = [mail["subject"].split()[1] for mail in actions("mail", "send_mail")]
lines = [edit["append"].split()[1] for edit in actions("documents", "edit_document")]
reward = int("".join(mails)) / 1000 if mails == lines else 0
open("/logs/verifier/reward.txt", "w").write(str(reward))
"""


def reward_of(choices: tuple[int, ...]) -> float:
    """What the verifier gives a path on which these were chosen."""
    return int("".join(map(str, choices))) / 1000


def prompt_of(choice: int) -> str:
    return f"Take choice {choice}."


def write_office_package(root: Path, choices: int) -> Path:
    """A package of one task, in whose turns any of so many may be chosen. It is the package's directory."""
    task = root / "tasks" / "growing"
    place = task / "environment"
    (task / "tests").mkdir(parents=True)
    _write_office(place / "office")
    shutil.copy(demo_agent.__file__, place / "demo_agent.py")
    (place / "agent.py").write_text("import demo_agent\n\ndemo_agent.main()\n")
    (place / "act.py").write_text(_ACT)
    turns = [
        {"when": prompt_of(number), "do": [{"run": f"python3 /opt/act.py {number}"}]}
        for _ in range(TURNS)
        for number in range(choices)
    ]
    (place / "script.json").write_text(json.dumps({"turns": turns}))
    (place / "Dockerfile").write_text(_DOCKERFILE)
    (task / "tests" / "test.sh").write_text(_TEST)
    (task / "tests" / "test.sh").chmod(0o755)
    said = "".join(f"      - {{role: clerk, prompt: {json.dumps(prompt_of(0))}}}\n" for _ in range(TURNS))
    (task / "task.md").write_text(_TASK.format(turns=said))
    (root / "environment.toml").write_text(_MANIFEST)
    return root


def _write_office(place: Path) -> None:
    for package in ("core", *SERVICES):
        shutil.copytree(PACKAGE / "packages" / f"office-{package}", place / "packages" / f"office-{package}")
    shutil.copytree(PACKAGE / "worlds" / "base", place / "worlds" / "base")
    (place / "worlds" / "growing.toml").write_text(_WORLD)
    (place / "bin").mkdir()
    for name in SERVICES:
        (place / "bin" / f"office-{name}").write_text(_PROGRAM.format(module=f"office_{name}.command"))
