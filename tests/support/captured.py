"""What was captured of a sandbox, as the checkpoint that the engine would make of it."""

from __future__ import annotations

from datetime import UTC, datetime

from benchflow.checkpoints import Captured
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.sandbox import Sandbox


def checkpoint_of(captured: Captured, sandbox: Sandbox) -> Checkpoint:
    ref = sandbox.ref
    return Checkpoint(
        id="c",
        rollout="r",
        node="n0",
        provider=ref.provider,
        host_id=ref.host_id,
        queue=ref.queue,
        workdir=ref.workdir,
        created_at=datetime.now(UTC),
        fence=captured.fence,
        steps_done=0,
        attempts=captured.attempts,
        files=captured.files,
        state=captured.state,
        by_layer=dict(captured.by_layer),
    )
