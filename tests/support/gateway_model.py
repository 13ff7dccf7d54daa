"""The worker's side of the gateway, of a rollout that is there only for its calls."""

from __future__ import annotations

from pathlib import Path

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec, RunConfig, TaskRef
from benchflow.hosting.model import RolloutModel
from benchflow.paths import JobPaths, StatePaths
from benchflow.planes.agent.registry import find_record


def model_of(paths: StatePaths, notes: Path, id: str, run: RunConfig | None = None) -> RolloutModel:
    """Return it. paths: of the worker; notes: directory of what the session notes; run: by default a local one."""
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
    results = JobPaths(Path(spec.origin.job_dir)).rollout(spec.name)
    return RolloutModel(paths, spec, find_record(spec.agent), results, None, notes)
