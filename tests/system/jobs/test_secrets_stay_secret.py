"""A value that a task names as `${VAR}`, or a world by its name, reaches what needs it, and nothing else anywhere."""

from __future__ import annotations

import base64
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import docker
import pytest
from docker.models.containers import Container
from support.docker_world import solving
from support.running import job_config
from support.task_writer import BASE_IMAGE, write_task
from support.world_package import GET, write_entrypoint_package

from benchflow.jobs import Job, plan_job, submit
from benchflow.paths import StatePaths
from benchflow.stack import find_running
from benchflow.temporal import connect, make_stack_target
from benchflow.testing.waiting import until

pytestmark = pytest.mark.docker

CANARY = "c4n4ry-6f1d0a52e7"
WORLDS_CANARY = "entryp0int-c4n4ry-77d1"

CONFIG = dedent("""\
    [solution]
    env = { TOKEN = "${BF_TEST_CANARY}" }
    [verifier]
    env = { CHECK = "${BF_TEST_CANARY}" }
    [environment]
    env = { PLAIN = "in the open", KEY = "${BF_TEST_CANARY}", MODE = "${BF_TEST_ABSENT:-fallback}" }
    [[environment.setup_commands]]
    command = '[ "$KEY$PART" = "%s%s" ] && [ "$MODE" = fallback ]'
    env = { PART = "${BF_TEST_CANARY}" }
    """) % (CANARY, CANARY)

SOLVE = f"""\
while [ ! -e /root/go ]; do sleep 0.05; done
[ "$TOKEN" = "{CANARY}" ] && [ "$KEY" = {CANARY} ] && [ "$PLAIN" = "in the open" ] && touch /root/answer
"""

TEST = f"""\
reward=0
[ -e /root/answer ] && [ "$CHECK$KEY$MODE" = {CANARY}{CANARY}fallback ] && reward=1
tr '\\0' '\\n' < /proc/1/environ > /tmp/environ
grep -qx "PLAIN=in the open" /tmp/environ || reward=0.1
grep -q "KEY\\|MODE\\|{CANARY[:6]}" /tmp/environ && reward=0.2
echo $reward > /logs/verifier/reward.txt
"""


async def histories(job: Job) -> str:
    """Every event of every workflow of the job, as JSON."""
    record = find_running(StatePaths.default())
    assert record is not None
    client = await connect(make_stack_target(record))
    texts = []
    async for execution in client.list_workflows(f"WorkflowId STARTS_WITH '{job.id}'"):
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        history = (await handle.fetch_history()).to_json()
        # Payloads are in base 64 there.
        texts.append(re.sub(r'"data":\s*"([A-Za-z0-9+/=]*)"', lambda m: str(base64.b64decode(m.group(1))), history))
    assert len(texts) == 3
    return "\n".join(texts)


def files_with(root: Path, word: bytes) -> list[Path]:
    found = []
    for folder, directories, names in os.walk(root):
        # The disk of sandboxes, which may be larger than memory, and programs from elsewhere.
        directories[:] = [name for name in directories if name not in ("local", "toolboxes")]
        for name in names:
            path = Path(folder) / name
            # The stack works on meanwhile, and removes what it needs no more.
            with suppress(FileNotFoundError):
                if path.is_file() and word in path.read_bytes():
                    found.append(path)
    return found


async def test_a_named_value_is_seen_by_commands_only(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BF_TEST_CANARY", CANARY)
    monkeypatch.setenv("WORLD_KEY", WORLDS_CANARY)
    monkeypatch.delenv("BF_TEST_ABSENT", raising=False)
    # The scripts that compare would betray the value themselves, so they hold it only inside the sandbox's layers.
    task = write_task(
        tmp_path, "keeps", solve=SOLVE, test=TEST, config=CONFIG, dockerfile=f"FROM {BASE_IMAGE}\nRUN true\n"
    )
    for file in (task / "task.toml", task / "solution" / "solve.sh", task / "tests" / "test.sh"):
        file.write_text(file.read_text().replace(CANARY, "$(printf %s c4n4ry -6f1d0a52e7)"))
    world = write_entrypoint_package(
        tmp_path,
        "told",
        keys='["WORLD_KEY"]',
        solve=f'[ -z "$WORLD_KEY" ] && {GET}/environ | grep -q "$(printf %s entryp0int -c4n4ry-77d1)" && '
        "touch /root/answer\nwhile [ ! -e /root/go ]; do sleep 0.05; done\n",
    )
    client = docker.from_env()
    job = await submit(plan_job(job_config([task, world], engine, job_name="keeps", sandbox="docker")))
    private = files_with(StatePaths.default().root, CANARY.encode())
    assert [(file.parent, oct(file.stat().st_mode & 0o777)) for file in private] == [
        (StatePaths.default().secrets, "0o600")
    ]

    async def at_work() -> list[Container]:
        found = await solving(client, "keeps")
        return found if len(found) == 2 else []

    containers = await until(at_work)
    inspected = json.dumps([container.attrs for container in containers])
    images = json.dumps([[container.image.attrs, container.image.history()] for container in containers])
    changed = json.dumps([client.api.diff(container.id) for container in containers])
    for container in containers:
        container.exec_run("touch /root/go")
    await job.wait()

    assert {result.task_name: result.rewards for result in job.results()} == {
        "keeps": {"reward": 1.0},
        "told": {"reward": 1.0},
    }, [(result.error, result.verifier_error) for result in job.results()]
    assert '"PLAIN=in the open"' in inspected
    told = await histories(job)
    for canary in (CANARY, WORLDS_CANARY):
        assert canary not in inspected + images + changed + told
        assert files_with(engine, canary.encode()) == []
        assert files_with(StatePaths.default().root, canary.encode()) == []
    client.close()


async def test_a_missing_value_is_refused_before_anything_starts(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchflow.errors import MissingSecretError

    monkeypatch.delenv("BF_TEST_CANARY", raising=False)
    task = write_task(tmp_path, "needs", environment='env = { KEY = "${BF_TEST_CANARY}" }')
    with pytest.raises(MissingSecretError, match="BF_TEST_CANARY") as caught:
        await submit(plan_job(job_config([task], engine, job_name="needs")))
    assert caught.value.file == "task.toml"
    assert "export BF_TEST_CANARY" in str(caught.value.remedy)
    assert not engine.exists() or list(engine.iterdir()) == []
