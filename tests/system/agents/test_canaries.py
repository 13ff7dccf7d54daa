"""A tree of an agent that is trusted with a secret by every way there is: where the values are, and where they are not.

The parent uses what it has and is captured; its children have the world, the values and a question each. While they
wait for the answer, everything of theirs that lies on this host is searched: containers, images, checkpoints, packs,
the engine's files, and the arguments of all processes. When they have told all they have, so is what is kept.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest
from support.agent_world import (
    BASE_IMAGE,
    LOCAL,
    LONG_IN_DOCKER,
    SOLVE,
    TEST,
    Seen,
    declare,
    submit_tasks,
    write_step,
    write_task,
)
from support.made_once import made_once
from support.paths import SUPPORT

from benchflow.contracts import temporal_names
from benchflow.contracts.job import RolloutProgress
from benchflow.contracts.rollout_records import Answer
from benchflow.jobs import Job
from benchflow.paths import StatePaths
from benchflow.temporal import read_stack_id
from benchflow.testing.waiting import until

CHILDREN = 2
MARK, TOLD = "c4n4ry", "t0ld-4gent"
"""Of values that the engine keeps to itself and to commands, and of those that an agent is told in its session."""

SECRETS = {
    name: f"{TOLD if word in ('header', 'server') else MARK}-{word}-{hashlib.sha256(word.encode()).hexdigest()[:10]}"
    for name, word in {
        "BF_CANARY_LOGIN": "login",
        "BF_CANARY_AGENT": "agent",
        "BF_CANARY_TASK": "task",
        "BF_CANARY_SETUP": "setup",
        "BF_CANARY_CHECK": "check",
        "BF_CANARY_HEADER": "header",
        "BF_CANARY_SERVER": "server",
        "BF_CANARY_WORLD": "world",
    }.items()
}
"""By the variable of whoever submits. The agent is given another one by its value."""

GIVEN = f"{MARK}-given-bv6xn3tq"

ENDPOINT = {
    "api": "openai-chat",
    "providers": ["acme"],
    "base_url": "http://acme.invalid/v1",
    "credentials": ["BF_CANARY_LOGIN"],
    "env": {"ACME_KEY": "{api_key}"},
}
TRUSTED = {"name": "trusted", "env": {"GIVEN": GIVEN, "HANDED_ON": "${BF_CANARY_AGENT}"}}

CONFIG = """\
[[steps]]
name = "first"
[[steps]]
name = "second"
artifacts = ["out.txt"]
[verifier]
env = { CHECK = "${BF_CANARY_CHECK}" }
"""
ENVIRONMENT = """\
env = { TASK_KEY = "${BF_CANARY_TASK}" }
[[environment.setup_commands]]
command = 'test -n "$SETUP_KEY" && printf %s "$SETUP_KEY" | sha256sum > /setup.txt'
env = { SETUP_KEY = "${BF_CANARY_SETUP}" }
[[environment.mcp_servers]]
name = "far"
transport = "streamable-http"
url = "http://127.0.0.1:9/mcp"
headers = { Authorization = "Bearer ${BF_CANARY_HEADER}" }
[[environment.mcp_servers]]
name = "near"
transport = "stdio"
command = "/bin/true"
env = { NEAR_KEY = "${BF_CANARY_SERVER}" }
"""
MANIFEST = f"""\
[environment]
name = "ledger"
base_image = "{BASE_IMAGE}"
owns_lifecycle = false
[environment.task_selection]
mechanism = "image"
[environment.forward_env]
keys = ["BF_CANARY_WORLD"]
[[environment.services]]
name = "ledger"
command = "ledger /data/ledger.db 9000"
port = 9000
[environment.state]
paths = ["/data/ledger.db"]
"""

DIGESTS = (
    'for name in ACME_KEY GIVEN HANDED_ON TASK_KEY; do eval "printf %s \\"\\$$name\\"" | sha256sum | cut -c 1-64; done'
)
TELLS = """\
[ -e second ] || exec touch second
env; env >&2; env > out.txt; env > /logs/artifacts/env; env > /logs/agent/env
python3 -c "import urllib.request as r; print(r.urlopen('http://localhost:9000/environ').read())"
"""
"""What the agent does in its second session: of the first one a checkpoint is taken, with whatever it wrote."""

TURN = [
    {"run": DIGESTS, "silent": True, "record": "/logs/artifacts/digests"},
    {"ask": "May I go on?", "options": [["yes", "allow_once"]]},
    {"run": TELLS},
    SOLVE,
]
CHECKS = 'echo "$CHECK"; echo "$CHECK" >&2; env > /logs/verifier/env\n' + TEST


@dataclass
class Looks:
    """Where a canary was found, and how much was searched. told: the files with what an agent is told."""

    found: list[str] = field(default_factory=list)
    told: list[Path] = field(default_factory=list)
    searched: dict[str, int] = field(default_factory=dict)

    def see(self, kind: str, where: object, data: bytes) -> None:
        self.searched[kind] = self.searched.get(kind, 0) + 1
        if MARK.encode() in data:
            at = data.index(MARK.encode())
            self.found.append(f"{kind} {where}: {data[max(0, at - 60) : at + 40]!r}")
        if TOLD.encode() in data:
            self.told.append(Path(str(where)))


@dataclass(frozen=True)
class Grown:
    """A tree whose canaries were looked for. during: while its children waited; after: when all was over."""

    job: Job
    during: Looks
    after: Looks
    arguments: Looks
    leaves: list[Seen]


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("agents")
    declare(directory, "trusted", endpoints=[ENDPOINT])
    return directory


def write_tree(root: Path) -> Path:
    """The task, and the manifest of its world beside it."""
    build = "COPY ledger /usr/local/bin/ledger\nRUN chmod 755 /usr/local/bin/ledger && mkdir -p /data\n"
    script = {"capabilities": {"mcpCapabilities": {"http": True}}}
    task = write_task(root, "tells", TURN, script=script, config=CONFIG, environment=ENVIRONMENT, build=build)
    (task / "environment" / "ledger").write_bytes((SUPPORT / "ledger.py").read_bytes())
    # The first one's sandbox is captured, with what its verifier has printed.
    write_step(task, "first", TEST)
    write_step(task, "second", CHECKS)
    (root / "environment.toml").write_text(MANIFEST)
    return task


@made_once(params=[LOCAL, LONG_IN_DOCKER])
async def grown(root: Path, sandbox: str) -> Grown:
    during, after, arguments = Looks(), Looks(), Looks()
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": CHILDREN}, "portable": True}
    with pytest.MonkeyPatch.context() as patch, watched_arguments(arguments):
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        job = await submit_tasks(
            [write_tree(root)],
            root / "jobs",
            job_name=f"canaries-{sandbox}",
            sandbox=sandbox,
            agents=[TRUSTED],
            permissions="ask",
            branch=branch,
            environment_manifest=root / "environment.toml",
        )
        try:
            await answer(job, await until(lambda: asking(job, 1), every=0.2))
            children = await until(lambda: asking(job, CHILDREN, "/b/"), every=0.2)
            await asyncio.to_thread(look_at_the_host, during)
            looker = look_at_docker if sandbox == "docker" else look_at_local_volumes
            await asyncio.to_thread(looker, during, await read_stack_id(job.engine.client))
            await answer(job, children)
        except BaseException:
            await job.cancel()
            raise
        finally:
            await job.wait()
    await look_at_histories(job, after)
    await asyncio.to_thread(look_at_the_host, after)
    look_below(after, "result", job.directory.root)
    shown = [
        ["results", str(job.directory.root), "--all"],
        ["job", "watch", f"{job.name}/tells", "--jobs-dir", str(root / "jobs")],
        ["tree", "path", f"{job.name}/tells", "n1.0/n2", "--jobs-dir", str(root / "jobs")],
    ]
    for command in shown:
        line = [sys.executable, "-m", "benchflow.cli", *command]
        ran = await asyncio.to_thread(subprocess.run, line, capture_output=True, check=False)
        after.see("terminal", command[:2], ran.stdout + ran.stderr)
    (result,) = job.results()
    leaves = [
        Seen(result.model_copy(update={"directory": str(path)})) for path in Seen(result).paths.root.glob("children/*")
    ]
    return Grown(job, during, after, arguments, leaves)


@contextlib.contextmanager
def watched_arguments(looks: Looks) -> Iterator[None]:
    """Look at the arguments of all processes of this host, which everybody can read, as long as this lasts."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            for process in Path("/proc").iterdir():
                if process.name.isdecimal():
                    with contextlib.suppress(OSError):
                        looks.see("arguments", process.name, (process / "cmdline").read_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def asking(job: Job, number: int, where: str = "/r/") -> dict[str, str]:
    """Return the questions of so many rollouts by their workflows, once all of them wait; nothing before."""
    assert await job.is_running(), job.results()
    found: dict[str, str] = {}
    query = f"WorkflowId STARTS_WITH '{job.id}/' AND ExecutionStatus = 'Running'"
    async for execution in job.engine.client.list_workflows(query):
        if where in execution.id:
            handle = job.engine.client.get_workflow_handle(execution.id)
            progress: RolloutProgress = await handle.query(temporal_names.PROGRESS, result_type=RolloutProgress)
            if progress.question is not None:
                found[execution.id] = progress.question.id
    return found if len(found) == number else {}


async def answer(job: Job, questions: dict[str, str]) -> None:
    for rollout, question in questions.items():
        given = Answer(question=question, option="yes")
        await job.engine.client.get_workflow_handle(rollout).signal(temporal_names.ANSWER, given)


def look_below(looks: Looks, kind: str, root: Path, *, without: tuple[Path, ...] = ()) -> None:
    """Look into all files below a directory, compressed ones included."""
    # `os.walk` of Python 3.11 calls itself, and another test's sandbox may hold directories of any depth.
    folders = [root]
    while folders:
        # What runs there writes and removes files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(folders.pop())):
                path = Path(entry.path)
                if path in without:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        looks.see(kind, path, content_of(path))


def content_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def look_at_the_host(looks: Looks) -> None:
    """Look into the engine's own files: database, log beside it, store, records, journals, logs."""
    paths = StatePaths.default()
    # The values lie in a private file while the job runs. Volumes are looked at by themselves, programs are not ours.
    without = (
        *(paths.secrets, paths.root / "toolboxes"),
        *(paths.root / "local" / "store", paths.root / "local" / "store.img"),
    )
    look_below(looks, "state", paths.root, without=without)


def look_at_local_volumes(looks: Looks, stack: str) -> None:
    """Look into the upper layers of all sandboxes, images and checkpoints, as files of this host."""
    look_below(looks, "volume", StatePaths.default().root / "local" / "store")


def look_at_docker(looks: Looks, stack: str) -> None:
    """Look at what the daemon tells of the containers and images of a stack, and into their layers."""
    client = docker.from_env()
    try:
        containers = client.containers.list(all=True, filters={"label": f"benchflow.stack={stack}"})
        images = {image.id: image for image in client.images.list(filters={"label": f"benchflow.stack={stack}"})}
        images |= {container.image.id: container.image for container in containers}
        for container in containers:
            try:
                execs = [client.api.exec_inspect(each) for each in container.attrs["ExecIDs"] or []]
                told = json.dumps([container.attrs, execs, container.logs().decode()])
            except docker.errors.APIError as error:
                # Other tests' containers end meanwhile, and it takes the daemon a moment to remove one.
                assert error.status_code in (404, 409), error
                continue
            looks.see("container", container.name, told.encode())
            layers_of(looks, container.attrs)
        for image in images.values():
            looks.see("image", image.tags, json.dumps([image.attrs, image.history()]).encode())
            layers_of(looks, image.attrs)
    finally:
        client.close()


def layers_of(looks: Looks, attrs: Any) -> None:
    layers = (attrs.get("GraphDriver") or {}).get("Data") or {}
    if "UpperDir" in layers:
        look_below(looks, "layer", Path(layers["UpperDir"]))


async def look_at_histories(job: Job, looks: Looks) -> None:
    """Look at every event of every workflow of the job, its payloads decoded."""

    def plain(match: re.Match[str]) -> str:
        return base64.b64decode(match.group(1)).decode(errors="replace")

    async for execution in job.engine.client.list_workflows(f"WorkflowId STARTS_WITH '{job.id}'"):
        handle = job.engine.client.get_workflow_handle(execution.id, run_id=execution.run_id)
        history = (await handle.fetch_history()).to_json()
        text = re.sub(r'"data":\s*"([A-Za-z0-9+/=]*)"', plain, history)
        looks.see("history", execution.id, text.encode())


def test_the_agent_has_the_values_in_each_child(grown: Grown) -> None:
    assert len(grown.leaves) == CHILDREN
    values = (SECRETS["BF_CANARY_LOGIN"], GIVEN, SECRETS["BF_CANARY_AGENT"], SECRETS["BF_CANARY_TASK"])
    for leaf in grown.leaves:
        (told,) = leaf.recorded("digests")
        assert told["output"].split() == [hashlib.sha256(value.encode()).hexdigest() for value in values]


def test_while_sandboxes_run_no_value_lies_on_the_host(grown: Grown) -> None:
    kinds = {"state", "volume"} if grown.job.spec.run.sandbox == "local" else {"state", "container", "image", "layer"}
    assert kinds == set(grown.during.searched)
    assert grown.during.found == [], "\n".join(grown.during.found)


def test_what_an_mcp_server_is_given_is_in_private_journals_and_where_the_agent_puts_it(grown: Grown) -> None:
    """An agent is told the headers and variables of its MCP servers by the protocol, and may write them down."""
    assert (grown.after.told, grown.arguments.told) == ([], [])
    own = [path for path in grown.during.told if ".demo-agent" not in path.parts]
    journals = [path for path in own if path.name == "in" and path.parents[3] == StatePaths.default().sessions]
    # The host's own record, and the journal that the sandbox has.
    assert len(journals) == 2 * (1 + CHILDREN)
    # Whatever else there is is a portable copy of the agent's home.
    assert [path for path in own if path not in journals and StatePaths.default().store not in path.parents] == []
    assert StatePaths.default().root.stat().st_mode & 0o077 == 0


def test_no_value_is_among_the_arguments_of_a_process(grown: Grown) -> None:
    assert grown.arguments.searched["arguments"] > 100
    assert grown.arguments.found == []


def test_no_value_is_kept_in_histories_results_the_store_or_the_log(grown: Grown) -> None:
    assert set(grown.after.searched) == {"history", "state", "result", "terminal"}
    assert grown.after.searched["history"] >= 2 + CHILDREN
    assert grown.after.found == []


def test_what_was_told_stands_with_names_in_place_of_values(grown: Grown) -> None:
    for leaf in grown.leaves:
        told = (leaf.paths.artifacts / "env").read_text()
        assert "[BF_CANARY_LOGIN]" in told and "[BF_CANARY_AGENT]" in told and "[BF_CANARY_TASK]" in told
