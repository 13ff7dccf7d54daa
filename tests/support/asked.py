"""Questions of an agent that a test makes up, in turns of the engine's own agent."""

from __future__ import annotations

from collections.abc import Sequence

from support.in_process_worker import InProcessWorker

from benchflow.contracts.rollout_records import Option, Question, TurnResult
from benchflow.hosting.hosted_turn import HostedTurn
from benchflow.trajectories.journal import NodeWriter


def question(name: str, *options: str) -> Question:
    """Return a question with options of these ids."""
    shown = [Option(id=option, name=option, kind="allow_once") for option in options]
    return Question(id=name, kind="permission", text=f"{name}?", options=shown)


def ask(worker: InProcessWorker, questions: Sequence[Question], *, step: int | None = None) -> None:
    """Have the agent of every rollout ask these, one after another, at the beginning of a step, or of each."""
    act = HostedTurn._act

    async def asking(turn: HostedTurn, writer: NodeWriter) -> TurnResult:
        work = turn._work
        answered = len(work.answers)
        if answered < len(questions) and step in (None, work.step.index):
            return TurnResult(stop_reason="paused", question=questions[answered])
        return await act(turn, writer)

    worker.patch.setattr(HostedTurn, "_act", asking)
