"""What services hold in memory is lost in the children of a branch: it is proven not to be, or told, or refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Bench, Ran
from support.recall_package import ADDRESS, MANIFEST, observing, write_entrypoint_recall, write_recall

pytestmark = pytest.mark.usefixtures("module_jobs")

AFTER_ONE = "after_steps:steps=1,n=2"


def branched(bench: Bench, task: Path, name: str, *options: str) -> tuple[Ran, dict[str, Any], dict[str, Any]]:
    """Run the oracle on a task in a tree of two children; return the command, the result and the tree."""
    jobs = task.parents[1] / "jobs"
    given = ["--branch", AFTER_ONE, "--sandbox", "local", "--job-name", name, "--jobs-dir", str(jobs)]
    ran = bench("submit", task, *given, *options)
    (result,) = (jobs / name).glob("acts__*/result.json")
    found = json.loads(result.read_text())
    # A local sandbox has one of its own.
    found["warnings"] = [text for text in found["warnings"] if "stands for" not in text]
    return ran, found, json.loads((result.parent / "tree.json").read_text())


def check(bench: Bench, task: Path, *options: str) -> Ran:
    manifest = task.parents[1] / "environment.toml"
    return bench("env", "check", manifest, "--task", task, "--sandbox", "local", "--json", *options)


def copy_row(ran: Ran) -> dict[str, Any]:
    (row,) = (finding for finding in ran.json["findings"] if finding["what"] == "copy")
    return dict(row)


@pytest.mark.local
def test_a_value_that_lost_what_services_held_in_memory_says_so_everywhere(bench: Bench, tmp_path: Path) -> None:
    task = write_recall(tmp_path, "/log")
    ran, result, tree = branched(bench, task, "forgets")
    assert (result["rewards"], result["reward_kind"]) == ({"reward": 0.0}, "value")
    (warning,) = result["warnings"]
    assert f"{ADDRESS}/log is read by a verifier, and was not compared yet" in warning and "bench env check" in warning
    assert tree["warnings"] == [warning]
    assert "was not compared yet" in " ".join(ran.out.split())
    shown = bench("tree", "show", task.parents[1] / "jobs" / "forgets" / Path(result["directory"]).name)
    assert re.search(r"warning: recall-\w+: services start anew", shown.out)
    # It says which, and proves nothing.
    checked = check(bench, task)
    assert (checked.status, copy_row(checked)["outcome"]) == (0, "unproven")
    assert f"GET {ADDRESS}/log answers otherwise in the copy: $.actions has 0 entries" in copy_row(checked)["detail"]
    refused = bench("submit", task, "--branch", AFTER_ONE, "--sandbox", "local", "--require-proven-state", "--dry-run")
    assert refused.status == 2
    assert f"{ADDRESS}/log answered otherwise in a copy" in " ".join(refused.err.split())
    assert "environment.state.observe" in refused.err and "bench env check" in refused.err


@pytest.mark.local
@pytest.mark.long
def test_children_are_held_against_the_declared_answers_of_their_parent(bench: Bench, tmp_path: Path) -> None:
    task = write_recall(tmp_path, "/log", observing("/log", "/rows"))
    _, result, tree = branched(bench, task, "told")
    unproven, *lost = result["warnings"]
    said = [f"{chain}: GET {ADDRESS}/log answered HTTP 200 with" for chain in ("n1.0", "n1.1")]
    assert "was not compared yet" in unproven
    assert sorted(text[: len(said[0])] for text in lost) == said
    assert tree["warnings"] == result["warnings"]
    # What is declared must hold.
    checked = check(bench, task)
    assert (checked.status, copy_row(checked)["outcome"]) == (1, "fails")
    assert checked.json["failure"]["type"] == "UnprovenStateError"
    assert {each["url"]: each["is_proven"] for each in checked.json["urls"]} == {
        f"{ADDRESS}/log": False,
        f"{ADDRESS}/rows": True,
    }


@pytest.mark.local
def test_a_world_whose_state_is_in_its_database_is_proven_and_warned_of_no_more(bench: Bench, tmp_path: Path) -> None:
    task = write_recall(tmp_path, "/rows", observing("/rows"))
    checked = check(bench, task)
    assert (checked.status, copy_row(checked)["outcome"]) == (0, "holds"), checked.out
    ran, result, tree = branched(bench, task, "kept", "--require-proven-state")
    assert (ran.status, result["rewards"], result["warnings"], tree["warnings"]) == (0, {"reward": 1.0}, [], [])
    assert "warning" not in ran.out


@pytest.mark.local
@pytest.mark.long
def test_a_child_whose_services_lost_state_fails_where_proof_is_required(bench: Bench, tmp_path: Path) -> None:
    """Although there is a proof, of the image of another task in the same world."""
    task = write_recall(tmp_path, "/log", observing("/log"))
    other = shutil.copytree(task, task.with_name("other"))
    program = other / "environment" / "recall"
    program.write_text(program.read_text().replace('{"actions": log}', '{"actions": rows}'))
    assert copy_row(check(bench, other))["outcome"] == "holds"
    ran, result, _ = branched(bench, task, "refused", "--require-proven-state")
    assert (ran.status, result["rewards"]) == (1, None)
    assert "/log answered HTTP 200" in result["error"]["message"]


@pytest.mark.local
@pytest.mark.long
def test_a_world_without_databases_has_its_services_in_a_child_too(bench: Bench, tmp_path: Path) -> None:
    task = write_recall(tmp_path, "/rows", MANIFEST)
    _, result, _ = branched(bench, task, "stateless")
    assert (result["error"], result["rewards"]) == (None, {"reward": 1.0})
    (warning,) = result["warnings"]
    assert "/rows is read by a verifier" in warning


@pytest.mark.local
@pytest.mark.long
def test_an_answer_that_tells_nothing_of_the_state_proves_nothing(bench: Bench, tmp_path: Path) -> None:
    task = write_recall(tmp_path, "/rows", observing("/clock", "/health", "/missing"))
    checked = check(bench, task)
    assert (checked.status, copy_row(checked)["outcome"]) == (0, "unproven")
    clock, health, missing = checked.json["urls"]
    assert "answers otherwise when it is asked again, with nothing done: $.at is" in clock["detail"]
    assert "its answer is what it was before anything was done" in health["detail"]
    assert "it answers HTTP 404" in missing["detail"]
    assert not any(each["is_proven"] or each["is_lost"] for each in checked.json["urls"])


@pytest.mark.long
@pytest.mark.parametrize(
    "sandbox", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "local")]
)
def test_services_of_an_entrypoint_start_anew_in_a_copy_too(bench: Bench, tmp_path: Path, sandbox: str) -> None:
    """Although a restore, in the world itself, leaves them running. And any process may be what acts."""
    manifest = write_entrypoint_recall(tmp_path, "/log", "/rows")
    acts = [f"--write={ADDRESS}/act/{number}" for number in (1, 2)]
    checked = bench("env", "check", manifest, "--sandbox", sandbox, "--json", *acts)
    assert (checked.status, copy_row(checked)["outcome"]) == (1, "fails"), checked.out
    log, rows = checked.json["urls"]
    assert (log["is_lost"], rows["is_proven"]) == (True, True)
    assert "$.actions has 0 entries, not" in log["detail"]
