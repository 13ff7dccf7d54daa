"""Values that a task takes from the environment, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.task_writer import write_task

from benchflow import secrets
from benchflow.contracts.environment import ForwardEnv, Manifest
from benchflow.errors import MissingSecretError
from benchflow.paths import StatePaths
from benchflow.tasks import load_task

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


def test_it_is_known_who_is_given_what_a_task_takes(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, config=TABLES))
    manifest = Manifest(name="w", image="i", forward_env=ForwardEnv(keys=("SIX",)))
    taken: dict[str, list[str]] = {}
    for name, taker in secrets.host_variables(task, manifest):
        taken.setdefault(taker, []).append(name)
    assert taken == {
        "the oracle, in the sandbox": ["ONE", "TWO"],
        "the verifier, in its sandbox": ["THREE"],
        "the sandbox": ["FIVE", "FOUR", "ONE"],
        "the environment's services": ["SIX"],
    }


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
    assert json.loads(file.read_text()) == {"job": "job/a", "values": {"BF_TEST_VALUE": "geheim"}}
    assert [job for job, _ in secrets.left(paths)] == ["job/a"]
    monkeypatch.delenv("BF_TEST_VALUE")
    assert secrets.Secrets.of_job(paths, "job/a").resolve({"x": "${BF_TEST_VALUE}"}) == {"x": "geheim"}
    assert secrets.Secrets.of_job(paths, "job/b").resolve({"x": "${BF_TEST_VALUE}"}) == {"x": ""}
    secrets.remove(paths, "job/a")
    secrets.remove(paths, "job/a")
    assert list(paths.secrets.iterdir()) == []
