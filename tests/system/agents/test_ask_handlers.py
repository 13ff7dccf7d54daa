"""A function answers what agents ask their user: each question once, of children too, and never to a rollout's harm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import RECORD, SOLVE, Seen, write_step, write_task

import benchflow as bf
from benchflow.contracts.rollout_records import Answer
from benchflow.errors import AskUserError, ConfigError

OPTIONS = [["sure", "allow_once"], ["not-now", "reject_once"]]
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def rollout_of(task: Path, jobs_dir: Path, **options: Any) -> bf.Rollout:
    scenes = [bf.Scene.single(agent="demo")]
    config = bf.RolloutConfig(task_path=task, scenes=scenes, environment="local", jobs_dir=jobs_dir, **options)
    return await bf.Rollout.create(config)


@pytest.mark.local
async def test_each_question_is_asked_once_and_one_without_an_answer_again(module_jobs: Path, tmp_path: Path) -> None:
    actions = [
        {"ask": "may I?", "options": OPTIONS, "record": RECORD},
        {"elicit": "who?", "schema": FORM, "record": RECORD},
        SOLVE,
    ]
    task = write_task(tmp_path, "asks", actions)
    asked: list[str] = []

    async def answers(question: bf.UserQuestion) -> str:
        asked.append(question.text)
        if question.kind == "form":
            return "Ada"
        raise LookupError("I do not know")

    rollout = await rollout_of(task, tmp_path / "jobs", job_name="asks")
    with pytest.raises(AskUserError, match="LookupError: I do not know") as caught:
        await rollout.run(on_ask_user=answers)
    assert isinstance(caught.value.__cause__, LookupError)
    assert "still waits, asking 'may I?'" in str(caught.value.remedy)
    assert asked == ["may I?"]

    # Somebody else, or the same after a mistake: the agent has waited.
    def refuses(question: bf.UserQuestion) -> bf.Answer | dict[str, str]:
        asked.append(question.text)
        return {"name": "Bob"} if question.kind == "form" else Answer(question=question.id, option="not-now")

    again = await rollout_of(task, tmp_path / "jobs", job_name="asks")
    result = await again.run(on_ask_user=refuses)
    assert (result.error, result.reward) == (None, 1.0)
    assert asked == ["may I?", "may I?", "who?"]
    assert Seen(result).recorded() == ["not-now", {"action": "accept", "content": {"name": "Bob"}}]


@pytest.mark.long
@pytest.mark.local
async def test_each_child_that_asks_is_answered_for_itself(module_jobs: Path, tmp_path: Path) -> None:
    table = 'multi_step_reward_strategy = "final"\n[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'
    ask = {"ask": "shall I?", "options": OPTIONS, "then": {"sure": [SOLVE]}}
    # Each of the two steps is a session of its own, in which the agent asks.
    task = write_task(tmp_path, "family", [ask], config=table)
    for step in ("first", "second"):
        write_step(task, step)
    asked: dict[str, bf.UserQuestion] = {}
    both = asyncio.Event()

    async def answers(question: bf.UserQuestion) -> str:
        assert question.chain not in asked
        asked[question.chain] = question
        if len(asked) == 3:
            both.set()
        if question.chain:
            # Neither child waits for the other's answer.
            await both.wait()
        return "sure" if question.chain == "n1.1" else "not-now"

    rollout = await rollout_of(task, tmp_path / "jobs", job_name="family")
    result = await rollout.branch(n=2, at=1, on_ask_user=answers, children=[{"role": "shy"}, {"role": "bold"}])
    assert result.error is None
    assert set(asked) == {"", "n1.0", "n1.1"}
    assert len({question.rollout for question in asked.values()}) == 3
    assert result.directory is not None
    tree = bf.load_tree(result.directory)
    assert [(leaf.id, leaf.returns) for leaf in tree.leaves] == [("n1.0/n2", 0.0), ("n1.1/n2", 1.0)]
    # A child's role is that of its own steps, wherever they are told of.
    assert [tree.node(name).role for name in ("n1", "n1.0/n2", "n1.1/n2")] == ["agent", "shy", "bold"]
    assert {event["role"] for event in tree.trajectory("n1.1/n2")} == {"agent", "bold"}


async def test_a_handler_needs_an_agent_that_asks(tmp_path: Path, module_jobs: Path) -> None:
    rollout = await rollout_of(write_task(tmp_path, "deaf", []), module_jobs, permissions="deny")
    with pytest.raises(ConfigError, match="nobody would be asked") as caught:
        await rollout.run(on_ask_user=lambda question: None)
    assert (caught.value.key, bool(caught.value.remedy)) == ("permissions", True)
