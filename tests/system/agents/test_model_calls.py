"""An agent's calls of its model, through the real stack: who has the key, what is recorded and counted.

The agent is our own `policy`; the model is scripted.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.agent_world import (
    LOCAL,
    LONG_IN_DOCKER,
    TEST,
    Seen,
    assert_nothing_is_left,
    finished,
    histories,
    rollout_of,
    submit_tasks,
    write_step,
)
from support.made_once import made_once
from support.model_world import (
    MODEL,
    asked_of,
    calls_of,
    conversation,
    main_calls,
    policy,
    price_of,
    runs,
    says,
    write_model_task,
)

from benchflow.cli.job_report import show_rows
from benchflow.cli.resume import plan_again
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import ConfigError
from benchflow.gateway.gateway_client import GatewayClient
from benchflow.jobs import Job
from benchflow.jobs.agents import prepare_agent
from benchflow.paths import JobPaths, StatePaths
from benchflow.results.summary import read_spec
from benchflow.testing.scripted_model import ModelRequest, ReceivedCall, ScriptedModel, SideCalls
from benchflow.testing.waiting import until

KEY = f"k3y-of-this-module-{secrets.token_hex(8)}"
"""What only the gateway and the model may see. No other job of the stack is given it meanwhile."""

STEPS = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("one", "two"))
LOOKS = "python3 /opt/ask.py see /logs/verifier/seen; python3 /opt/ask.py call 'too late' /logs/verifier/late 1\n"
LOOK = (
    "echo 42 > answer; python3 /opt/ask.py see /logs/artifacts/seen; python3 /opt/ask.py save; "
    "python3 /opt/ask.py post /embeddings"
)
ON_THE_SIDE = "python3 /opt/ask.py call 'What may this be called?'"


@dataclass(frozen=True)
class Shown:
    """A rollout of two steps, the model's own record of it, and the histories of its workflows.

    own: a rollout whose key was in the environment; its model's calls. titled: a rollout whose agent called its model
    when its turn was over; what was seen while it did.
    """

    seen: Seen
    model: list[ReceivedCall]
    histories: dict[str, str]
    job: JobPaths
    own: Seen
    own_model: list[ReceivedCall]
    titled: Seen
    in_flight: tuple[str, int]


def answer_by_step(request: ModelRequest) -> dict[str, Any]:
    if request.turn == 0:
        return runs(LOOK if asked_of(request, "one") else ON_THE_SIDE)
    return says()


@made_once(params=[LOCAL, LONG_IN_DOCKER])
async def shown(root: Path, sandbox: str) -> Shown:
    whole = write_model_task(root, "whole", config=STEPS)
    for step in ("one", "two"):
        write_step(whole, step, LOOKS + TEST)
    titling: ScriptedModel

    async def answer_at_leisure(request: ModelRequest) -> dict[str, Any]:
        if request.turn == 0:
            return runs(f"echo 42 > answer; {ON_THE_SIDE} >/dev/null 2>&1 </dev/null &")
        while not titling.side_calls:
            await asyncio.sleep(0.02)
        return says()

    side = {"hold": "title", "text": "A title", "times": "always", "usage": {"input": 10, "output": 3}}

    async def submitted(task: Path, model: ScriptedModel, **options: Any) -> Job:
        agents = [policy(model, env={})]
        return await submit_tasks([task], root / "jobs", job_name=task.name, sandbox=sandbox, agents=agents, **options)

    async with (
        ScriptedModel(answer_by_step) as model,
        ScriptedModel(conversation(runs(LOOK), says())) as own_model,
        ScriptedModel(answer_at_leisure, side=SideCalls.model_validate({"reply": side})) as titling,
    ):
        # The two ways in which a key is given.
        jobs = [await submitted(whole, model, agent_env={"POLICY_API_KEY": KEY})]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("POLICY_API_KEY", KEY)
            jobs.append(await submitted(write_model_task(root, "own"), own_model))
        titled = await submitted(write_model_task(root, "titled"), titling, agent_env={"POLICY_API_KEY": KEY})
        await until(lambda: has_said_that_it_ended("titled"))
        rollout = rollout_of(titled, "titled")
        progress = await until(lambda: titled.rollout_progress(rollout))
        assert progress is not None
        in_flight = progress.phase, (await GatewayClient(StatePaths.default()).status(rollout)).in_flight
        titling.release("title")
        found = {name: seen for job in [*jobs, titled] for name, seen in (await finished(job)).items()}
        return Shown(
            seen=found["whole"],
            model=model.calls,
            histories=await histories(jobs[0]),
            job=jobs[0].directory,
            own=found["own"],
            own_model=own_model.calls,
            titled=found["titled"],
            in_flight=in_flight,
        )


def has_said_that_it_ended(task: str) -> bool:
    """Return whether the agent of a task has said that its turn is over."""
    said = [file.read_text() for file in StatePaths.default().sessions.glob(f"bf-{task}-*/shared/0.0/out")]
    return any('"stopReason"' in text for text in said)


# --- the key ---------------------------------------------------------------------------------------------


def test_a_sandbox_without_a_network_reaches_its_model(shown: Shown) -> None:
    result = shown.seen.result
    assert (result.status, result.rewards, result.error) == ("passed", {"reward": 1.0}, None)
    assert [session.model_access for session in result.sessions] == ["gateway", "gateway"]
    assert_nothing_is_left(shown.seen)


def test_the_model_is_asked_with_the_key(shown: Shown) -> None:
    assert {call.headers["authorization"] for call in shown.model} == {f"Bearer {KEY}"}
    assert len(shown.model) == 5


def test_no_process_of_the_sandbox_has_the_key(shown: Shown) -> None:
    """As the agent sees its sandbox, and as root does."""
    root = shown.seen.paths.root
    looks = [root / "artifacts" / "seen", *(root / "steps" / step / "verifier" / "seen" for step in ("one", "two"))]
    for file in looks:
        found = {path: bytes.fromhex(data) for path, _, data in _split(file.read_text())}
        assert found
        assert not [path for path, data in found.items() if KEY.encode() in data]
    assert any(b"POLICY_API_KEY=bfg-" in data for data in _data(looks[0]))
    # The first process of a local sandbox shows nobody its own.
    assert looks[1].read_text().count("/environ") > 1


def _split(text: str) -> list[tuple[str, str, str]]:
    return [line.partition(" ") for line in text.splitlines()]


def _data(file: Path) -> list[bytes]:
    return [bytes.fromhex(data) for _, _, data in _split(file.read_text())]


def test_no_file_has_the_key_and_no_history(shown: Shown) -> None:
    assert_in_no_file(KEY, shown.job.root)
    assert not [name for name, text in shown.histories.items() if KEY in text]


def assert_in_no_file(secret: str, *directories: Path) -> None:
    """Neither in these directories nor in the state, but for what is fetched from package indexes."""
    state = StatePaths.default()
    left_out = (state.toolboxes, state.root / "local")
    seen, having = 0, []
    for folder, below, files in itertools.chain(*(os.walk(directory) for directory in (*directories, state.root))):
        below[:] = [name for name in below if Path(folder) / name not in left_out]
        for file in (Path(folder) / name for name in files if (Path(folder) / name).is_file()):
            # What the stack takes away just now is in none either.
            with contextlib.suppress(FileNotFoundError):
                having += [str(file)] * (secret.encode() in file.read_bytes())
                seen += 1
    assert seen > 10
    assert having == []


def test_a_key_of_the_environment_stays_outside(shown: Shown) -> None:
    assert {call.headers["authorization"] for call in shown.own_model} == {f"Bearer {KEY}"}
    assert shown.own.result.rewards == {"reward": 1.0}
    assert not [data for data in _data(shown.own.paths.artifacts / "seen") if KEY.encode() in data]
    assert_in_no_file(KEY, shown.own.paths.root)


def test_every_key_that_is_given_stays_outside_and_the_first_counts() -> None:
    env = {"OPENAI_API_KEY": "another-key-of-mine", "POLICY_API_KEY": KEY}
    spec, values = prepare_agent(AgentSpec(name="policy", model="m", env=env), salt="job", cluster=False)
    assert spec.env == {}
    assert [values[name] for name in spec.credentials] == [KEY]


def test_a_key_that_is_put_together_is_refused() -> None:
    given = AgentSpec(name="policy", model="m", env={"POLICY_API_KEY": "${ONE}-${TWO}"})
    with pytest.raises(ConfigError, match="POLICY_API_KEY is not that of one variable"):
        prepare_agent(given, salt="job", cluster=False)


def test_a_job_that_is_planned_again_has_the_key_under_the_same_name(shown: Shown) -> None:
    plan = plan_again(shown.job.root.name, shown.job.root.parent, concurrency=1, context_root=None)
    (agent,) = plan.config.agents
    assert agent.credentials[0].startswith("BENCHFLOW_AGENT_POLICY_API_KEY_")
    assert plan.config.agents == read_spec(shown.job).agents


def test_the_token_is_of_no_use_once_the_agent_has_ended(shown: Shown) -> None:
    """What it left behind is held back while the verifier runs, and is nobody after the rollout."""
    for step in ("one", "two"):
        told = (shown.seen.paths.root / "steps" / step / "verifier" / "late").read_text()
        assert told.startswith("none: ") and "timed out" in told
    assert "too late" not in json.dumps([call.body for call in shown.model])
    data = b"".join(_data(shown.seen.paths.artifacts / "seen"))
    token = data[data.index(b"bfg-") :].partition(b"\0")[0].decode()
    assert _status_of_call(token) == 401
    assert not [file for file in StatePaths.default().gateway.rollouts.iterdir() if str(shown.job.root) in _read(file)]


def _read(file: Path) -> str:
    """Return the content of a file that others may take away just now."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _status_of_call(token: str) -> int:
    """What a process of any sandbox gets with this token."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(StatePaths.default().gateway.public / "gateway.sock"))
        body = json.dumps({"model": MODEL, "messages": []}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        return int(connection.makefile("rb").readline().split()[1])


# --- the record, and what is counted -----------------------------------------------------------------------


def test_a_request_that_is_not_passed_on_is_a_warning_of_the_result(shown: Shown) -> None:
    for seen, model in ((shown.seen, shown.model), (shown.own, shown.own_model)):
        assert "the model gateway refused 1 × POST /v1/embeddings" in seen.result.warnings
        assert {call.path for call in model} == {"/v1/chat/completions"}


def test_every_call_is_on_record_with_its_node_role_and_turn(shown: Shown) -> None:
    calls = calls_of(shown.seen)
    assert [call.where for call in calls] == [("n1", "agent", 0)] * 2 + [("n2", "agent", 1)] * 3
    assert [call.request["seq"] for call in calls] == list(range(5))
    assert [call.request["request"] for call in calls] == [call.body for call in shown.model]
    assert {(call.response["status"], call.response["error"]) for call in calls} == {(200, None)}
    assert [call.response["finish_reason"] for call in main_calls(calls)] == ["tool_calls", "stop"] * 2
    assert {call.request["source"] for call in calls} == {"live"}


def test_a_call_on_the_side_is_marked(shown: Shown) -> None:
    calls = calls_of(shown.seen)
    assert [call.request["side_reason"] for call in calls] == [None, None, None, "no_tools", None]
    assert [call.request["side"] for call in calls] == [False, False, False, True, False]


def test_tokens_and_money_are_those_of_all_calls(shown: Shown) -> None:
    result, calls = shown.seen.result, calls_of(shown.seen)
    one, two = (outcome.turn.usage for outcome in result.steps)
    assert one is not None and two is not None
    assert (one.calls, one.input_tokens, one.output_tokens, one.cached_tokens) == (2, 2000, 100, 1200)
    assert (two.calls, two.input_tokens, two.output_tokens, two.cached_tokens) == (3, 2010, 103, 1200)
    assert (one.currency, two.currency) == ("USD", "USD")
    assert one.cost == pytest.approx(price_of(calls[:2])) and two.cost == pytest.approx(price_of(calls[2:]))
    assert (result.n_input_tokens, result.n_output_tokens) == (4010, 203)
    assert result.cost_usd == pytest.approx(price_of(calls))


def test_the_results_of_the_job_have_them_too(shown: Shown) -> None:
    result = shown.seen.result
    counted = (result.n_input_tokens, result.n_output_tokens, result.cost_usd)
    (row,) = [json.loads(line) for line in shown.job.results.read_text().splitlines()]
    for table in (row, json.loads(shown.job.summary.read_text())):
        assert (table["n_input_tokens"], table["n_output_tokens"], table["cost_usd"]) == counted


def test_the_table_shows_tokens_and_cost(shown: Shown) -> None:
    text = _table([shown.seen.result])
    assert "4.2k" in text and "$0.0006" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_says_nothing_of_tokens_where_nobody_counted_them(shown: Shown) -> None:
    unknown = {"n_input_tokens": None, "n_output_tokens": None, "cost_usd": None}
    assert "tokens" not in _table([shown.seen.result.model_copy(update=unknown)])


def _table(results: list[RolloutResult]) -> str:
    screen = Console(width=80, file=io.StringIO())
    show_rows(results, screen)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_end_of_a_turn_is_observed(shown: Shown) -> None:
    assert [outcome.turn.turn_end for outcome in shown.seen.result.steps] == ["observed", "observed"]


def test_a_call_after_the_end_of_a_turn_is_waited_for(shown: Shown) -> None:
    """An agent's title, say: its tokens are the turn's, and its record is whole."""
    assert shown.in_flight == ("execute", 1)
    (outcome,) = shown.titled.result.steps
    assert outcome.turn.turn_end == "observed"
    assert outcome.turn.usage is not None
    assert (outcome.turn.usage.calls, outcome.turn.usage.input_tokens) == (3, 2010)
    assert [call.response["error"] for call in calls_of(shown.titled)] == [None] * 3
