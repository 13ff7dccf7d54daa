"""Roll-backs of a rollout: what is asked for, what is to be undone, and what was."""

from __future__ import annotations

from benchflow.contracts.base import Model
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout import AgentSession, Step, Usage
from benchflow.contracts.sandbox import SandboxRef


class Restore(Model):
    """A request to roll a rollout back."""

    node: str
    """The node to whose state it goes back."""


class Restored(Model):
    """A rollout that was rolled back."""

    rollout: str
    """Its workflow id; of a child in a tree, the child's."""

    node: str
    """The node at which it is again."""

    undone: list[str]
    """Nodes that it has left."""


class UndoInput(Model):
    """What a rollout has written since a state to which it goes back."""

    spec: RolloutSpec
    sandbox: SandboxRef | None
    """The sandbox that wrote it, if there is anything of it."""

    label: str
    """Name of this roll-back, of which its directory is called."""

    node: str
    """The node of that state."""

    steps: list[Step]
    """Steps after it, with the one under way."""

    undone: list[str]
    """Nodes to which those steps led."""

    chains: list[str] = []
    """Branch paths of the children that began since."""

    untold: list[str] = []
    """Those of the children of whose models nothing is known."""

    interrupted: Step | None = None
    """The step under way."""

    session: AgentSession | None = None
    run_id: str = ""
    """First run of the rollout's workflow: of an ended rollout, another one may have used the label before."""


class Undone(Model):
    """What was undone."""

    used: Usage | None = None
    """Model usage of the turn under way, and of children of whose models nothing was known."""

    directory: str
    """Directory of what was written, in that of the rollout."""

    run_id: str = ""
    """First run of the workflow that has undone it."""
