"""Jobs whose agents put code into processes that stay for the verifier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.attack_package import AGENTS, copy_for_local
from support.in_process_worker import InProcessWorker

from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.planes.sandbox.driven.driven_sandbox import DrivenSandbox

pytestmark = pytest.mark.local

SOLVES = "echo 100 > /app/answer.txt\n"
PUT = "code was put into a process of the world"
MAIN = RunningProcess(
    pid=1,
    parent=0,
    session=1,
    start=1,
    state="S",
    name=b"idle",
    user="",
    marked=None,
    entered=False,
    argv=b"/dev/benchflow/idle",
    is_altered=True,
)
"""The first process of a container, with code of an agent's. Nobody reaches into that of a local sandbox."""


@pytest.fixture(autouse=True)
def attackers(worker: InProcessWorker) -> None:
    """Have the attackers of the package as agents."""
    worker.patch.setenv("BENCHFLOW_AGENTS_DIR", str(AGENTS))


def solved(name: str, root: Path) -> Path:
    """Return the task of an attack whose agent solves it, too."""
    copy = copy_for_local(name, root / "package" / name)
    script = copy / "environment" / "attack.sh"
    script.write_text(script.read_text() + SOLVES)
    return copy


async def run(worker: InProcessWorker, task: Path, name: str, **options: Any) -> RolloutResult:
    asked = {"sandbox": "local", "agents": ["attacker"], "job_name": name} | options
    [result] = await worker.results(await worker.submit(task, **asked))
    return result


def told(result: RolloutResult) -> list[tuple[str, str, str]]:
    return [(found.item, found.action, found.detail) for found in result.findings if found.is_tampering]


async def test_a_service_that_code_was_put_into_ends_before_the_verifier(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    result = await run(worker, copy_for_local("code-in-a-service", tmp_path / "attack"), "stopped")
    killed = ("kill_processes", "killed", f"{PUT}: python3 /srv/service.py")
    assert (result.error, result.reward, told(result)) == (None, 0.0, [killed])
    task = solved("code-in-a-service", tmp_path)
    zero = await run(worker, task, "zero", on_tampering="zero")
    assert (zero.reward, told(zero)) == (0.0, [killed])


async def test_no_verifier_runs_beside_code_that_cannot_be_ended_but_in_a_clean_room(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    strangers = DrivenSandbox.strangers

    async def with_main(sandbox: DrivenSandbox) -> list[RunningProcess]:
        return [*await strangers(sandbox), replace(MAIN)]

    worker.patch.setattr(DrivenSandbox, "strangers", with_main)
    task = solved("linked-key", tmp_path)
    (task / "environment" / "attack.sh").write_text(f"#!/bin/sh\n{SOLVES}")
    found = [("kill_processes", "found", f"{PUT}: /dev/benchflow/idle")]

    shared = await run(worker, task, "shared")
    assert shared.verifier_error is not None
    message = f"{PUT} that cannot be ended: /dev/benchflow/idle"
    assert (shared.verifier_error.type, shared.verifier_error.message) == ("VerifierError", message)
    assert (shared.rewards, shared.attempt, told(shared)) == (None, 1, found)

    separate = await run(worker, task, "separate", verify_in="separate")
    assert (separate.verifier_error, separate.reward, told(separate)) == (None, 1.0, found)
