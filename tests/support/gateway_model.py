"""The worker's side of the gateway, of a rollout that is there only for its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.activities.context import WorkerContext
from benchflow.activities.models import Model
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec, RunConfig, TaskRef
from benchflow.contracts.options import WorkerOptions
from benchflow.paths import StatePaths


def model_of(paths: StatePaths, notes: Path, id: str, run: RunConfig | None = None) -> Model:
    """Return it. paths: of the worker; notes: directory of what the session notes; run: by default a local one."""
    nothing: Any = None
    context = WorkerContext(
        client=nothing,
        paths=paths,
        store=nothing,
        host_id="host",
        queue="queue",
        stack="stack",
        slots=nothing,
        options=WorkerOptions(),
    )
    spec = RolloutSpec(
        id=id,
        job_id="job/j",
        job_name="j",
        name="task__1",
        index=0,
        task=TaskRef(name="task", digest="d", pack=ArtifactRef(uri="file:///t", sha256="0" * 64, size=1)),
        agent=AgentSpec(name="policy", model="openai/scripted"),
        repeat=0,
        run=run or RunConfig(sandbox="local"),
        origin=Origin(host_id="h", job_dir=str(notes.parent / "jobs" / "j")),
    )
    return Model(context, spec, notes)
