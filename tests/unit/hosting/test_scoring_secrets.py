"""Secrets of the tasks that a stored rollout is scored by, now and at first, in what a scoring says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.stored_jobs import store_job, write_task

from benchflow.contracts.failures import failure_of
from benchflow.contracts.rescoring_basis import Scoring
from benchflow.errors import SandboxBusyError
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.scoring_basis import ScoringBasis
from benchflow.results.stored_rollouts import read_rollout
from benchflow.secrets import Redactor


async def test_secrets_of_both_tasks_are_taken_out(tmp_path: Path, state: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], tmp_path / "jobs", sandbox="noop")
    spec = read_rollout(next(job.glob("one__*"))).spec
    host: Any = SimpleNamespace()
    basis = ScoringBasis(host, spec, Scoring(name="n", digest="d", tasks={}, recorded={}), "run")
    for is_first, values in ((False, {"NOW": "streng-geheim"}), (True, {"FIRST": "verborgen"})):
        rollout = basis._hosted["ref", is_first] = Hosted(host, spec)
        rollout.redact = Redactor(values)

    text = "streng-geheim and verborgen"
    failure = basis.redact_failure(failure_of(SandboxBusyError(text, log_tail=text)))
    with pytest.raises(SandboxBusyError) as caught, basis.redact_errors():
        raise SandboxBusyError(text, log_tail=text)
    told = [failure.message, failure.log_tail, caught.value.message, caught.value.log_tail, basis.redact_text(text)]
    assert [one for one in told if one is None or "streng-geheim" in one or "verborgen" in one] == []
