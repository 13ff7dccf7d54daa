"""A small benchmark of one service, a ledger over SQLite, for tests of what the engine makes of a manifest."""

from __future__ import annotations

from pathlib import Path

from support.paths import SUPPORT
from support.task_writer import BASE_IMAGE, write_task

LEDGER = SUPPORT / "ledger.py"

DOCKERFILE = f"""\
FROM {BASE_IMAGE}
COPY ledger /usr/local/bin/ledger
RUN chmod 755 /usr/local/bin/ledger && mkdir -p /data
WORKDIR /root
"""

SERVICES = """\
[[environment.services]]
name = "ledger"
command = "ledger /data/ledger.db 9000"
port = 9000

[[environment.services]]
name = "absent"
command = "not-in-this-image --port 9001"
port = 9001
"""

STATE = '[environment.state]\npaths = ["/data/ledger.db", "/data/absent.db"]\n'

GET = (
    "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())' http://localhost:9000"
)
POST = (
    "python3 -c 'import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method=\"POST\"))' "
    "http://localhost:9000"
)


def manifest(more: str = "", *, services: str = SERVICES, state: str = STATE, head: str = "") -> str:
    """A manifest of framework-started services. head: keys of `[environment]`; more: further tables."""
    top = f'[environment]\nname = "ledger"\nbase_image = "{BASE_IMAGE}"\nowns_lifecycle = false\n{head}\n'
    chosen = '[environment.task_selection]\nmechanism = "image"\n' if "task_selection" not in more else ""
    return f"{top}\n{chosen}\n{more}\n{services}\n{state}"


def write_package(root: Path, tasks: dict[str, dict[str, str]], text: str) -> Path:
    """A package directory. tasks: by name, the keyword arguments of `write_task`."""
    for name, options in tasks.items():
        task = write_task(root / "tasks", name, **({"dockerfile": DOCKERFILE} | options))
        (task / "environment" / "ledger").write_bytes(LEDGER.read_bytes())
    (root / "environment.toml").write_text(text)
    return root


# A world whose image starts its service.
ENTRYPOINT_IMAGE = f"""\
FROM {BASE_IMAGE}
COPY ledger /usr/local/bin/ledger
RUN chmod 755 /usr/local/bin/ledger && mkdir -p /data
WORKDIR /root
ENTRYPOINT ["ledger"]
CMD ["/data/ledger.db", "9000"]
"""

ENTRYPOINT_MANIFEST = """\
[environment]
name = "ledger"
image = "test/ledger-world"
ports = [9000]
{head}
[environment.task_selection]
key = "WHICH_TASK"
{selection}
[environment.readiness]
http = ["http://localhost:9000/health"]
tcp = [9000]
timeout_sec = 60

[environment.forward_env]
keys = {keys}

[environment.state]
paths = ["/data/ledger.db"]
"""


def write_entrypoint_package(
    root: Path, name: str, *, head: str = "", selection: str = "", keys: str = "[]", **task: str
) -> Path:
    """A package of one task, which brings no image. task: keyword arguments of `write_task`."""
    root = root / name
    written = write_task(root / "tasks", name, dockerfile="", **task)
    (written / "environment" / "Dockerfile").unlink()
    (root / "image").mkdir()
    (root / "image" / "Dockerfile").write_text(ENTRYPOINT_IMAGE)
    (root / "image" / "ledger").write_bytes(LEDGER.read_bytes())
    (root / "environment.toml").write_text(ENTRYPOINT_MANIFEST.format(head=head, selection=selection, keys=keys))
    return root
