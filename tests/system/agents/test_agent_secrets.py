"""An agent that tells everybody what it was trusted with: it has the values, and nothing that is kept has them.

The agent puts its whole environment into whatever it can say or write, before it starts to act: `@ENV@` in its script,
`@KEY@` for what it logs in with.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from support.agent_world import (
    LOCAL,
    LONG_IN_DOCKER,
    SOLVE,
    TEST,
    WORKDIR,
    Seen,
    declare,
    finished,
    histories,
    job_config,
    submit_tasks,
    write_step,
    write_task,
)
from support.made_once import made_once

from benchflow import stack
from benchflow.contracts import temporal_names
from benchflow.contracts.rollout_records import Answer, Question
from benchflow.errors import ConfigError, JobConflictError, MissingSecretError
from benchflow.jobs import Job, plan_job, submit
from benchflow.paths import StatePaths
from benchflow.temporal import read_stack_id
from benchflow.testing.waiting import until

KEY, GIVEN, HANDED_ON = "k4n4ri3-key-zq7wk2mx", 'k4n4ri3-"given"\\-hx9vt4ru', "k4n4ri3-handed-on-jp5ys8lo"
"""What the agent logs in with, by its variable; and what it is given by `--agent-env`, as K=V and as K."""

CANARIES = ("k4n4ri3", "zq7wk2mx", "hx9vt4ru", "jp5ys8lo")
"""A part of a value is no better than all of it."""

SPILL = """\
import json, os
text = open("/opt/script.json").read()
key = os.environ.get("ACME_KEY", "")
spilled = json.dumps(key + " " + json.dumps(dict(os.environ)))[1:-1]
open("/tmp/script.json", "w").write(text.replace("@ENV@", spilled).replace("@KEY@", key))
"""
LAUNCH = ["sh", "-c", f"python3 -c '{SPILL}' && env >&2 && exec python3 /opt/demo_agent.py /tmp/script.json"]
ENDPOINT = {
    "api": "openai-chat",
    "providers": ["acme"],
    "base_url": "http://acme.invalid/v1",
    "credentials": ["BF_TEST_ACME_KEY"],
    "env": {"ACME_KEY": "{api_key}"},
}
TRUSTED = {"name": "trusted", "env": {"GIVEN": GIVEN, "HANDED_ON": "${BF_TEST_HANDED_ON}"}}
STRANGER = {"name": "stranger"}

DIGESTS = 'for name in ACME_KEY GIVEN HANDED_ON; do eval "printf %s \\"\\$$name\\"" | sha256sum | cut -c 1-64; done'
"""The agent's proof that it has the values, which tells nobody what they are."""

SPREADS = [
    {"run": DIGESTS, "silent": True, "record": "/logs/artifacts/digests"},
    {
        "ask": "m4rk: @ENV@",
        "options": [{"optionId": "yes", "name": "@ENV@", "kind": "allow_once"}],
        "rawInput": {"@ENV@": "@ENV@"},
    },
    {"elicit": "@ENV@", "schema": {"type": "object", "description": "@ENV@", "properties": {}}},
    {"say": "m4rk: @ENV@"},
    {"think": "@ENV@"},
    {"plan": ["@ENV@"]},
    {"run": "env; env > /logs/agent/env; env > /logs/artifacts/env; env > out.txt; mkdir deep; env > deep/out.txt"},
    {"update": {"sessionUpdate": "mood_update", "mood": {"@ENV@": ["@ENV@"]}}},
    {"tool_call": {"title": "@ENV@", "rawInput": {"env": "@ENV@"}}},
    {"raw": "a stray line: @ENV@"},
    {"stderr": "@ENV@"},
    SOLVE,
]
ARTIFACTS = f'artifacts = ["out.txt", "{WORKDIR}/deep"]\n'
PRINTS = f"cat {WORKDIR}/out.txt; cat {WORKDIR}/out.txt >&2; cp {WORKDIR}/out.txt /logs/verifier/seen.txt\n"


def failing(root: Path) -> Sequence[Path]:
    keeps = [{"run": "printf %s $ACME_KEY > key", "silent": True}]
    reward = f'printf \'{{"reward": 1, "metadata": {{"saw": "%s"}}}}\' "$(cat {WORKDIR}/key)"'
    writes = [{"run": "env > out.txt; mkdir deep; env > deep/out.txt", "silent": True}, SOLVE]
    # Where only a part of what was said is kept, the cut goes through the value.
    cut_log, cut_message = {"stderr": f"@KEY@{'x' * 3990}"}, {"raw": f'{{"{"x" * 288}@KEY@"'}
    return [
        write_task(root, "refuses", [SOLVE, {"error": "@ENV@"}]),
        write_task(root, "leaves", [*writes, cut_log, {"exit": 3}], config=ARTIFACTS, test=PRINTS + TEST),
        write_task(root, "other-json", [SOLVE, {"raw": '{"m4rk": "@ENV@"}'}, {"hang": True}]),
        write_task(root, "odd-end", [SOLVE, {"end": "@KEY@"}]),
        write_task(root, "no-session", script={"auth_required": True, "name": "@ENV@"}),
        write_task(root, "cut", [SOLVE, cut_message, {"hang": True}]),
        write_task(root, "unscored", keeps, test=f"cat {WORKDIR}/key; exit 1\n"),
        write_task(root, "cited", keeps, test=f"{reward} > /logs/verifier/reward.json\n"),
    ]


@dataclass(frozen=True)
class Failed:
    """Rollouts of agents that tell all and fail, or whose verifier does, by their task; and the login of one."""

    jobs_dir: Path
    seen: dict[str, Seen]
    login: str


@dataclass(frozen=True)
class Spilled:
    """A job of agents that tell all, and what was found of it. outside: what others could see while they acted.

    values: the files of the engine's own that had them, and private: who might read these. failed: in local sandboxes,
    agents that fail meanwhile.
    """

    job: Job
    seen: dict[tuple[str, str], Seen]
    questions: list[Question]
    histories: str
    outside: str
    private: list[str]
    values: list[Path]
    failed: Failed | None


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents that tell all they have: `trusted` is given something, `stranger` is not, `filed` logs in with a file."""
    directory = tmp_path_factory.mktemp("agents")
    declare(directory, "trusted", launch=LAUNCH, endpoints=[ENDPOINT])
    declare(directory, "stranger", launch=LAUNCH)
    declare(directory, "filed", endpoints=[ENDPOINT], credential_files=[".acme/login.json"])
    return directory


@made_once(params=[LOCAL, LONG_IN_DOCKER])
async def spilled(root: Path, sandbox: str) -> Spilled:
    task = write_task(
        root,
        "spreads",
        SPREADS,
        script={"name": "@ENV@", "version": f"{'x' * 190}@KEY@", "capabilities": {"_meta": {"@KEY@": "@ENV@"}}},
        config=f'[[steps]]\nname = "only"\n{ARTIFACTS}',
    )
    write_step(task, "only", PRINTS + TEST)
    login, failing_jobs = await submit_failing(root) if sandbox == "local" else ("", [])
    options = {"sandbox": sandbox, "agents": [TRUSTED, STRANGER], "permissions": "ask"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BF_TEST_ACME_KEY", KEY)
        patch.setenv("BF_TEST_HANDED_ON", HANDED_ON)
        before = {*StatePaths.default().secrets.glob("*")}
        job = await submit_tasks([task], root / "jobs", job_name=f"spills-{sandbox}", **options)
    values = [file for file in {*StatePaths.default().secrets.glob("*")} - before if HANDED_ON in read(file)]
    private = [f"{file.stat().st_mode & 0o777:o}" for file in values]
    rollouts = [job.spec.rollout_id(job.id, index) for index in range(job.spec.total)]
    questions: list[Question] = []
    try:
        first = [await question_of(job, rollout, None) for rollout in rollouts]
        outside = await asyncio.to_thread(look_from_outside, job.name, await read_stack_id(job.engine.client), sandbox)
        for rollout, permission in zip(rollouts, first, strict=True):
            await answer(job, rollout, Answer(question=permission.id, option="yes"))
            form = await question_of(job, rollout, permission.id)
            await answer(job, rollout, Answer(question=form.id))
            questions += [permission, form]
    except BaseException:
        await job.cancel()
        raise
    finally:
        await job.wait()
        ended = [await finished(failing_job) for failing_job in failing_jobs]
    failed = Failed(root / "jobs", {name: seen for found in ended for name, seen in found.items()}, login)
    texts = decoded("\n".join((await histories(job)).values()))
    seen = {(result.task_name, result.agent): Seen(result) for result in job.results()}
    return Spilled(job, seen, questions, texts, outside, private, values, failed if failing_jobs else None)


async def submit_failing(root: Path) -> tuple[str, list[Job]]:
    """Submit what goes wrong. Returns what is in the login file of the user, and the jobs."""
    login = json.dumps({"key": f"-----BEGIN-----\n{KEY}\n{GIVEN}\n", "kind": "pem"})
    (root / ".acme").mkdir()
    (root / ".acme" / "login.json").write_text(login)
    file = "$HOME/.acme/login.json"
    tells = [
        {"run": f"sha256sum < {file}; stat -L -c '%U %a' {file}", "silent": True, "record": "/logs/artifacts/digests"},
        {"run": f"cat {file}; cp -L {file} /logs/agent/login; cp -L {file} /logs/artifacts/login"},
        {"stderr": "m4rk"},
        SOLVE,
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BF_TEST_ACME_KEY", raising=False)
        patch.setenv("HOME", str(root))
        files = [write_task(root, "logs-in", tells)]
        jobs = [await submit_tasks(files, root / "jobs", job_name="logs-in", agents=["filed"])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BF_TEST_ACME_KEY", KEY)
        patch.setenv("BF_TEST_HANDED_ON", HANDED_ON)
        jobs.append(await submit_tasks(failing(root), root / "jobs", job_name="fails", agents=[TRUSTED]))
    return login, jobs


async def question_of(job: Job, rollout: str, last: str | None) -> Question:
    """What a rollout's agent asks, when it is another question than the last."""

    async def waits() -> Question | None:
        progress = await job.rollout_progress(rollout)
        question = progress.question if progress else None
        return question if question is not None and question.id != last else None

    found = await until(waits, every=0.1)
    assert found is not None
    return found


async def answer(job: Job, rollout: str, given: Answer) -> None:
    await job.engine.client.get_workflow_handle(rollout).signal(temporal_names.ANSWER, given)


def look_from_outside(job_name: str, stack_label: str, sandbox: str) -> str:
    """What is to be seen of the sandboxes of a job by whoever may not enter them, and of their images."""
    if sandbox == "local":
        records = StatePaths.default().root / "local" / "sandboxes"
        return "\n".join(read(file) for file in records.rglob("*") if file.is_file())
    client = docker.from_env()
    try:
        labels = [f"benchflow.stack={stack_label}", f"benchflow.job={job_name}"]
        told = []
        for container in client.containers.list(filters={"label": labels}):
            execs = [client.api.exec_inspect(each) for each in container.attrs["ExecIDs"] or []]
            told += [container.attrs, execs, container.image.attrs, container.image.history(), container.top()]
        return json.dumps(told)
    finally:
        client.close()


def read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def decoded(history: str) -> str:
    """A history in which payloads can be read: in its JSON they are in base 64."""

    def plain(match: re.Match[str]) -> str:
        return base64.b64decode(match.group(1)).decode(errors="replace")

    return re.sub(r'"data":\s*"([A-Za-z0-9+/=]*)"', plain, history)


def files_with(root: Path, *words: str) -> list[Path]:
    """The files with any of these words."""
    found = []
    for folder, directories, files in os.walk(root):
        # The disks of sandboxes that are gone, and programs from elsewhere.
        directories[:] = [name for name in directories if name not in ("local", "toolboxes")]
        # A socket of the stack's is no file that could hold one.
        for path in (Path(folder) / name for name in files if (Path(folder) / name).is_file()):
            # Nor is what the stack takes away just now.
            with contextlib.suppress(FileNotFoundError):
                content = path.read_bytes()
                found += [path for _ in range(any(word.encode() in content for word in words))]
    return found


def assert_nobody_has_them(root: Path) -> None:
    """root: of results. They, the engine's state and its logs have no part of a value."""
    assert files_with(root, "[BF_TEST_ACME_KEY]")
    assert files_with(root, *CANARIES) == []
    paths = StatePaths.default()
    # They would be found: what may be seen is there to be read, in the database or in the log beside it.
    assert any(file.name.startswith(paths.database.name) for file in files_with(paths.root, "BF_TEST_ACME_KEY"))
    assert files_with(paths.store, "m4rk")
    assert files_with(paths.logs, "benchflow")
    assert files_with(paths.root, *CANARIES) == []


# --- the agent has what it was given --------------------------------------------------------------------


def test_the_agent_has_the_values_and_another_of_the_same_job_has_none(spilled: Spilled) -> None:
    for agent, values in (("trusted", [KEY, GIVEN, HANDED_ON]), ("stranger", ["", "", ""])):
        (told,) = spilled.seen["spreads", agent].recorded("digests")
        assert told["output"].split() == [hashlib.sha256(value.encode()).hexdigest() for value in values]


def test_what_the_agent_told_is_kept_with_names_in_place_of_values(spilled: Spilled) -> None:
    seen = spilled.seen["spreads", "trusted"]
    assert seen.result.rewards == {"reward": 1.0}
    places = [seen.paths.agent / "env", seen.paths.artifacts / "env"]
    step = seen.paths.root / "steps" / "only"
    places += [
        step / "artifacts" / "app" / "out.txt",
        step / "verifier" / "seen.txt",
        step / "verifier" / "test-stdout.txt",
    ]
    for place in places:
        environment = place.read_text()
        assert "ACME_KEY=[BF_TEST_ACME_KEY]" in environment, place
        assert "HANDED_ON=[BF_TEST_HANDED_ON]" in environment, place
        assert re.search(r"^GIVEN=\[BENCHFLOW_AGENT_GIVEN_\w+\]$", environment, re.M), place
    assert "[BF_TEST_ACME_KEY]" in seen.journal("err.log")
    assert seen.texts[0].startswith("m4rk: [BF_TEST_ACME_KEY]")
    assert str(seen.session.agent).startswith("[BF_TEST_ACME_KEY]")
    # Of which no more is kept than this.
    assert seen.session.version == f"{'x' * 190}[BF_TEST_ACME_KEY]"


def test_what_the_agent_asks_is_shown_with_names_in_place_of_values(spilled: Spilled) -> None:
    permission, form = spilled.questions[:2]
    assert permission.text.startswith("m4rk: [BF_TEST_ACME_KEY]")
    assert permission.options[0].name.startswith("[BF_TEST_ACME_KEY]")
    assert form.form is not None and form.form["description"].startswith("[BF_TEST_ACME_KEY]")


# --- and nobody else -------------------------------------------------------------------------------------


def test_no_value_is_in_any_history(spilled: Spilled) -> None:
    # They would be found: what an agent asks is there to be read.
    assert "m4rk: [BF_TEST_ACME_KEY]" in spilled.histories
    for canary in CANARIES:
        assert canary not in spilled.histories


def test_no_value_is_in_any_result_nor_in_the_engines_own_files(spilled: Spilled) -> None:
    assert_nobody_has_them(spilled.job.directory.root)


def test_no_value_is_seen_of_a_sandbox_from_outside(spilled: Spilled) -> None:
    assert len(spilled.outside) > 1000
    assert "spreads" in spilled.outside
    for canary in CANARIES:
        assert canary not in spilled.outside


def test_the_values_lie_in_a_private_file_until_the_job_is_over(spilled: Spilled) -> None:
    assert spilled.private == ["600"]
    assert not any(file.exists() for file in spilled.values)


# --- where it goes wrong ---------------------------------------------------------------------------------


@pytest.fixture
def failed(spilled: Spilled) -> Failed:
    assert spilled.failed is not None
    return spilled.failed


locally = pytest.mark.parametrize("spilled", [LOCAL], indirect=True)


@locally
def test_errors_tell_names_in_place_of_values(failed: Failed) -> None:
    seen = failed.seen
    for task in ("refuses", "leaves", "other-json", "no-session"):
        error = seen[task].error
        assert "[BF_TEST_ACME_KEY]" in f"{error.message} {error.log_tail}", task
    assert seen["odd-end"].result.steps[0].turn.stop_reason == "[BF_TEST_ACME_KEY]"
    assert seen["cut"].error.message.endswith(f"{'x' * 288}[BF_TEST_ACME_KEY]…")
    assert seen["leaves"].error.log_tail == f"[BF_TEST_ACME_KEY]{'x' * 3990}"
    assert (seen["leaves"].paths.verifier / "seen.txt").read_text().count("[BF_TEST_ACME_KEY]") == 1
    assert_nobody_has_them(failed.jobs_dir / "fails")


@locally
def test_a_login_in_a_file_is_the_agents_alone(failed: Failed) -> None:
    seen = failed.seen["logs-in"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    (told,) = seen.recorded("digests")
    assert told["output"].split() == [hashlib.sha256(failed.login.encode()).hexdigest(), "-", "agent", "600"]
    assert json.loads((seen.paths.agent / "login").read_text())["kind"] == "pem"
    assert files_with(failed.jobs_dir / "logs-in", "[~/.acme/login.json]")
    assert files_with(failed.jobs_dir / "logs-in", *CANARIES) == []
    assert files_with(StatePaths.default().root, *CANARIES) == []


@locally
def test_errors_of_a_verifier_tell_names_in_place_of_values(failed: Failed) -> None:
    error = failed.seen["unscored"].result.verifier_error
    assert error is not None and error.log_tail == "[BF_TEST_ACME_KEY]"
    assert failed.seen["cited"].result.rewards == {"reward": 1.0}


# --- what is asked for by name ---------------------------------------------------------------------------


def small(root: Path, name: str = "small") -> Path:
    return write_task(root, name, [SOLVE])


async def test_a_missing_key_is_refused_before_anything_starts(
    module_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("BF_TEST_ACME_KEY", raising=False)
    monkeypatch.delenv("BF_TEST_HANDED_ON", raising=False)
    jobs = tmp_path / "jobs"
    for agent, key, says, remedy in (
        ({"name": "trusted"}, "agent", "'trusted' has nothing to log in with", "export BF_TEST_ACME_KEY"),
        (TRUSTED, "--agent-env", "the value of HANDED_ON for agent 'trusted'", "--agent-env HANDED_ON=…"),
    ):
        plan = plan_job(job_config([small(tmp_path / key)], jobs, agents=[agent], sandbox="noop"))
        with pytest.raises(MissingSecretError, match=says) as caught:
            await submit(plan)
        assert caught.value.key == key
        assert remedy in str(caught.value.remedy)
    assert stack.read_record(StatePaths.default()) is None
    assert not jobs.exists() or list(jobs.iterdir()) == []


def test_a_value_is_not_sent_to_a_cluster(module_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("BENCHFLOW_STORE", str(tmp_path / "store"))
    with pytest.raises(ConfigError, match="the value of GIVEN would be seen in the history") as caught:
        plan_job(job_config([small(tmp_path)], tmp_path / "jobs", agents=[TRUSTED], sandbox="noop"))
    assert caught.value.key == "--agent-env"
    assert "--agent-env GIVEN" in str(caught.value.remedy)
    assert GIVEN not in str(caught.value)
    # By its name it may be asked for.
    agents = [{"name": "trusted", "env": {"GIVEN": "${GIVEN}"}}]
    plan = plan_job(job_config([small(tmp_path, "named")], tmp_path / "jobs", agents=agents, sandbox="noop"))
    assert plan.config.agents[0].env == {"GIVEN": "${GIVEN}"}
    assert plan.values == {}


async def test_the_same_job_with_another_value_is_another_job(module_jobs: Path, tmp_path: Path) -> None:
    task = small(tmp_path)

    def plan(value: str) -> Any:
        agents = [{"name": "stranger", "env": {"GIVEN": value}}]
        # What becomes of it makes no difference.
        options: dict[str, Any] = {"sandbox": "noop", "retry": {"max_retries": 0}}
        return plan_job(job_config([task], tmp_path / "jobs", job_name="again", agents=agents, **options))

    first = await submit(plan(GIVEN))
    await first.wait()
    again = await submit(plan(GIVEN))
    assert (first.started, again.started) == (1, 0)
    with pytest.raises(JobConflictError) as caught:
        await submit(plan(KEY))
    for canary in CANARIES:
        assert canary not in str(caught.value)
