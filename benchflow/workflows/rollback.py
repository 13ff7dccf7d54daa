"""Going back: a rollout that runs is put into a state that it has been in, and goes on from there.

What came of that state is undone: its steps, nodes and rewards are the rollout's no more, while what models have used
for them has been used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import Restored, RolloutPlan, UndoInput, Undone
    from benchflow.contracts.branch import ChildOutcome
    from benchflow.contracts.checkpoint import Checkpoint
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import Rollback, Usage, total
    from benchflow.workflows.cancellation import to_the_end
    from benchflow.workflows.hosts import HostLost, on_host, tear_down
    from benchflow.workflows.in_sandbox import InSandbox
    from benchflow.workflows.keeping import PutBack, release

NOT_RESTORABLE = "NotRestorable"
"""The type of the errors that say why a rollout cannot go back."""


class Rollbacks:
    """wanted: the state that the rollout is on its way back to. done: what was undone so far."""

    def __init__(self, spec: RolloutSpec) -> None:
        self._spec = spec
        self._asked = self._losses = 0
        self.wanted: Checkpoint | None = None
        self.done: list[Rollback] = []

    def check(self, here: InSandbox, node: str, *, is_over: bool, has_begun: bool) -> None:
        """Raises `ApplicationError` where the rollout cannot go back to a node now."""
        if not has_begun:
            _refuse("it has not begun yet: ask again in a moment")
        if is_over:
            _refuse("it is over, and its checkpoints with it: it can only be run again")
        if self.wanted is not None:
            _refuse(f"it is about to be put back to {self.wanted.node}")
        kept = self._restorable(here)
        if node in kept:
            return
        have = f"those that have one: {', '.join(kept)}" if kept else "no node of it has one"
        if node in self._path(here):
            _refuse(f"no checkpoint of {node} is kept; {have}")
        _refuse(f"it has not come by {node}; {have}")

    def ask(self, here: InSandbox, node: str) -> int:
        """Want to go back; the number of this rollback."""
        self.wanted = self._restorable(here)[node]
        self._asked += 1
        return self._asked

    def told(self, number: int) -> Restored:
        """What came of one of them that was carried out."""
        done = self.done[number - 1]
        return Restored(rollout=self._spec.id, node=done.node, undone=done.undone)

    async def carry_out(self, here: InSandbox, plan: RolloutPlan) -> PutBack:
        """Undo what came of the state, and let go of the sandbox. here: nothing is done there any more."""
        assert self.wanted is not None
        back, gone, used = self._put_back(here, plan, self.wanted, str(len(self.done) + 1), is_lost=False)
        undo, undone = back.undo, None
        assert undo is not None
        if here.sandbox is not None:
            try:
                undone = await on_host(
                    here.sandbox.queue, names.UNDO, undo, Undone, self._spec.options.restore_limit_sec
                )
            except HostLost:
                workflow.logger.warning("what is undone stays on the lost host %s", here.sandbox.host_id)
            # Cancelled now, the rollout has no other sandbox to remove.
            await to_the_end(tear_down(self._spec, here.sandbox))
        used += [undone.used] if undone is not None and undone.used is not None else []
        back.branches.undone += used
        directory = undone.directory if undone is not None else None
        self.done.append(Rollback(node=undo.node, undone=undo.undone, used=total(used), directory=directory))
        ids = {one.id for one in (*back.kept, *back.branches.kept, self.wanted)}
        unneeded = [one for outcome in gone for one in (*outcome.kept, outcome.checkpoint) if one is not None]
        unneeded = [one for one in (*here.kept, *unneeded) if one.id not in ids]
        back.later.extend(one for one in unneeded if one.is_portable)
        await release(one for one in unneeded if not one.is_portable)
        self.wanted = None
        return replace(back, undo=None)

    def after_loss(self, here: InSandbox, plan: RolloutPlan) -> PutBack | None:
        """Where a rollout whose host is lost goes on: its last state that other hosts have; None for its start."""
        own = self._spec.branch
        portable = [checkpoint for checkpoint in self._restorable(here).values() if checkpoint.is_portable]
        if not portable or (own is not None and portable[-1] == own.checkpoint):
            return None
        self._losses += 1
        back, _, used = self._put_back(here, plan, portable[-1], f"lost-{self._losses}", is_lost=True)
        back.branches.undone += used
        return back

    def _put_back(
        self, here: InSandbox, plan: RolloutPlan, checkpoint: Checkpoint, label: str, *, is_lost: bool
    ) -> tuple[PutBack, list[ChildOutcome], list[Usage]]:
        """The rollout as it was at a checkpoint, with what is to be undone; the children that are its own no more, and
        what all that has used.
        """
        branches, done = here.branches, checkpoint.steps_done
        node, nodes = branches.node(done), self._nodes_after(here, plan, done)
        own = [outcome for outcome in here.steps[done:] if outcome.step.index not in branches.adopted]
        running = list(branches.pending)
        gone = branches.undo(done, is_lost=is_lost)
        used = [outcome.turn.usage for outcome in own if outcome.turn.usage is not None]
        used += [outcome.used for outcome in gone if outcome.used is not None]
        undo = UndoInput(
            spec=self._spec,
            sandbox=here.sandbox,
            label=label,
            node=node,
            steps=plan.steps[done : len(here.steps) + 1],
            undone=nodes,
            chains=[*(outcome.chain for outcome in gone), *running],
            untold=[*(outcome.chain for outcome in gone if outcome.used is None), *running],
            interrupted=next(iter(plan.steps[len(here.steps) :]), None),
            session=here.sessions[-1] if here.sessions else None,
        )
        on_the_way = {branches.node(steps) for steps in range(branches.begun, done + 1)}
        kept = [one for one in here.kept if one.node in on_the_way]
        sessions = here.sessions[: _index(checkpoint)]
        return PutBack(branches, checkpoint, here.steps[:done], sessions, kept, here.later, undo), gone, used

    def _path(self, here: InSandbox) -> list[str]:
        """The nodes of its own that it has come by, and is at."""
        branches = here.branches
        return [branches.node(done) for done in range(branches.begun, len(here.steps) + 1)]

    def _restorable(self, here: InSandbox) -> dict[str, Checkpoint]:
        """What is kept of the states that it has come by."""
        begun_with = [here.begun_with] if here.begun_with is not None else []
        kept = {one.node: one for one in (*here.branches.kept, *begun_with, *here.kept)}
        own = self._spec.branch
        if own is not None:
            kept[here.branches.start] = own.checkpoint
        return {node: kept[node] for node in self._path(here) if node in kept}

    def _nodes_after(self, here: InSandbox, plan: RolloutPlan, done: int) -> list[str]:
        """Where the steps led that are undone, and that under way would have led."""
        last = min(len(here.steps) + 1, len(plan.steps))
        return [here.branches.node(steps) for steps in range(done + 1, last + 1)]


def _index(checkpoint: Checkpoint) -> int:
    """How many sessions were over: the one that goes on is opened again."""
    return checkpoint.session.session.index if checkpoint.session is not None else 0


def _refuse(why: str) -> NoReturn:
    raise ApplicationError(why, type=NOT_RESTORABLE, non_retryable=True)
