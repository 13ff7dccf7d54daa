"""Jobs that run, on the command line: left alone, watched, paused, cancelled, taken up again."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import Ran
from support.in_process_worker import InProcessWorker
from typer.testing import CliRunner

from benchflow.cli.command_line import app
from benchflow.planes import sandbox
from benchflow.tasks import init_task
from benchflow.testing.waiting import until

BENCH = [sys.executable, "-m", "benchflow.cli"]


@pytest.fixture
def task(worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task for the current directory's jobs. Their provider is one that commands know: here it is the hall."""
    monkeypatch.chdir(worker.root)
    monkeypatch.setitem(sandbox._made, "noop", worker.provider)
    return init_task(worker.root, "greet")


async def bench(*arguments: str | Path) -> Ran:
    """Run `bench`, while the worker works."""
    words = [str(argument) for argument in arguments]
    result = await asyncio.to_thread(CliRunner().invoke, app, words, prog_name="bench")
    return Ran(result.exit_code, result.stdout, result.stderr)


async def test_a_detached_job_is_found_again(worker: InProcessWorker, task: Path) -> None:
    worker.provider.held = True
    started = await bench("submit", task, "-k", "2", "--sandbox", "noop", "--job-name", "away", "--detach", "--json")
    assert started.status == 0, started.err
    assert (started.json["job"]["state"], started.json["rollouts"]) == ("running", [])
    assert "bench job watch away" in started.err
    worker.provider.release_all()
    watched = await bench("job", "watch", "away", "--json")
    assert watched.status == 0
    assert watched.json["summary"]["passed"] == 2


async def test_a_paused_job_starts_nothing_until_it_goes_on(worker: InProcessWorker, task: Path) -> None:
    worker.provider.held = True
    await bench("submit", task, "-k", "6", "-n", "1", "--sandbox", "noop", "--job-name", "slow", "--detach")
    (first,) = await worker.in_turn(1)
    assert (await bench("job", "pause", "slow")).status == 0
    worker.provider.release(first)

    async def is_paused() -> bool:
        # On a busy machine a look may take longer than it may, and then there is no answer.
        shown = (await bench("job", "show", "slow", "--json")).json["job"]
        assert shown["state"] == "running"
        return shown["progress"] is not None and shown["progress"]["paused"]

    async def is_listed() -> bool:
        # What the server lists lags behind what it has started.
        return re.search(r"^ ?slow .* running", (await bench("job", "list")).out, re.MULTILINE) is not None

    await until(is_paused)
    await until(is_listed)
    assert len(worker.provider.turns) == 1
    assert (await bench("job", "concurrency", "slow", "3")).status == 0
    assert (await bench("job", "unpause", "slow")).status == 0
    assert len(await worker.in_turn(3)) == 3
    worker.provider.release_all()
    assert (await bench("job", "watch", "slow", "--json")).json["summary"]["passed"] == 6


async def test_ctrl_c_detaches_and_the_job_can_be_cancelled_and_resumed(worker: InProcessWorker, task: Path) -> None:
    worker.provider.held = True
    command = [*BENCH, "submit", str(task), "-k", "4", "-n", "2", "--sandbox", "noop", "--job-name", "long"]
    submitting = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert submitting.stdout is not None
    worker.provider.release((await worker.in_turn(2))[0])
    while b"passed" not in (said := await submitting.stdout.readline()):
        assert said, "it ended"
    await worker.in_turn(2)
    submitting.send_signal(signal.SIGINT)
    rest = (await submitting.stdout.read()).decode()
    assert await submitting.wait() == 130
    assert "Detached. The job runs on." in rest
    assert "bench job cancel long" in rest
    assert (await bench("job", "cancel", "long")).status == 0
    watched = await bench("job", "watch", "long", "--json")
    assert watched.status == 1
    assert watched.json["summary"]["not_run"] == 1
    assert "bench job resume long" in watched.err
    worker.provider.release_all()
    resumed = await bench("job", "resume", "long", "-n", "20", "--json")
    assert resumed.status == 0
    assert "20 at a time" in resumed.err
    assert resumed.json["job"]["started"] == 3
    assert resumed.json["summary"]["passed"] == 4


async def test_a_terminal_shows_a_board_and_keeps_the_table(worker: InProcessWorker, task: Path) -> None:
    screen, terminal = pty.openpty()
    command = [*BENCH, "submit", str(task), "-k", "3", "--sandbox", "noop", "--job-name", "board"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    submitting = await asyncio.create_subprocess_exec(*command, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    text = await asyncio.to_thread(_shown, screen)
    assert await submitting.wait() == 0
    # How far it was when it was last looked at is not known.
    assert re.search(r"━ +[0-3]/3 ", text)
    assert "3 rollouts:  3 passed" in text


def _shown(screen: int) -> str:
    """What a terminal shows until nobody writes to it any more, without its control sequences."""
    shown = b""
    try:
        while read := os.read(screen, 65536):
            shown += read
    except OSError:
        # How Linux says so.
        pass
    os.close(screen)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


async def test_resume_notices_that_a_task_was_changed_and_that_it_is_gone(worker: InProcessWorker, task: Path) -> None:
    await bench("submit", task, "--sandbox", "noop", "--job-name", "changed")
    script = task / "verifier" / "test.sh"
    script.write_text(script.read_text() + "# changed\n")
    ran = await bench("job", "resume", "changed")
    assert ran.status == 2
    assert "task greet: " in ran.err
    task.rename(task.parent / "elsewhere")
    ran = await bench("job", "resume", "changed")
    assert ran.status == 2
    assert f"{task}: does not exist" in ran.err
