"""Which strategy scores a node, and what it reads of the rollout."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.verified_sandboxes import InLocal, verifier

from benchflow.contracts.reward import Evidence, JudgeRubric, JudgeSettings, RolloutNode, VerifyResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import VerifierConfig, VerifierDocument
from benchflow.errors import JudgeError, RewardFileError, VerifierError
from benchflow.planes.reward.inputs import find_inputs
from benchflow.planes.reward.judge import ModelJudge
from benchflow.planes.reward.sandbox_workbench import SandboxWorkbench
from benchflow.planes.reward.strategy import verify
from benchflow.testing.scripted_model import ScriptedModel

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RUBRIC = JudgeRubric.model_validate(
    {
        "criteria": [
            {"id": "sound", "description": "It is sound.", "weight": 3},
            {"id": "short", "description": "It is short."},
        ]
    }
)
ROLE = {"type": "agent-judge", "role": "reader", "isolation": "verifier-only"}


def says(score: float, about: str, name: str = "verdict") -> dict[str, Any]:
    return {"when": {"anywhere": about}, "tools": [{"name": name, "arguments": {"score": score, "reasoning": "So."}}]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a rollout's results: an answer among the artifacts, files of the sandbox, a step's own evidence."""
    files = {
        "artifacts/answer.txt": "forty-two",
        "evidence/inputs/app/report.md": "The report.",
        "evidence/inputs/app/out/data.csv": "1;2",
        "trajectory/acp_trajectory.jsonl": '{"type": "agent_message", "text": "I am done."}\n',
        "steps/one/evidence/inputs/app/report.md": "The report of step one.",
        "steps/one/artifacts/answer.txt": "one",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def task(strategy: dict[str, Any] | None = None, **fields: Any) -> Task:
    document = None
    if strategy is not None:
        declared = {"default_strategy": "a", "strategies": {"a": strategy}, "role_prompts": {"reader": "You read."}}
        document = VerifierDocument.model_validate(declared)
    rubrics = {"rubrics/verifier.toml": RUBRIC, "tests/rubric.toml": RUBRIC}
    given = {"name": "t", "layout": "native", "config_file": "task.md", "instruction": "Do it.", "rubrics": rubrics}
    return Task(**(given | {"verifier_document": document} | fields))


def node(directory: Path, *, step: str | None = None, **known: Any) -> RolloutNode:
    evidence = directory / "steps" / step / "evidence" if step else directory / "evidence"
    given = {"directory": directory, "evidence": evidence, "task": "t", "instruction": "Do it."}
    return RolloutNode(id="n1", rollout=Evidence(**(given | known)))


async def scored(
    directory: Path, made: Task, *, config: VerifierConfig | None = None, step: str | None = None, **known: Any
) -> VerifyResult:
    return await verify(node(directory, step=step, **known), made, config or VerifierConfig(), step=step, now=NOW)


async def judged(directory: Path, script: list[Any], made: Task, **options: Any) -> tuple[VerifyResult, list[str]]:
    """The result, and what the model was asked."""
    async with ScriptedModel(script) as model:
        settings = JudgeSettings(model="openai/scripted", base_url=model.openai_base_url, retries=0)
        judge = ModelJudge(settings, "key", directory / "verifier" / "judge", pause=0.01)
        result = await scored(directory, made, judge=judge, **options)
        return result, [json.dumps(call.body) for call in model.calls]


@pytest.mark.local
class TestPrograms(InLocal):
    @pytest.mark.parametrize(
        "strategy", [None, {"type": "script", "command": "./test.sh"}], ids=["by itself", "declared"]
    )
    async def test_a_program_is_run_in_the_world_that_the_agent_left(
        self, own: Sandbox, directory: Path, strategy: dict[str, Any] | None
    ) -> None:
        script = {"test.sh": "#!/bin/sh\necho 0.5 >/logs/verifier/reward.txt\n"}

        async def open() -> Sandbox:
            return own

        bench = SandboxWorkbench(open, verifier(directory / "tests", script, strategy=strategy), directory / "verifier")
        assert (await scored(directory, task(strategy), workbench=bench)).reward == 0.5


async def test_without_a_world_no_program_can_score(directory: Path) -> None:
    with pytest.raises(VerifierError, match="no world left") as caught:
        await scored(directory, task())
    assert caught.value.remedy


async def test_a_rubric_judges_what_was_kept_of_its_directory(directory: Path) -> None:
    strategy = {"type": "llm-judge", "rubric": "rubrics/verifier.toml", "input_dir": "/app", "context": "For a child."}
    result, asked = await judged(directory, [says(1, "It is sound."), says(0, "It is short.")], task(strategy))
    assert result.rewards == {"reward": 0.75, "sound": 1.0, "short": 0.0}
    assert all("The report." in text and "out/data.csv" in text and "For a child." in text for text in asked)
    assert (directory / "verifier" / "judge" / "llm-judge.sound.json").is_file()


async def test_a_table_may_ask_for_a_judge_instead_of_a_document(directory: Path) -> None:
    config = VerifierConfig.model_validate(
        {"type": "llm-judge", "judge": {"context": "Be kind.", "input_dir": "/app/out"}}
    )
    result, asked = await judged(directory, [says(1, "It is sound."), says(1, "It is short.")], task(), config=config)
    assert result.reward == 1.0
    assert all("Be kind." in text and "deliverables" in text and "The report." not in text for text in asked)


async def test_a_step_is_judged_by_what_was_kept_after_it(directory: Path) -> None:
    strategy = {"type": "llm-judge", "rubric": "rubrics/verifier.toml"}
    script = [says(1, "It is sound."), says(1, "It is short.")]
    _, asked = await judged(directory, script, task(strategy), step="one")
    assert all("The report of step one." in text for text in asked)


async def test_a_role_judges_the_declared_inputs(directory: Path) -> None:
    inputs = ["/app/report.md", "artifacts/answer.txt", "trajectory/acp_trajectory.jsonl", "/logs/artifacts/answer.txt"]
    result, asked = await judged(directory, [says(0.25, "You read.")], task(ROLE | {"inputs": inputs}))
    assert result.rewards == {"reward": 0.25}
    assert all(text in asked[0] for text in ("The report.", "forty-two", "I am done.", *inputs))


async def test_an_episode_is_read_from_its_record(directory: Path) -> None:
    (directory / "artifacts" / "episode.jsonl").write_text('{"reward": 2, "is_valid": true}\n')
    made = task({"type": "ors-episode", "inputs": ["/logs/artifacts/episode.jsonl"], "format": "jsonl"})
    wide = VerifierConfig(reward_range=(0.0, 2.0))
    assert (await scored(directory, made, config=wide)).reward == 2.0
    with pytest.raises(RewardFileError, match=r"/logs/artifacts/episode\.jsonl:1: reward: 2\.0 is outside"):
        await scored(directory, made)


@pytest.mark.parametrize(
    "strategy",
    [
        {"type": "llm-judge", "rubric": "rubrics/verifier.toml", "input_dir": "/gone"},
        ROLE | {"inputs": ["/app/report.md", "/gone", "artifacts/gone"]},
        {"type": "ors-episode", "inputs": ["artifacts/gone", "/gone"]},
    ],
)
async def test_inputs_that_are_not_there_are_named(directory: Path, strategy: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match=r"there is no .*/gone") as caught:
        await judged(directory, [says(1, "")], task(strategy))
    assert caught.value.remedy and "report.md" not in caught.value.message


@pytest.mark.parametrize(
    "strategy", [{"type": "llm-judge", "rubric": "rubrics/verifier.toml"}, ROLE | {"inputs": ["/app/report.md"]}]
)
async def test_without_a_model_there_is_no_judging(directory: Path, strategy: dict[str, Any]) -> None:
    with pytest.raises(JudgeError, match="no model to judge") as caught:
        await scored(directory, task(strategy))
    assert "--judge-model" in (caught.value.remedy or "")


async def test_a_rubric_or_role_that_the_task_does_not_have_is_an_error(directory: Path) -> None:
    with pytest.raises(VerifierError, match="rubric was not read"):
        await scored(directory, task({"type": "llm-judge", "rubric": "other.toml"}))
    with pytest.raises(VerifierError, match="there is no role 'writer'"):
        await scored(directory, task(ROLE | {"role": "writer", "inputs": ["/app/report.md"]}))


# --- where inputs lie ----------------------------------------------------------------------------------


def test_a_steps_own_results_go_before_the_rollouts(directory: Path) -> None:
    paths = ["artifacts/answer.txt", "trajectory/acp_trajectory.jsonl"]
    found = find_inputs(paths, Evidence(directory=directory), "one")
    assert [str(Path(str(place)).relative_to(directory)) for place in found.values()] == [
        "steps/one/artifacts/answer.txt",
        "trajectory/acp_trajectory.jsonl",
    ]


@pytest.mark.parametrize("path", ["../secret", "artifacts/../../secret", "/app/../../../../secret"])
def test_nothing_outside_the_rollout_is_an_input(directory: Path, path: str) -> None:
    with pytest.raises(VerifierError, match="leads out of the rollout"):
        find_inputs([path], Evidence(directory=directory, evidence=directory / "evidence"), None)


def test_no_symbolic_link_is_an_input_or_leads_to_one(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("secret")
    (directory / "artifacts" / "link").symlink_to(outside)
    (directory / "artifacts" / "file").symlink_to(outside / "secret")
    for path in ("artifacts/link", "artifacts/link/secret", "artifacts/file", "/logs/artifacts/file"):
        with pytest.raises(VerifierError, match="there is no"):
            find_inputs([path], Evidence(directory=directory), None)
