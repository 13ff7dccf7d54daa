"""Score an oracle's work in a clean room too, beside its real score, to learn whether a clean room is faithful."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchflow.contracts.reward import VerifyResult
from benchflow.errors import BenchFlowError
from benchflow.hosting.clean_room import CleanRoom
from benchflow.hosting.fidelity import Fidelity, keep_fidelity
from benchflow.planes.reward.verify import ScriptVerifier


class RoomTrial:
    """The trial of a clean room for one step of an oracle's rollout. It never decides the rollout's own score.

    Args:
        evidence: Directory for what travels into the room; removed at the end.
        task: Digest of the task, name of the provider, and name of the step.
    """

    def __init__(self, evidence: Path, task: tuple[str, str, str | None]) -> None:
        """Make it."""
        self._evidence = evidence
        self._task = task

    async def keep(self, keep_work: Callable[[Path], Awaitable[list[str]]]) -> None:
        """Keep what travels, before the real verifier begins. keep_work: given the directory."""
        try:
            await keep_work(self._evidence)
        except BenchFlowError as error:
            await asyncio.to_thread(shutil.rmtree, self._evidence, ignore_errors=True)
            if not error.retryable:
                keep_fidelity(*self._task, Fidelity(error=error.message))

    async def run(
        self,
        room: CleanRoom,
        alone: ScriptVerifier,
        measure: Callable[[CleanRoom, ScriptVerifier], Awaitable[VerifyResult]],
    ) -> None:
        """Score in the room, and keep what that shows.

        Args:
            room: The clean room.
            alone: The verifier as it runs there.
            measure: Runs the verifier in the room.
        """
        if not self._evidence.is_dir():
            return
        try:
            result = await room.once(lambda: measure(room, alone))
            found = Fidelity(separate=result.rewards)
        except BenchFlowError as error:
            if error.retryable:
                # Nothing is known: the next oracle may find out.
                return
            found = Fidelity(error=error.message)
        finally:
            await asyncio.to_thread(shutil.rmtree, self._evidence, ignore_errors=True)
        keep_fidelity(*self._task, found)
