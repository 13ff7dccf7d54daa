"""Reward functions of the output space: tests, texts, programs, judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.verified_sandboxes import InLocal, verifier

from benchflow.contracts.reward import (
    Evidence,
    JudgeRubric,
    JudgeSettings,
    RewardEvent,
    RewardFunc,
    RolloutNode,
    VerifyResult,
)
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import JudgeError, RewardFuncError, VerifierError, VerifierTimeoutError
from benchflow.planes.reward.evidence import store_inputs
from benchflow.planes.reward.judge import ModelJudge
from benchflow.planes.reward.judge.model_judge import JudgeByKey
from benchflow.planes.reward.output import (
    MAX_TEXT,
    CodeExecRewardFunc,
    ModelJudgeRewardFunc,
    StringMatchRewardFunc,
    TestRewardFunc,
)
from benchflow.planes.reward.sandbox_workbench import SandboxWorkbench
from benchflow.planes.reward.score import run_function
from benchflow.testing.scripted_model import ScriptedModel


def node(answer: str = "", **evidence: Any) -> RolloutNode:
    events = ({"type": "agent_message", "text": answer},) if answer else ()
    return RolloutNode(id="n1", events=events, parent=RolloutNode(id="n0"), rollout=Evidence(**evidence))


async def value(function: RewardFunc, at: RolloutNode) -> float:
    return (await event(function, at)).value


async def event(function: RewardFunc, at: RolloutNode) -> RewardEvent:
    said = await function.score(at)
    assert isinstance(said, RewardEvent)
    return said


# --- texts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "options", "matches"),
    [
        (" hello world\n", {"expected": "hello world"}, True),
        ("hello world!", {"expected": "hello world"}, False),
        ("hello", {"expected": "hello\n", "strip": False}, False),
        ("Hello", {"expected": "hello"}, False),
        ("STRASSE", {"expected": "straße", "ignore_case": True}, True),
        ("say hello world", {"expected": "hello", "match": "contains"}, True),
        ("say Hello world", {"expected": "hello", "match": "contains"}, False),
        ("total: 42 apples", {"expected": r"total: \d+\b", "match": "regex"}, True),
        ("Total: 42", {"expected": r"^total", "match": "regex", "ignore_case": True}, True),
        ("total: none", {"expected": r"total: \d+", "match": "regex"}, False),
        ("", {"expected": ""}, True),
    ],
)
async def test_a_text_matches_as_it_is_asked_to(answer: str, options: dict[str, Any], matches: bool) -> None:
    assert await value(StringMatchRewardFunc(**options), node(answer)) == float(matches)


async def test_what_was_matched_is_told_in_brief() -> None:
    said = await event(StringMatchRewardFunc("x"), node("y" * 1000))
    assert (said.space, said.source, said.meta) == ("output", "string-match", {"text": "y" * 200})


async def test_a_file_that_was_kept_for_scoring_is_matched(tmp_path: Path) -> None:
    kept = tmp_path / "evidence/inputs/app/out.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("42\n")
    at = node(directory=tmp_path, evidence=tmp_path / "evidence", workspace="/app")
    for path in ("out.txt", "./out.txt", "/app/out.txt"):
        assert await value(StringMatchRewardFunc("42", path=path), at) == 1.0


@pytest.mark.parametrize(
    ("path", "kept"), [("out.txt", "app/out.txt"), ("/logs/artifacts/a/out.txt", "a/out.txt"), ("/x/o", "x/o")]
)
async def test_a_file_among_the_artifacts_is_matched(tmp_path: Path, path: str, kept: str) -> None:
    file = tmp_path / "artifacts" / kept
    file.parent.mkdir(parents=True)
    file.write_text("42\n")
    at = node(directory=tmp_path, evidence=tmp_path / "evidence", workspace="/app")
    assert await value(StringMatchRewardFunc("42", path=path), at) == 1.0


async def test_a_file_that_nobody_kept_is_an_error_and_no_zero(tmp_path: Path) -> None:
    with pytest.raises(RewardFuncError, match=r"/app/out\.txt was not kept") as caught:
        await StringMatchRewardFunc("42", path="out.txt").score(node(directory=tmp_path, workspace="/app"))
    assert "--keep workspace" in (caught.value.remedy or "")


async def test_what_an_agent_put_in_a_files_place_leads_nowhere(tmp_path: Path) -> None:
    inputs = tmp_path / "evidence/inputs"
    (inputs / "app/directory").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("42")
    (inputs / "app/out.txt").symlink_to(tmp_path / "secret.txt")
    (inputs / "link").symlink_to(tmp_path)
    (inputs / "app/large").write_bytes(b"4" * (MAX_TEXT + 1))
    at = node(directory=tmp_path, evidence=tmp_path / "evidence", workspace="/app")
    for path in ("out.txt", "/link/secret.txt", "../../../secret.txt", "directory", "large"):
        with pytest.raises(RewardFuncError):
            await StringMatchRewardFunc("42", path=path).score(at)


# --- in the world that the agent left --------------------------------------------------------------------


@pytest.mark.parametrize("function", [TestRewardFunc(), CodeExecRewardFunc(command="true")])
async def test_what_runs_needs_the_world_that_the_agent_left(function: RewardFunc, tmp_path: Path) -> None:
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier/reward.txt").write_text("1")
    with pytest.raises(RewardFuncError, match="the world that the agent left") as caught:
        await function.score(node(directory=tmp_path))
    assert "--keep workspace" in (caught.value.remedy or "")


def name_of(test: Path) -> str:
    """What is run once, in the sandbox that the tests share, is run once for each."""
    return f"verify-{test.name}"


@pytest.mark.local
class TestInTheWorld(InLocal):
    @pytest.fixture
    def world(self, sandbox: Sandbox, tmp_path: Path) -> RolloutNode:
        tests = verifier(
            tmp_path / "v",
            {"test.sh": "#!/bin/sh\ncat /tests/mark >/logs/verifier/reward.txt\n", "mark": "0.5"},
            key=name_of(tmp_path),
        )

        async def opened() -> Sandbox:
            return sandbox

        bench = SandboxWorkbench(opened, tests, tmp_path / "logs")
        return node(workbench=bench, workspace=sandbox.ref.workdir)

    async def test_tests_pass_when_their_reward_is_high_enough(self, world: RolloutNode) -> None:
        assert await value(TestRewardFunc(threshold=0.5), world) == 1.0
        said = await event(TestRewardFunc(), world)
        assert (said.value, said.meta) == (0.0, {"reward": 0.5, "threshold": 1.0})

    async def test_tests_that_give_no_reward_are_an_error(self, sandbox: Sandbox, tmp_path: Path) -> None:
        async def opened() -> Sandbox:
            return sandbox

        bench = SandboxWorkbench(
            opened, verifier(tmp_path / "v", {"test.sh": "#!/bin/sh\n"}, key=name_of(tmp_path)), tmp_path / "logs"
        )
        scored = await run_function(TestRewardFunc(), "tests", node(workbench=bench))
        assert scored.value is None and "wrote no reward" in scored.error

    async def test_files_of_the_workspace_are_matched(self, sandbox: Sandbox, world: RolloutNode) -> None:
        await sandbox.write_file(f"{sandbox.ref.workdir}/out.txt", "42\n")
        assert await value(StringMatchRewardFunc("42", path="out.txt"), world) == 1.0
        said = await event(StringMatchRewardFunc("42", path="none.txt"), world)
        assert (said.value, said.meta) == (0.0, {"path": "none.txt", "missing": True})
        with pytest.raises(VerifierError):
            await StringMatchRewardFunc("42", path=".").score(world)

    async def test_what_was_kept_scores_as_the_world_did(self, sandbox: Sandbox, tmp_path: Path) -> None:
        await sandbox.write_file(f"{sandbox.ref.workdir}/out.txt", "42\n")
        functions = [StringMatchRewardFunc("42", path="out.txt"), StringMatchRewardFunc("42", path="none.txt")]
        wanted = [path for function in functions for path in function.sandbox_inputs(sandbox.ref.workdir)]
        evidence = tmp_path / "evidence"
        notes = await store_inputs(sandbox, wanted, evidence, limit_bytes=1_000_000)
        assert len(notes) == 1
        at = node(directory=tmp_path, evidence=evidence, workspace=sandbox.ref.workdir)
        assert [await value(function, at) for function in functions] == [1.0, 0.0]
        with pytest.raises(RewardFuncError, match="was not kept"):
            await StringMatchRewardFunc("42", path="other.txt").score(at)

    async def test_a_programs_exit_is_its_word(self, sandbox: Sandbox, world: RolloutNode) -> None:
        await sandbox.write_file(f"{sandbox.ref.workdir}/out.txt", "42\n")
        for command, expected in (("grep -q 42 out.txt", 1.0), ("grep -q 43 out.txt", 0.0)):
            assert await value(CodeExecRewardFunc(command=command), world) == expected
        assert await value(CodeExecRewardFunc(command=("test", "a b", "=", "a b")), world) == 1.0
        assert await value(CodeExecRewardFunc(command='test "$A" = b', env={"A": "b"}), world) == 1.0
        said = await event(CodeExecRewardFunc(command="echo no; exit 3"), world)
        assert (said.value, said.meta) == (0.0, {"exit_code": 3, "stdout": "no\n"})

    async def test_code_is_run_by_what_it_names_or_python_or_a_command(self, world: RolloutNode) -> None:
        shell = CodeExecRewardFunc(
            code="#!/bin/sh\n[ $(basename $0) != sh ] && cat given.txt", files={"given.txt": "x"}
        )
        assert (await event(shell, world)).meta == {"exit_code": 0, "stdout": "x"}
        assert await value(CodeExecRewardFunc(code="import os, sys\nsys.exit(os.getcwd() == '/nowhere')"), world) == 1.0
        assert await value(CodeExecRewardFunc(code="[ $- = e ] || exit 0; exit 1", command="sh -u"), world) == 1.0

    async def test_a_program_may_print_its_value(self, world: RolloutNode) -> None:
        printing = CodeExecRewardFunc(command="echo 7; echo ' 0.25 '; echo; echo noise >&2", result="stdout")
        assert await value(printing, world) == 0.25

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"command": "sleep 30", "timeout_sec": 0.3}, VerifierTimeoutError, "did not finish in 0.3 s"),
            ({"command": "no-such-program"}, RewardFuncError, "could not be run"),
            ({"command": "echo 0.5; exit 1", "result": "stdout"}, RewardFuncError, "exit status 1"),
            ({"command": "true", "result": "stdout"}, RewardFuncError, "last line is ''"),
            ({"command": "echo nan", "result": "stdout"}, RewardFuncError, "last line is 'nan'"),
            ({"command": "echo 1.5", "result": "stdout"}, RewardFuncError, "last line is '1.5'"),
            ({"command": "echo 0.5; echo done", "result": "stdout"}, RewardFuncError, "last line is 'done'"),
        ],
        ids=lambda given: str(given.get("command")) if isinstance(given, dict) else "",
    )
    async def test_a_program_that_says_nothing_is_an_error(
        self, world: RolloutNode, options: dict[str, Any], error: type[VerifierError], words: str
    ) -> None:
        with pytest.raises(error, match=words) as caught:
            await CodeExecRewardFunc(**options).score(world)
        assert caught.value.remedy or caught.value.log_tail is not None


# --- judges ---------------------------------------------------------------------------------------------

RUBRIC = JudgeRubric.model_validate(
    {"criteria": [{"id": "clear", "description": "It is clear."}, {"id": "short", "description": "It is short."}]}
)


def says(score: float) -> dict[str, Any]:
    return {"tools": [{"name": "verdict", "arguments": {"score": score, "reasoning": "So it is."}}]}


def judge_of(model: ScriptedModel, directory: Path) -> ModelJudge:
    settings = JudgeSettings(model="openai/scripted", base_url=model.openai_base_url, retries=0)
    return ModelJudge(settings, "key-of-a-judge", directory / "judge", pause=0.01)


async def test_a_judge_scores_by_the_rubric(tmp_path: Path) -> None:
    async with ScriptedModel([says(1), says(0)]) as model:
        at = node("I wrote it.", directory=tmp_path, instruction="Write it.", judge=judge_of(model, tmp_path))
        result = await ModelJudgeRewardFunc(RUBRIC, prompt="Be strict about commas.").score(at)
    assert isinstance(result, VerifyResult)
    assert (result.reward, sorted(result.items.values())) == (0.5, [0.0, 1.0])
    for call in model.calls:
        shown = json.dumps(call.body)
        assert "I wrote it." in shown and "Write it." in shown and "commas" in shown


async def test_a_judge_is_shown_what_is_named_or_all_that_was_kept(tmp_path: Path) -> None:
    for name in ("a", "b"):
        file = tmp_path / "evidence/inputs/app" / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text of {name}")
    (tmp_path / "note.md").write_text("a note")
    rubric = ["It is clear."]
    async with ScriptedModel([says(1), says(1), says(1)]) as model:
        at = node(directory=tmp_path, evidence=tmp_path / "evidence", judge=judge_of(model, tmp_path))
        for inputs in ((), ("/app/b.md", "note.md"), ("/app",)):
            await ModelJudgeRewardFunc(rubric, inputs=inputs, name=f"with {len(inputs)}").score(at)
    texts = ("text of a", "text of b", "a note")
    shown = [[text in json.dumps(call.body) for text in texts] for call in model.calls]
    assert shown == [[True, True, False], [False, True, True], [True, True, False]]


async def test_a_judge_of_its_own_is_asked_with_the_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", "key-of-my-own")
    async with ScriptedModel([says(1)]) as model:
        own = ModelJudgeRewardFunc(
            ["It is clear."], model="openai/x", base_url=model.openai_base_url, credential="MY_JUDGE_KEY", name="style"
        )
        result = await own.score(node("Done.", directory=tmp_path, evidence=tmp_path / "steps/draft/evidence"))
    assert result.reward == 1.0
    [call] = model.calls
    assert "key-of-my-own" in json.dumps(dict(call.headers))
    assert (tmp_path / "steps/draft/judge/style.criterion-1.json").is_file()


async def test_a_judge_of_its_own_in_a_job_is_asked_with_what_was_left_for_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "key-of-the-worker")
    of_job = JudgeByKey(JudgeSettings(), {"OF_THE_JOB": "key-of-the-job"}.get, tmp_path)
    async with ScriptedModel([says(1)]) as model:
        for name in ("OF_THE_JOB", "OF_THE_WORKER"):
            own = ModelJudgeRewardFunc(
                ["It is clear."], model="openai/x", base_url=model.openai_base_url, credential=name
            )
            await own.score(node("Done.", directory=tmp_path, judge=of_job))
    sent = [json.dumps(dict(call.headers)) for call in model.calls]
    assert "key-of-the-job" in sent[0]
    assert not any("key-of-the-worker" in headers for headers in sent)


async def test_a_judge_that_cannot_be_asked_is_an_error_and_no_zero(tmp_path: Path) -> None:
    async with ScriptedModel([{"error": {"status": 500}}]) as model:
        at = node("Done.", directory=tmp_path, judge=judge_of(model, tmp_path))
        with pytest.raises(JudgeError):
            await ModelJudgeRewardFunc(["It is clear."]).score(at)
    with pytest.raises(JudgeError, match="no model is named"):
        await ModelJudgeRewardFunc(["It is clear."]).score(node("Done.", directory=tmp_path))
    with pytest.raises(RewardFuncError, match="nowhere to write"):
        await ModelJudgeRewardFunc(["It is clear."], model="openai/x").score(node("Done."))


async def test_nothing_to_judge_is_an_error(tmp_path: Path) -> None:
    async with ScriptedModel([]) as model:
        at = node(directory=tmp_path, evidence=tmp_path / "evidence", judge=judge_of(model, tmp_path))
        with pytest.raises(RewardFuncError, match="nothing to judge"):
            await ModelJudgeRewardFunc(["It is clear."]).score(at)
        with pytest.raises(VerifierError, match=r"there is no /app/none\.md"):
            await ModelJudgeRewardFunc(["It is clear."], inputs=("/app/none.md",)).score(
                replace(at, events=({"type": "agent_message", "text": "Done."},))
            )
    assert not model.calls
