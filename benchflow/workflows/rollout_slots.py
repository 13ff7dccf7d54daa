"""The slots of a rollout that branches: it lends its own, and holds one for each child that runs.

The job grants them (`slot_pool`). If the job's workflow no longer runs, it may be submitted again: a rollout that needs
slots waits for it for `WITHOUT_JOB_SEC`, and then continues without the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.fixed_durations import ASK_AGAIN_SEC, MAX_ASK_AGAIN_SEC, WITHOUT_JOB_SEC
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.slot_messages import SlotAccount, SlotGrant
    from benchflow.workflows.clock import pause_deadline

JOB_SLOT = "a slot of the job"
"""Reason of the wait of a rollout that has lent its slot, and needs one of the job for its own sandbox again."""


class RolloutSlots:
    """Slot account of one rollout with its job: slots requested, granted, in use and given back.

    The slot with which the rollout starts is not in it, except while it is lent. Nothing is sent to the job before the
    rollout branches.
    """

    def __init__(self, spec: RolloutSpec) -> None:
        """Make the account of a rollout's slots, with none granted yet.

        Args:
            spec: Specification of the rollout.
        """
        self._job_id = spec.job_id
        depth = spec.branch.depth if spec.branch is not None else 0
        self._account = SlotAccount(id=spec.id, index=spec.index, depth=depth + 1)
        self._granted = self._released = 0
        self._taken = 0
        """Granted slots that children or the own sandbox have taken, those given back since included."""
        self._children: set[str] = set()
        """Workflow ids of the children that hold a slot."""
        self._ended: list[str] = []
        self._has_lent = False
        self._keeps_one = False
        self._is_unreported = False
        self._reporting: asyncio.Task[None] | None = None
        self._without_job_since: float | None = None
        """Workflow time of the first failed message since the last success; None if the last message was received."""
        self.n_waiting = 0
        """Number of waits for a slot: of children, and of the rollout's own sandbox."""

    def lend(self) -> None:
        """Lend the slot of the rollout, whose sandbox is frozen, to others. Does nothing if it is lent already."""
        if not self._has_lent:
            self._has_lent = True
            self._released += 1
            self._report()

    async def hold(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the rollout has a slot for its own sandbox again; return at once if it has not lent it.

        Args:
            give_up: Returns whether to end the wait without a slot.

        Returns:
            Whether the rollout has a slot; False only after `give_up`.
        """

        def take_back() -> None:
            self._has_lent = False

        if self._has_lent:
            with pause_deadline(JOB_SLOT):
                await self._take(take_back, give_up)
        return not self._has_lent

    async def take(self, child: str) -> None:
        """Wait for a slot for a child, and take it. The deadline's clock of this rollout stops meanwhile.

        Args:
            child: Workflow id of the child.
        """
        with pause_deadline("children"):
            await self._take(lambda: self._children.add(child))

    def give_back(self, child: str, *, is_last: bool) -> None:
        """Give back the slot of a child that has ended or failed to start. Does nothing if the child holds none.

        Args:
            child: Workflow id of the child.
            is_last: Whether no other child needs the slot. The rollout then reserves it for its own sandbox, if it has
                lent its own slot.
        """
        if child not in self._children:
            return
        self._children.remove(child)
        self._ended.append(child)
        if self._has_lent and is_last:
            self._taken -= 1
            self._keeps_one = True
        else:
            self._released += 1
        self._balance()
        self._report()

    def grant(self, grant: SlotGrant) -> None:
        """Record the grants of the job. Idempotent: the message has the total, which never decreases.

        Args:
            grant: Total number of slots granted to this rollout.
        """
        self._granted = max(self._granted, grant.granted)
        self._balance()

    async def close(self) -> None:
        """Settle the account after the sandbox was removed, and wait until all messages to the job are sent."""
        if self._has_lent:
            # The slot with which the rollout started is given back by its parent, or by the job for a root.
            self._has_lent = False
            self._released -= 1
            self._report()
        await workflow.wait_condition(lambda: self._reporting is None or self._reporting.done())

    async def _take(self, on_taken: Callable[[], None], give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for a granted slot, and take it.

        Args:
            on_taken: Called when the slot is taken, with no await in between, so that its holder is always recorded.
            give_up: Returns whether to end the wait without a slot.
        """
        self.n_waiting += 1
        try:
            self._balance()
            while self._granted <= self._taken:
                if give_up():
                    return
                await workflow.wait_condition(lambda: self._granted > self._taken or give_up())
            self._taken += 1
            self._keeps_one = False
            on_taken()
        finally:
            self.n_waiting -= 1
            self._balance()

    def _balance(self) -> None:
        """Request slots for all waits, and give back granted slots that no wait needs any more."""
        before = self._account
        spare = self._granted - self._taken - self.n_waiting - self._keeps_one
        if spare > 0:
            self._taken += spare
            self._released += spare
        asked = max(self._granted, self._taken + self.n_waiting)
        if asked != before.asked or spare > 0:
            self._account = before.model_copy(update={"asked": asked})
            self._report()

    def _report(self) -> None:
        """Start a task that sends the account to the job, unless one runs. Changes until it sends go in one message."""
        self._is_unreported = True
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.create_task(self._report_all())

    async def _report_all(self) -> None:
        """Send the account to the job after each change, and again from time to time while a slot is waited for.

        Without a job, grant the slots that were requested to this rollout itself, once `_wait_for_job` gives up.
        """
        ask_again_sec = ASK_AGAIN_SEC
        while self._is_unreported or self.n_waiting:
            if not self._is_unreported:
                changed = lambda: self._is_unreported or not self.n_waiting  # noqa: E731
                with suppress(TimeoutError):
                    await workflow.wait_condition(changed, timeout=ask_again_sec)
                    continue
                ask_again_sec = min(2 * ask_again_sec, MAX_ASK_AGAIN_SEC)
            self._is_unreported = False
            update = {"granted": self._granted, "released": self._released, "ended": self._ended}
            self._account, self._ended = self._account.model_copy(update=update), []
            try:
                await workflow.get_external_workflow_handle(self._job_id).signal(temporal_names.SLOTS, self._account)
                self._without_job_since = None
            except Exception as error:
                self._ended = [*self._account.ended, *self._ended]
                if not await self._wait_for_job():
                    workflow.logger.warning("%s gives no slots, and is not waited for: %s", self._job_id, error)
                    self._granted = max(self._granted, self._account.asked)
                    return
                self._is_unreported = True

    async def _wait_for_job(self) -> bool:
        """Wait before the next message to a job that does not run. Return False if there is no reason to send one.

        That is: nothing waits for a slot, or the job has been missing for `WITHOUT_JOB_SEC`.
        """
        now = workflow.time()
        since = self._without_job_since = now if self._without_job_since is None else self._without_job_since
        if not self.n_waiting or now - since >= WITHOUT_JOB_SEC:
            return False
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: not self.n_waiting, timeout=ASK_AGAIN_SEC)
        return True


def get_slots() -> RolloutSlots:
    """Return the slot account of the running rollout: the attribute `slots` of its workflow instance."""
    slots: RolloutSlots = workflow.instance().slots
    return slots
