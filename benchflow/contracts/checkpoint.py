"""A checkpoint: a state of the world to which a rollout can go back, and from which others can go on.

Three layers that belong to one moment: the sandbox's files, the databases of its world, the agent's session. A fence, a
value that was written for this checkpoint alone, is in the files, in a database of the state and in the record; a copy
in which it differs is not of this moment.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.environment import Observation, StateSnapshot
from benchflow.contracts.images import ImageRef
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rollout import AgentSession, Answer


class FilesLayer(Model):
    """The sandbox's files. image: to start from, on the host where they were captured; pack: the same for any host,
    None where it is not portable. digest: of what was captured, as the provider tells it. size_bytes: of what has
    changed since the sandbox's own image, None where the provider does not know.
    """

    image: ImageRef
    digest: str
    size_bytes: int | None = None
    seconds: float
    pack: ArtifactRef | None = None


class StateLayer(Model):
    """The databases of the world. digest: over those of all files of the snapshot, which lies in the files layer."""

    snapshot: StateSnapshot
    digest: str
    size_bytes: int
    seconds: float


class SessionBegin(Model):
    """Where a session began, from where another one can be driven after it. steps_done: before it began.

    checkpoint: of the world then; None for that of the root, as it is provisioned. answers: by the step, those that the
    agent was given to what it asked.
    """

    steps_done: int
    checkpoint: Checkpoint | None = None
    answers: dict[int, list[Answer]] = {}


class SessionLayer(Model):
    """The agent's session. rung: the best way to go on with it. said_bytes: of its journal `out` when it was quiet.

    requests: lines of requests in the record of model calls then; prefix: sha256 of the last main request, normalised,
    None where no call was recorded. begun: None where nobody can go back there.
    """

    session: AgentSession
    rung: Rung
    said_bytes: int = 0
    requests: int = 0
    prefix: str | None = None
    begun: SessionBegin | None = None
    seconds: float = 0.0
    captured: dict[str, Any] | None = None
    """What the agent itself has kept of it, beside the sandbox's files."""


class WorldDigests(Model):
    """By which two worlds are compared that were reached in different ways: of the files of the workspace, and of the
    rows of all tables, None where there are none.
    """

    workspace: str
    rows: str | None = None


class Checkpoint(Model):
    """id: names it on its host, and its images. rollout: the workflow id of the root; node: of its tree.

    host_id, queue: where its layers lie. steps_done: how many steps led to it. attempts: captures until one was not
    torn. baseline: the state that the agent began with. by_layer: seconds, `quiesce` included. record: what the rollout
    has written until there, for other hosts. digests: where a session can be driven to it again.
    """

    id: str
    rollout: str
    node: str
    provider: str
    host_id: str
    queue: str
    workdir: str
    created_at: datetime
    fence: str
    steps_done: int
    attempts: int = 1
    files: FilesLayer
    state: StateLayer | None = None
    session: SessionLayer | None = None
    baseline: StateSnapshot | None = None
    by_layer: dict[str, float] = {}
    record: ArtifactRef | None = None
    digests: WorldDigests | None = None
    observed: tuple[Observation, ...] = ()
    """Answers of the world's declared URLs just before, without their bodies."""

    @property
    def rung(self) -> Rung | None:
        """How its session goes on; None without one, which loses nothing."""
        return self.session.rung if self.session is not None else None

    @property
    def is_portable(self) -> bool:
        return self.files.pack is not None


SessionBegin.model_rebuild()
SessionLayer.model_rebuild()
