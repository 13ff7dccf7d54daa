"""The tool that runs the package of attacks in every mode: what it submits, and how it reads what came of it."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.attack_package import ALL, ATTACKS, ROOT

MATRIX = runpy.run_path(str(ROOT / "tools" / "attack_matrix.py"))
FINDING = {"item": "kill_processes", "action": "killed", "path": "", "detail": "a process"}


class Runs:
    """Stands in for `subprocess.run`. fill: writes what the command would have."""

    def __init__(self, fill: Callable[[list[str]], None] = lambda argv: None, status: int = 0) -> None:
        self.argvs: list[list[str]] = []
        self.fill, self.status = fill, status

    def __call__(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.argvs.append(argv)
        self.fill(argv)
        return subprocess.CompletedProcess(argv, self.status)


def add_result(job: Path, task: str, reward: float | None, findings: list[dict[str, str]]) -> None:
    (job / f"{task}__0").mkdir(parents=True)
    verify = {"metadata": {"hardening": {"findings": findings}}}
    result = {
        "task_name": task,
        "rollout_name": f"{task}__0",
        "error": None,
        "rewards": None if reward is None else {"reward": reward},
        "steps": [{"name": "main", "verify": verify}],
    }
    (job / f"{task}__0" / "result.json").write_text(json.dumps(result))


def option(argv: list[str], name: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == name]


def row(printed: str, task: str) -> dict[str, str]:
    labels, rows = MATRIX["read"](f"{MATRIX['BEGIN']}\n{printed}\n{MATRIX['END']}")
    return dict(zip(labels, rows[f"`{task}`"][-len(labels) :], strict=True))


def test_a_cell_is_the_reward_and_whether_there_was_a_finding(tmp_path: Path) -> None:
    add_result(tmp_path, "linked-key", 0.0, [FINDING])
    add_result(tmp_path, "makefile", 1.0, [])
    add_result(tmp_path, "bashrc", None, [FINDING])
    assert MATRIX["read_job"](tmp_path) == {"`linked-key`": "0.0 ✓", "`makefile`": "1.0", "`bashrc`": "error ✓"}


def test_each_mode_is_a_job_and_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(argv: list[str]) -> None:
        job = Path(option(argv, "--jobs-dir")[0]) / option(argv, "--job-name")[0]
        add_result(job, "linked-key", 0.0 if "docker" in argv else 1.0, [])

    runs = Runs(fill)
    monkeypatch.setattr(subprocess, "run", runs)
    assert MATRIX["main"]("--jobs-dir", str(tmp_path), "--include", "linked-*", "--print") == 0
    modes = {
        (*option(argv, "--sandbox"), *option(argv, "--verify-in"), *option(argv, "--agent")) for argv in runs.argvs
    }
    assert modes == set(MATRIX["all_modes"]()) and len(runs.argvs) == 8
    assert all(option(argv, "--include") == ["linked-*"] for argv in runs.argvs)
    cells = row(capsys.readouterr().out, "linked-key")
    assert list(cells)[:8] == [MATRIX["label_of"](*mode) for mode in MATRIX["all_modes"]()]
    assert {cells[MATRIX["label_of"](*mode)] for mode in modes if mode[0] == "docker"} == {"0.0"}
    assert {cells[MATRIX["label_of"](*mode)] for mode in modes if mode[0] == "local"} == {"1.0"}


def test_the_agent_that_is_always_root_is_left_what_another_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(lambda argv: add_result(tmp_path / option(argv, "--job-name")[0], "linked-key", 0.0, []))
    monkeypatch.setattr(subprocess, "run", runs)
    MATRIX["main"]("--jobs-dir", str(tmp_path), "--sandbox", "docker", "--verify-in", "shared", "--print")
    needy = [name for name in ATTACKS if ALL[name].task.metadata["needs_root"]]
    excluded = {option(argv, "--agent")[0]: option(argv, "--exclude") for argv in runs.argvs}
    assert excluded == {"attacker": [], "attacker-root": needy}


def test_a_job_that_was_refused_ends_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Runs(status=2))
    with pytest.raises(SystemExit, match="docker-shared-attacker did not run"):
        MATRIX["main"]("--jobs-dir", str(tmp_path), "--print")


def test_another_engine_is_told_the_tasks_its_agent_and_where_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(argv: list[str]) -> None:
        lines = [{"task": "benchflow/linked-key", "reward": 1}, {"task_name": "makefile", "rewards": {"reward": 0.0}}]
        (Path(argv[-1]) / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))

    runs = Runs(fill)
    monkeypatch.setattr(subprocess, "run", runs)
    command = "/opt/other run {tasks} --agent {agent} --into {out}"
    MATRIX["main"]("--engine", command, "--agent", "attacker", "--jobs-dir", str(tmp_path), "--print")
    out, tasks = str(tmp_path / "attacker"), str(ROOT / "benchmarks/attacks/tasks")
    assert runs.argvs == [["/opt/other", "run", tasks, "--agent", "attacker", "--into", out]]
    printed = capsys.readouterr().out
    assert (row(printed, "linked-key")["other"], row(printed, "makefile")["other"]) == ("1.0", "0.0")


def test_another_engines_reward_files_are_found_below_the_directories_of_tasks(tmp_path: Path) -> None:
    for name, file, content in (
        ("linked-key__ab12/verifier", "reward.txt", "1\n"),
        ("job/makefile", "reward.json", '{"reward": 0.5}'),
        ("job/makefile", "reward.txt", "0"),
        ("bashrc__1", "trial.log", ""),
    ):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / file).write_text(content)
    assert MATRIX["read_rewards"](tmp_path) == {"`linked-key`": "1.0", "`makefile`": "0.5", "`bashrc`": "error"}


def test_what_an_engine_says_counts_before_reward_files(tmp_path: Path) -> None:
    (tmp_path / "job" / "makefile__1").mkdir(parents=True)
    (tmp_path / "job" / "makefile__1" / "reward.txt").write_text("1")
    (tmp_path / "job" / "results.jsonl").write_text('{"task_name": "makefile", "rewards": null}\n')
    assert MATRIX["read_rewards"](tmp_path) == {"`makefile`": "error"}


def test_an_engine_that_left_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Runs())
    with pytest.raises(SystemExit, match=r"no results\.jsonl"):
        MATRIX["main"]("--engine", "other {out}", "--jobs-dir", str(tmp_path), "--print")
