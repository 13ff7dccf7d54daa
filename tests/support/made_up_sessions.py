"""Sessions of an agent that a test makes up: the engine's own agent acts, as if it were in one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from support.theatre import Theatre

from benchflow.contracts.activities import Connected, ConnectInput, StepInput
from benchflow.contracts.checkpoint import Rung, WorldDigests
from benchflow.contracts.rollout import AgentSession, Failure, Step, TurnResult
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.hosting import planning
from benchflow.hosting.agent import HostedAgent
from benchflow.hosting.hosted import Hosted
from benchflow.planes.agent.account import AGENT_USER

WORLD = WorldDigests(workspace="as it was")


def hold_sessions(theatre: Theatre, rung: Rung) -> None:
    """Have agents act in sessions, with which a child goes on in this way, or has to be driven there.

    The turns of a child's parent lead elsewhere when the child with the number 1 takes them again.
    """

    async def resume_or_open(agent: HostedAgent, wanted: ConnectInput, user: str | int) -> Connected:
        if wanted.load is not None and wanted.may_replay:
            return Connected(rung="replay", digests=WORLD)
        session = AgentSession(
            index=wanted.session, id="s", directory="s", user=AGENT_USER, uid=0, gid=0, home="/root", cwd="/app"
        )
        return Connected(session=session, rung="fresh" if wanted.load is not None else None, later=rung)

    async def compared(rollout: Hosted, work: StepInput, turn: TurnResult) -> TurnResult:
        if rollout.spec.branch is None or rollout.spec.branch.number != 1:
            return turn
        failure = Failure(type="ReplayDivergedError", category="replay", message="it led elsewhere")
        return turn.model_copy(update={"failure": failure})

    async def nothing(*given: Any, **options: Any) -> None:
        return None

    async def digests(*given: Any) -> WorldDigests:
        return WORLD

    async def prepare(rollout: Hosted, wanted: SandboxSpec, log: Path) -> SandboxSpec:
        return wanted

    lower = planning.lower

    def in_one_session(rollout: Hosted) -> list[Step]:
        return [step.model_copy(update={"session": 0}) for step in lower(rollout)]

    for name, made_up in {
        "planning.lower": in_one_session,
        "hosted.Hosted.has_agent_process": True,
        "provisioning.prepare_for_agent": prepare,
        "agent.HostedAgent.open_model": nothing,
        "agent.HostedAgent.explaining_model_errors": lambda *given: nullcontext(),
        "agent.HostedAgent.resume_or_open": resume_or_open,
        "agent.HostedAgent.turn_driver": nothing,
        "agent.HostedAgent.end": nothing,
        "turn.compared": compared,
        "checkpoints.session_rung": lambda *given: rung,
        "checkpoints.world_digests": digests,
    }.items():
        theatre.patch.setattr(f"benchflow.hosting.{name}", made_up)
