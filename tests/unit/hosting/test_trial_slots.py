"""The slot of a world's trial that does not come to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchflow.contracts.job import Origin
from benchflow.errors import SandboxBusyError
from benchflow.host import HostSlots
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_trial import HostedTrial
from benchflow.hosting.interruption import set_cancellation_check
from benchflow.hosting.worker_host import Host
from benchflow.jobs.trial_job import freeze_trial, plan_trial
from benchflow.paths import StatePaths
from benchflow.store import Store
from benchflow.testing.noop_sandbox import NoopDriver

MANIFEST = '[environment]\nname = "desk"\nimage = "desk:1"\n'


@pytest.mark.parametrize(
    ("error", "is_cancelled", "n_taken"),
    [
        (SandboxBusyError("it is busy"), False, 0),
        (asyncio.CancelledError(), True, 0),
        # Its worker stops: the next attempt has the slot.
        (asyncio.CancelledError(), False, 1),
    ],
    ids=["error", "cancelled", "stopped"],
)
async def test_a_trial_that_is_cut_short_frees_its_slot(
    error: BaseException,
    is_cancelled: bool,
    n_taken: int,
    tmp_path: Path,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def remove(driver: NoopDriver, name: str) -> None:
        raise error

    monkeypatch.setattr(NoopDriver, "remove", remove)
    set_cancellation_check(lambda: is_cancelled)
    manifest = tmp_path / "environment.toml"
    manifest.write_text(MANIFEST)
    store, slots = Store.open(), HostSlots(tmp_path / "slots", 1, 1.0)
    spec = await freeze_trial(plan_trial(manifest, None, "noop", []), "trial", store)
    host = Host(paths=StatePaths.default(), store=store, host_id="h", queue="q", stack="s", slots=slots, options=None)  # type: ignore[arg-type]
    rollout = await Hosted.load(host, spec.rollout("job/trial", Origin(host_id="h", job_dir=str(tmp_path)), 0))
    with pytest.raises(type(error)):
        await HostedTrial(rollout, "run").run()
    assert len(slots.taken()) == n_taken
