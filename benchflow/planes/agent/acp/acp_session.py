"""The implementation of `contracts.session.Session` over the Agent Client Protocol."""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.contracts.agent import AskUser, Session, StopReason, TurnCounts, TurnRequest
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.agent.acp.agent_requests import Client
from benchflow.planes.agent.acp.connect import AgentConnection
from benchflow.planes.agent.acp.dialogue import Dialogue
from benchflow.planes.agent.acp.events import Reading


class AcpSession(Session):
    """A handle of a session that was opened with an agent's process."""

    def __init__(self, sandbox: Sandbox, connection: AgentConnection, session: AgentSession) -> None:
        """Make it. session: the session, as `connection` has opened it."""
        self.counts: TurnCounts = Reading()
        self._id = session.id
        self._name = session.directory
        self._connection = connection
        self._wire = connection.get_wire(session.directory)
        self._process = connection.get_process(session.directory)
        self._client = Client(sandbox, user=session.user, cwd=session.cwd)
        self._dialogue = Dialogue(self._wire, self._client, connection.timeouts)

    async def was_begun(self, turn: int) -> bool:
        """Return whether a turn was prompted, by any process of the engine."""
        return self._wire.was_sent(_make_request_id(turn))

    async def prompt(self, turn: TurnRequest) -> StopReason:
        """Run a turn to its end, or resume it, and return why it ended."""
        reading = Reading()
        self.counts = reading
        async with self._connection.reach(self._name) as run_work:
            ended = await run_work(
                self._dialogue.prompt(
                    _make_request_id(turn.number),
                    self._id,
                    [{"type": "text", "text": turn.prompt}],
                    turn.heard,
                    turn.limits,
                    self._process.kill,
                    reading=reading,
                    skip=turn.skip,
                )
            )
        return StopReason(ended.stop_reason, ended.ended_by)

    def cancel(self, turn: int) -> None:
        """Request the end of a turn, whichever process runs it."""
        self._dialogue.cancel(_make_request_id(turn))

    def on_ask_user(self, answer: AskUser) -> None:
        """Set the callback that answers the agent's questions."""
        self._client.answer = answer

    async def end(self) -> None:
        """Kill the agent with all its descendants."""
        await self._process.kill()

    def positions(self) -> Mapping[str, int | str]:
        """Return the sizes of the journals of both directions."""
        return {f"the agent's journal {name!r}": self._wire.read_size(name) for name in ("in", "out")}

    async def log_tail(self) -> str | None:
        """Return the end of the agent's stderr; None if it is empty."""
        return self._wire.read_log_tail()

    async def close(self) -> None:
        """Stop waiting for the commands of the agent's terminals."""
        await self._client.aclose()


def _make_request_id(turn: int) -> str:
    return f"prompt-{turn}"
