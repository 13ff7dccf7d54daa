"""Agents that exit, hang, leave others behind or talk nonsense: the rollout says which it was, keeps and scores it.

How each of them is told from the others is shown by `tests/provider/agent/test_acp_session.py`.
"""

from __future__ import annotations

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
    run_tasks,
    write_task,
)
from support.made_once import made_once
from support.system_job import SILENT_SEC, SystemTasks

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
    "half-a-message": ([{"raw": '{"jsonrpc": "2.0", "method'}], "ACPError", "broken message"),
    "refuses": ([{"error": "no such model", "code": -32001}], "ACPError", "no such model (code -32001)"),
}
"""What the agent does, and the error that it is: type and words."""

CATEGORIES = {"AgentExitError": "agent_exit", "ACPError": "agent_protocol", "AgentTimeoutError": "agent_timeout"}


FILLS_THE_DISK: dict[str, tuple[Any, str, str]] = {
    "prints-without-end": ({"daemon": "yes z", "keeps_stdout": True}, "agent", "wrote more than 1073741824 bytes"),
    "fills-what-it-shares": (
        {"run": "cd /run/benchflow/agent && mkdir many && cd many && seq 11000 | xargs touch", "silent": True},
        "root",
        "filled the directory of its agents' stdio",
    ),
}
"""What the agent does, as whom, and the words of the error."""

HOLE = "truncate -s 1T"
"""Makes a file that takes nothing of the sandbox's disk, and would take all of the host's."""


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


REMOTE_SERVER = """\
[[environment.mcp_servers]]
name = "far"
transport = "streamable-http"
url = "http://127.0.0.1:1/mcp"
"""

WALL_SEC = 20


def filling_task(root: Path, name: str) -> Path:
    action, user, _ = FILLS_THE_DISK[name]
    return write_task(root, name, [SOLVE, action, {"hang": True}], config=f'[agent]\nuser = "{user}"\n')


def long_system_tasks(root: Path) -> SystemTasks:
    # A gigabyte, through the pump.
    return {"turns": [filling_task(root, "prints-without-end")]}


def system_tasks(root: Path) -> SystemTasks:
    deaf = [{"ignore_cancel": True}, {"ignore_sigterm": True}, {"hang": True}]
    boast = {"name": "n" * 100_000, "capabilities": {"_meta": {"all": "c" * 100_000}}}
    nonsense = {"ask": "may I?", "options": ["yes"], "record": RECORD}
    return {
        "turns": [
            # The one that takes longest first.
            daemons_task(root, "never-ends", "71002", *deaf, config=f"[agent]\ntimeout_sec = {WALL_SEC}\n"),
            *(
                write_task(root, name, [*SO_FAR, *actions, {"hang": True}])
                for name, (actions, _, _) in BREAKS_OFF.items()
            ),
            filling_task(root, "fills-what-it-shares"),
            write_task(root, "leaves-a-hole", [SOLVE, {"run": f"{HOLE} /logs/artifacts/hole"}]),
            write_task(root, "has-a-hole-in-its-verdict", [SOLVE], test=f"{HOLE} /logs/verifier/hole\n{TEST}"),
            daemons_task(root, "leaves-daemons", "71001"),
            write_task(root, "asks-nonsense", [SOLVE, nonsense]),
            write_task(root, "boasts", [SOLVE, {"end": "e" * 100_000}], script=boast),
            write_task(root, "wants-login", script={"auth_required": True}),
            write_task(root, "speaks-version-7", script={"protocol_version": 7}),
            write_task(root, "needs-remote-tools", environment=REMOTE_SERVER),
        ],
        "denied": [
            write_task(root, "hangs", [*SO_FAR, {"hang": True}]),
            write_task(root, "is-stopped", [*SO_FAR, {"hang": "stopped"}]),
        ],
        "leaves": [write_task(root, "leaves", [SOLVE])],
        "absent": [write_task(root, "absent", [SOLVE])],
        "mute": [write_task(root, "mute", [SOLVE])],
        "turns_in_docker": [
            daemons_task(root, "leaves-daemons-in-docker", "73001"),
            write_task(root, "leaves-a-hole-in-docker", [SOLVE, {"run": f"{HOLE} /logs/artifacts/hole"}]),
        ],
    }


ENDED = (*BREAKS_OFF, "leaves-daemons", "never-ends", "asks-nonsense", "boasts", "hangs", "is-stopped")
"""Of the tasks, those whose agents have a session."""

UNREADY = ("leaves", "absent", "mute", "wants-login", "speaks-version-7", "needs-remote-tools")


# --- agents that break off ------------------------------------------------------------------------------


@pytest.mark.local
@pytest.mark.parametrize("name", BREAKS_OFF)
def test_an_agent_that_breaks_off_is_a_typed_error_and_is_scored(local_turns: dict[str, Seen], name: str) -> None:
    seen = local_turns[name]
    _, kind, says = BREAKS_OFF[name]
    assert (seen.error.type, seen.error.category) == (kind, CATEGORIES[kind])
    assert says in seen.error.message
    assert "something is wrong here" in (seen.error.log_tail or "")
    assert seen.result.error_category == seen.error.category
    assert seen.result.rewards == {"reward": 1.0}
    assert not seen.result.is_truncated


@pytest.mark.local
@pytest.mark.parametrize("name", BREAKS_OFF)
def test_what_an_agent_did_before_it_broke_off_is_kept(local_turns: dict[str, Seen], name: str) -> None:
    seen = local_turns[name]
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


@pytest.mark.local
def test_the_end_of_a_process_is_kept_with_its_journals(local_turns: dict[str, Seen]) -> None:
    assert json.loads(local_turns["exits"].journal("exit.json")) == {"code": 3, "signal": None}
    assert json.loads(local_turns["is-killed"].journal("exit.json")) == {"code": None, "signal": "SIGKILL"}


# --- agents that do not end -----------------------------------------------------------------------------


@pytest.mark.local
@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("hangs", "idle", f"said nothing for {SILENT_SEC} s"),
        ("is-stopped", "idle", f"said nothing for {SILENT_SEC} s"),
        ("never-ends", "wall_clock", f"did not finish in {WALL_SEC} s"),
    ],
)
def test_an_agent_that_does_not_end_is_stopped_and_scored(
    local_turns: dict[str, Seen], name: str, reason: str, says: str
) -> None:
    seen = local_turns[name]
    assert (seen.error.type, seen.error.category) == ("AgentTimeoutError", "agent_timeout")
    assert says in seen.error.message
    assert "something is wrong here" in (seen.error.log_tail or "")
    assert seen.result.rewards == {"reward": 1.0}
    assert seen.result.is_truncated
    assert seen.texts == ["so far"]
    assert (seen.lines[-1]["type"], seen.lines[-1]["reason"]) == ("agent_timeout", reason)
    assert [outcome.turn.stop_reason for outcome in seen.result.steps] == ["timeout"]
    assert [message["method"] for message in seen.sent()].count("session/cancel") == 1


@pytest.mark.local
@pytest.mark.parametrize(("name", "length"), [("leaves-daemons", "71001"), ("never-ends", "71002")])
def test_nothing_of_an_agent_lives_when_its_work_is_looked_at(
    local_turns: dict[str, Seen], name: str, length: str
) -> None:
    assert_daemons_ended(local_turns[name], length)


@pytest.mark.docker
def test_nothing_of_an_agent_lives_in_docker_when_its_work_is_looked_at(docker_turns: dict[str, Seen]) -> None:
    seen = docker_turns["leaves-daemons-in-docker"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert_daemons_ended(seen, "73001")
    assert_nothing_is_left(seen)


@pytest.mark.local
def test_an_agent_that_leaves_daemons_has_made_no_error(local_turns: dict[str, Seen]) -> None:
    result = local_turns["leaves-daemons"].result
    assert (result.error, result.rewards) == (None, {"reward": 1.0})


# --- agents that say too much, or nonsense --------------------------------------------------------------


@pytest.mark.local
def test_a_request_for_permission_that_makes_no_sense_is_no_permission(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["asks-nonsense"]
    assert seen.recorded() == ["cancelled"]
    (answer,) = seen.of("permission_answer")
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
    assert answer["error"].startswith("AttributeError: ")
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})


@pytest.mark.local
def test_an_agent_that_says_too_much_of_itself_is_cut_short(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["boasts"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.session.agent == "n" * 200
    assert seen.session.capabilities == {}
    assert seen.result.steps[0].turn.stop_reason == "e" * 100


@pytest.mark.local
def test_nothing_is_left_of_agents_that_misbehave(local_turns: dict[str, Seen]) -> None:
    assert_nothing_is_left(*(local_turns[name] for name in ENDED))
    assert all((local_turns[name].paths.sessions / "0.0" / "out.jsonl").is_file() for name in ENDED)


# --- agents that have no session ------------------------------------------------------------------------


@pytest.mark.local
def test_an_agent_that_leaves_at_once_is_started_three_times(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["leaves"]
    assert (seen.error.type, seen.error.category, seen.error.phase) == ("AgentExitError", "agent_exit", "connect")
    assert "exit status 9" in seen.error.message
    assert seen.error.log_tail == "no gateway here"
    assert sorted(path.name for path in seen.paths.sessions.iterdir()) == ["0.0", "0.1", "0.2"]
    assert {seen.journal("err.log", f"0.{start}") for start in range(3)} == {"no gateway here\n"}


@pytest.mark.local
def test_a_program_that_does_not_exist_is_named_and_tried_once(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["absent"]
    assert (seen.error.type, seen.error.phase) == ("AgentExitError", "connect")
    assert "/opt/no-such-agent" in seen.error.message
    assert [path.name for path in seen.paths.sessions.iterdir()] == ["0.0"]


@pytest.mark.local
def test_an_agent_that_never_answers_is_a_timeout(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["mute"]
    assert (seen.error.type, seen.error.phase) == ("AgentTimeoutError", "connect")
    assert "did not answer initialize" in seen.error.message
    assert alive_on_this_host("72001") == []


@pytest.mark.local
def test_an_agent_that_wants_a_login_says_what_to_give_it(local_turns: dict[str, Seen]) -> None:
    error = local_turns["wants-login"].error
    assert (error.type, error.category) == ("ACPError", "agent_protocol")
    assert "authentication required" in error.message
    assert "bench agent show demo" in str(error.remedy)


@pytest.mark.local
def test_an_agent_of_another_protocol_is_refused(local_turns: dict[str, Seen]) -> None:
    assert "speaks version 7 of the protocol, not 1" in local_turns["speaks-version-7"].error.message


@pytest.mark.local
def test_tools_that_an_agent_cannot_reach_are_refused(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["needs-remote-tools"]
    assert (seen.error.type, seen.error.category) == ("UnsupportedFeatureError", "unsupported")
    assert "'demo' does not reach MCP servers by streamable-http" in seen.error.message
    assert seen.error.key == "mcp_servers.far.transport"
    assert seen.error.remedy
    assert [message["method"] for message in seen.sent()] == ["initialize"]


@pytest.mark.local
def test_what_never_began_is_not_scored_nor_tried_again_and_leaves_nothing(local_turns: dict[str, Seen]) -> None:
    for seen in (local_turns[name] for name in UNREADY):
        result = seen.result
        assert (result.status, result.rewards, result.steps, result.sessions) == ("errored", None, [], [])
        assert (result.attempt, result.sandbox["provisions"]) == (1, 1)
    assert_nothing_is_left(*(local_turns[name] for name in UNREADY))


# --- agents that fill the disk --------------------------------------------------------------------------


@pytest.mark.local
@pytest.mark.parametrize("name", [pytest.param("prints-without-end", marks=pytest.mark.long), "fills-what-it-shares"])
def test_an_agent_that_fills_the_hosts_disk_is_ended_and_scored(local_turns: dict[str, Seen], name: str) -> None:
    seen = local_turns[name]
    assert (seen.error.type, seen.error.category) == ("AgentOutputError", "agent_output")
    assert FILLS_THE_DISK[name][2] in seen.error.message
    assert (seen.result.rewards, seen.result.attempt) == ({"reward": 1.0}, 1)
    assert [line["type"] for line in seen.lines[:2]] == ["user_message", "tool_call"]
    assert seen.lines[-1]["type"] == "agent_error"
    assert_nothing_is_left(seen)


def assert_a_hole_is_left_out(seen: Seen) -> None:
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    (warning,) = [text for text in seen.result.warnings if "not downloaded" in text]
    assert warning.startswith("/logs/artifacts could not be collected") and "hole'" in warning


@pytest.mark.local
def test_an_artifact_that_would_fill_the_disk_is_left_out_with_a_warning(local_turns: dict[str, Seen]) -> None:
    assert_a_hole_is_left_out(local_turns["leaves-a-hole"])


@pytest.mark.docker
def test_an_artifact_that_would_fill_the_disk_is_left_out_in_docker(docker_turns: dict[str, Seen]) -> None:
    assert_a_hole_is_left_out(docker_turns["leaves-a-hole-in-docker"])


@pytest.mark.local
def test_a_verifiers_output_that_would_fill_the_disk_is_its_failure_and_is_not_tried_again(
    local_turns: dict[str, Seen],
) -> None:
    result = local_turns["has-a-hole-in-its-verdict"].result
    assert (result.error, result.rewards, result.attempt) == (None, None, 1)
    assert result.verifier_error is not None
    assert (result.verifier_error.type, result.verifier_error.category) == ("VerifierError", "verifier")
    assert "hole'" in result.verifier_error.message


# --- agents that say very much --------------------------------------------------------------------------


@made_once()
def floods(root: Path) -> dict[str, Seen]:
    return run_tasks(
        [
            write_task(root, "lines", [*SO_FAR, {"flood": 100_000_000, "line": 10_000}, {"say": "dry again"}]),
            write_task(root, "long-line", [*SO_FAR, {"line": 15_000_000}, {"say": "that was it"}]),
            write_task(root, "line-without-end", [*SO_FAR, {"line": 80_000_000}, {"hang": True}]),
        ],
        root / "jobs",
    )


@pytest.mark.local
@pytest.mark.long
def test_a_flood_of_100_megabytes_is_heard_to_its_end(floods: dict[str, Seen]) -> None:
    seen = floods["lines"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert len(seen.texts) == 2 + 100_000_000 // 10_000
    assert seen.texts[-1] == "dry again"
    assert seen.result.steps[0].turn.events == len(seen.lines)
    assert [line["seq"] for line in seen.lines] == list(range(len(seen.lines)))


@pytest.mark.local
@pytest.mark.long
def test_a_message_of_15_megabytes_is_heard(floods: dict[str, Seen]) -> None:
    seen = floods["long-line"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert [len(text) > 14_999_000 for text in seen.texts] == [False, True, False]


@pytest.mark.local
@pytest.mark.long
def test_a_line_without_an_end_is_an_error(floods: dict[str, Seen]) -> None:
    seen = floods["line-without-end"]
    assert (seen.error.type, seen.result.rewards) == ("ACPError", {"reward": 1.0})
    assert "a line of more than" in seen.error.message
