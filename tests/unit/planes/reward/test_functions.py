"""Reward functions found by what a task calls them, and what is wrong with the ones that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.own_rewards import Politeness

from benchflow.contracts.reward import AggregatePolicy, RewardFunc, RewardFuncSpec, RewardTable
from benchflow.errors import TaskError
from benchflow.planes.reward.functions import (
    BUILT_IN,
    SPACES,
    check_declared,
    check_functions,
    make_function,
    space_of,
)
from benchflow.planes.reward.output import ModelJudgeRewardFunc, StringMatchRewardFunc


def row(type: str, *, name: str | None = None, **options: Any) -> RewardFuncSpec:
    return RewardFuncSpec(type=type, name=name or type, options=options)


ALLOWED = ("support", "no_such_package.rewards", "")


def make(type: str, **options: Any) -> RewardFunc:
    return make_function(row(type, **options), file="t/task.md", index=2, allowed=ALLOWED)


OPTIONS: dict[str, dict[str, Any]] = {
    "string-match": {"expected": "x"},
    "code-exec": {"command": "true"},
    "llm-judge": {"rubric": ["It is clear."]},
    "forbidden-tools": {"tools": ["rm"]},
    "known-tools": {"tools": ["rm"]},
    "required-calls": {"calls": ["rm"]},
    "call-order": {"order": ["a", "b"]},
    "call-budget": {"max_calls": 3},
    "asked": {"underspecified": True},
    "skills": {"expected": ["a"]},
    "memory-files": {"absent": ["~/notes.md"]},
}


@pytest.mark.parametrize("type", BUILT_IN)
def test_every_built_in_is_a_reward_function_of_a_space(type: str) -> None:
    function = make(type, **OPTIONS.get(type, {}))
    assert isinstance(function, RewardFunc)
    assert space_of(function) in SPACES


def test_options_are_the_functions_fields() -> None:
    function = make("string-match", expected="x", ignore_case=True)
    assert function == StringMatchRewardFunc(expected="x", ignore_case=True)


def test_an_import_path_names_a_class() -> None:
    assert make("support.own_rewards:Politeness", language="de") == Politeness("de")


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a module `traced_rewards`, which can be imported here, makes when it is."""
    trace = tmp_path / "imported"
    code = f"open({str(trace)!r}, 'w').close()\nfrom support.own_rewards import Politeness\n"
    (tmp_path / "traced_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "traced_rewards", raising=False)
    return trace


TRACED = row("traced_rewards:Politeness")


def test_code_that_a_task_names_is_not_imported(traced: Path) -> None:
    with pytest.raises(TaskError, match="not imported") as caught:
        make_function(TRACED, file="t", allowed=["traced", "traced_rewards.more"])
    assert caught.value.remedy == "if you trust it, allow it yourself: --allow-code traced_rewards"
    with pytest.raises(TaskError, match="not imported"):
        check_functions(RewardTable(funcs=[TRACED]), file="t")
    assert not traced.exists()


def test_code_that_the_user_allows_is_imported(traced: Path) -> None:
    assert make_function(TRACED, file="t", allowed=["traced_rewards"]) == Politeness()
    assert traced.exists()


def test_code_that_an_installed_package_declares_is_imported_by_either_name(
    traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "traced_rewards-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: traced-rewards\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[benchflow.rewards]\ntraced = traced_rewards:Politeness\n")
    for name in ("traced", "traced_rewards:Politeness"):
        assert list(check_declared(RewardTable(funcs=[row(name)]), file="t")) == []
    assert not traced.exists()
    for name in ("traced", "traced_rewards:Politeness"):
        assert make_function(row(name), file="t") == Politeness()
    with pytest.raises(TaskError, match="not imported"):
        make_function(row("traced_rewards:NOW"), file="t")


def test_a_check_without_imports_names_what_is_not_declared(traced: Path) -> None:
    table = RewardTable(funcs=[row("tests"), TRACED], aggregate=AggregatePolicy(weights={"action": 1}))
    assert list(check_declared(table, file="t")) == [("reward.funcs[1].type", "traced_rewards:Politeness")]
    with pytest.raises(TaskError, match="is not a known key"):
        list(check_declared(RewardTable(funcs=[TRACED, row("tests", thresold=1)]), file="t"))
    assert not traced.exists()


def test_a_function_with_a_name_of_its_own_is_told_what_it_is_called() -> None:
    function = make_function(row("llm-judge", name="style", rubric=["It is clear."]), file="t/task.md")
    assert isinstance(function, ModelJudgeRewardFunc)
    assert function.name == "style"


def test_packages_bring_functions_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "own_rewards-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-rewards\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[benchflow.rewards]\npoliteness = support.own_rewards:Politeness\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert make("politeness") == Politeness()
    with pytest.raises(TaskError, match="no reward function") as caught:
        make("polite-ness")
    assert caught.value.remedy == "did you mean `politeness`?"


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("forbiden-tools", {}, "type", "there is no reward function 'forbiden-tools'"),
    ("support.own_rewards:Nothing", {}, "type", "cannot be imported"),
    ("no_such_package.rewards:Politeness", {}, "type", "cannot be imported"),
    ("support.own_rewards:", {}, "type", "cannot be imported"),
    (":Politeness", {}, "type", "cannot be imported"),
    ("support.own_rewards:A_NUMBER", {}, "type", "is no class"),
    ("support.own_rewards:Scoreless", {}, "type", "no method `score`"),
    ("support.own_rewards:OfNoSpace", {}, "type", "its space is 'outer'"),
    ("support.own_rewards:Politeness", {"tone": 3}, "", "TypeError"),
    ("support.own_rewards:Picky", {"pick": 1}, "", "nothing is right"),
    ("string-match", {}, "expected", "is missing"),
    ("string-match", {"expected": 3}, "expected", "not 3"),
    ("string-match", {"expected": "x", "match": "fuzzy"}, "match", "'exact'"),
    ("string-match", {"expected": "(", "match": "regex"}, "", "no regular expression"),
    ("string-match", {"expected": "x", "path": ""}, "path", "at least 1"),
    ("tests", {"threshold": True}, "threshold", "not true or false"),
    ("tests", {"threshold": "high"}, "threshold", "'high'"),
    ("code-exec", {}, "", "give `code` or `command`"),
    ("code-exec", {"command": "x", "timeout_sec": 0}, "timeout_sec", "greater than 0"),
    ("llm-judge", {"rubric": "rubric.toml"}, "rubric", "was not read"),
    ("llm-judge", {"rubric": []}, "rubric", "at least 1"),
]


@pytest.mark.parametrize(("type", "options", "key", "words"), WRONG, ids=[f"{c[0]} {c[1]}" for c in WRONG])
def test_what_is_wrong_with_a_row_is_named(type: str, options: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        make(type, **options)
    assert (caught.value.file, caught.value.key) == ("t/task.md", f"reward.funcs[2].{key}".rstrip("."))
    assert words in caught.value.message


@pytest.mark.parametrize("type", ["string-match", "code-exec", "llm-judge"])
def test_an_option_that_it_does_not_have_names_the_nearest(type: str) -> None:
    known = {"string-match": "ignore_case", "code-exec": "timeout_sec", "llm-judge": "inputs"}[type]
    with pytest.raises(TaskError) as caught:
        make(type, **OPTIONS[type], **{f"{known}s": 1})
    assert (caught.value.key, caught.value.remedy) == (f"reward.funcs[2].{known}s", f"did you mean `{known}`?")


@pytest.mark.parametrize("option", ["claimed_files", "claimed_success"])
@pytest.mark.parametrize("value", [True, False])
def test_checks_of_claims_are_refused_and_the_judge_is_named(option: str, value: bool) -> None:
    with pytest.raises(TaskError) as caught:
        make("reasoning-checks", **{option: value})
    assert (caught.value.file, caught.value.key) == ("t/task.md", f"reward.funcs[2].{option}")
    assert caught.value.remedy == "remove it: only a judge reads claims (`type: reasoning-judge`)"


def test_a_type_that_is_not_known_names_the_nearest() -> None:
    with pytest.raises(TaskError) as caught:
        make("string-mach")
    assert caught.value.remedy == "did you mean `string-match`?"


# --- whole tables ---------------------------------------------------------------------------------------

POLITE = row("support.own_rewards:Politeness", name="polite")
MATCH = row("string-match", name="says", expected="x")


@pytest.mark.parametrize("metric", ["output", "action", "action.polite", "output.says", "speed", "action.polite.tone"])
def test_an_aggregate_may_weigh_what_is_scored(metric: str) -> None:
    check_functions(
        RewardTable(funcs=[POLITE, MATCH], aggregate=AggregatePolicy(weights={metric: 1})), file="t", allowed=ALLOWED
    )


@pytest.mark.parametrize("metric", ["memory", "memory.polite", "output.polite", "action.says", "latent"])
def test_an_aggregate_of_what_no_function_scores_is_named(metric: str) -> None:
    table = RewardTable(funcs=[POLITE, MATCH], aggregate=AggregatePolicy(weights={"output": 1, metric: 1}))
    with pytest.raises(TaskError, match="no function") as caught:
        check_functions(table, file="t", allowed=ALLOWED)
    assert caught.value.key == f"reward.aggregate.weights.{metric}"


def test_a_table_with_a_wrong_row_is_wrong() -> None:
    with pytest.raises(TaskError) as caught:
        check_functions(RewardTable(funcs=[POLITE, row("nothing")]), file="t", allowed=ALLOWED)
    assert caught.value.key == "reward.funcs[1].type"


def test_a_function_tells_what_it_reads_of_the_sandbox_with_absolute_paths() -> None:
    matches = StringMatchRewardFunc("x", path="out/../report.txt")
    assert matches.sandbox_inputs("/app") == ("/app/report.txt",)
    assert StringMatchRewardFunc("x").sandbox_inputs("/app") == ()
    judges = make("llm-judge", rubric=["It is clear."], inputs=["/data/notes", "artifacts/x"])
    assert isinstance(judges, ModelJudgeRewardFunc)
    assert judges.sandbox_inputs("/app") == ("/data/notes",)
