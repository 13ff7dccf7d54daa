"""Messages of a job and its rollouts about slots: the job's `-n`, counted in sandboxes that run.

A rollout begins with a slot. While its sandbox stands still for its children, it lends that slot; its children begin
with slots that it has asked for. All numbers count from the rollout's beginning, so that messages may be repeated.
"""

from __future__ import annotations

from benchflow.contracts.base import Model


class SlotAccount(Model):
    """The slots of a rollout that has branched, beside the one that it began with."""

    id: str
    """Its workflow id, to which grants are sent."""

    index: int
    """The index in its job of the root of its tree."""

    depth: int
    """How many rollouts are above those that the slots are for. Deeper ones come first: so few trees are open."""

    asked: int = 0
    """Slots that it has asked for, and not withdrawn."""

    granted: int = 0
    """Slots that it knows to have been granted."""

    released: int = 0
    """Slots that it has given back, among them the one that it began with while it lends that."""

    ended: list[str] = []
    """Workflow ids of children that have ended since the last message: their accounts are closed."""

    @property
    def in_use(self) -> int:
        """Slots that are used now, beside the one that it began with: -1 while it lends that and has no other."""
        return self.granted - self.released

    @property
    def waiting(self) -> int:
        """Slots that it waits for."""
        return max(0, self.asked - self.granted)


class PooledAccount(SlotAccount):
    """An account as the job keeps it: `granted` is what the job has granted."""

    told: int = 0
    """Granted slots of which the rollout knows, or was sent a message."""


class SlotGrant(Model):
    """The answer of a job to a `SlotAccount`."""

    granted: int
    """Slots that were granted to the account since its beginning."""
