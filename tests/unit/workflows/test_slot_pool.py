"""Who is granted the slots of a job: what rollouts say of theirs, before a workflow is about it."""

from __future__ import annotations

import pytest

from benchflow.contracts.job import OpenRollout
from benchflow.contracts.slot_messages import PooledAccount, SlotAccount
from benchflow.workflows.slot_pool import SlotPool


class Job:
    """A job with some open rollouts, of which one has branched and its three children wait."""

    def __init__(self, *open_: int, limit: int = 2, to_come: int | None = None) -> None:
        self.limit = limit
        self.open = {index: OpenRollout(index=index, attempt=1, id=f"r{index}") for index in open_}
        self.pool = SlotPool(
            [PooledAccount(id="r0", index=0, depth=1, asked=3, released=1)],
            self.open,
            lambda: self.limit,
            is_to_come=lambda index: index == to_come,
            on_change=lambda: None,
        )

    def say(self, rollout: str, index: int, *, depth: int = 1, ended: tuple[str, ...] = (), **numbers: int) -> None:
        self.pool.note(SlotAccount(id=rollout, index=index, depth=depth, ended=list(ended), **numbers))

    def granted(self) -> dict[str, int]:
        """Grant what is free, and return what each account was granted."""
        self.pool._grant()
        return {account.id: account.granted for account in self.pool.accounts}


def test_a_slot_that_is_lent_is_granted_to_children_and_no_root_begins_meanwhile() -> None:
    job = Job(0, limit=2)
    assert (job.pool.n_free, job.pool.n_free_for_roots) == (2, 0)
    assert job.granted() == {"r0": 2}
    assert (job.pool.n_free, job.pool.n_free_for_roots) == (0, 0)
    job.limit = 4
    assert job.granted() == {"r0": 3}
    assert job.pool.n_free_for_roots == 1


def test_deeper_ones_come_first_and_of_these_who_waits_longest() -> None:
    job = Job(0, 1, 2, limit=3)
    job.say("r1", 1, asked=1, released=1)
    job.say("r2/b/x", 2, depth=2, asked=1, released=1)
    assert job.granted() == {"r0": 2, "r1": 0, "r2/b/x": 1}
    # One of its children ends: it does not lose its turn.
    job.say("r0", 0, asked=3, granted=2, released=2)
    assert job.granted()["r0"] == 3


def test_what_a_rollout_says_counts_and_what_it_has_not_heard_yet_is_told_again() -> None:
    job = Job(0)
    job.granted()
    job.say("r0", 0, asked=3, granted=0, released=1)
    [account] = job.pool._list_unsent()
    assert (account.granted, account.told) == (2, 0)
    job.say("r0", 0, asked=3, granted=2, released=1)
    assert job.pool._list_unsent() == []


def test_one_that_asks_again_has_the_others_of_its_tree_looked_after() -> None:
    """Who was terminated, and whose parent was, too, holds slots of which nobody says that they are free."""
    job = Job(0, 1, limit=3)
    job.say("r0/b/x", 0, depth=2, asked=2, granted=2, released=1)
    job.say("r1", 1, asked=2, granted=2, released=1)
    job.say("r0", 0, asked=3, released=1)
    assert [account.id for account in job.pool._list_unsent()] == ["r0/b/x"]
    job.say("r0/b/x", 0, depth=2, asked=2, granted=2, released=1)
    assert job.pool._list_unsent() == []


@pytest.mark.parametrize("ends", ["child", "root"])
def test_what_has_ended_without_a_word_holds_no_slot(ends: str) -> None:
    """A child that was terminated while children of its own ran."""
    job = Job(0, limit=5)
    job.granted()
    job.say("r0/b/x", 0, depth=2, asked=2, granted=2, released=1)
    assert job.pool.n_free == 1
    if ends == "child":
        job.say("r0", 0, asked=3, granted=3, released=2, ended=("r0/b/x",))
        assert job.pool.n_free == 5 - 1 - 1
    else:
        del job.open[0]
        job.pool.drop(0)
        assert (job.pool.n_free, job.pool.accounts) == (5, [])


def test_children_of_a_root_that_is_over_do_not_wait() -> None:
    job = Job(1, limit=1)
    job.say("r7/b/x", 7, depth=2, asked=2, released=1)
    [account] = job.pool._list_unsent()
    assert (account.id, account.granted) == ("r7/b/x", 2)
    assert job.pool.n_free == 0


def test_a_tree_whose_root_the_job_has_not_met_yet_waits_and_takes_nothing() -> None:
    """A job that was submitted anew learns of running trees before it comes to start their roots."""
    job = Job(limit=1, to_come=7)
    job.say("r7", 7, asked=2, released=1)
    assert (job.pool.n_free_for_roots, job.granted()["r7"]) == (1, 0)
    job.open[7] = OpenRollout(index=7, attempt=1, id="r7")
    assert job.granted()["r7"] == 1
    assert job.pool.n_free_for_roots == 0


def test_an_account_that_needs_nothing_is_forgotten() -> None:
    job = Job(0)
    job.say("r0", 0, asked=3, granted=3, released=3)
    assert job.pool.accounts == []
