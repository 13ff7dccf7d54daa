"""Tasks that name a ready image and have files in `environment/`: who works there finds them in the workspace."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.system_job import Results, SystemTasks
from support.task_writer import BASE_IMAGE, write_script, write_task

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
SOLVE = "[ ! -e skills ] && cp data answer\n"


def says(condition: str) -> str:
    return f"if {condition}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def split(root: Path, name: str, config: str = "", workdir: str = 'workdir = "/work"', **scripts: str) -> Path:
    table = f'[environment]\ndocker_image = "{BASE_IMAGE}"\n{workdir}\n'
    return _filled(write_task(root, name, config=f"{config}{table}", **scripts))


def native(root: Path, name: str) -> Path:
    task = root / name
    (task / "environment").mkdir(parents=True)
    (task / "task.md").write_text(f"---\nimage: {BASE_IMAGE}\n---\nMake the answer.\n")
    write_script(task / "oracle" / "solve.sh", SOLVE)
    write_script(task / "verifier" / "test.sh", says('[ "$(cat /app/answer)" = of-the-task ]'))
    return _filled(task)


def _filled(task: Path) -> Path:
    (task / "environment" / "data").write_text("of-the-task\n")
    (task / "environment" / "skills" / "one").mkdir(parents=True)
    (task / "environment" / "skills" / "one" / "SKILL.md").write_text("---\nname: one\ndescription: one\n---\n")
    return task


def system_tasks(root: Path) -> SystemTasks:
    answered = says('[ "$(cat /work/answer)" = of-the-task ] && [ -e /work/data ] && [ ! -e /work/skills ]')
    # The work moves into the room; a file that the oracle removes is not there again.
    gone = says('[ "$(cat /work/answer)" = of-the-task ] && [ ! -e /work/data ]')
    root_of_all = says('[ "$(cat /answer)" = of-the-task ]')
    return {
        "docker": [
            split(root, "files-in-workdir", solve=SOLVE, test=answered),
            split(root, "files-in-room", SEPARATE, solve=f"{SOLVE}rm data\n", test=gone),
            split(root, "files-in-root", workdir="", solve="cp /data /answer\n", test=root_of_all),
            native(root, "files-in-app"),
        ]
    }


@pytest.mark.docker
@pytest.mark.parametrize("name", ["files-in-workdir", "files-in-room", "files-in-root", "files-in-app"])
def test_the_files_are_where_the_work_is_done(docker_results: Results, name: str) -> None:
    result = docker_results[name]
    assert (result.error, result.verifier_error, result.rewards) == (None, None, {"reward": 1.0})
    assert result.sandbox["image"].startswith("sha256:")
