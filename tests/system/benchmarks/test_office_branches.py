"""Children in the office: each goes on in a world of its own, with the same mails, and settles it for itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.office_agents import PACKAGE

from benchflow.contracts.config import JobConfig
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import plan_job, submit
from benchflow.paths import RolloutPaths

pytestmark = [pytest.mark.local, pytest.mark.long]


@pytest.mark.parametrize("manifest", ["environment.toml", "entrypoint.toml"], ids=["services", "image"])
def test_each_child_has_the_whole_world_for_itself(engine: Path, manifest: str) -> None:
    config = JobConfig.model_validate(
        {
            "paths": [PACKAGE / "tasks" / "archive-newsletters"],
            "jobs_dir": engine,
            "agents": ["oracle"],
            "sandbox": "local",
            "environment_manifest": PACKAGE / manifest,
            "branch": {"policy": {"kind": "group", "n": 3}},
        }
    )

    async def finished() -> RolloutResult:
        job = await submit(plan_job(config))
        await job.wait()
        (result,) = job.results()
        return result

    result = asyncio.run(finished())
    assert result.error is None, result.error
    assert (result.reward, result.reward_kind) == (1.0, "value")
    assert result.directory is not None
    paths = RolloutPaths(Path(result.directory))
    diffs = [json.loads((paths.child(f"n0.{n}").state(None) / "diff.json").read_bytes()) for n in range(3)]
    # Each archived the same mails: had they shared a world, one of them would have found nothing to do.
    changed = [sum(table["n_changed"] for one in diff["databases"] for table in one["tables"]) for diff in diffs]
    assert changed[0] > 0 and len(set(changed)) == 1
