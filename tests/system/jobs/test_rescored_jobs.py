"""A job that was run is scored again: by the same scoring to the same numbers, by another only where it differs."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.running import run_tasks
from test_scored_jobs import write_task

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.rescoring import Rescoring, RescoringRequest, rescore
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

pytestmark = [pytest.mark.local, pytest.mark.long]

REPEATS = 12
"""Of each of four tasks. One of each is scored again in `test_scored_jobs`."""

# Every rollout has a reward of its own.
AT_RANDOM = (
    'n=$(od -An -N2 -tu2 /dev/urandom | tr -d \' \'); echo "0.$n" > /app/answer; echo "report $n" > /app/report.md\n'
)
READS = 'read reward < /app/answer; printf \'{"reward": %s, "length": 3}\' "$reward" > /logs/verifier/reward.json\n'
SCRIPT = {"test.sh": f"#!/bin/sh\n{READS}"}
TABLE = """
reward:
  funcs:
    - {type: string-match, name: wording, path: report.md, expected: "[0-9]*[02468]", match: regex}
    - {type: code-exec, name: lines, command: 'test $(wc -l < report.md) -eq 1'}
    - {type: no-reward-hacking}
  aggregate: {method: weighted_mean, weights: {output: 2, action: 1}}
"""
RUBRIC = """
[[criterion]]
id = "clear"
description = "The report is clear."
type = "numeric"

[[criterion]]
id = "short"
description = "The report is short."
space = "reasoning"

[judge]
model = "openai/gpt-judge"
"""


class ScriptedJudge:
    """Judges each report by its own number. asked: how often, for each criterion."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __call__(self, request: ModelRequest) -> dict[str, Any]:
        names = ("clear", "short", "brief")
        criterion = next(name for name in names if f"The report is {name}." in request.text)
        self.asked[criterion] += 1
        number = int(request.text.partition("report ")[2].split()[0]) if "report " in request.text else 0
        score = number % 101 if criterion == "clear" else number % 2
        return {"tools": [{"name": "verdict", "arguments": {"score": score, "reasoning": "By its number."}}]}


def tasks(root: Path) -> list[Path]:
    script = "{type: script, command: ./test.sh}"
    judged = "{type: llm-judge, rubric: rubric.toml, input_dir: /app}"
    return [
        write_task(root, "plain", script, AT_RANDOM, files=SCRIPT),
        write_task(root, "tabled", script, AT_RANDOM, files=SCRIPT, front=TABLE),
        write_task(root, "judged", judged, AT_RANDOM, files={"rubric.toml": RUBRIC}),
        write_task(root, "without", script, "true\n", files=SCRIPT),
    ]


def rewards(results: dict[str, RolloutResult]) -> dict[str, dict[str, float] | None]:
    return {name: result.rewards for name, result in results.items()}


def now(found: Rescoring) -> dict[str, dict[str, float] | None]:
    return {rollout.rollout_name: rollout.rewards for rollout in found.rollouts}


def test_scored_again_every_rollout_has_exactly_its_score(module_jobs: Path, tmp_path: Path) -> None:
    judge, repeats = ScriptedJudge(), REPEATS
    with pytest.MonkeyPatch.context() as patch, ScriptedModel(judge) as model:
        patch.setenv("OPENAI_API_KEY", "a-key-of-nobodys")
        options = {"judge": {"base_url": model.openai_base_url}, "sandbox": "local", "keep": "workspace"}
        run_tasks(tasks(tmp_path), tmp_path / "jobs", job_name="again", repeats=repeats, concurrency=4, **options)
        job = tmp_path / "jobs" / "again"
        live = {result.rollout_name: result for result in _results(job)}
        assert len(live) == 4 * repeats
        measured = [result for result in live.values() if result.rewards is not None]
        # A verifier that finds nothing to read is an error, now as then.
        assert len(measured) == 3 * repeats
        assert len({str(result.rewards) for result in measured}) > len(measured) // 2
        asked = dict(judge.asked)
        assert asked == {"clear": repeats, "short": repeats}

        same = asyncio.run(rescore(job))
        assert now(same) == rewards(live)
        assert (same.counts.unchanged, same.counts.changed) == (3 * repeats, 0)
        assert dict(judge.asked) == asked, "what was answered is not asked again"

        other = tmp_path / "tasks"
        other.mkdir()
        changed = tasks(other)
        rubric = changed[2] / "verifier" / "rubric.toml"
        rubric.write_text(RUBRIC.replace("The report is short.", "The report is brief."))
        found = asyncio.run(rescore(job, RescoringRequest(tasks=other, include=["plain", "judged"])))
        assert dict(judge.asked) == asked | {"brief": repeats}
        before, after = rewards(live), now(found)
        assert {name: after[name] for name in after if name.startswith("plain")} == {
            name: before[name] for name in before if name.startswith("plain")
        }
        for name in (name for name in after if name.startswith("judged")):
            old, new = before[name], after[name]
            assert old is not None and new is not None and old["clear"] == new["clear"]


def _results(job: Path) -> list[RolloutResult]:
    return [RolloutResult.model_validate_json(file.read_bytes()) for file in sorted(job.glob("*/result.json"))]
