"""Checkpoints: captured states of a world, to which a rollout can be restored and from which children start.

A checkpoint has three layers of one moment: the sandbox's files, the databases of its world, and the agent's session. A
consistency token (`fence`) that was written for this checkpoint alone is in the files and in the record; the snapshot
of the databases has a token of its own in their copies. A sandbox in which one of them differs is not of this moment.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.contracts.environment import Observation, StateSnapshot
from benchflow.contracts.images import ImageRef
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rollout_records import AgentSession, Answer


class FilesLayer(Model):
    """The files layer of a checkpoint: an image of the sandbox."""

    image: ImageRef
    """Image from which sandboxes start on the host that has it."""

    digest: str
    """Reference of the image that was captured; `image` has another one on a host that fetched the pack."""

    size_bytes: int | None = None
    """Bytes that have changed since the sandbox's own image; None: not measured. No provider measures it."""

    seconds: float
    """Seconds that the capture took, without discarded attempts."""

    pack: ArtifactRef | None = None
    """The same files in the artifact store, for any host; None if the checkpoint is not portable."""


class StateLayer(Model):
    """The state layer of a checkpoint: a snapshot of the world's databases."""

    snapshot: StateSnapshot
    """The snapshot, whose copies of the databases are in the files layer."""

    digest: str
    """Sha256 over the paths and sha256s of all files of the snapshot."""

    size_bytes: int
    """Bytes of all files of the snapshot."""

    seconds: float
    """Seconds that the snapshot took, without discarded attempts."""


class SessionBegin(Model):
    """The origin of an agent session, from which the session can be replayed."""

    steps_done: int
    """Number of steps, counted from the root, that were done when the session began."""

    checkpoint: Checkpoint | None = None
    """Checkpoint of the world at that moment. None: a replay starts from the world as the root's was provisioned if
    `steps_done` is 0, and is not possible otherwise.
    """

    answers: dict[int, list[Answer]] = {}
    """Answers to the agent's questions in this session, in their order, by the index of the step."""


class SessionLayer(Model):
    """The session layer of a checkpoint: the agent's session at that moment."""

    session: AgentSession
    """The session as it was opened with the agent."""

    rung: Rung
    """Best resume mode that is expected to work in a copy of the world."""

    said_bytes: int = 0
    """Bytes of the agent's journal `out` at the capture. Only earlier versions wrote it; else 0."""

    requests: int = 0
    """Number of request lines in the rollout's record of model calls at the capture; 0 without a gateway."""

    prefix: str | None = None
    """Sha256 of the last main request, normalised. No version writes it; None."""

    begun: SessionBegin | None = None
    """Origin of the session; None if it is not known, so that the session cannot be replayed."""

    seconds: float = 0.0
    """Seconds that the capture of the session took. No version writes it; 0."""

    captured: dict[str, Any] | None = None
    """Return value of the agent's `Session.capture`, which `Agent.restore` gets; None if the files are all it needs."""


class WorldDigests(Model):
    """Digests by which a world that an agent reached is compared with the one that a replay of its session reaches."""

    workspace: str
    """Sha256 of the names, kinds, modes and contents of the files in the workspace, without `__pycache__`."""

    rows: str | None = None
    """Digest of the rows of all tables; None if the world has no state."""


class Checkpoint(Model):
    """The record of a checkpoint: its place in the tree, and its layers."""

    id: str
    """Id of the checkpoint: `bf-<node>-<hash>`. Its record on a host and its images are named by it."""

    rollout: str
    """Workflow id of the tree's root. The checkpoint is removed after the root's end, unless it is retained."""

    node: str
    """Node of the tree whose state it is; `<node>-session` if it was taken for the replay of a session."""

    provider: str
    """Name of the sandbox provider that captured it."""

    host_id: str
    """Id of the host that has its layers."""

    queue: str
    """Task queue of that host."""

    workdir: str
    """Working directory of the sandbox."""

    created_at: datetime
    """Time at which its capture was complete, in UTC."""

    fence: str
    """Consistency token: random hex digits, which are in a file of the sandbox as well."""

    steps_done: int
    """Number of steps, counted from the root, that led to the node."""

    attempts: int = 1
    """Number of captures until all layers were of one moment; 1 if the first was."""

    files: FilesLayer
    """The files layer."""

    state: StateLayer | None = None
    """The state layer; None if the world has no state."""

    session: SessionLayer | None = None
    """The session layer; None if no session was open."""

    baseline: StateSnapshot | None = None
    """Snapshot of the world's state with which the agent began, for diffs in copies; None if the world has no state."""

    by_layer: dict[str, float] = {}
    """Seconds of all attempts, by layer: `quiesce`, `state`, `files`."""

    record: ArtifactRef | None = None
    """Archive in the artifact store of the results that the rollout, and those above it, had written by then; None if
    the checkpoint is not portable.
    """

    digests: WorldDigests | None = None
    """Digests of the world that a replay of the session must reach; None if its resume mode is not `replay`, or the
    session has no known origin.
    """

    observed: tuple[Observation, ...] = ()
    """Responses of the world's observed URLs just before the capture, without bodies; those of a copy must be equal."""

    @property
    def rung(self) -> Rung | None:
        """Return the best resume mode of its session; None if it has no session, so that there is none to lose."""
        return self.session.rung if self.session is not None else None

    @property
    def is_portable(self) -> bool:
        """Return whether other hosts can restore it."""
        return self.files.pack is not None


SessionBegin.model_rebuild()
SessionLayer.model_rebuild()
