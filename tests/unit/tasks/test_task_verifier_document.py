"""verifier.md: strategies, outputs, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.contracts.reward import AggregatePolicy
from benchflow.contracts.verifier import VerifierDocument, VerifierOutputs, VerifierStrategy
from benchflow.errors import TaskError
from benchflow.tasks import load_task

Builder = Callable[..., Path]

COMPLETE = """\
---
document_version: 0.10
verifier:
  name: checks
  default_strategy: fast
  strategies:
    fast: {type: script, command: ./test.sh --quick}
    judge: {type: llm-judge, rubric: rubrics/verifier.toml, model: m, input_dir: /app, context: c}
    kit: {type: reward-kit, root: kit, criteria: rubrics/verifier.toml, entrypoint: reward.py}
    peer: {type: agent-judge, role: critic, isolation: verifier-only, inputs: [/app/out.txt]}
    episode: {type: ors-episode, inputs: rewards.jsonl, format: jsonl}
  rubric: {combine: weighted_mean, dimensions: {speed: {weight: 1.0, source: fast}}}
  outputs:
    reward_json: /logs/verifier/scores.json
    details_json: /logs/verifier/details.json
    aggregate_policy: {method: weighted_mean, metrics: {speed: 2.0}, threshold: 0.5}
---

## verifier intent

Prose.

## role:critic

Judge it.
"""

FILES = {"verifier/rubrics/verifier.toml": "", "verifier/kit/reward.py": ""}


def test_every_part_of_a_complete_document_arrives(native: Builder) -> None:
    task = load_task(native(files={"verifier/verifier.md": COMPLETE, **FILES}))
    assert task.verifier_document == VerifierDocument(
        document_version="0.10",
        name="checks",
        default_strategy="fast",
        strategies={
            "fast": VerifierStrategy(type="script", command="./test.sh --quick"),
            "judge": VerifierStrategy(
                type="llm-judge", rubric="rubrics/verifier.toml", model="m", input_dir="/app", context="c"
            ),
            "kit": VerifierStrategy(
                type="reward-kit", root="kit", criteria="rubrics/verifier.toml", entrypoint="reward.py"
            ),
            "peer": VerifierStrategy(
                type="agent-judge", role="critic", isolation="verifier-only", inputs=["/app/out.txt"]
            ),
            "episode": VerifierStrategy(type="ors-episode", inputs=["rewards.jsonl"], format="jsonl"),
        },
        outputs=VerifierOutputs(
            reward_json="/logs/verifier/scores.json",
            details_json="/logs/verifier/details.json",
            aggregate_policy=AggregatePolicy(method="weighted_mean", weights={"speed": 2.0}, threshold=0.5),
        ),
        rubric={"combine": "weighted_mean", "dimensions": {"speed": {"weight": 1.0, "source": "fast"}}},
        role_prompts={"critic": "Judge it."},
    )


def test_the_first_strategy_is_the_default(native: Builder) -> None:
    text = "---\nverifier:\n  strategies:\n    one: {type: script, command: make check}\n---\n"
    document = load_task(native(files={"verifier/verifier.md": text, "verifier/test.sh": None})).verifier_document
    assert document is not None
    assert document.strategy.command == "make check"
    assert document.outputs == VerifierOutputs()


def test_a_verifier_md_in_tests_is_only_a_file(split: Builder) -> None:
    assert load_task(split(files={"tests/verifier.md": "Anything."})).verifier_document is None


@pytest.mark.parametrize(
    ("verifier", "key", "words"),
    [
        ("strategies: {}", "verifier.strategies", "no strategy"),
        ("name: x", "verifier.strategies", "is missing"),
        ("strategies: {a: {type: magic}}", "verifier.strategies.a.type", "'magic'"),
        ("strategies: {a: {type: script}}", "verifier.strategies.a.command", "required"),
        ("strategies: {a: {type: llm-judge}}", "verifier.strategies.a.rubric", "required"),
        ("strategies: {a: {type: llm-judge, rubric: no.toml}}", "verifier.strategies.a.rubric", "no.toml"),
        ("strategies: {a: {type: reward-kit}}", "verifier.strategies.a.root", "required"),
        ("strategies: {a: {type: agent-judge}}", "verifier.strategies.a.role", "required"),
        (
            "strategies: {a: {type: agent-judge, role: r, isolation: verifier-only, inputs: [x]}}",
            "verifier.strategies.a.role",
            "## role:r",
        ),
        ("strategies: {a: {type: ors-episode}}", "verifier.strategies.a.inputs", "required"),
        ("strategies: {a: {type: script, command: ./no.sh}}", "verifier.strategies.a.command", "'no.sh'"),
        (
            "{default_strategy: b, strategies: {a: {type: script, command: x}}}",
            "verifier.default_strategy",
            "'b'",
        ),
        (
            "{strategies: {a: {type: script, command: x}}, outputs: {aggregate_policy: {method: best}}}",
            "verifier.outputs.aggregate_policy.method",
            "'best'",
        ),
    ],
)
def test_what_is_wrong_is_named(native: Builder, verifier: str, key: str, words: str) -> None:
    value = verifier if verifier.startswith("{") else "{" + verifier + "}"
    root = native(files={"verifier/verifier.md": f"---\nverifier: {value}\n---\n"})
    with pytest.raises(TaskError) as caught:
        load_task(root)
    assert caught.value.file == str(root / "verifier" / "verifier.md")
    assert caught.value.key == key
    assert words in caught.value.message


def test_an_unknown_key_names_the_nearest(native: Builder) -> None:
    text = "---\nverifier: {strategies: {a: {type: script, comand: x}}}\n---\n"
    with pytest.raises(TaskError) as caught:
        load_task(native(files={"verifier/verifier.md": text}))
    assert caught.value.key == "verifier.strategies.a.comand"
    assert caught.value.remedy == "did you mean `command`?"
