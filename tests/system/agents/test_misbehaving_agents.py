"""Agents that exit, hang, flood or talk nonsense: the rollout says which it was, keeps what there was, and scores it.

All of them act at once, a task each; every test then looks at what one rollout left.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import (
    RECORD,
    SOLVE,
    TEST,
    Seen,
    assert_nothing_is_left,
    declare,
    finished,
    run_tasks,
    submit_tasks,
    write_task,
)

from benchflow.paths import StatePaths

SO_FAR = [{"say": "so far"}, SOLVE, {"stderr": "something is wrong here"}]
"""What all of them do before they misbehave: enough for the verifier."""

DAEMONS = [
    {"daemon": "exec sleep {length}"},
    {"daemon": "exec sleep {length}", "keeps_stdout": True},
    {"run": "(setsid sh -c 'setsid sleep {length} & exit' >/dev/null 2>&1 &)", "silent": True},
]
"""Processes that are not the agent's any more."""

COUNT = """\
alive=0
for process in /proc/[0-9]*; do
  case $(cat $process/cmdline 2>/dev/null | tr '\\0' ' ') in "sleep {length} "*) alive=$((alive + 1)) ;; esac
done"""

WAITS_FOR_THREE = f"""\
for look in $(seq 600); do
{COUNT}
[ $alive = 3 ] && break
sleep 0.05
done
echo $alive"""

BREAKS_OFF: dict[str, tuple[list[Any], str, str]] = {
    "exits": ([{"exit": 3}], "AgentExitError", "exit status 3"),
    "is-killed": ([{"exit": -9}], "AgentExitError", "signal SIGKILL"),
    "half-a-line": ([{"half_line": True, "code": 7}], "AgentExitError", "exit status 7"),
    "exits-beside-a-daemon": (
        [{"daemon": "exec sleep 99999", "keeps_stdout": True}, {"exit": 4}],
        "AgentExitError",
        "exit status 4",
    ),
    "invalid-utf8": ([{"invalid_utf8": True}], "ACPError", "broken message"),
    "half-a-message": ([{"raw": '{"jsonrpc": "2.0", "method'}], "ACPError", "broken message"),
    "other-json": ([{"raw": '{"hello": "world"}'}], "ACPError", "not JSON-RPC"),
    "wrong-id": ([{"wrong_id": True}], "ACPError", "never made: 987654"),
    "refuses": ([{"error": "no such model", "code": -32001}], "ACPError", "no such model (code -32001)"),
}
"""What the agent does, and the error that it is: type and words."""

CATEGORIES = {"AgentExitError": "agent_exit", "ACPError": "agent_protocol", "AgentTimeoutError": "agent_timeout"}


def filled(actions: list[Any], length: str) -> list[Any]:
    return json.loads(json.dumps(actions).replace("{length}", length))


def daemons_task(root: Path, name: str, length: str, *more: Any, config: str = "") -> Path:
    """An agent that leaves daemons, and a verifier that counts those that still live."""
    counted = {"run": WAITS_FOR_THREE.replace("{length}", length), "silent": True, "record": RECORD}
    test = f"{COUNT.replace('{length}', length)}\necho $alive > /logs/artifacts/alive\n{TEST}"
    return write_task(root, name, [*SO_FAR, *filled(DAEMONS, length), counted, *more], test=test, config=config)


def assert_daemons_ended(seen: Seen, length: str) -> None:
    """They lived beside the agent, and no longer when its work was looked at."""
    assert [counted["output"].strip() for counted in seen.recorded()] == ["3"]
    assert seen.made("alive").strip() == "0"
    assert alive_on_this_host(length) == []


def alive_on_this_host(length: str) -> list[int]:
    """The processes of any sandbox that sleep so long."""
    command = f"sleep\0{length}\0".encode()
    return [int(file.parent.name) for file in Path("/proc").glob("[0-9]*/cmdline") if read(file) == command]


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def trouble_tasks(root: Path) -> list[Path]:
    """All that can be in one job."""
    deaf = [{"ignore_cancel": True}, {"ignore_sigterm": True}, {"hang": True}]
    return [
        *(write_task(root, name, [*SO_FAR, *actions, {"hang": True}]) for name, (actions, _, _) in BREAKS_OFF.items()),
        daemons_task(root, "leaves-daemons", "71001"),
        daemons_task(root, "never-ends", "71002", *deaf, config="[agent]\ntimeout_sec = 20\n"),
        write_task(root, "floods", [*SO_FAR, {"flood": 20_000_000, "line": 10_000}, {"say": "dry again"}]),
        write_task(root, "long-line", [*SO_FAR, {"line": 20_000_000}, {"say": "that was it"}]),
        write_task(
            root,
            "asks-nonsense",
            [SOLVE, {"ask": "may I?", "options": ["yes"], "record": RECORD}],
        ),
        write_task(
            root,
            "boasts",
            [SOLVE, {"end": "e" * 100_000}],
            script={"name": "n" * 100_000, "capabilities": {"_meta": {"all": "c" * 100_000}}},
        ),
    ]


@pytest.fixture(scope="module")
def troubled(module_jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The rollouts of agents that misbehave during their turn."""
    root = tmp_path_factory.mktemp("trouble")
    hanging = [
        write_task(root, "hangs", [*SO_FAR, {"hang": True}]),
        write_task(root, "is-stopped", [*SO_FAR, {"hang": "stopped"}]),
    ]

    async def run() -> dict[str, Seen]:
        trouble = await submit_tasks(trouble_tasks(root), module_jobs, job_name="trouble", concurrency=6)
        hang = await submit_tasks(hanging, module_jobs, job_name="hanging", agent_idle_timeout_sec=10)
        return await finished(trouble) | await finished(hang)

    return asyncio.run(run())


pytestmark = pytest.mark.local


# --- agents that break off ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BREAKS_OFF)
def test_an_agent_that_breaks_off_is_a_typed_error_and_is_scored(troubled: dict[str, Seen], name: str) -> None:
    seen = troubled[name]
    _, kind, says = BREAKS_OFF[name]
    assert (seen.error.type, seen.error.category) == (kind, CATEGORIES[kind])
    assert says in seen.error.message
    assert "something is wrong here" in (seen.error.log_tail or "")
    assert seen.result.error_category == seen.error.category
    assert seen.result.rewards == {"reward": 1.0}
    assert not seen.result.is_truncated


@pytest.mark.parametrize("name", BREAKS_OFF)
def test_what_an_agent_did_before_it_broke_off_is_kept(troubled: dict[str, Seen], name: str) -> None:
    seen = troubled[name]
    kinds = [line["type"] for line in seen.lines]
    assert kinds == ["user_message", "agent_message", "tool_call", "tool_call_update", "agent_error"]
    assert seen.texts == ["so far"]
    said = seen.lines[-1]
    assert (said["category"], said["message"]) == (seen.error.category, seen.error.message)
    assert [outcome.turn.stop_reason for outcome in seen.result.steps] == ["error"]
    assert seen.result.n_tool_calls == 1
    assert seen.journal("err.log") == "something is wrong here\n"
    assert [message["method"] for message in seen.sent()] == ["initialize", "session/new", "session/prompt"]
    assert '"so far"' in seen.journal("out.jsonl")


def test_the_end_of_a_process_is_kept_with_its_journals(troubled: dict[str, Seen]) -> None:
    assert json.loads(troubled["exits"].journal("exit.json")) == {"code": 3, "signal": None}
    assert json.loads(troubled["is-killed"].journal("exit.json")) == {"code": None, "signal": "SIGKILL"}
    assert not troubled["half-a-line"].journal("out.jsonl").endswith("\n")


# --- agents that do not end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("hangs", "idle", "said nothing for 10 s"),
        ("is-stopped", "idle", "said nothing for 10 s"),
        ("never-ends", "wall_clock", "did not finish in 20 s"),
    ],
)
def test_an_agent_that_does_not_end_is_stopped_and_scored(
    troubled: dict[str, Seen], name: str, reason: str, says: str
) -> None:
    seen = troubled[name]
    assert (seen.error.type, seen.error.category) == ("AgentTimeoutError", "agent_timeout")
    assert says in seen.error.message
    assert "something is wrong here" in (seen.error.log_tail or "")
    assert seen.result.rewards == {"reward": 1.0}
    assert seen.result.is_truncated
    assert seen.texts == ["so far"]
    assert (seen.lines[-1]["type"], seen.lines[-1]["reason"]) == ("agent_timeout", reason)
    assert [outcome.turn.stop_reason for outcome in seen.result.steps] == ["timeout"]
    assert [message["method"] for message in seen.sent()].count("session/cancel") == 1


@pytest.mark.parametrize(("name", "length"), [("leaves-daemons", "71001"), ("never-ends", "71002")])
def test_nothing_of_an_agent_lives_when_its_work_is_looked_at(
    troubled: dict[str, Seen], name: str, length: str
) -> None:
    assert_daemons_ended(troubled[name], length)


def test_an_agent_that_leaves_daemons_has_made_no_error(troubled: dict[str, Seen]) -> None:
    result = troubled["leaves-daemons"].result
    assert (result.error, result.rewards) == (None, {"reward": 1.0})


# --- agents that say too much, or nonsense --------------------------------------------------------------


def test_a_flood_is_heard_to_its_end(troubled: dict[str, Seen]) -> None:
    seen = troubled["floods"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert len(seen.texts) == 2 + 20_000_000 // 10_000
    assert seen.texts[-1] == "dry again"
    assert seen.result.steps[0].turn.events == len(seen.lines)
    assert [line["seq"] for line in seen.lines] == list(range(len(seen.lines)))


@pytest.mark.soak
def test_a_flood_of_100_megabytes_is_heard_to_its_end(module_jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path, "floods-more", [*SO_FAR, {"flood": 100_000_000}, {"say": "dry again"}])
    seen = run_tasks([task], module_jobs, job_name="flood")["floods-more"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert len(seen.texts) == 2 + 100_000_000 // 1000


@pytest.mark.soak
def test_a_line_without_an_end_is_an_error(module_jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path, "line-without-end", [*SO_FAR, {"line": 80_000_000}, {"hang": True}])
    seen = run_tasks([task], module_jobs, job_name="endless")["line-without-end"]
    assert (seen.error.type, seen.result.rewards) == ("ACPError", {"reward": 1.0})
    assert "a line of more than" in seen.error.message


def test_a_message_of_20_megabytes_is_heard(troubled: dict[str, Seen]) -> None:
    seen = troubled["long-line"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert [len(text) > 19_999_000 for text in seen.texts] == [False, True, False]


def test_a_request_for_permission_that_makes_no_sense_is_no_permission(troubled: dict[str, Seen]) -> None:
    seen = troubled["asks-nonsense"]
    assert seen.recorded() == ["cancelled"]
    (answer,) = seen.of("permission_answer")
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
    assert answer["error"].startswith("AttributeError: ")
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})


def test_an_agent_that_says_too_much_of_itself_is_cut_short(troubled: dict[str, Seen]) -> None:
    seen = troubled["boasts"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.session.agent == "n" * 200
    assert seen.session.capabilities == {}
    assert seen.result.steps[0].turn.stop_reason == "e" * 100


def test_nothing_is_left_of_agents_that_misbehave(troubled: dict[str, Seen]) -> None:
    assert_nothing_is_left(*troubled.values())
    assert all((seen.paths.sessions / "0.0" / "out.jsonl").is_file() for seen in troubled.values())


# --- agents that have no session ------------------------------------------------------------------------

REMOTE_SERVER = """\
[[environment.mcp_servers]]
name = "far"
transport = "streamable-http"
url = "http://127.0.0.1:1/mcp"
"""


@pytest.fixture(scope="module")
def refused(module_jobs: Path, agents_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The rollouts of agents that never had a session."""
    root = tmp_path_factory.mktemp("refused")
    declare(agents_dir, "leaves", launch=["sh", "-c", "echo no gateway here >&2; exit 9"])
    declare(agents_dir, "absent", launch=["/opt/no-such-agent"])
    declare(agents_dir, "mute", launch=["sleep", "72001"])
    script_tasks = [
        write_task(root, "wants-login", script={"auth_required": True}),
        write_task(root, "speaks-version-7", script={"protocol_version": 7}),
        write_task(root, "needs-remote-tools", environment=REMOTE_SERVER),
    ]
    any_task = write_task(root, "any", [SOLVE])

    async def run() -> dict[str, Seen]:
        once: dict[str, Any] = {"retry": {"max_retries": 2, "min_wait_sec": 0}}
        jobs = [
            await submit_tasks(script_tasks, module_jobs, job_name="refused", **once),
            await submit_tasks([any_task], module_jobs, job_name="leaves", agents=["leaves"], **once),
            await submit_tasks([any_task], module_jobs, job_name="absent", agents=["absent"], **once),
            await submit_tasks([any_task], module_jobs, job_name="mute", agents=["mute"], sandbox_setup_timeout=20),
        ]
        found: dict[str, Seen] = {}
        for job in jobs:
            ended = await finished(job)
            found |= ended if "any" not in ended else {job.name: ended["any"]}
        return found

    return asyncio.run(run())


def test_an_agent_that_leaves_at_once_is_started_three_times(refused: dict[str, Seen]) -> None:
    seen = refused["leaves"]
    assert (seen.error.type, seen.error.category, seen.error.phase) == ("AgentExitError", "agent_exit", "connect")
    assert "exit status 9" in seen.error.message
    assert seen.error.log_tail == "no gateway here"
    assert sorted(path.name for path in seen.paths.sessions.iterdir()) == ["0.0", "0.1", "0.2"]
    assert {seen.journal("err.log", f"0.{start}") for start in range(3)} == {"no gateway here\n"}


def test_a_program_that_does_not_exist_is_named_and_tried_once(refused: dict[str, Seen]) -> None:
    seen = refused["absent"]
    assert (seen.error.type, seen.error.phase) == ("AgentExitError", "connect")
    assert "/opt/no-such-agent" in seen.error.message
    assert [path.name for path in seen.paths.sessions.iterdir()] == ["0.0"]


def test_an_agent_that_never_answers_is_a_timeout(refused: dict[str, Seen]) -> None:
    seen = refused["mute"]
    assert (seen.error.type, seen.error.phase) == ("AgentTimeoutError", "connect")
    assert "did not answer initialize" in seen.error.message
    assert alive_on_this_host("72001") == []


def test_an_agent_that_wants_a_login_says_what_to_give_it(refused: dict[str, Seen]) -> None:
    error = refused["wants-login"].error
    assert (error.type, error.category) == ("ACPError", "agent_protocol")
    assert "authentication required" in error.message
    assert "bench agent show demo" in str(error.remedy)


def test_an_agent_of_another_protocol_is_refused(refused: dict[str, Seen]) -> None:
    assert "speaks version 7 of the protocol, not 1" in refused["speaks-version-7"].error.message


def test_tools_that_an_agent_cannot_reach_are_refused(refused: dict[str, Seen]) -> None:
    seen = refused["needs-remote-tools"]
    assert (seen.error.type, seen.error.category) == ("UnsupportedFeatureError", "unsupported")
    assert "'demo' does not reach MCP servers by streamable-http" in seen.error.message
    assert seen.error.key == "mcp_servers.far.transport"
    assert seen.error.remedy
    assert [message["method"] for message in seen.sent()] == ["initialize"]


def test_what_never_began_is_not_scored_nor_tried_again_and_leaves_nothing(refused: dict[str, Seen]) -> None:
    for seen in refused.values():
        result = seen.result
        assert (result.status, result.rewards, result.steps, result.sessions) == ("errored", None, [], [])
        assert (result.attempt, result.sandbox["provisions"]) == (1, 1)
    assert_nothing_is_left(*refused.values())


def test_no_sessions_are_left_in_the_state_directory(troubled: dict[str, Seen], refused: dict[str, Seen]) -> None:
    assert list(StatePaths.default().sessions.iterdir()) == []


# --- where it matters in which sandbox ------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.soak
def test_agents_misbehave_in_docker_as_anywhere(module_jobs: Path, tmp_path: Path) -> None:
    tasks = [
        write_task(tmp_path, "exits", [*SO_FAR, {"exit": 3}]),
        daemons_task(tmp_path, "leaves-daemons", "73001"),
        daemons_task(tmp_path, "never-ends", "73002", {"hang": True}, config="[agent]\ntimeout_sec = 20\n"),
    ]
    seen = run_tasks(tasks, module_jobs, job_name="in-docker", sandbox="docker")
    assert {name: one.result.error and one.result.error.type for name, one in seen.items()} == {
        "exits": "AgentExitError",
        "leaves-daemons": None,
        "never-ends": "AgentTimeoutError",
    }
    for one in seen.values():
        assert one.result.rewards == {"reward": 1.0}
        assert one.texts == ["so far"]
        assert one.journal("err.log") == "something is wrong here\n"
    for name, length in (("leaves-daemons", "73001"), ("never-ends", "73002")):
        assert_daemons_ended(seen[name], length)
    assert_nothing_is_left(*seen.values())
