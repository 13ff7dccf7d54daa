"""Values that a task takes from the environment, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.task_writer import write_task

from benchflow import secrets
from benchflow.contracts.environment import ForwardEnv, Manifest
from benchflow.errors import MissingSecretError, TaskError
from benchflow.paths import StatePaths
from benchflow.tasks import load_task
from benchflow.tasks.migrate import migrate_task

TABLES = """
[solution]
env = { A = "${ONE}", AA = "${TWO:-2}" }
[verifier]
env = { B = "${THREE:-}", C = "literal $ONE {ONE}" }
[environment]
docker_image = "i"
env = { D = "${ONE}", DD = "${FOUR}" }
[[environment.setup_commands]]
command = "true"
env = { E = "${FIVE}" }
"""


def test_every_table_of_a_task_is_searched_for_names(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, config=TABLES))
    assert secrets.list_task_variables(task) == {"ONE": True, "TWO": False, "THREE": False, "FOUR": True, "FIVE": True}
    values = {"ONE": "1", "FOUR": "4", "FIVE": "5"}
    secrets.Secrets(values, "here").check(task)
    with pytest.raises(MissingSecretError, match=r"\$\{FIVE\} is not set here") as caught:
        secrets.Secrets({"ONE": "1", "FOUR": "4"}, "here").check(task)
    assert caught.value.file == "task.toml"
    assert "export FIVE" in str(caught.value.remedy)


def test_it_is_known_who_is_given_what_a_task_takes(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, config=TABLES))
    manifest = Manifest(name="w", image="i", forward_env=ForwardEnv(keys=("SIX",)))
    taken: dict[str, list[str]] = {}
    for name, taker in secrets.list_host_variables(task, manifest):
        taken.setdefault(taker, []).append(name)
    assert taken == {
        "the oracle, in the sandbox": ["ONE", "TWO"],
        "the verifier, in its sandbox": ["THREE"],
        "the sandbox": ["FIVE", "FOUR", "ONE"],
        "the environment's services": ["SIX"],
    }


def test_names_are_replaced_wherever_they_stand() -> None:
    known = secrets.Secrets({"ONE": "1", "EMPTY": "", "NESTED": "${ONE}"}, "here")
    assert known.resolve(
        {"a": "x ${ONE} y ${TWO:-2} z", "c": "$ONE {ONE} ${1}", "d": "first", "e": "$${ONE} $$${TWO:-2}"},
        {"d": "${NESTED}"},
    ) == {"a": "x 1 y 2 z", "c": "$ONE {ONE} ${1}", "d": "${ONE}", "e": "${ONE} $${TWO:-2}"}


def test_a_default_is_for_a_variable_that_is_not_set_and_not_for_an_empty_one() -> None:
    known = secrets.Secrets({"EMPTY": ""}, "here")
    assert known.resolve({"a": "${EMPTY:-filled}", "b": "${ABSENT:-filled}"}) == {"a": "", "b": "filled"}


ODD = ("x${ONE}", "${ONE} ", "${ONE}${TWO:-2}x}", "$${ONE}", "$$${ONE:-1}", "x${A:-${B}}", "${ONE:-\\n}", "$ONE", "1%")


@pytest.mark.parametrize("text", ODD)
def test_in_the_split_layout_only_a_whole_value_is_a_reference(tmp_path: Path, text: str) -> None:
    config = 'environment = { docker_image = "i", env = { A = "TEXT" } }\nverifier = { env = { B = "TEXT" } }\n'
    root = write_task(tmp_path, config=config.replace("TEXT", text))
    written = text.replace("\\n", "\n")
    known = secrets.Secrets({"ONE": "1"}, "here")
    for _ in range(2):
        task = load_task(root)
        assert secrets.list_task_variables(task) == {}
        known.check(task)
        assert known.resolve(task.sandbox.env, task.verifier.env) == {"A": written, "B": written}
        # A native task that means the same.
        if task.layout == "split":
            migrate_task(root)


@pytest.mark.parametrize("text", ["${1X}", "${A-B}", "${A:-{}}", "${ONE:-1}${TWO}"])
def test_in_the_split_layout_a_whole_value_that_names_no_variable_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(TaskError, match="names no variable") as caught:
        load_task(write_task(tmp_path, config=f'[environment]\ndocker_image = "i"\nenv = {{ A = "{text}" }}\n'))
    assert caught.value.key == "environment.env.A"


def test_headers_of_a_tool_server_have_references_anywhere(tmp_path: Path) -> None:
    server = '[[environment.mcp_servers]]\nname = "s"\nurl = "http://s"\nheaders = { H = "Bearer ${ONE}" }\n'
    task = load_task(write_task(tmp_path, config=f'[environment]\ndocker_image = "i"\n{server}'))
    assert secrets.list_task_variables(task) == {"ONE": True}


def test_values_are_left_in_a_private_file_until_the_job_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BF_TEST_VALUE", "geheim")
    paths = StatePaths(tmp_path)
    secrets.store_secrets(paths, "job/a", {"BF_TEST_VALUE", "BF_TEST_ABSENT"}, {})
    (file,) = paths.secrets.iterdir()
    assert (oct(file.stat().st_mode & 0o777), oct(paths.secrets.stat().st_mode & 0o777)) == ("0o600", "0o700")
    assert json.loads(file.read_text()) == {"job": "job/a", "values": {"BF_TEST_VALUE": "geheim"}}
    assert [job for job, _ in secrets.list_stored_secrets(paths)] == ["job/a"]
    monkeypatch.delenv("BF_TEST_VALUE")
    assert secrets.Secrets.of_job(paths, "job/a").resolve({"x": "${BF_TEST_VALUE}"}) == {"x": "geheim"}
    assert secrets.Secrets.of_job(paths, "job/b").resolve({"x": "${BF_TEST_VALUE}"}) == {"x": ""}
    secrets.remove_secrets(paths, "job/a")
    secrets.remove_secrets(paths, "job/a")
    assert list(paths.secrets.iterdir()) == []
