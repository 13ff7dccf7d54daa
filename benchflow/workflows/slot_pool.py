"""The slots of a job: its limit of sandboxes that run at a time, over all its rollouts and their children.

A root holds a slot from its start, which the job's window decides. A rollout that branches has an account with the job:
it lends its own slot, and requests slots for its children. No rollout waits for a slot while it holds one, so there is
no deadlock, whatever the number of slots and the depth of the trees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.fixed_durations import GRANT_AGAIN_SEC
    from benchflow.contracts.job import OpenRollout
    from benchflow.contracts.slot_messages import PooledAccount, SlotAccount, SlotGrant


class SlotPool:
    """Pool of a job's slots, which it grants to the accounts of open rollouts that branch."""

    def __init__(
        self,
        accounts: Iterable[PooledAccount],
        open_: Mapping[int, OpenRollout],
        limit: Callable[[], int],
        *,
        is_to_come: Callable[[int], bool],
        on_change: Callable[[], None],
    ) -> None:
        """Make the pool. Nothing is granted before `run`.

        Args:
            accounts: Accounts that the previous run of the job's workflow carried across continue-as-new.
            open_: Open rollouts of the job by index: the job's own mapping, not a copy.
            limit: Returns the present number of slots.
            is_to_come: Returns whether the rollout of an index is still to be started. Its workflow may run already,
                from an earlier start of the job.
            on_change: Called after slots were granted or given back.
        """
        # In the order in which they began to wait: a later entry of the same depth is granted slots later.
        self._accounts = {account.id: account for account in accounts}
        self._open = open_
        self._limit = limit
        self._is_to_come = is_to_come
        self._on_change = on_change
        self._messages = 0
        self._is_on = bool(self._accounts)
        self._is_sending = False
        self._is_closing = False

    @property
    def accounts(self) -> list[PooledAccount]:
        """Return all accounts, to be carried across continue-as-new."""
        return list(self._accounts.values())

    @property
    def n_free(self) -> int:
        """Return the number of free slots; negative while more are in use than a lowered limit allows."""
        return self._limit() - len(self._open) - sum(account.in_use for account in self._list_counted())

    @property
    def n_free_for_roots(self) -> int:
        """Return the number of slots for roots to start now: 0 while children of an open rollout wait for slots."""
        return 0 if any(account.waiting for account in self._list_counted()) else self.n_free

    def note(self, account: SlotAccount) -> None:
        """Replace the account of a rollout by the one in its message. `run` then sends the grants.

        Messages hold totals, so that a repeated one is harmless. One that repeats the request of a waiting rollout
        unchanged also makes the pool check that the other rollouts of its tree still run.

        Args:
            account: The rollout's account. Accounts of the children that it lists as ended are forgotten.
        """
        if not self._is_on:
            # An earlier version without slots may have ignored messages in this history. A replay must not send grants
            # for them, but only from the first message on that this version has received live, which has the marker.
            self._is_on = workflow.patched(f"job-slots-{self._messages}")
        self._messages += 1
        for ended in account.ended:
            self._accounts.pop(ended, None)
        known = self._accounts.get(account.id)
        granted = max(account.granted, known.granted if known is not None else 0)
        if known is not None and account.waiting and account == SlotAccount(**known.model_dump(exclude={"told"})):
            self._check_tree(account)
        if self._is_over(account):
            # A child that outlives its root, and is about to end: no slot is granted to it, so it must not wait.
            granted = max(granted, account.asked)
        if known is None or not known.waiting:
            self._accounts.pop(account.id, None)
        about = account.model_dump(exclude={"ended", "granted"})
        self._accounts[account.id] = PooledAccount(**about, granted=granted, told=account.granted)
        self._forget_settled(account.id)
        self._on_change()

    def _check_tree(self, asks_again: SlotAccount) -> None:
        """Send all other rollouts of a tree their grants again, so that those that no longer run are found.

        A signal to a workflow that no longer runs fails, and its account is forgotten. Otherwise, if a rollout and its
        child are terminated at once, no message would report the end of the child, and its slots would stay in use.

        Args:
            asks_again: Account of the rollout that has repeated its request.
        """
        for account in self.accounts:
            if account.index == asks_again.index and account.id != asks_again.id:
                self._accounts[account.id] = account.model_copy(update={"told": -1})

    def drop(self, index: int) -> None:
        """Forget the accounts of a tree, because its root has ended or is started again.

        Args:
            index: Index of the root among the rollouts of the job.
        """
        self._accounts = {key: account for key, account in self._accounts.items() if account.index != index}

    async def run(self) -> None:
        """Grant free slots to waiting rollouts and send the grants, until cancelled. Errors are logged and retried."""
        while True:
            try:
                await workflow.wait_condition(lambda: self._is_on and not self._is_closing and self._has_news())
                self._grant()
                self._is_sending = True
                await asyncio.gather(*map(self._send_grant, self._list_unsent()))
            except Exception:
                workflow.logger.exception("slots are granted again in a moment")
                await asyncio.sleep(GRANT_AGAIN_SEC)
            finally:
                self._is_sending = False

    async def close(self) -> None:
        """Stop sending grants, and wait until those under way are sent, before this run continues as new.

        If the wait raises, for example because it is cancelled, sending resumes.
        """
        self._is_closing = True
        try:
            await workflow.wait_condition(lambda: not self._is_sending)
        except Exception:
            self._is_closing = False
            raise

    def _list_counted(self) -> list[PooledAccount]:
        """Return the accounts that count against the limit: of trees whose root is open.

        A tree of an earlier start of the job may still run. It counts once the job finds its root running.
        """
        return [account for account in self._accounts.values() if account.index in self._open]

    def _is_over(self, account: SlotAccount) -> bool:
        """Return whether the root of an account's tree has ended, and is not to be started again."""
        return account.index not in self._open and not self._is_to_come(account.index)

    def _has_news(self) -> bool:
        """Return whether a grant is to be sent, or a free slot can be granted."""
        return bool(self._list_unsent()) or (
            self.n_free > 0 and any(account.waiting for account in self._list_counted())
        )

    def _list_unsent(self) -> list[PooledAccount]:
        """Return the accounts with grants that were not sent."""
        return [account for account in self._accounts.values() if account.granted > account.told]

    def _grant(self) -> None:
        """Grant the free slots to waiting accounts: the deepest first, and at one depth the one that waits longest.

        Deep children first, so that open trees end before new branches start in others.
        """
        waiting = sorted((one for one in self._list_counted() if one.waiting), key=lambda one: -one.depth)
        free = self.n_free
        for account in waiting:
            number = min(free, account.waiting)
            if number <= 0:
                break
            free -= number
            self._accounts[account.id] = account.model_copy(update={"granted": account.granted + number})
            self._on_change()

    async def _send_grant(self, account: PooledAccount) -> None:
        """Send a rollout the total of its grants. Forget the account if that fails: its workflow no longer runs."""
        # Set before the send: a message that arrives meanwhile sets `told` back if the rollout has not got the grant.
        self._accounts[account.id] = account.model_copy(update={"told": account.granted})
        try:
            handle = workflow.get_external_workflow_handle(account.id)
            await handle.signal(temporal_names.SLOTS_GRANTED, SlotGrant(granted=account.granted))
        except Exception as error:
            workflow.logger.info("%s could not be given a slot: %s", account.id, error)
            self._accounts.pop(account.id, None)
            self._on_change()
        self._forget_settled(account.id)

    def _forget_settled(self, workflow_id: str) -> None:
        """Forget an account without waits and unsent grants, if it uses no slot or its tree has ended."""
        account = self._accounts.get(workflow_id)
        if account is None or account.waiting or account.granted > account.told:
            return
        if account.in_use == 0 or self._is_over(account):
            del self._accounts[workflow_id]
