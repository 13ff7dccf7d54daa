"""The slots of a job: how many of its sandboxes may run at a time, over all its rollouts and their children.

A root has its slot from its start on, which the window of the job decides. A rollout that branches keeps an account
with the job: it lends its own slot and asks for those of its children. No rollout waits for a slot while it holds one,
so that nobody waits for ever, whatever the number of slots and the depth of trees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.job import OpenRollout
    from benchflow.contracts.slots import PooledAccount, SlotAccount, SlotGrant


AGAIN_SEC = 1.0
"""Seconds after a defect until slots are granted again."""


class SlotPool:
    """Grants the slots of a job to the accounts of its open rollouts."""

    def __init__(
        self,
        accounts: Iterable[PooledAccount],
        open_: Mapping[int, OpenRollout],
        limit: Callable[[], int],
        *,
        is_to_come: Callable[[int], bool],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare the pool.

        Args:
            accounts: Those of the job's last run.
            open_: The open rollouts of the job by index, as they change.
            limit: Returns how many slots there are now.
            is_to_come: Whether the job is still to start a rollout. It may meet one that runs already.
            on_change: Called when slots were granted or given back.
        """
        # In the order in which they began to wait.
        self._accounts = {account.id: account for account in accounts}
        self._open = open_
        self._limit = limit
        self._is_to_come = is_to_come
        self._on_change = on_change
        self._messages = 0
        self._is_on = bool(self._accounts)
        self._is_telling = False
        self._is_closing = False

    @property
    def accounts(self) -> list[PooledAccount]:
        """Return the accounts for the next run of the job's workflow."""
        return list(self._accounts.values())

    @property
    def n_free(self) -> int:
        """Return how many slots nobody has, or less than 0 where the limit was lowered."""
        return self._limit() - len(self._open) - sum(account.in_use for account in self._counted())

    @property
    def n_free_for_roots(self) -> int:
        """Return how many rollouts may be started now: none while the children of an open one wait."""
        return 0 if any(account.waiting for account in self._counted()) else self.n_free

    def note(self, account: SlotAccount) -> None:
        """Take a message of a rollout: what it says of itself replaces what was known of it."""
        if not self._is_on:
            # A version without slots may have let messages pass by: only from the first one on that this version has
            # seen live may a replay send grants.
            self._is_on = workflow.patched(f"job-slots-{self._messages}")
        self._messages += 1
        for ended in account.ended:
            self._accounts.pop(ended, None)
        known = self._accounts.get(account.id)
        granted = max(account.granted, known.granted if known is not None else 0)
        if known is not None and account.waiting and account == SlotAccount(**known.model_dump(exclude={"told"})):
            self._check_tree(account)
        if self._is_over(account):
            # A child about to end, of a root that has: it must not wait for what nobody gives.
            granted = max(granted, account.asked)
        if known is None or not known.waiting:
            self._accounts.pop(account.id, None)
        about = account.model_dump(exclude={"ended", "granted"})
        self._accounts[account.id] = PooledAccount(**about, granted=granted, told=account.granted)
        self._forget_settled(account.id)
        self._on_change()

    def _check_tree(self, asks_again: SlotAccount) -> None:
        """Send the others of a tree what they know already: those that no longer run are forgotten for it.

        Two that were terminated at once, one above the other, have nobody who says that the lower one has ended.
        """
        for account in self.accounts:
            if account.index == asks_again.index and account.id != asks_again.id:
                self._accounts[account.id] = account.model_copy(update={"told": -1})

    def drop(self, index: int) -> None:
        """Forget the accounts of a tree whose root has ended, or begins anew."""
        self._accounts = {key: account for key, account in self._accounts.items() if account.index != index}

    async def run(self) -> None:
        """Grant slots for ever, as they become free."""
        while True:
            try:
                await workflow.wait_condition(lambda: self._is_on and not self._is_closing and self._has_news())
                self._grant()
                self._is_telling = True
                await asyncio.gather(*map(self._tell, self._untold()))
            except Exception:
                workflow.logger.exception("slots are granted again in a moment")
                await asyncio.sleep(AGAIN_SEC)
            finally:
                self._is_telling = False

    async def close(self) -> None:
        """Wait until no message is under way; from then on none is sent, since this run is about to end."""
        self._is_closing = True
        try:
            await workflow.wait_condition(lambda: not self._is_telling)
        except Exception:
            self._is_closing = False
            raise

    def _counted(self) -> list[PooledAccount]:
        """The accounts of open trees. What others have is known once the job meets their roots."""
        return [account for account in self._accounts.values() if account.index in self._open]

    def _is_over(self, account: SlotAccount) -> bool:
        """Return whether the root of an account's tree has ended for good."""
        return account.index not in self._open and not self._is_to_come(account.index)

    def _has_news(self) -> bool:
        return bool(self._untold()) or (self.n_free > 0 and any(account.waiting for account in self._counted()))

    def _untold(self) -> list[PooledAccount]:
        return [account for account in self._accounts.values() if account.granted > account.told]

    def _grant(self) -> None:
        """Grant what is free: to the deepest first, of these to who waits longest."""
        waiting = sorted((one for one in self._counted() if one.waiting), key=lambda one: -one.depth)
        free = self.n_free
        for account in waiting:
            number = min(free, account.waiting)
            if number <= 0:
                break
            free -= number
            self._accounts[account.id] = account.model_copy(update={"granted": account.granted + number})
            self._on_change()

    async def _tell(self, account: PooledAccount) -> None:
        # Noted before: what the rollout says meanwhile may show that it has not heard of it yet.
        self._accounts[account.id] = account.model_copy(update={"told": account.granted})
        try:
            handle = workflow.get_external_workflow_handle(account.id)
            await handle.signal(names.SLOTS_GRANTED, SlotGrant(granted=account.granted))
        except Exception as error:
            workflow.logger.info("%s could not be given a slot: %s", account.id, error)
            self._accounts.pop(account.id, None)
            self._on_change()
        self._forget_settled(account.id)

    def _forget_settled(self, workflow_id: str) -> None:
        """Forget an account that needs nothing more: all is told, and it uses nothing, or its tree is over."""
        account = self._accounts.get(workflow_id)
        if account is None or account.waiting or account.granted > account.told:
            return
        if account.in_use == 0 or self._is_over(account):
            del self._accounts[workflow_id]
