"""What `bench submit` takes, and what it refuses before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import Bench

pytestmark = pytest.mark.usefixtures("state")


def test_a_dry_run_says_what_would_run_and_starts_nothing(bench: Bench, tasks: Path, state: Path) -> None:
    ran = bench("submit", tasks, "--agent", "oracle", "--agent", "nop", "-k", "2", "--sandbox", "noop", "--dry-run")
    assert ran.status == 0
    assert "3 tasks × oracle + nop × 2 · noop · 4 at a time" in ran.out
    assert "12 rollouts would be run. Nothing was started, and no model was asked." in ran.out
    assert not state.exists()


def test_eval_create_is_the_same(bench: Bench, tasks: Path) -> None:
    options = ["--agent", "nop", "--sandbox", "noop", "--job-name", "same", "--dry-run", "--json"]
    assert bench("eval", "create", "--tasks-dir", tasks, *options).json == bench("submit", tasks, *options).json


def test_a_dry_run_says_where_model_calls_go_and_with_what(bench: Bench, tasks: Path, tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    agent = {"name": "policy", "model": "m", "base_url": "http://elsewhere:1/v1", "credentials": ["OF_MINE"]}
    config.write_text(json.dumps({"tasks_dir": str(tasks), "agents": [agent]}))
    ran = bench("submit", "--config", str(config), "--sandbox", "noop", "--dry-run")
    assert "policy:m: model calls go to http://elsewhere:1/v1, with OF_MINE" in ran.out


def test_a_dry_run_in_json_lists_tasks_and_agents(bench: Bench, tasks: Path) -> None:
    plan = bench("submit", tasks, "--sandbox", "noop", "--job-name", "j", "--dry-run", "--json").json
    assert [task["name"] for task in plan["tasks"]] == ["one", "three", "two"]
    assert plan["agents"] == [{"name": "oracle", "model": None}]
    assert plan["total"] == 3
    assert plan["job"]["name"] == "j"


def test_tasks_are_chosen_by_patterns(bench: Bench, tasks: Path) -> None:
    options = ["--include", "t*", "--include", "one", "--exclude", "three", "--sandbox", "noop", "--dry-run", "--json"]
    plan = bench("submit", tasks, *options).json
    assert [task["name"] for task in plan["tasks"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no task is given"),
        (["missing"], "missing: does not exist"),
        (["a-file"], "a-file: is a file, not a task directory"),
        (["empty"], "empty: is empty"),
        (["greet", "--agent", "orakle"], "did you mean 'oracle'?"),
        (["greet", "--model", "m"], "agent 'oracle' uses no model"),
        (["greet", "--sandbox", "dokker"], "there is no sandbox provider 'dokker'"),
        (["greet", "--job-name", "a name/with odd ✗"], "remedy: use 1 to 80 letters"),
        (["greet", "--include", "nothing"], "no task is left"),
        (["greet", "--agent", "nop", "--agent", "nop"], "'nop' is given twice"),
        (["greet", "--agent-timeout", "0"], "--agent-timeout: must be greater than 0"),
        (["greet", "-n", "0"], "--concurrency"),
        (["greet", "--environment-manifest", "m.toml"], "m.toml: does not exist"),
        (["greet", "--config", "none.yaml"], "none.yaml: cannot be read"),
    ],
)
def test_a_wrong_request_is_refused_with_status_2(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch, state: Path, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(task.parent)
    Path("a-file").touch()
    Path("empty").mkdir()
    ran = bench("submit", "--sandbox", "noop", *arguments)
    assert ran.status == 2
    assert message in ran.err
    assert ran.out == ""
    assert not state.exists()


# --- --config ----------------------------------------------------------------------------------------------


def dry_run(bench: Bench, config: Path, text: str, *more: str | Path) -> dict[str, object]:
    config.write_text(text)
    ran = bench("submit", "--config", config, "--dry-run", "--json", *more)
    assert ran.status == 0, ran.err
    plan: dict[str, object] = ran.json
    return plan


def test_a_file_says_the_same_as_the_options(bench: Bench, tasks: Path, tmp_path: Path) -> None:
    text = "tasks_dir: set\nagent: nop\nenvironment: noop\nrepeats: 3\nconcurrency: 7\nexclude: [one]\njob_name: f\n"
    plan = dry_run(bench, tmp_path / "job.yaml", text)
    assert plan["agents"] == [{"name": "nop", "model": None}]
    assert (plan["sandbox"], plan["repeats"], plan["concurrency"], plan["total"]) == ("noop", 3, 7, 6)


def test_the_command_line_wins_over_the_file(bench: Bench, tasks: Path, tmp_path: Path) -> None:
    text = "tasks_dir: set\nagent: nop\nmodel: m\nenvironment: noop\nrepeats: 3\njob_name: f\n"
    plan = dry_run(bench, tmp_path / "job.yaml", text, "--agent", "oracle", "-k", "1")
    assert plan["agents"] == [{"name": "oracle", "model": None}]
    assert plan["repeats"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("concurency: 2", "job.yaml: concurency: is not a known key\n  remedy: did you mean `concurrency`?"),
        (
            "retry: {max_retry: 2}",
            "job.yaml: retry.max_retry: is not a known key\n  remedy: did you mean `max_retries`?",
        ),
        ("environment_manifest: m.toml", "m.toml: does not exist"),
        ("environment: noop\nsandbox: docker", "job.yaml: environment: says the same as `sandbox`"),
        ("repeats: many", "job.yaml: repeats: must be a whole number, not 'many'"),
        ("repeats: 2\nrepeats: 3", "job.yaml: repeats: is given twice, in lines 2 and 3"),
        ("repeats: [", "job.yaml: is not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_key(
    bench: Bench, tasks: Path, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "job.yaml").write_text(f"tasks_dir: set\n{line}\n")
    ran = bench("submit", "--config", tmp_path / "job.yaml", "--sandbox", "noop")
    assert ran.status == 2
    assert message in ran.err
