"""The findings of a rollout's hardening as its result and the nodes of its tree have them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.stored_jobs import Past, store_job, write_task

from benchflow.contracts.reward import HardeningFinding, HardeningReport, VerifyResult
from benchflow.contracts.rollout_records import Failure, Step, StepOutcome, TurnResult
from benchflow.paths import RolloutPaths
from benchflow.results.hardening_findings import MAX_FINDINGS, collect_findings, limit_findings, make_hardening_metadata
from benchflow.trajectories.nodes import load_rollout

RESTORED = HardeningFinding(item="verify_tools", action="restored", path="/usr/bin/diff", weight="tampering")
WITHHELD = Failure(type="TamperingError", category="reward_tampering", message="withheld")


def notes(count: int) -> list[HardeningFinding]:
    names = [f"/app/{number}/conftest.py" for number in range(count)]
    return [HardeningFinding(item="cleanup_conftests", action="removed", path=name) for name in names]


def step(name: str | None, report: HardeningReport | None = None, failure: Failure | None = None) -> StepOutcome:
    verify = None if failure is not None else VerifyResult(reward=1.0, metadata=make_hardening_metadata(report))
    turn = TurnResult(stop_reason="end_turn")
    return StepOutcome(step=Step(index=0, name=name, agent="a"), turn=turn, verify=verify, verifier_error=failure)


def test_findings_have_the_name_of_their_step() -> None:
    of = {"first": HardeningReport(findings=notes(1)), "second": HardeningReport(findings=[RESTORED], left_out=2)}
    fields = collect_findings([step(name, report) for name, report in of.items()], lambda name: None)
    assert [(one.step, one.path, one.weight) for one in fields["findings"]] == [
        ("first", "/app/0/conftest.py", "note"),
        ("second", "/usr/bin/diff", "tampering"),
    ]
    assert (fields["findings_left_out"], fields["n_tampering"]) == (2, 1)


def test_notes_do_not_push_tampering_out_of_a_result() -> None:
    report = limit_findings(HardeningReport(findings=[*notes(200), RESTORED], left_out=3))
    assert report.findings == [RESTORED, *notes(MAX_FINDINGS - 1)]
    assert report.left_out == 3 + 201 - MAX_FINDINGS


def test_the_findings_of_a_step_without_a_result_are_read_from_its_evidence() -> None:
    stored = {"second": HardeningReport(findings=[RESTORED, *notes(MAX_FINDINGS)])}
    fields = collect_findings([step("first"), step("second", failure=WITHHELD)], stored.get)
    assert {one.step for one in fields["findings"]} == {"second"}
    assert (len(fields["findings"]), fields["findings_left_out"], fields["n_tampering"]) == (MAX_FINDINGS, 1, 1)


@pytest.mark.parametrize("metadata", [{}, {"hardening": "yes"}, {"hardening": {"findings": [{"item": 1}]}}])
def test_what_a_verifier_calls_hardening_is_no_finding(metadata: dict[str, object]) -> None:
    own = step(None).model_copy(update={"verify": VerifyResult(reward=1.0, metadata=metadata)})
    assert collect_findings([own], lambda name: None) == {"findings": [], "findings_left_out": 0, "n_tampering": 0}


def test_a_stored_node_has_the_findings_of_its_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "state"))
    task = write_task(tmp_path / "tasks", "one", steps=["first", "second"])
    job = asyncio.run(store_job([task], tmp_path / "jobs", {"one": Past({"first": 1.0, "second": 1.0})}))
    [directory] = job.glob("one__*")
    report = RolloutPaths(directory).hardening("second")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(HardeningReport(findings=[RESTORED]).model_dump_json())
    nodes = load_rollout(directory)
    assert [node.findings for node in nodes.values()] == [(), (), (RESTORED,)]
