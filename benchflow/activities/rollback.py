"""The activity of a rollback: what was done since is put aside, and what models have used for it is told."""

from __future__ import annotations

import asyncio

from temporalio import activity

from benchflow.activities.agents import model_of, redactor_for
from benchflow.activities.context import WorkerContext
from benchflow.activities.models import forget_model
from benchflow.activities.session_files import keep_journals
from benchflow.contracts import names
from benchflow.contracts.activities import UndoInput, Undone
from benchflow.contracts.rollout import Usage, total
from benchflow.errors import BenchFlowError
from benchflow.results.undoing import mark_undone_calls, put_undone_aside, undone_place, used_by_children
from benchflow.store import write_atomic


class RollbackActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.UNDO)
    async def undo(self, work: UndoInput) -> Undone:
        """Put aside what a rollout has written since a state; nothing runs in its sandbox any more."""
        paths = await asyncio.to_thread(self.context.make_results_directory, work.spec)
        place = undone_place(paths, work.label)
        # Known only until something is put aside.
        noted = place.root / "undone.json"
        if not noted.exists():
            used = [*await self._interrupted(work), *await asyncio.to_thread(used_by_children, paths, work.untold)]
            undone = Undone(used=total(used), directory=str(place.root.relative_to(paths.root)))
            write_atomic(noted, undone.model_dump_json().encode())
        # The gateway reads the record again when the rollout is back.
        await forget_model(self.context, work.spec)
        task, _ = await self.context.task(work.spec.task)
        redact = redactor_for(self.context, work.spec, task)
        if work.sandbox is not None:
            await asyncio.to_thread(keep_journals, self.context, work.sandbox, place.sessions, redact)

        def put_aside() -> None:
            mark_undone_calls(paths.model_calls, work.undone, work.label)
            put_undone_aside(paths, work.label, undone=work.undone, steps=work.steps, chains=work.chains)

        await asyncio.to_thread(put_aside)
        return Undone.model_validate_json(noted.read_bytes())

    async def _interrupted(self, work: UndoInput) -> list[Usage]:
        """What was used in the turn under way, as the gateway counted it."""
        step, session = work.interrupted, work.session
        if step is None or work.sandbox is None or session is None or session.model_access != "gateway":
            return []
        try:
            model = model_of(self.context, work.spec, await self.context.sandbox(work.sandbox))
            used = await model.used_in(step)
        except BenchFlowError:
            # Nobody knows it any more, and going back does not hang on that.
            return []
        return [used] if used is not None else []
