"""Rubric files: what they may say, what is wrong with them, and where a task finds its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.reward import Criterion, JudgeRubric, RubricJudge, RubricScoring
from benchflow.errors import TaskError, UnsupportedFeatureError
from benchflow.tasks import load_task, read_task
from benchflow.tasks.rubric_file import load_rubric, read_rubric
from benchflow.user_files.problems import Problems

Builder = Callable[..., Path]

COMPLETE = """\
[judge]
model = "anthropic/some-model"
mode = "batched"
timeout = 30

[scoring]
aggregation = "threshold"
threshold = 0.6

[[criterion]]
id = "complete"
description = "Everything is there."
weight = 2
files = ["report.md"]

[[criterion]]
id = "clear"
match_criteria = "It reads well."
type = "likert"
points = 7
space = "reasoning"

[[criterion]]
id = "share"
description = "How much is right?"
type = "numeric"
min = -1
max = 1
"""

RUBRIC = JudgeRubric(
    criteria=[
        Criterion(id="complete", description="Everything is there.", weight=2, files=["report.md"]),
        Criterion(id="clear", description="It reads well.", type="likert", points=7, space="reasoning"),
        Criterion(id="share", description="How much is right?", type="numeric", min=-1, max=1),
    ],
    judge=RubricJudge(model="anthropic/some-model", mode="batched", timeout=30),
    scoring=RubricScoring(aggregation="threshold", threshold=0.6),
)

SMALL = '[[criterion]]\nid = "a"\ndescription = "A."\n'


def written(tmp_path: Path, text: str, name: str = "rubric.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def criteria(tmp_path: Path, *rows: dict[str, Any]) -> list[Criterion]:
    return load_rubric(written(tmp_path, json.dumps({"criteria": rows}), "rubric.json")).criteria


def error(tmp_path: Path, text: str, name: str = "rubric.toml") -> TaskError:
    with pytest.raises(TaskError) as caught:
        load_rubric(written(tmp_path, text, name))
    assert str(caught.value.file).endswith(name)
    return caught.value


def test_every_part_of_a_complete_rubric_arrives(tmp_path: Path) -> None:
    assert load_rubric(written(tmp_path, COMPLETE)) == RUBRIC


@pytest.mark.parametrize("key", ["criterion", "criteria"])
def test_json_says_the_same_as_toml(key: str, tmp_path: Path) -> None:
    data = RUBRIC.model_dump(exclude_defaults=True)
    data[key] = data.pop("criteria")
    assert load_rubric(written(tmp_path, json.dumps(data), "rubric.json")) == RUBRIC


def test_what_is_left_out_has_the_formats_defaults(tmp_path: Path) -> None:
    rubric = load_rubric(written(tmp_path, SMALL))
    assert rubric.criteria == [Criterion(id="a", description="A.", type="binary", points=5, min=0, max=100, weight=1)]
    assert (rubric.judge.mode, rubric.judge.timeout, rubric.judge.model) == ("individual", 120, None)
    assert (rubric.scoring.aggregation, rubric.scoring.threshold) == ("weighted_mean", 0.7)


# --- what a criterion is called --------------------------------------------------------------------------------


def test_a_name_that_can_be_an_id_is_one(tmp_path: Path) -> None:
    [one] = criteria(tmp_path, {"name": "is_complete", "description": "D."})
    assert (one.id, one.description) == ("is_complete", "D.")


def test_a_title_becomes_an_id_and_is_told_to_the_judge(tmp_path: Path) -> None:
    [one, two] = criteria(
        tmp_path, {"title": "Is it Complete?", "description": "All parts."}, {"name": "Some Words", "description": "D."}
    )
    assert (one.id, one.description) == ("is-it-complete", "Is it Complete?: All parts.")
    assert (two.id, two.description) == ("some-words", "Some Words: D.")


def test_an_id_stays_beside_its_title(tmp_path: Path) -> None:
    [one] = criteria(tmp_path, {"id": "c1", "title": "Complete", "description": "Complete: all parts."})
    assert (one.id, one.description) == ("c1", "Complete: all parts.")


def test_ids_that_are_made_are_made_unique(tmp_path: Path) -> None:
    rows = [{"title": "Same!"}, {"title": "same"}, {"id": "same-2", "description": "x"}, {"description": "y"}]
    found = criteria(tmp_path, *rows, {"title": "Output"}, {"title": "??"})
    assert [one.id for one in found] == ["same", "same-3", "same-2", "criterion-4", "criterion-output", "criterion-6"]


# --- what is wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "key", "message"),
    [
        ("[[criterion]]\nid = 'a'\n" + SMALL, TaskError, "criterion[1].id", "two criteria are called 'a'"),
        (SMALL + "colour = 'red'\n", TaskError, "criterion[0].colour", "is not a known key"),
        (SMALL + "[judge]\nmodle = 'x'\n", TaskError, "judge.modle", "is not a known key"),
        (SMALL + "type = 'ternary'\n", TaskError, "criterion[0].type", "'binary', 'likert' or 'numeric'"),
        (SMALL + "weight = -1\n", TaskError, "criterion[0].weight", "greater than or equal to 0"),
        (SMALL + "weight = true\n", TaskError, "criterion[0].weight", "not true or false"),
        (SMALL + "weight = nan\n", TaskError, "criterion[0].weight", "finite"),
        (SMALL + "weight = 0\n", TaskError, None, "every criterion has weight 0"),
        (SMALL + "type = 'likert'\npoints = 1\n", TaskError, "criterion[0].points", "2"),
        (SMALL + "type = 'numeric'\nmin = 5\nmax = 5\n", TaskError, "criterion[0].max", "above min"),
        (SMALL + "space = 'latent'\n", UnsupportedFeatureError, "criterion[0].space", "latent"),
        (SMALL + "match_criteria = 'x'\n", TaskError, "criterion[0].match_criteria", "same as `description`"),
        ("[[criterion]]\nid = 'reward'\n", TaskError, "criterion[0].id", "another number"),
        ("[[criterion]]\nid = 'a b'\n", TaskError, "criterion[0].id", "can't be an id"),
        ("[[criterion]]\nid = 'a'\n", TaskError, "criterion[0].description", "is missing"),
        ("[[criterion]]\ndescription = ' '\n", TaskError, "criterion[0].description", "is empty"),
        ("criterion = []\n", TaskError, None, "has no criteria"),
        ("criterion = 'x'\n", TaskError, "criterion", "list"),
        ("", TaskError, None, "has no criteria"),
        ("criteria = []\n" + SMALL, TaskError, None, "the same thing"),
        (SMALL + "[judge]\nmode = 'both'\n", TaskError, "judge.mode", "'individual' or 'batched'"),
        (SMALL + "[judge]\ntimeout = 0\n", TaskError, "judge.timeout", "greater than 0"),
        (SMALL + "[scoring]\naggregation = 'sum'\n", TaskError, "scoring.aggregation", "'weighted_mean'"),
        ("[[criterion]\n", TaskError, None, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    text: str, kind: type[TaskError], key: str | None, message: str, tmp_path: Path
) -> None:
    found = error(tmp_path, text)
    assert (type(found), found.key) == (kind, key)
    assert message in found.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a mapping"),
        ('{"criteria": NaN}', "must be a finite number, not nan"),
        ('{"judge": {}, "judge": {}}', "is given twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_is_read_as_strictly(text: str, message: str, tmp_path: Path) -> None:
    assert message in error(tmp_path, text, "rubric.json").message


def test_an_error_in_json_spells_the_key_as_the_file_does(tmp_path: Path) -> None:
    assert error(tmp_path, '{"criteria": [{"id": "a"}]}', "rubric.json").key == "criteria[0].description"


def test_a_key_of_another_scale_is_a_warning(tmp_path: Path) -> None:
    problems = Problems()
    assert read_rubric(written(tmp_path, SMALL + "points = 5\n"), problems, strict=True) is not None
    [problem] = problems
    assert (problem.severity, problem.key) == ("warning", "criterion[0].points")


# --- of a task -------------------------------------------------------------------------------------------------


def document(strategy: str) -> str:
    return f"---\nverifier:\n  strategies:\n    s: {{{strategy}}}\n---\n"


@pytest.mark.parametrize("place", ["verifier/rubrics/verifier.toml", "rubrics/verifier.toml"])
def test_a_strategys_rubric_lies_in_the_verifiers_directory_or_the_tasks(place: str, native: Builder) -> None:
    text = document("type: llm-judge, rubric: rubrics/verifier.toml")
    task = load_task(native(files={"verifier/verifier.md": text, "verifier/test.sh": None, place: COMPLETE}))
    assert task.rubrics == {"rubrics/verifier.toml": RUBRIC}


def test_a_strategys_rubric_that_is_wrong_is_an_error_of_the_task(native: Builder) -> None:
    text = document("type: llm-judge, rubric: r.toml")
    with pytest.raises(TaskError, match="is not a known key") as caught:
        load_task(native(files={"verifier/verifier.md": text, "verifier/r.toml": SMALL + "x = 1\n"}))
    assert str(caught.value.file).endswith("verifier/r.toml")


def test_a_rubric_outside_the_task_is_not_read(native: Builder, tmp_path: Path) -> None:
    outside = written(tmp_path, SMALL, "outside.toml")
    text = document(f"type: llm-judge, rubric: {outside}")
    with pytest.raises(TaskError, match="is no file of the task"):
        load_task(native(files={"verifier/verifier.md": text}))


def test_the_criteria_of_a_kit_are_read_where_they_are_a_rubric(native: Builder) -> None:
    text = document("type: reward-kit, root: kit, criteria: r.toml")
    files = {"verifier/verifier.md": text, "verifier/kit/reward.py": "", "verifier/test.sh": None}
    assert load_task(native(files=files | {"verifier/r.toml": COMPLETE})).rubrics == {"r.toml": RUBRIC}


def test_criteria_of_a_kit_that_are_something_else_are_its_own_affair(native: Builder) -> None:
    text = document("type: reward-kit, root: kit, criteria: r.toml")
    files = {"verifier/verifier.md": text, "verifier/kit/reward.py": "", "verifier/r.toml": "speed = 1\n"}
    reading = read_task(native(files=files))
    assert reading.task is not None and reading.task.rubrics == {}
    assert {problem.severity for problem in reading.problems} == {"warning"}


JUDGED = '[verifier]\ntype = "llm-judge"\n'


@pytest.mark.parametrize("name", ["tests/rubric.toml", "tests/rubric.json"])
def test_the_split_layouts_judge_needs_no_script(name: str, split: Builder) -> None:
    text = json.dumps({"criteria": [{"id": "a", "description": "A."}]}) if name.endswith("json") else SMALL
    task = load_task(split(toml=JUDGED, files={"tests/test.sh": None, name: text}))
    assert [criterion.id for criterion in task.rubrics["tests/rubric.toml"].criteria] == ["a"]


def test_other_peoples_keys_in_a_split_rubric_are_warnings(split: Builder) -> None:
    reading = read_task(split(toml=JUDGED, files={"tests/rubric.toml": SMALL + "colour = 'red'\n"}))
    assert reading.task is not None and "tests/rubric.toml" in reading.task.rubrics
    assert [problem.key for problem in reading.problems if problem.severity == "warning"] == ["criterion[0].colour"]


def test_the_judges_rubric_may_lie_anywhere_in_the_task(split: Builder) -> None:
    toml = JUDGED + '[verifier.judge]\nrubric_path = "judging/mine.toml"\n'
    assert "judging/mine.toml" in load_task(split(toml=toml, files={"judging/mine.toml": SMALL})).rubrics


def test_a_judge_without_a_rubric_is_an_error_with_the_place_for_it(split: Builder) -> None:
    with pytest.raises(TaskError, match=r"there is no 'tests/rubric\.toml'") as caught:
        load_task(split(toml=JUDGED))
    assert caught.value.key == "verifier.judge.rubric_path"


def test_a_native_tasks_judge_finds_the_rubric_beside_the_verifier(native: Builder) -> None:
    path = native("verifier: {type: llm-judge}\n", files={"verifier/rubrics/verifier.toml": SMALL})
    assert "tests/rubric.toml" in load_task(path).rubrics


def test_only_the_steps_that_a_script_scores_need_one(split: Builder) -> None:
    toml = """
[[steps]]
name = "one"
[steps.verifier]
type = "llm-judge"
[[steps]]
name = "two"
"""
    files = {"tests/test.sh": None, "tests/rubric.toml": SMALL, "steps/one/instruction.md": "Do one."}
    files |= {"steps/two/instruction.md": "Do two."}
    with pytest.raises(TaskError, match="step 'two' has no verifier"):
        load_task(split(toml=toml, files=files))
    task = load_task(split(toml=toml, files=files | {"steps/two/tests/test.sh": "#!/bin/sh\n"}))
    assert "tests/rubric.toml" in task.rubrics


def test_a_judges_context_file_is_part_of_its_context(native: Builder) -> None:
    text = document("type: llm-judge, rubric: r.toml, context: First., context_file: more.md")
    files = {"verifier/verifier.md": text, "verifier/r.toml": SMALL, "verifier/more.md": "\nSecond.\n"}
    read = load_task(native(files=files)).verifier_document
    assert read is not None and read.strategy.context == "First.\n\nSecond."
