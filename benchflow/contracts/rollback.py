"""Roll-backs of a rollout: the request, its response, and the activity that reverts what was written."""

from __future__ import annotations

from benchflow.contracts.base import Model
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout_records import AgentSession, Step, Usage
from benchflow.contracts.sandbox import SandboxRef


class Restore(Model):
    """Input of the `restore` update: a request to roll a rollout back."""

    node: str
    """Id of the node whose state the rollout returns to; it needs a checkpoint."""


class Restored(Model):
    """Result of the `restore` update: a rollout that was rolled back."""

    rollout: str
    """Workflow id of the rollout that was rolled back; for a node of a child, the child's."""

    node: str
    """Id of the node whose state the rollout is in again."""

    undone: list[str]
    """Ids of the nodes that were reverted: they are no longer the rollout's."""


class UndoInput(Model):
    """Input of `undo`, which sets aside all that a rollout has written since the state that it returns to."""

    spec: RolloutSpec
    """The rollout."""

    sandbox: SandboxRef | None
    """Sandbox of the reverted work, whose journals are retained; None if it is gone: after the rollout's end, or with a
    lost host.
    """

    label: str
    """Name of this roll-back and of its directory in `rollbacks/`: its number, or `lost-<number>` after a lost host."""

    node: str
    """Id of the node whose state the rollout returns to."""

    steps: list[Step]
    """Steps after that node, the one under way included."""

    undone: list[str]
    """Ids of the nodes that those steps led to, or were about to."""

    chains: list[str] = []
    """Branch paths of the children that started since."""

    untold: list[str] = []
    """Branch paths of those children that reported no model usage; it is read from their results."""

    interrupted: Step | None = None
    """The step under way, whose model usage is counted; None if no step is."""

    session: AgentSession | None = None
    """Session of the agent in the step under way; None if none is open."""

    run_id: str = ""
    """Run id of the first run of the rollout's workflow. An earlier run of an ended rollout may have used `label`."""


class Undone(Model):
    """Result of `undo`: work that was reverted. Also written to `undone.json` in its directory."""

    used: Usage | None = None
    """Model usage of the interrupted turn, and of children that reported none; None if nothing is known of either."""

    directory: str
    """Directory of the reverted files, relative to the rollout's directory."""

    run_id: str = ""
    """Run id of the first run of the workflow that reverted it; empty in files of earlier versions."""
