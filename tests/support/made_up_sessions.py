"""Sessions of an agent that a test makes up: the engine's own agent acts, as if it were in one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from support.theatre import Theatre

from benchflow.activities.context import WorkerContext
from benchflow.activities.session_files import sessions_of
from benchflow.contracts.activities import Connected, ConnectInput, StepInput
from benchflow.contracts.checkpoint import Rung, WorldDigests
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout import AgentSession, Failure, TurnResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.agent.account import AGENT_USER

WORLD = WorldDigests(workspace="as it was")


def hold_sessions(theatre: Theatre, rung: Rung) -> None:
    """Have agents act in sessions, with which a child goes on in this way, or has to be driven there.

    The turns of a child's parent lead elsewhere when the child with the number 1 takes them again.
    """

    async def go_on_or_open(context: Any, here: ConnectInput, *rest: Any) -> Connected:
        if here.load is not None and here.may_replay:
            return Connected(rung="replay", digests=WORLD)
        session = AgentSession(
            index=here.session, id="s", directory="s", user=AGENT_USER, uid=0, gid=0, home="/root", cwd="/app"
        )
        return Connected(session=session, rung="fresh" if here.load is not None else None, later=rung)

    async def compared(context: Any, work: StepInput, task: Any, sandbox: Any, turn: TurnResult) -> TurnResult:
        if work.spec.branch is None or work.spec.branch.number != 1:
            return turn
        failure = Failure(type="ReplayDivergedError", category="replay", message="it led elsewhere")
        return turn.model_copy(update={"failure": failure})

    async def open_model(context: WorkerContext, spec: RolloutSpec, sandbox: Sandbox) -> None:
        sessions_of(context, sandbox).mkdir(parents=True, exist_ok=True)

    async def nothing(*given: Any, **options: Any) -> None:
        return None

    async def digests(*given: Any) -> WorldDigests:
        return WORLD

    for name, made_up in {
        "turns.acts_by_itself": lambda record: True,
        "turns.open_model": open_model,
        "turns.explaining_model_errors": lambda *given: nullcontext(),
        "turns.go_on_or_open": go_on_or_open,
        "turns.talk_to": nothing,
        "turns.compared": compared,
        "scoring.end_agent": nothing,
        "checkpoints.session_rung": lambda *given: rung,
        "checkpoints.world_digests": digests,
    }.items():
        theatre.patch.setattr(f"benchflow.activities.{name}", made_up)
