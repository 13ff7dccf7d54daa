"""What an agent can do to files of the host by the directory that its sandbox mounts, and by what it leaves.

An agent that is root changes that directory itself; one that is not leaves a program that the verifier runs as root.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from support.agent_world import LOCAL, LONG_IN_DOCKER, SOLVE, TEST, Seen, finished, submit_tasks, write_step, write_task
from support.made_once import made_once

from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY
from benchflow.stack import ensure_stack

# Links under all names that a worker's notes have, or have while they are written, and in place of journals.
# argv: the worker's process, a file of the host to be overwritten, another to be read in place of the journals.
_PLANT = f"""\
import contextlib, os, sys
worker, victim, secret, *journals = sys.argv[1:]
os.chdir("{RUN_DIRECTORY}/0.0")
for name in ("position", "request-prompt-1", "progress-prompt-1", "stop-prompt-1", "usage-1"):
    os.symlink(victim, f".{{name}}.{{worker}}")
for journal in journals:
    with contextlib.suppress(FileNotFoundError):
        os.rename(journal, f"was-{{journal}}")
    os.symlink(secret, journal)
"""
_DEEP = 'import os; os.chdir("/logs/artifacts"); [(os.mkdir("d"), os.chdir("d")) for _ in range(1500)]'

STEPS = '[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'


@dataclass(frozen=True)
class Attacked:
    """Two attacks that were carried out, and one that fills."""

    victim: Path
    secret: str
    seen: dict[str, Seen]


@made_once(params=[LOCAL, LONG_IN_DOCKER])
async def attacked(root: Path, sandbox: str) -> Attacked:
    victim, hidden = root / "victim", root / "hidden"
    victim.write_text("as it was")
    hidden.write_text(secret := uuid.uuid4().hex)
    worker = ensure_stack().worker
    assert worker is not None
    plant = f"python3 /opt/plant.py {worker.pid} {victim} {hidden}"
    # With a link in place of its exit record an agent counts as ended.
    by_agent = [{"run": f"{plant} err"}, SOLVE]
    by_verifier = f"{TEST}[ -e /app/done ] || {plant} err exit\ntouch /app/done\n"
    tasks = []
    for name, user, turn, test in (
        ("by-root", "root", by_agent, TEST),
        ("by-verifier", "agent", [SOLVE], by_verifier),
    ):
        config = f'{STEPS}[agent]\nuser = "{user}"\n'
        task = write_task(root / "tasks", name, turn, [SOLVE], config=config, build="COPY plant.py /opt/\n")
        (task / "environment" / "plant.py").write_text(_PLANT)
        for step in ("first", "second"):
            write_step(task, step, test)
        tasks.append(task)
    tasks.append(write_task(root / "tasks", "deep", [{"run": f"python3 -c '{_DEEP}'"}, SOLVE]))
    job = await submit_tasks(tasks, root / "jobs", sandbox=sandbox, retry={"max_retries": 0})
    return Attacked(victim, secret, await finished(job))


def test_no_file_of_the_host_is_overwritten(attacked: Attacked) -> None:
    assert attacked.victim.read_text() == "as it was"
    assert {name: seen.result.reward for name, seen in attacked.seen.items()} == dict.fromkeys(attacked.seen, 1.0)


def test_no_file_of_the_host_is_in_the_results(attacked: Attacked) -> None:
    for name, journals in (("by-root", {"err.log"}), ("by-verifier", {"err.log", "exit.json"})):
        paths = attacked.seen[name].paths
        files = [file for file in paths.root.rglob("*") if file.is_file()]
        assert [file for file in files if attacked.secret in file.read_text("latin-1")] == []
        said = " ".join(attacked.seen[name].result.warnings)
        assert all(f"{journal} of session 0.0 could not be kept" in said for journal in journals)
        assert not journals & {path.name for path in (paths.sessions / "0.0").iterdir()}


def test_what_is_nested_too_deep_is_left_out_with_a_warning(attacked: Attacked) -> None:
    seen = attacked.seen["deep"]
    assert any("/logs/artifacts could not be collected" in warning for warning in seen.result.warnings)
