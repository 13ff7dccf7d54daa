"""Sessions of an agent that a test makes up: the engine's own agent acts, as if it were in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.in_process_worker import InProcessWorker

from benchflow.contracts.activities import StepInput
from benchflow.contracts.agent import AskUser, RolloutAgent, Session, StopReason, TurnRequest
from benchflow.contracts.checkpoint import WorldDigests
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rollout_records import AgentSession, Failure, Step, TurnResult
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.hosting import planning
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_agent import HostedAgent
from benchflow.planes.agent.account import AGENT_USER

WORLD = WorldDigests(workspace="as it was")


class MadeUpSession(Session):
    """A session of which nothing is asked but what it is captured for."""

    async def was_begun(self, turn: int) -> bool:
        raise AssertionError("the engine's own agent takes the turns")

    async def prompt(self, turn: TurnRequest) -> StopReason:
        raise AssertionError("the engine's own agent takes the turns")

    def cancel(self, turn: int) -> None:
        pass

    def on_ask_user(self, answer: AskUser) -> None:
        pass

    async def end(self) -> None:
        pass


class MadeUpAgent(RolloutAgent):
    """An agent that opens sessions without doing anything for them."""

    best: Rung = "fresh"

    async def open(self, index: int) -> AgentSession:
        return AgentSession(index=index, id="s", directory="s", user=AGENT_USER, uid=0, gid=0, home="/root", cwd="/app")

    def rung(self, held: AgentSession, least: Rung) -> Rung:
        return self.best

    async def session(self, held: AgentSession) -> Session:
        return MadeUpSession()


class TurnsOfTheEngine(HostedAgent):
    """An agent whose turns are left to the engine's own."""

    async def session(self, held: AgentSession) -> Any:
        return None


def hold_sessions(worker: InProcessWorker, rung: Rung) -> None:
    """Have agents act in sessions, with which a child goes on in this way, or has to be driven there.

    The turns of a child's parent lead elsewhere when the child with the number 1 takes them again.
    """

    async def compared(rollout: Hosted, work: StepInput, turn: TurnResult) -> TurnResult:
        if rollout.spec.branch is None or rollout.spec.branch.number != 1:
            return turn
        failure = Failure(type="ReplayDivergedError", category="replay", message="it led elsewhere")
        return turn.model_copy(update={"failure": failure})

    async def digests(*given: Any) -> WorldDigests:
        return WORLD

    async def prepare(rollout: Hosted, wanted: SandboxSpec, log: Path) -> SandboxSpec:
        return wanted

    lower = planning.lower

    def in_one_session(rollout: Hosted) -> list[Step]:
        return [step.model_copy(update={"session": 0}) for step in lower(rollout)]

    for name, made_up in {
        "planning.lower": in_one_session,
        "hosted.Hosted.has_agent": True,
        "provisioning.prepare_for_agent": prepare,
        "hosted_agent.create_agent": type("Acting", (MadeUpAgent,), {"best": rung}),
        "hosted_agent.world_digests": digests,
        "hosted_turn.HostedAgent": TurnsOfTheEngine,
        "hosted_turn.compared": compared,
        "hosted_checkpoints.world_digests": digests,
    }.items():
        worker.patch.setattr(f"benchflow.hosting.{name}", made_up)
