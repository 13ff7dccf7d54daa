"""`bench tasks …` and `bench agent …`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Bench


@pytest.mark.parametrize("layout", ["native", "split"])
def test_a_task_that_init_made_has_no_problem(bench: Bench, tmp_path: Path, layout: str) -> None:
    made = bench("tasks", "init", "hello", "--layout", layout, "--dir", tmp_path)
    assert made.status == 0
    assert f"bench submit {tmp_path / 'hello'} --agent oracle" in made.out
    checked = bench("tasks", "check", tmp_path / "hello", "--strict")
    assert (checked.status, checked.out) == (0, "1 task: no problem\n")


def test_a_problem_is_shown_with_file_key_and_remedy(bench: Bench, task: Path) -> None:
    file = task / "task.md"
    file.write_text(file.read_text().replace("cpus: 1", "cpu: 1"))
    ran = bench("tasks", "check", task)
    assert ran.status == 1
    assert f"{file}\n  error: sandbox.cpu: " in ran.out
    assert "did you mean `cpus`?" in ran.out
    assert "1 task: 1 error" in ran.out


def test_a_reward_function_that_cannot_be_made_is_a_problem(bench: Bench, task: Path) -> None:
    file = task / "task.md"
    file.write_text(file.read_text().replace("---\n", "---\nreward: {funcs: [{type: call-budget, max_cals: 3}]}\n", 1))
    ran = bench("tasks", "check", task)
    assert ran.status == 1
    assert f"{file}\n  error: reward.funcs[0].max_cals: is not a known key" in ran.out
    assert "did you mean `max_calls`?" in ran.out


def test_code_that_a_task_names_is_not_imported_by_a_check_and_by_a_submit_only_if_it_is_allowed(
    bench: Bench, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, trace = task / "task.md", tmp_path / "imported"
    row = "{type: 'rewards_of_theirs:Politeness'}"
    file.write_text(file.read_text().replace("---\n", f"---\nreward: {{funcs: [{row}]}}\n", 1))
    code = f"open({str(trace)!r}, 'w').close()\nfrom support.own_rewards import Politeness\n"
    (tmp_path / "rewards_of_theirs.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    checked = bench("tasks", "check", task)
    assert checked.status == 0
    assert "warning: reward.funcs[0].type: names code of this host, 'rewards_of_theirs:Politeness'" in checked.out
    request = ("submit", task, "--sandbox", "noop", "--dry-run")
    refused = bench(*request)
    assert refused.status == 2
    assert "allow it yourself: --allow-code rewards_of_theirs" in refused.err
    assert not trace.exists()
    assert bench(*request, "--allow-code", "rewards_of_theirs").status == 0
    assert trace.exists()


def test_problems_in_json(bench: Bench, tasks: Path) -> None:
    (tasks / "two" / "oracle" / "solve.sh").unlink()
    lenient, strict = (bench("tasks", "check", tasks, "--json", *more) for more in ([], ["--strict"]))
    assert (lenient.status, lenient.json["ok"]) == (0, True)
    assert (strict.status, strict.json["ok"]) == (1, False)
    assert len(strict.json["tasks"]) == 3
    assert strict.json["problems"][0]["severity"] == "error"


def test_there_is_nothing_to_check_in_an_empty_directory(bench: Bench, tmp_path: Path) -> None:
    assert bench("tasks", "check", tmp_path).status == 2


def test_a_name_that_is_taken_is_refused(bench: Bench, task: Path) -> None:
    ran = bench("tasks", "init", task.name, "--dir", task.parent)
    assert ran.status == 2
    assert "exists already" in ran.err


def test_split_tasks_are_migrated_and_native_ones_left_alone(bench: Bench, task: Path) -> None:
    bench("tasks", "init", "old", "--layout", "split", "--dir", task.parent)
    ran = bench("tasks", "migrate", task.parent)
    assert ran.status == 0
    assert "1 task migrated." in ran.out
    assert (task.parent / "old" / "task.md").is_file()
    assert bench("tasks", "check", task.parent, "--strict").status == 0
    assert "0 tasks migrated." in bench("tasks", "migrate", task.parent).out


def test_agents_are_listed(bench: Bench) -> None:
    assert "Runs the task's own solution" in bench("agent", "list").out
    assert {"nop", "oracle"} <= {agent["name"] for agent in bench("agent", "list", "--json").json["agents"]}


def test_an_agent_is_shown(bench: Bench) -> None:
    assert "bash solve.sh" in bench("agent", "show", "oracle").out
    assert bench("agent", "show", "nop", "--json").json["protocol"] == "none"


def test_an_unknown_agent_is_answered_with_the_nearest(bench: Bench) -> None:
    ran = bench("agent", "show", "oracel")
    assert ran.status == 2
    assert "did you mean 'oracle'?" in ran.err
