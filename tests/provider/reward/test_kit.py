"""Reward kits: what one is told, and what it has to report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.verified_sandboxes import InDocker, InLocal, sh, verifier

from benchflow.contracts.reward import AggregatePolicy, JudgeRubric, VerifyResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import RewardFileError, RewardMissingError, VerifierTimeoutError
from benchflow.planes.reward.kit import check_criteria, make_policy

RUBRIC = JudgeRubric.model_validate(
    {
        "criteria": [
            {"id": "tidy", "description": "It is tidy.", "weight": 3},
            {"id": "right", "description": "It is right."},
            {"id": "told", "description": "It is told.", "weight": 0},
        ]
    }
)
KIT = """
import json, os, pathlib, sys
told = json.loads(pathlib.Path(os.environ["BENCHFLOW_REWARD_KIT_MANIFEST"]).read_text())
seen = {name: value for name, value in os.environ.items() if name.startswith(("BENCHFLOW_REWARD", "BENCHFLOW_V"))}
details = {"told": told, "env": seen, "cwd": os.getcwd(), "argv": sys.argv}
pathlib.Path(os.environ["BENCHFLOW_REWARD_DETAILS_JSON"]).write_text(json.dumps(details))
pathlib.Path(os.environ["BENCHFLOW_REWARD_JSON"]).write_text(open("report.json").read())
"""
POLICY = {"method": "weighted_mean", "criteria": ["tidy", "right", "told"], "threshold": 0.7}


def kit(root: Path, report: Any, *, strategy: dict[str, Any] | None = None, **options: Any) -> Any:
    files = {"kit/reward.py": KIT, "report.json": json.dumps(report), "criteria.toml": "# read with the task"}
    declared = {"type": "reward-kit", "root": "kit", "criteria": "criteria.toml"} | (strategy or {})
    return verifier(root, files, strategy=declared, **({"rubrics": {"criteria.toml": RUBRIC}} | options))


def result(metrics: dict[str, float], reward: float) -> VerifyResult:
    return VerifyResult(reward=reward, items=metrics)


class KitTests:
    async def test_a_kit_is_told_where_everything_is_and_its_criteria_make_the_reward(
        self, own: Sandbox, tmp_path: Path
    ) -> None:
        report = {"metrics": {"tidy": 1, "right": 0.5, "told": 0}}
        result = await kit(tmp_path / "tests", report).run(own, tmp_path / "logs")
        assert result.rewards == {"reward": 0.875, "tidy": 1.0, "right": 0.5, "told": 0.0}
        details = json.loads((tmp_path / "logs" / "reward-details.json").read_text())
        env = {
            "BENCHFLOW_VERIFIER_DIR": "/tests",
            "BENCHFLOW_REWARD_KIT_ROOT": "/tests/kit",
            "BENCHFLOW_REWARD_KIT_MANIFEST": "/logs/verifier/reward-kit.json",
            "BENCHFLOW_REWARD_KIT_CRITERIA": "/tests/criteria.toml",
            "BENCHFLOW_REWARD_TEXT": "/logs/verifier/reward.txt",
            "BENCHFLOW_REWARD_JSON": "/logs/verifier/reward.json",
            "BENCHFLOW_REWARD_DETAILS_JSON": "/logs/verifier/reward-details.json",
        }
        assert (details["env"], details["cwd"], details["argv"]) == (env, "/tests", ["/tests/kit/reward.py"])
        assert details["told"] == {
            "verifier": "small",
            "strategy": "own",
            "verifier_dir": "/tests",
            "root": "/tests/kit",
            "reward_text": "/logs/verifier/reward.txt",
            "reward_json": "/logs/verifier/reward.json",
            "details_json": "/logs/verifier/reward-details.json",
            "criteria": "/tests/criteria.toml",
            "criteria_policy": POLICY | {"weights": {"tidy": 3.0, "right": 1.0}},
        }


@pytest.mark.docker
@pytest.mark.long
class TestKitsInDocker(KitTests, InDocker):
    """The image has no Python under any name but python3."""


@pytest.mark.local
class TestKits(KitTests, InLocal):
    async def test_an_entrypoint_and_outputs_may_lie_elsewhere(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, "mkdir /elsewhere && echo '{\"reward\": 1}' >/elsewhere/reward.json")
        outputs = {"reward_json": "/elsewhere/reward.json", "details_json": "/elsewhere/details.json"}
        strategy = {"entrypoint": "run.py", "root": "tests/kit", "criteria": None}
        made = kit(tmp_path / "tests", {"reward": 0.25, "cases": 4}, strategy=strategy, outputs=outputs)
        (tmp_path / "tests/kit/reward.py").rename(tmp_path / "tests/kit/run.py")
        result = await made.run(own, tmp_path / "logs")
        assert result.rewards == {"reward": 0.25, "cases": 4.0}
        assert {"reward.json", "reward-details.json"} <= {path.name for path in (tmp_path / "logs").iterdir()}
        told = json.loads((tmp_path / "logs" / "reward-details.json").read_text())
        assert told["argv"] == ["/tests/kit/run.py"]
        assert "BENCHFLOW_REWARD_KIT_CRITERIA" not in told["env"] and "criteria_policy" not in told["told"]

    async def test_a_kit_that_fails_is_a_missing_reward_that_shows_why(self, own: Sandbox, tmp_path: Path) -> None:
        made = kit(tmp_path / "tests", {})
        (tmp_path / "tests/kit/reward.py").write_text("raise SystemExit('no such corpus')")
        with pytest.raises(RewardMissingError) as caught:
            await made.run(own, tmp_path / "logs")
        assert caught.value.log_tail == "no such corpus"

    async def test_a_kit_that_hangs_is_named_in_the_error(self, own: Sandbox, tmp_path: Path) -> None:
        made = kit(tmp_path / "tests", {}, config={"timeout_sec": 0.3})
        (tmp_path / "tests/kit/reward.py").write_text("import time; time.sleep(60)")
        with pytest.raises(VerifierTimeoutError) as caught:
            await made.run(own, tmp_path / "logs")
        assert caught.value.file == "/tests/kit/reward.py"

    async def test_a_metric_that_was_not_declared_is_an_error(self, own: Sandbox, tmp_path: Path) -> None:
        with pytest.raises(RewardFileError, match="there is no metric told; size is not a declared criterion"):
            await kit(tmp_path / "tests", {"tidy": 1, "right": 1, "size": 1}).run(own, tmp_path / "logs")


@pytest.mark.parametrize(
    ("metrics", "reward", "said"),
    [
        ({"tidy": 1}, 1, "there is no metric right, told"),
        ({"tidy": 1, "right": 1, "told": 1, "a": 1, "b": 1}, 1, "a, b is not a declared criterion"),
        ({}, 1, "there is no metric tidy, right, told"),
        ({"tidy": 1, "right": 1, "told": 1.5}, 1, "metrics.told: 1.5 is outside [0, 1]"),
        ({"tidy": 1, "right": 0, "told": 1}, 1, "says 1.0 while the criteria come to 0.75 by weighted_mean"),
        ({"tidy": 1, "right": 0, "told": 1}, 0.7500001, "says 0.7500001 while"),
    ],
)
def test_metrics_that_are_not_the_criteria_are_refused(metrics: dict[str, float], reward: float, said: str) -> None:
    policy = AggregatePolicy(weights={"tidy": 3, "right": 1})
    with pytest.raises(RewardFileError) as caught:
        check_criteria(result(metrics, reward), RUBRIC, policy)
    assert said in str(caught.value) and caught.value.remedy


def test_a_reward_that_is_what_the_criteria_come_to_passes() -> None:
    policy = AggregatePolicy(weights={"tidy": 3, "right": 1})
    check_criteria(result({"tidy": 1, "right": 0, "told": 0}, 0.75 + 1e-12), RUBRIC, policy)


def test_a_policy_of_the_document_goes_before_the_weights_of_the_criteria(tmp_path: Path) -> None:
    declared = {"aggregate_policy": {"method": "all_pass", "weights": {"right": 1}, "threshold": 0.2}}
    document = kit(tmp_path, {}, outputs=declared).document
    assert document is not None
    assert make_policy(document, RUBRIC) == AggregatePolicy(method="all_pass", weights={"right": 1}, threshold=0.2)
