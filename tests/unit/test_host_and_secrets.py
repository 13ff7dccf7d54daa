"""This host: its id, its processes, its slots; the values that travel by name; the size of a message."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.task_writer import write_task

from benchflow import secrets
from benchflow.contracts.activities import OpenRollouts
from benchflow.contracts.options import WorkerOptions
from benchflow.errors import ConfigError, HostFullError, MissingSecretError, PayloadTooLargeError
from benchflow.host import Slots, host_id, is_alive, start_time
from benchflow.paths import StatePaths
from benchflow.tasks import load_task
from benchflow.temporal import CONVERTER, MAX_MESSAGE_BYTES


def test_a_hosts_id_is_made_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from benchflow.host import *; print(host_id(StatePaths.default()))"]
    env = os.environ | {"BENCHFLOW_STATE_DIR": str(tmp_path)}
    first = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=180)[0].strip() for process in first}
    assert said == {host_id(StatePaths(tmp_path))}
    assert host_id(StatePaths(tmp_path / "other")) not in said


def test_a_process_is_known_by_when_it_started() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    started = start_time(sleeper.pid)
    assert started is not None
    assert is_alive(sleeper.pid, started)
    assert not is_alive(sleeper.pid, started - 1)
    sleeper.kill()
    # A zombie, until it is waited for, is not alive.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(sleeper.pid, started)
    sleeper.wait()
    assert start_time(sleeper.pid) is None


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5"])
def test_a_capacity_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BENCHFLOW_HOST_CAPACITY", text)
    with pytest.raises(ConfigError) as caught:
        WorkerOptions.from_environment(os.environ)
    assert caught.value.key == "BENCHFLOW_HOST_CAPACITY"


def test_the_capacity_is_the_setting_or_follows_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_HOST_CAPACITY", "3")
    assert WorkerOptions.from_environment(os.environ).capacity == 3
    monkeypatch.delenv("BENCHFLOW_HOST_CAPACITY")
    assert WorkerOptions.from_environment(os.environ).capacity >= 8


async def test_slots_are_taken_once_a_sandbox_and_waited_for(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 2, 60)
    assert slots.take("a") and slots.take("b") and slots.take("a")
    assert not slots.take("c")
    assert not Slots(tmp_path / "slots", 2, 60).take("c")
    waiting = asyncio.create_task(slots.wait("c"))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.free("a")
    await asyncio.wait_for(waiting, 60)
    assert slots.taken() == ["b", "c"]
    slots.free("never taken")


async def test_a_slot_that_was_lent_is_taken_again_when_there_is_room(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 1, 60)
    assert slots.take("parent")
    slots.lend("parent")
    assert slots.take("child")
    assert not slots.take("parent")
    slots.free("child")
    assert slots.take("parent")
    assert not slots.take("child")


async def test_a_host_that_stays_full_says_so_retryably(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 1, 0.05)
    slots.take("a")
    with pytest.raises(HostFullError) as caught:
        await slots.wait("b")
    assert caught.value.retryable
    assert caught.value.key == "BENCHFLOW_HOST_CAPACITY"


# --- values that travel by name ------------------------------------------------------------------------

TABLES = """
[solution]
env = { A = "x ${ONE} y ${TWO:-2} z" }
[verifier]
env = { B = "${THREE:-}", C = "literal $ONE {ONE}" }
[environment]
docker_image = "i"
env = { D = "${ONE}${FOUR}" }
[[environment.setup_commands]]
command = "true"
env = { E = "${FIVE}" }
"""


def test_every_table_of_a_task_is_searched_for_names(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, config=TABLES))
    assert secrets.references(task) == {"ONE": True, "TWO": False, "THREE": False, "FOUR": True, "FIVE": True}
    values = {"ONE": "1", "FOUR": "4", "FIVE": "5"}
    secrets.Secrets(values, "here").check(task)
    with pytest.raises(MissingSecretError, match=r"\$\{FIVE\} is not set here") as caught:
        secrets.Secrets({"ONE": "1", "FOUR": "4"}, "here").check(task)
    assert caught.value.file == "task.toml"
    assert "export FIVE" in str(caught.value.remedy)


def test_names_are_replaced_as_a_shell_would() -> None:
    known = secrets.Secrets({"ONE": "1", "EMPTY": "", "NESTED": "${ONE}"}, "here")
    assert known.resolve(
        {"a": "x ${ONE} y ${TWO:-2} z", "b": "${EMPTY:-filled}", "c": "$ONE {ONE} ${1}", "d": "first"},
        {"d": "${NESTED}"},
    ) == {"a": "x 1 y 2 z", "b": "filled", "c": "$ONE {ONE} ${1}", "d": "${ONE}"}


def test_values_are_left_in_a_private_file_until_the_job_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BF_TEST_VALUE", "geheim")
    paths = StatePaths(tmp_path)
    secrets.leave(paths, "job/a", {"BF_TEST_VALUE", "BF_TEST_ABSENT"}, {})
    (file,) = paths.secrets.iterdir()
    assert (oct(file.stat().st_mode & 0o777), oct(paths.secrets.stat().st_mode & 0o777)) == ("0o600", "0o700")
    assert json.loads(file.read_text()) == {"BF_TEST_VALUE": "geheim"}
    monkeypatch.delenv("BF_TEST_VALUE")
    assert secrets.Secrets.of_job(paths, "job/a").resolve({"x": "${BF_TEST_VALUE}"}) == {"x": "geheim"}
    assert secrets.Secrets.of_job(paths, "job/b").resolve({"x": "${BF_TEST_VALUE}"}) == {"x": ""}
    secrets.remove(paths, "job/a")
    secrets.remove(paths, "job/a")
    assert list(paths.secrets.iterdir()) == []


# --- messages ------------------------------------------------------------------------------------------


def test_a_message_that_no_server_takes_is_refused_before_it_is_sent() -> None:
    CONVERTER.payload_converter.to_payloads([OpenRollouts(ids=["x" * 1000])])
    with pytest.raises(PayloadTooLargeError, match="OpenRollouts") as caught:
        CONVERTER.payload_converter.to_payloads([OpenRollouts(ids=["x" * MAX_MESSAGE_BYTES])])
    assert "store" in str(caught.value.remedy)
