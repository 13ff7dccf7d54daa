"""Modes of files: a task sees none of a umask, and what is written on the host is for its user alone."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.system_job import Results, SystemTasks
from support.task_writer import write_task

LIST = "find /work /tests /logs -xdev -printf '%M %u %p\\n' | grep -v stdout | sort"

OPEN_STATE = {
    r"tasks/.*": "a task's files have the modes that it has in a sandbox",
    r"gateway/public(/.*)?": "sandboxes mount it for agents that have users of their own",
    r"local(/.*)?": "made by a user's own process, which submits with Python and keeps its umask",
    r"toolboxes(/.*)?": "sandboxes mount them for agents that have users of their own",
}
OPEN_RESULTS = {
    r".*/(agent|verifier|artifacts|evidence)/.*": "copied out of a sandbox with the modes that they had there",
    r".*/environment/state/[^/]+(/.*)?": "goes into a sandbox, for a verifier that may have a user of its own",
}
"""Paths below a state directory and below a job that others than the owner might read but for the directories above,
and why they have to be so."""


def system_tasks(root: Path) -> SystemTasks:
    tasks = []
    for name, mask in (("modes-usual", 0), ("modes-private", 0o077)):
        task = write_task(
            root,
            name,
            solve="cat /work/data > /root/answer\n",
            test=f"{LIST}\n[ -e /root/answer ] && echo 1 > /logs/verifier/reward.txt\n",
            dockerfile="FROM debian:bookworm-slim\nCOPY work /work\n",
        )
        for file, executable in (("environment/work/data", False), ("environment/work/bin/tool", True)):
            (task / file).parent.mkdir(parents=True, exist_ok=True)
            (task / file).write_text("x\n")
            (task / file).chmod(0o755 if executable else 0o644)
        (task / "tests" / "data").write_text("x\n")
        # As a checkout under this umask would have it.
        for path in (task, *task.rglob("*")):
            path.chmod(path.stat().st_mode & 0o777 & ~mask)
        tasks.append(task)
    return {"docker": tasks, "local": tasks}


@pytest.mark.docker
def test_a_umask_changes_nothing_of_what_a_task_sees_in_docker(docker_results: Results) -> None:
    assert_both_saw_the_same(docker_results)


@pytest.mark.local
def test_a_umask_changes_nothing_of_what_a_task_sees_in_a_local_sandbox(local_results: Results) -> None:
    assert_both_saw_the_same(local_results)


def assert_both_saw_the_same(results: Results) -> None:
    usual, private = (results[name] for name in ("modes-usual", "modes-private"))
    seen = [Path(str(each.directory), "verifier", "test-stdout.txt").read_text() for each in (usual, private)]
    assert "-rw-r--r-- root /work/data\n" in seen[0] and "-rwxr-xr-x root /work/bin/tool\n" in seen[0]
    assert "drwxr-xr-x root /work/bin\n" in seen[0] and "-rw-r--r-- root /tests/data\n" in seen[0]
    assert seen[0] == seen[1]
    assert usual.reward == private.reward == 1.0


@pytest.mark.docker
def test_what_is_written_on_the_host_is_for_its_user_alone(docker_job: Path, shared_state: Path) -> None:
    assert [*open_below(shared_state, OPEN_STATE)] == []
    assert [*open_below(docker_job, OPEN_RESULTS)] == []


def open_below(root: Path, exceptions: dict[str, str]) -> Iterator[str]:
    """Yield what others than its owner may read at or below a directory, if it were not for the directories above."""
    found = [root]
    while found:
        path = found.pop()
        name = str(path.relative_to(root))
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and not path.is_mount():
                found += path.iterdir()
        except FileNotFoundError:
            # Jobs of other tests may be under way.
            continue
        is_open = status.st_mode & 0o077 and not stat.S_ISLNK(status.st_mode)
        if is_open and not any(re.fullmatch(pattern, name) for pattern in exceptions):
            yield f"{stat.filemode(status.st_mode)} {name}"
