"""The state of a job as the Web UI shows it."""

from __future__ import annotations

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.counts import Counts
from benchflow.contracts.job import JobInput, Origin
from benchflow.contracts.rollout_records import RewardKind, RolloutOutcome
from benchflow.workflows.job_details import format_job_details

PACK = ArtifactRef(uri="file:///x", sha256="0" * 64, size=0)


def job(*agents: str) -> JobInput:
    origin = Origin(host_id="h", job_dir="/jobs/j")
    return JobInput(
        id="job/j-1", name="j", spec=PACK, origin=origin, total=9, pending=[], concurrency=1, agents=list(agents)
    )


def ended(index: int, rewards: dict[str, float] | None, kind: RewardKind = "measured") -> RolloutOutcome:
    status = "errored" if rewards is None else "passed" if rewards.get("reward", 0) >= 1 else "failed"
    return RolloutOutcome(
        id=f"job/j-1/r/t/a/{index}", index=index, attempt=1, status=status, rewards=rewards, reward_kind=kind
    )


def shown(job: JobInput, *outcomes: RolloutOutcome) -> list[str]:
    counts = Counts()
    for outcome in outcomes:
        counts = counts.plus(outcome, job.agent_of(outcome.index))
    return [line for line in format_job_details(job, counts, 2, outcomes).splitlines() if line]


def test_each_agent_has_a_mean_of_its_own_and_the_job_has_none() -> None:
    outcomes = [ended(0, {"reward": 1.0}), ended(1, {"reward": 0.0}), ended(2, {"reward": 0.5}), ended(3, None)]
    lines = shown(job("oracle", "nop"), *outcomes)
    assert lines[0] == "**j**: 4 of 9 done, 2 running"
    assert lines[1] == "1 passed · 2 failed · 1 errored · 0 cancelled"
    assert lines[2:4] == ["oracle: mean reward 0.750 (n=2)", "nop: mean reward 0.000 (n=1)"]


def test_values_of_states_and_rewards_without_a_scalar_are_in_no_mean_of_rewards() -> None:
    outcomes = [ended(0, {"reward": 0.5}), ended(1, {"reward": 0.25}, "value"), ended(2, {"correctness": 1.0})]
    lines = shown(job("oracle"), *outcomes)
    assert lines[2] == "oracle: mean reward 0.500 (n=1), mean V(s) 0.250 (n=1)"
    assert lines[-1].split(" | ")[2] == "correctness 1"


def test_a_job_of_an_earlier_version_shows_no_mean() -> None:
    before = Counts.model_validate({"passed": 3, "reward_sum": 3.0, "rewarded": 3})
    counts = before.plus(ended(0, {"reward": 1.0}), job().agent_of(0))
    assert (counts.passed, counts.rewarded, counts.agents) == (4, 4, {})
    assert "reward_sum" not in counts.model_dump()
    assert "mean" not in format_job_details(job(), counts, 0, [])
