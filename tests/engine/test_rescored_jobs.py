"""Jobs that score stored rollouts again: what their own results say, and how several of them share one name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.theatre import Theatre

from benchflow.rescoring import Request, rescore


@pytest.fixture(autouse=True)
def drawn(theatre: Theatre) -> None:
    theatre.hall.draws = True


async def test_a_rollout_whose_child_cannot_be_scored_has_no_reward_in_the_scoring_jobs_results(
    theatre: Theatre,
) -> None:
    # Its step before the branching is scored, and is not its reward.
    job = await theatre.submit(theatre.stepped(2, final=True), mode={"kind": "grpo", "n": 2, "at": 1})
    (result,) = await theatre.results(job)
    assert result.steps[0].verify is not None
    child = Path(str(result.directory)) / "children" / "n1.0"
    (child / "steps" / "s1" / "verifier" / "reward.txt").unlink()
    scoring = []
    (record,) = (await rescore(job.directory.root, Request(name="anew"), on_start=scoring.append)).rollouts
    assert (record.outcome, record.rewards) == ("failed", None)
    (own,) = scoring[0].results()
    assert (own.status, own.rewards) == ("errored", None)
    assert own.error is not None and record.error is not None and own.error.message == record.error.message
