"""Reward kits: Python programs of a verifier that report a metric for each declared criterion.

This module makes a kit's environment variables and manifest, and checks its metrics.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from benchflow.contracts.reward import AggregatePolicy, JudgeRubric, VerifyResult
from benchflow.contracts.verifier import VerifierDocument, VerifierStrategy
from benchflow.errors import RewardFileError
from benchflow.planes.reward.aggregate import aggregate_metrics
from benchflow.planes.reward.script_reward import REWARD_JSON
from benchflow.planes.reward.strict import AGREEMENT

MANIFEST = "/logs/verifier/reward-kit.json"
DETAILS = "/logs/verifier/reward-details.json"
"""Default path for the details that a kit may write, if the verifier's document declares none."""


def format_command(program: str) -> str:
    """Return the shell command that runs a kit's program."""
    quoted = shlex.quote(program)
    # An image may have Python under either name.
    return f"if command -v python3 >/dev/null 2>&1; then python3 {quoted}; else python {quoted}; fi"


def make_env(target: str, root: str, criteria: str | None, document: VerifierDocument) -> dict[str, str]:
    """Return a kit's environment variables.

    Args:
        target: Directory of the verifier in the sandbox.
        root: Root directory of the kit there.
        criteria: File with the criteria there; None if there is none.
        document: The verifier's document.
    """
    outputs = document.outputs
    env = {
        "BENCHFLOW_VERIFIER_DIR": target,
        "BENCHFLOW_REWARD_KIT_ROOT": root,
        "BENCHFLOW_REWARD_KIT_MANIFEST": MANIFEST,
        "BENCHFLOW_REWARD_TEXT": outputs.reward_text,
        "BENCHFLOW_REWARD_JSON": outputs.reward_json,
        "BENCHFLOW_REWARD_DETAILS_JSON": outputs.details_json or DETAILS,
    }
    return env if criteria is None else env | {"BENCHFLOW_REWARD_KIT_CRITERIA": criteria}


def format_manifest(document: VerifierDocument, env: Mapping[str, str], rubrics: Mapping[str, JudgeRubric]) -> str:
    """Return a kit's manifest as JSON: verifier, paths, and the policy that makes the reward of its criteria.

    Args:
        document: The verifier's document.
        env: Variables that `make_env` returned.
        rubrics: Rubrics of the task, by path.
    """
    rubric = find_criteria(document.strategy, rubrics)
    manifest: dict[str, Any] = {
        "verifier": document.name,
        "strategy": document.default_strategy,
        "verifier_dir": env["BENCHFLOW_VERIFIER_DIR"],
        "root": env["BENCHFLOW_REWARD_KIT_ROOT"],
        "reward_text": env["BENCHFLOW_REWARD_TEXT"],
        "reward_json": env["BENCHFLOW_REWARD_JSON"],
        "details_json": env["BENCHFLOW_REWARD_DETAILS_JSON"],
        "criteria": env.get("BENCHFLOW_REWARD_KIT_CRITERIA"),
    }
    if rubric is not None:
        policy = make_policy(document, rubric)
        manifest["criteria_policy"] = {
            "method": policy.method,
            "criteria": [criterion.id for criterion in rubric.criteria],
            "weights": policy.weights,
            "threshold": policy.threshold,
        }
    return json.dumps(manifest, indent=2) + "\n"


def find_criteria(strategy: VerifierStrategy, rubrics: Mapping[str, JudgeRubric]) -> JudgeRubric | None:
    """Return the criteria that a kit must report; None if none are declared, or in a format of the kit's own."""
    return rubrics.get(strategy.criteria or "") if strategy.type == "reward-kit" else None


def make_policy(document: VerifierDocument, rubric: JudgeRubric) -> AggregatePolicy:
    """Return the policy that makes one reward of the criteria: the document's, else their own weights and scoring."""
    if document.outputs.aggregate_policy is not None:
        return document.outputs.aggregate_policy
    # A criterion of weight 0 is reported and does not count.
    weights = {criterion.id: criterion.weight for criterion in rubric.criteria if criterion.weight > 0}
    return AggregatePolicy(method=rubric.scoring.aggregation, weights=weights, threshold=rubric.scoring.threshold)


def check_criteria(result: VerifyResult, rubric: JudgeRubric, policy: AggregatePolicy) -> None:
    """Raise `RewardFileError` unless the metrics are exactly the criteria and the reward agrees with the policy.

    Each metric must be in [0, 1], whatever the scale of its criterion.
    """
    declared = [criterion.id for criterion in rubric.criteria]
    missing = [name for name in declared if name not in result.items]
    undeclared = sorted(result.items.keys() - set(declared))
    if missing or undeclared:
        parts = [f"there is no metric {', '.join(missing)}"] if missing else []
        parts += [f"{', '.join(undeclared)} is not a declared criterion"] if undeclared else []
        raise RewardFileError(
            "; ".join(parts),
            file=REWARD_JSON,
            key="metrics",
            remedy="report the declared criteria, all of them and no other",
        )
    for name, value in result.items.items():
        if not 0.0 <= value <= 1.0:
            raise RewardFileError(
                f"{value!r} is outside [0, 1]",
                file=REWARD_JSON,
                key=f"metrics.{name}",
                remedy="report a criterion's share of what can be reached",
            )
    expected = aggregate_metrics(result.items, policy)
    assert result.reward is not None
    if abs(result.reward - expected) > AGREEMENT:
        raise RewardFileError(
            f"says {result.reward!r} while the criteria come to {expected!r} by {policy.method}",
            file=REWARD_JSON,
            key="reward",
            remedy="leave out the reward, and it is made of the criteria",
        )
