"""What the measurements of benchmarks/perf import, refuse before they measure, and print in tables afterwards."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import pytest
from support.paths import BENCHMARKS

PERF = BENCHMARKS / "perf"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts be imported."""
    monkeypatch.syspath_prepend(PERF)


@pytest.mark.parametrize("script", sorted(path.name for path in PERF.glob("*.py")))
def test_what_a_script_imports_of_benchflow_is_there(script: str) -> None:
    imports = [
        (node.module, name.name)
        for node in ast.walk(ast.parse((PERF / script).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "benchflow"
        for name in node.names
    ]
    for module, name in imports:
        found = importlib.import_module(str(module))
        assert hasattr(found, name) or importlib.import_module(f"{module}.{name}"), (module, name)


def test_overheads_table_has_every_figure_with_its_target_or_says_why_not() -> None:
    show = importlib.import_module("overhead").show
    figures = {"one_s": 0.9, "fork_ms_per_child": 12.0}
    common = {"cpu_by_process": {}, "by_phase": {}, "one_s": 1.0, "one_to_floor": 2.0, "worker_rss_mb": 50.0}
    common |= {"range": {"one_s": [1.0, 1.0]}, "targets": {"one_s": {"limit": 1.5, "met": True}}}
    local = figures | {"range": {name: [value] * 2 for name, value in figures.items()}, "by_phase": {}}
    local |= {"targets": {"one_s": {"limit": 0.8, "met": False}, "fork_ms_per_child": {"limit": 25.0, "met": True}}}
    with_local = show(common | {"local": local, "left_out": {}}).splitlines()
    assert [line.split() for line in with_local if line.startswith("local")] == [
        ["local", "one_s", "0.900", "0.900", "0.900", "≤", "0.8", "NOT", "MET"],
        ["local", "fork_ms_per_child", "12.000", "12.000", "12.000", "≤", "25", "met"],
    ]
    assert "local is left out: it needs root" in show(common | {"left_out": {"local": "it needs root"}})


def test_sessions_table_has_every_figure_with_its_target() -> None:
    show = importlib.import_module("session").show
    found = {"updates_per_s": 4000.0, "latency_ms": {"p50": 3.0, "p99": 9.0}, "reattach_s": 1.5}
    found |= {"range": {"updates_per_s": [3000.0, 5000.0], "latency_ms_p50": [2.0, 4.0], "reattach_s": [1.0, 2.0]}}
    found |= {"worker_rss_mb": {"start": 50.0, "peak": 55.5, "end": 51.0}}
    found |= {"targets": {"latency_ms_p50": {"limit": 20.0, "met": True}}}
    found["targets"]["updates_per_s"] = {"least": 5000.0, "met": False}
    assert [line.split() for line in show(found).splitlines()[1:]] == [
        ["updates_per_s", "4000.000", "3000.000", "5000.000", "≥", "5000", "NOT", "MET"],
        ["latency_ms_p50", "3.000", "2.000", "4.000", "≤", "20", "met"],
        ["reattach_s", "1.500", "1.000", "2.000"],
        ["worker_rss_mb", "start", "50", "peak", "55.5", "end", "51"],
    ]


def test_gateways_table_has_every_figure_with_its_target() -> None:
    show = importlib.import_module("gateway").show
    found = {"added_ms": {"p50": 1.5, "p99": 9.0}, "calls_per_s": 600.0, "cpu_ms": 0.9, "memory_growth_mb": 7.0}
    found |= {"memory_mb": {"start": 50.0, "quarter": 51.0, "end": 58.0}, "calls": 100_000}
    found |= {"targets": {"added_ms_p50": {"limit": 5.0, "met": True}}}
    found["targets"]["memory_growth_mb"] = {"limit": 5.0, "met": False}
    assert [line.split() for line in show(found).splitlines()] == [
        ["added_ms_p50", "1.500", "≤", "5", "met"],
        ["added_ms_p99", "9.000"],
        ["calls_per_s", "600.000"],
        ["cpu_ms", "0.900"],
        ["memory_growth_mb", "7.000", "≤", "5", "NOT", "MET"],
        ["memory_mb", "start", "50", "quarter", "51", "end", "58", "over", "100000", "calls"],
    ]


def test_the_table_of_branches_has_every_figure_with_its_target() -> None:
    branch = importlib.import_module("branch")
    told: dict[str, Any] = {"capture_10mb_ms": 300.0, "fork_ms_per_child": 100.0, "runs": 5}
    told["by_depth"] = {"130": {"capture_ms": 90.0, "fork_ms": 80.0}}
    values = {"tree_s": 1.0, "independent_s": 2.0, "tree_model_tokens": 3, "independent_model_tokens": 4}
    told["group8"] = {"policy": {"1": values | {"ahead": False}, "2": values | {"ahead": True}}}
    told["targets"] = branch.judged("docker", told)
    shown = "tree_s 1.0 independent_s 2.0 tree_model_tokens 3 independent_model_tokens 4"
    assert [" ".join(line.split()) for line in branch.show({"docker": told}).splitlines()] == [
        "docker capture_10mb_ms 300.0 ≤ 250 NOT MET",
        "docker fork_ms_per_child 100.0 ≤ 350 met",
        "docker runs 5",
        "docker by_depth.130 capture_ms 90.0 fork_ms 80.0",
        f"docker group8.policy.1 {shown} ahead False",
        f"docker group8.policy.2 {shown} ahead True ahead met",
    ]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("overhead", ["--runs", "0"]),
        ("overhead", ["--rollouts", "0"]),
        ("overhead", ["--warm-up", "-1"]),
        ("session", ["--runs", "0"]),
        ("session", ["--paced", "1"]),
        ("scale", ["--rollouts", "0"]),
        ("scale", ["--rollouts", "10001"]),
        ("scale", ["--concurrency", "501"]),
        ("gateway", ["--pairs", "1"]),
        ("gateway", ["--calls", "100"]),
        *[("branch", [option, "0"]) for option in ("--runs", "--group-runs", "--depth")],
        ("branch", ["--latency", "-1"]),
        *[("branch", words) for words in (["--only", "forks"], ["--sandbox", "elsewhere"], ["--agents", "nop"])],
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    script: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        importlib.import_module(script).main(arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err
