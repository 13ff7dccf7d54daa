"""The turns of a session that was opened over the protocol itself: the process, the client's side, the listening."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchflow.contracts.rollout import AgentSession, Answer, Permissions
from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.agent.acp.client import Client
from benchflow.planes.agent.acp.connect import Connection
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.limits import Limits
from benchflow.planes.agent.acp.session import Line, Session, Turn


class AcpTalk:
    """A session, as one who takes a turn of it has it. skip: as in `Session.prompt`."""

    def __init__(
        self,
        sandbox: Sandbox,
        connection: Connection,
        session: AgentSession,
        *,
        permissions: Permissions,
        answers: Sequence[Answer],
        skip: Callable[[int], bool],
    ) -> None:
        self._id = session.id
        self._name = session.directory
        self._skip = skip
        self._connection = connection
        self._wire = connection.wire(session.directory)
        self._process = connection.process(session.directory)
        self._client = Client(sandbox, user=session.user, cwd=session.cwd, permissions=permissions, answers=answers)
        self._session = Session(self._wire, self._client, connection.patience)

    async def turn(
        self, number: int, prompt: str, sink: Callable[[list[Line]], None], reading: Reading, limits: Limits
    ) -> Turn:
        """The turn of this number, from its prompt or from wherever another worker left it."""
        async with self._connection.reach(self._name) as during:
            turn: Turn = await during(
                self._session.prompt(
                    _request(number),
                    self._id,
                    [{"type": "text", "text": prompt}],
                    sink,
                    limits,
                    self._process.kill,
                    reading=reading,
                    skip=self._skip,
                )
            )
            return turn

    async def was_begun(self, number: int) -> bool:
        """Whether the prompt of this turn was sent."""
        return self._wire.was_sent(_request(number))

    def cancel(self, number: int) -> None:
        """Have a turn end: whoever hears it asks the agent to stop, then kills it."""
        self._session.cancel(_request(number))

    async def kill(self) -> None:
        """End the agent with all that it started."""
        await self._process.kill()

    async def log_tail(self) -> str | None:
        """The last lines of the agent's error output."""
        return self._wire.log_tail()

    async def close(self) -> None:
        """Let go of what was served to the agent; it goes on."""
        await self._client.aclose()


def _request(number: int) -> str:
    return f"prompt-{number}"
