"""The slots of a rollout that branches: it lends its own, and has one for each child that runs.

The job grants them; see `slot_pool`. A job that was terminated may be submitted anew, and is waited for; where none
comes, the rollout goes on without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.slots import SlotAccount, SlotGrant
    from benchflow.workflows.clock import waiting

JOB_SLOT = "a slot of the job"
"""For what a rollout waits whose children have ended, while the job runs as many sandboxes as it may."""

ASK_AGAIN_SEC = 30.0
"""Seconds after which a rollout that waits asks again: its job may have been terminated and submitted anew."""

MAX_ASK_AGAIN_SEC = 900.0

WITHOUT_JOB_SEC = 600.0
"""Seconds that a rollout waits for slots while there is no job, before it goes on without."""


class Slots:
    """The account of a rollout with its job. Until it branches, it has none."""

    def __init__(self, spec: RolloutSpec) -> None:
        """Make an empty account."""
        self._job_id = spec.job_id
        depth = spec.branch.depth if spec.branch is not None else 0
        self._account = SlotAccount(id=spec.id, index=spec.index, depth=depth + 1)
        self._granted = self._released = 0
        self._taken = 0
        """Granted slots that were put to use."""
        self._children: set[str] = set()
        """Those that have a slot, by their workflow ids."""
        self._ended: list[str] = []
        self._has_lent = False
        self._keeps_one = False
        self._is_unreported = False
        self._reporting: asyncio.Task[None] | None = None
        self._without_job_since: float | None = None
        """Workflow time of the first message since the last that a job has got; None if the last one got through."""
        self.n_waiting = 0
        """Children, and the rollout itself, that wait for a slot."""

    def lend(self) -> None:
        """Give back the slot of this rollout, whose sandbox is frozen."""
        if not self._has_lent:
            self._has_lent = True
            self._released += 1
            self._report()

    async def hold(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until this rollout has a slot for its sandbox again. Return False where it was given up before."""

        def take_back() -> None:
            self._has_lent = False

        if self._has_lent:
            with waiting(JOB_SLOT):
                await self._take(take_back, give_up)
        return not self._has_lent

    async def take(self, child: str) -> None:
        """Wait for a slot for a child, which is named by its workflow id."""
        with waiting("children"):
            await self._take(lambda: self._children.add(child))

    def give_back(self, child: str, *, is_last: bool) -> None:
        """Give back the slot of a child that has ended, however it did, if it had one.

        Args:
            child: Its workflow id.
            is_last: Whether no other child follows. Then this rollout keeps the slot for its own sandbox.
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
        """Take the answer of the job."""
        self._granted = max(self._granted, grant.granted)
        self._balance()

    async def close(self) -> None:
        """Settle the account, as the sandbox is removed, and wait until the job was told."""
        if self._has_lent:
            # Its parent, or its job, gives back the slot that it began with.
            self._has_lent = False
            self._released -= 1
            self._report()
        await workflow.wait_condition(lambda: self._reporting is None or self._reporting.done())

    async def _take(self, on_taken: Callable[[], None], give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for a slot. on_taken: called with no await in between, so that whoever has it is always known."""
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
        """Ask for what is waited for, and give back what was granted for somebody who waits no more."""
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
        """Report the account to the job, once for all that changes at a time."""
        self._is_unreported = True
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.create_task(self._report_all())

    async def _report_all(self) -> None:
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
                await workflow.get_external_workflow_handle(self._job_id).signal(names.SLOTS, self._account)
                self._without_job_since = None
            except Exception as error:
                self._ended = [*self._account.ended, *self._ended]
                if not await self._wait_for_job():
                    workflow.logger.warning("%s gives no slots, and is not waited for: %s", self._job_id, error)
                    self._granted = max(self._granted, self._account.asked)
                    return
                self._is_unreported = True

    async def _wait_for_job(self) -> bool:
        """Wait a while, as there is no job to be told. Return False where nothing waits for it, or it took too long."""
        now = workflow.time()
        since = self._without_job_since = now if self._without_job_since is None else self._without_job_since
        if not self.n_waiting or now - since >= WITHOUT_JOB_SEC:
            return False
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: not self.n_waiting, timeout=ASK_AGAIN_SEC)
        return True


def current() -> Slots:
    """Return the slots of the running rollout: the attribute `slots` of its workflow's instance."""
    slots: Slots = workflow.instance().slots
    return slots
