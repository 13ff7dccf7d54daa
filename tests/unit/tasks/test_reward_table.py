"""The `reward` table of a task, as authors write it and as it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.contracts.reward import AggregatePolicy, RewardFuncSpec, RewardTable
from benchflow.errors import TaskError
from benchflow.tasks import load_task, migrate_task, read_task

Builder = Callable[..., Path]

FRONTMATTER = """\
reward:
  funcs:
    - {type: forbidden-tools, tools: [delete_mail], weight: 2}
    - {type: 'my_package.rewards:Politeness', name: politeness, language: null}
  aggregate: {method: weighted_mean, weights: {output: 0.7, action: 0.2, action.forbidden-tools: 0.1}}
"""

TOML = """\
[[reward.funcs]]
type = "forbidden-tools"
tools = ["delete_mail"]
weight = 2

[[reward.funcs]]
type = "asked"
options = { name = "who", type = "what" }

[reward.aggregate]
method = "all_pass"
"""


def test_what_a_row_says_beside_its_own_keys_is_an_option(native: Builder) -> None:
    assert load_task(native(FRONTMATTER)).reward == RewardTable(
        funcs=[
            RewardFuncSpec(
                type="forbidden-tools", name="forbidden-tools", weight=2.0, options={"tools": ["delete_mail"]}
            ),
            RewardFuncSpec(type="my_package.rewards:Politeness", name="politeness", options={"language": None}),
        ],
        aggregate=AggregatePolicy(weights={"output": 0.7, "action": 0.2, "action.forbidden-tools": 0.1}),
    )


def test_an_option_that_is_called_as_a_key_of_the_row_is_written_under_options(split: Builder) -> None:
    table = load_task(split(TOML)).reward
    assert table is not None
    assert table.funcs[1] == RewardFuncSpec(type="asked", name="asked", options={"name": "who", "type": "what"})
    assert table.aggregate == AggregatePolicy(method="all_pass")


def test_a_migrated_task_has_the_same_table(split: Builder) -> None:
    root = split(TOML)
    before = load_task(root).reward
    migrate_task(root)
    assert load_task(root).layout == "native"
    assert load_task(root).reward == before


def test_a_task_without_a_table_has_none(native: Builder) -> None:
    assert load_task(native("reward:\n")).reward is None


RUBRIC = "[[criterion]]\nid = 'clear'\ndescription = 'It is clear.'\n"
JUDGED = '[[reward.funcs]]\ntype = "llm-judge"\nrubric = "{}"\n'


@pytest.mark.parametrize("named", ["rubric.toml", "tests/rubric.toml"])
def test_a_judges_rubric_file_is_read_with_the_task_before_and_after_it_is_migrated(split: Builder, named: str) -> None:
    root = split(JUDGED.format(named), {"tests/rubric.toml": RUBRIC})
    for _ in range(2):
        table = load_task(root).reward
        assert table is not None
        assert table.funcs[0].options == {"rubric": {"criteria": [{"id": "clear", "description": "It is clear."}]}}
        if load_task(root).layout == "split":
            migrate_task(root)


@pytest.mark.parametrize("named", ["no.toml", "../outside.toml"])
def test_a_judges_rubric_file_that_is_not_in_the_task_is_named(split: Builder, named: str) -> None:
    root = split(JUDGED.format(named))
    (root.parent / "outside.toml").write_text(RUBRIC)
    with pytest.raises(TaskError) as caught:
        load_task(root)
    assert (caught.value.file, caught.value.key) == (str(root / "task.toml"), "reward.funcs[0].rubric")


WRONG = [
    ("reward: 3", "reward", "not 3"),
    ("reward: {funcs: 3}", "reward.funcs", "not 3"),
    ("reward: {funcs: [asked]}", "reward.funcs[0]", "'asked'"),
    ("reward: {funcs: [{tools: [a]}]}", "reward.funcs[0].type", "is missing"),
    ("reward: {funcs: [{type: 3}]}", "reward.funcs[0].type", "not 3"),
    ("reward: {funcs: [{type: ' '}]}", "reward.funcs[0].type", "empty"),
    ("reward: {funcs: [{type: asked, name: ''}]}", "reward.funcs[0].name", "empty"),
    ("reward: {funcs: [{type: asked, weight: -1}]}", "reward.funcs[0].weight", "0"),
    ("reward: {funcs: [{type: asked, weight: true}]}", "reward.funcs[0].weight", "not true or false"),
    ("reward: {funcs: [{type: asked, weight: .inf}]}", "reward.funcs[0].weight", "finite"),
    ("reward: {funcs: [{type: asked, options: 3}]}", "reward.funcs[0].options", "mapping"),
    ("reward: {funcs: [{type: asked, options: {a: 1}, a: 2}]}", "reward.funcs[0].a", "contradicts"),
    ("reward: {funcs: [{type: asked}, {type: asked}]}", "reward.funcs[1].type", "'asked' is there twice"),
    ("reward: {funcs: [{type: a}, {type: b, name: a}]}", "reward.funcs[1].name", "'a' is there twice"),
    ("reward: {aggregate: {method: best}}", "reward.aggregate.method", "'best'"),
    ("reward: {aggregate: {weights: {output: true}}}", "reward.aggregate.weights.output", "not true or false"),
    ("reward: {aggregate: {weights: {output: -1}}}", "reward.aggregate.weights.output", "0 or more"),
    ("reward: {aggregate: {weights: {output: 0}}}", "reward.aggregate.weights", "sum to 0"),
    ("reward: {aggregate: {weights: {reward: 1}}}", "reward.aggregate.weights.reward", "is what the aggregate makes"),
    ("reward: {aggregate: {weights: {action: 1}}}", "reward.aggregate.weights.action", "no function"),
    ("reward: {funcs: [{type: a}], aggregate: {weights: {action.b: 1}}}", "reward.aggregate.weights.action.b", "'b'"),
    ("reward: {funcs: [{type: a}], aggregate: {weights: {action.: 1}}}", "reward.aggregate.weights.action.", "''"),
]


@pytest.mark.parametrize(("frontmatter", "key", "words"), WRONG, ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_named(native: Builder, frontmatter: str, key: str, words: str) -> None:
    root = native(frontmatter + "\n")
    with pytest.raises(TaskError) as caught:
        load_task(root)
    assert caught.value.file == str(root / "task.md")
    assert caught.value.key == key
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("frontmatter", "key", "remedy"),
    [
        ("reward: {functions: []}", "reward.functions", "did you mean `funcs`?"),
        ("reward: {aggregate: {weight: {output: 1}}}", "reward.aggregate.weight", "did you mean `weights`?"),
        (
            "reward: {funcs: [{type: asked}], aggregate: {weights: {action.aksed: 1}}}",
            "reward.aggregate.weights.action.aksed",
            "did you mean `action.asked`?",
        ),
    ],
)
def test_a_word_that_is_not_known_names_the_nearest(native: Builder, frontmatter: str, key: str, remedy: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_task(native(frontmatter + "\n"))
    assert type(caught.value) is TaskError
    assert (caught.value.key, caught.value.remedy) == (key, remedy)


@pytest.mark.parametrize(
    "weights",
    ["{output: 1}", "{speed: 1}", "{speed.cpu: 1}", "{latent: 1}", "{action.asked: 1}", "{memory.asked.recall: 1}"],
)
def test_an_aggregate_may_weigh_what_a_verifier_or_a_function_could_report(native: Builder, weights: str) -> None:
    reading = read_task(native(f"reward: {{funcs: [{{type: asked}}], aggregate: {{weights: {weights}}}}}\n"))
    assert not reading.problems
