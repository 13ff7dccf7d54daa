"""Tasks scored in every way that a verifier can declare, judged by a scripted model; and scored again."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.made_once import made_once
from support.running import run_tasks
from support.task_writer import BASE_IMAGE, write_script

from benchflow.contracts.rollout_records import Failure, RolloutResult
from benchflow.paths import RolloutPaths
from benchflow.rescoring import Rescoring, RescoringRequest, rescore
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.local

KEY = "k3y-of-the-judge-7d41xw"
RUBRIC = """
[[criterion]]
id = "clear"
description = "The report is clear."
type = "likert"
points = 5
weight = 3

[[criterion]]
id = "modest"
description = "The agent took nothing that it was not granted."
space = "action"

[judge]
model = "openai/gpt-judge"
timeout = 120
"""
DOCUMENT = "---\nverifier:\n  strategies:\n    only: {strategy}\n---\n\n## role:critic\n\nBe strict.\n"
KIT = """
import json, os
manifest = json.load(open(os.environ["BENCHFLOW_REWARD_KIT_MANIFEST"]))
assert manifest["criteria_policy"]["weights"] == {"clear": 3.0, "modest": 1.0}, manifest
json.dump({"metrics": {"clear": 1.0, "modest": 0.0}}, open(os.environ["BENCHFLOW_REWARD_JSON"], "w"))
"""
# Every rollout has a reward of its own.
AT_RANDOM = "n=$(od -An -N2 -tu2 /dev/urandom | tr -d ' '); echo \"0.$n\" > /app/answer\n"
READS = '#!/bin/sh\nread reward < /app/answer; printf \'{"reward": %s}\' "$reward" > /logs/verifier/reward.json\n'
EPISODE = [
    {"ok": True, "output": {"blocks": [], "metadata": {}, "reward": 0.25, "finished": False}},
    {"ok": True, "output": {"blocks": [], "metadata": {}, "reward": 0.75, "finished": True}},
]
TABLE = """
reward:
  funcs:
    - {type: string-match, name: wording, path: report.md, expected: "a report", match: contains}
    - {type: code-exec, name: length, command: 'test $(wc -l < report.md) -ge 2'}
    - {type: no-reward-hacking}
    - {type: memory-files, changed: ["/app/memory/*.md"], unchanged: ["/app/memory/old"], directories: [/app/memory]}
    - {type: reasoning-checks}
  aggregate: {method: weighted_mean, weights: {output: 1, memory: 1}}
"""


def write_task(
    root: Path, name: str, strategy: str, solve: str, *, front: str = "", files: dict[str, str] | None = None
) -> Path:
    """A native task of one strategy. front: of its task.md; files: of its verifier."""
    task = root / name
    for directory in ("environment", "verifier"):
        (task / directory).mkdir(parents=True)
    dockerfile = f"FROM {BASE_IMAGE}\nWORKDIR /app\nRUN mkdir memory && echo old > memory/old\n"
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    (task / "task.md").write_text(f"---\nschema_version: '1.4'\n{front}---\nWrite a report.\n")
    (task / "verifier" / "verifier.md").write_text(DOCUMENT.replace("{strategy}", strategy))
    for file, text in (files or {}).items():
        place = task / "verifier" / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
    write_script(task / "oracle" / "solve.sh", solve)
    return task


def judged(root: Path, name: str) -> Path:
    """A task that a rubric's judge scores; what it does is decided by the name that it reads in the report."""
    return write_task(
        root,
        name,
        "{type: llm-judge, rubric: rubrics/verifier.toml, input_dir: /app}",
        f"echo 'a report: {name}' > /app/report.md\n",
        files={"rubrics/verifier.toml": RUBRIC},
    )


class ScriptedJudge:
    """A scripted judge. asked: how often it was shown each report, for each criterion."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()

    def __call__(self, request: ModelRequest) -> dict[str, Any] | str:
        name = next((word for word in request.text.split() if word.startswith("judged-")), "role")
        criterion = "clear" if "The report is clear." in request.text else "modest"
        self.asked[name, criterion] += 1
        score = {("judged-badly", "clear"): 2, ("judged-badly", "modest"): 0, ("role", "modest"): 0.5}
        said = {"score": score.get((name, criterion), 5 if criterion == "clear" else 1), "reasoning": "I have read it."}
        good = {"tools": [{"name": "verdict", "arguments": said}]}
        first = self.asked[name, criterion] == 1
        bad: dict[str, dict[str, Any] | str] = {
            "judged-malformed": "I cannot say." if first else good,
            "judged-never": "I cannot say.",
        }
        return bad.get(name, good)


@dataclass(frozen=True)
class Scored:
    """A finished job.

    asked: requests to its judge. same: it was rescored as it is, which asked `asked_again`. other: it was rescored by a
    changed rubric, which asked `asked_anew`.
    """

    job: Path
    results: dict[str, RolloutResult]
    asked: Counter[tuple[str, str]]
    same: Rescoring
    asked_again: Counter[tuple[str, str]]
    other: Rescoring
    asked_anew: Counter[tuple[str, str]]


WAYS = ["judged-badly", "by-a-kit", "an-episode", "with-functions", "drawn", "collected"]
"""Tasks that are scored again."""


@made_once()
def scored(root: Path) -> Scored:
    """The oracle's rollouts of a task for each way."""
    report = "printf 'a report\\nof two lines\\n' > /app/report.md\n"
    split = judged(root, "judged-split")
    tasks = [judged(root, f"judged-{name}") for name in ("badly", "malformed", "never")] + [_as_split(split)]
    tasks += [
        write_task(
            root,
            "in-a-role",
            "{type: agent-judge, role: critic, isolation: verifier-only, model: openai/gpt-judge, "
            "inputs: [/app/report.md, trajectory/acp_trajectory.jsonl]}",
            report,
        ),
        write_task(
            root,
            "by-a-kit",
            "{type: reward-kit, root: kit, criteria: rubrics/verifier.toml}",
            report,
            files={"kit/reward.py": KIT, "rubrics/verifier.toml": RUBRIC},
        ),
        write_task(
            root,
            "an-episode",
            "{type: ors-episode, inputs: [/app/episode.jsonl], format: jsonl}",
            "".join(f"echo '{json.dumps(line)}' >> /app/episode.jsonl\n" for line in EPISODE),
        ),
        write_task(
            root,
            "no-episode",
            "{type: ors-episode, inputs: [/app/episode.jsonl], format: jsonl}",
            "true\n",
        ),
        write_task(
            root,
            "with-functions",
            "{type: script, command: ./test.sh}",
            report + "echo learned > /app/memory/new.md\n",
            front=TABLE,
            files={"test.sh": "#!/bin/sh\necho 0.5 > /logs/verifier/reward.txt\n"},
        ),
        write_task(root, "drawn", "{type: script, command: ./test.sh}", AT_RANDOM, files={"test.sh": READS}),
        write_task(
            root,
            "collected",
            "{type: script, command: ./test.sh}",
            report,
            front="verifier: {collect: [{command: wc -l < report.md > /tmp/lines}, {command: exit 3}]}\n",
            files={"test.sh": "#!/bin/sh\n[ $(cat /tmp/lines) = 2 ] && echo 1 > /logs/verifier/reward.txt\n"},
        ),
    ]
    judge, job, copy = ScriptedJudge(), root / "jobs" / "scored", root / "jobs" / "copy"
    with pytest.MonkeyPatch.context() as patch, ScriptedModel(judge) as model:
        patch.setenv("OPENAI_API_KEY", KEY)
        settings = {"base_url": model.openai_base_url, "retries": 1}
        options = {"sandbox": "local", "concurrency": 6, "keep": "workspace", "judge": settings}
        results = run_tasks(tasks, root / "jobs", job_name=job.name, **options)
        asked = Counter(judge.asked)
        shutil.copytree(job, copy)
        same = asyncio.run(rescore(copy, RescoringRequest(include=WAYS)))
        again = judge.asked - asked
        rubric = judged(root / "changed", "judged-badly") / "verifier" / "rubrics" / "verifier.toml"
        rubric.write_text(RUBRIC.replace("that it was not granted", "that it was not given"))
        other = asyncio.run(rescore(copy, RescoringRequest(tasks=root / "changed", include=["judged-badly"])))
        return Scored(job, results, asked, same, again, other, judge.asked - asked - again)


def _as_split(task: Path) -> Path:
    """The same task in the split layout."""
    for file in ("task.md", "verifier/verifier.md"):
        (task / file).unlink()
    (task / "tests").mkdir()
    (task / "verifier" / "rubrics" / "verifier.toml").rename(task / "tests" / "rubric.toml")
    (task / "verifier" / "rubrics").rmdir()
    (task / "verifier").rmdir()
    (task / "oracle").rename(task / "solution")
    (task / "instruction.md").write_text("Write a report.\n")
    (task / "task.toml").write_text('[verifier]\ntype = "llm-judge"\n')
    return task


def paths_of(result: RolloutResult) -> RolloutPaths:
    return RolloutPaths(Path(str(result.directory)))


def failed(result: RolloutResult) -> Failure:
    assert (result.status, result.rewards, result.error) == ("errored", None, None)
    assert result.verifier_error is not None and result.verifier_error.remedy
    return result.verifier_error


@pytest.mark.parametrize("name", ["malformed", "split"])
def test_a_judge_that_comes_to_an_answer_scores(scored: Scored, name: str) -> None:
    result = scored.results[f"judged-{name}"]
    assert (result.verifier_error, result.rewards) == (None, {"reward": 1.0, "clear": 1.0, "modest": 1.0})


def test_criteria_are_weighed_and_belong_to_their_spaces(scored: Scored) -> None:
    result = scored.results["judged-badly"]
    assert result.rewards == {"reward": pytest.approx((3 * 0.25 + 0) / 4), "clear": 0.25, "modest": 0.0}
    said = {line["tag"]: line for line in read_journal(paths_of(result).rewards) if line["tag"]}
    assert {tag: (line["space"], line["value"]) for tag, line in said.items()} == {
        "clear": ("output", 0.25),
        "modest": ("action", 0.0),
    }


def test_a_judge_without_an_answer_measures_nothing(scored: Scored) -> None:
    error = failed(scored.results["judged-never"])
    assert (error.type, error.category) == ("JudgeError", "verifier_judge")
    assert "not an answer" in error.message


def test_what_a_judge_was_asked_and_what_it_cost_is_kept(scored: Scored) -> None:
    result = scored.results["judged-malformed"]
    (step,) = result.steps
    assert step.verify is not None
    used = step.verify.metadata["judge"]
    assert (used["calls"], used["input_tokens"]) == (4, 400)
    transcripts = [json.loads(file.read_text()) for file in paths_of(result).judge().glob("*.json")]
    assert len(transcripts) == 2 and all(len(one["attempts"]) == 2 for one in transcripts)
    assert scored.asked["judged-malformed", "clear"] == 2


def test_the_key_of_a_judge_is_nowhere(scored: Scored) -> None:
    for file in scored.job.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def test_a_role_a_kit_and_an_episode_score(scored: Scored) -> None:
    assert scored.results["in-a-role"].rewards == {"reward": 0.5}
    assert scored.results["by-a-kit"].rewards == {"reward": 0.75, "clear": 1.0, "modest": 0.0}
    assert scored.results["an-episode"].rewards == {"reward": 0.75}
    said = list(read_journal(paths_of(scored.results["an-episode"]).rewards))
    assert [(line["type"], line["value"]) for line in said] == [("process", 0.25), ("terminal", 0.75)]
    assert "episode.jsonl" in failed(scored.results["no-episode"]).message


def test_functions_are_scored_in_their_spaces_and_one_that_fails_is_no_number(scored: Scored) -> None:
    result = scored.results["with-functions"]
    assert result.verifier_error is None and result.rewards is not None
    output = (0.5 + 1 + 1) / 3
    assert result.rewards == {
        "reward": pytest.approx((output + 1) / 2),
        "output": pytest.approx(output),
        "output.wording": 1.0,
        "output.length": 1.0,
        "action": 1.0,
        "action.no-reward-hacking": 1.0,
        "memory": 1.0,
        "memory.memory-files": 1.0,
    } | {name: value for name, value in result.rewards.items() if name.startswith("memory.memory-files.")}
    (step,) = result.steps
    # The oracle has said nothing that could be judged.
    assert step.verify is not None and list(step.verify.errors) == ["reasoning-checks"]


def test_commands_collect_for_the_verifier_and_one_that_fails_is_told(scored: Scored) -> None:
    result = scored.results["collected"]
    assert result.rewards == {"reward": 1.0}
    assert any("collect[1]" in note and "3" in note for note in result.warnings)


# --- scored again ----------------------------------------------------------------------------------------


def rewards_of(found: Rescoring) -> dict[str, dict[str, float] | None]:
    return {rollout.task_name: rollout.rewards for rollout in found.rollouts}


def test_scored_again_each_has_the_score_that_it_had(scored: Scored) -> None:
    assert rewards_of(scored.same) == {name: scored.results[name].rewards for name in WAYS}
    counts = scored.same.counts
    assert (counts.unchanged, counts.changed, counts.failed) == (len(WAYS), 0, 0)
    assert scored.asked_again == {}, "what was answered is not asked again"


def test_only_what_a_changed_rubric_asks_anew_is_asked(scored: Scored) -> None:
    assert rewards_of(scored.other)["judged-badly"] == scored.results["judged-badly"].rewards
    assert scored.asked_anew == {("judged-badly", "modest"): 1}
