"""The trial of a world: whether it does what its manifest declares."""

from __future__ import annotations

from benchflow.contracts.base import Model


class TrialSpec(Model):
    """What makes a rollout the trial of its world, in place of running an agent."""

    posts: tuple[str, ...] = ()
    """Requests by which a service writes, as `URL[:BODY]`."""

    has_task: bool = False
    """Whether the world is that of a task. Otherwise the task stands for none."""
