"""Score an oracle's work a second time in a clean room, to measure whether a clean room is faithful to the task."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchflow.contracts.reward import VerifyResult
from benchflow.errors import BenchFlowError
from benchflow.hosting.clean_room import CleanRoom
from benchflow.hosting.fidelity import Fidelity, store_fidelity
from benchflow.planes.reward.verify import ScriptVerifier


class RoomTrial:
    """Scores an oracle's step again in a clean room, and stores the rewards, or the error, as the task's `Fidelity`.

    It never decides the rollout's own score, and raises no `BenchFlowError`.

    Args:
        evidence: Directory for the packed work; removed at the end.
        task: Digest of the task, name of the provider, and name of the step (None: the only one).
    """

    def __init__(self, evidence: Path, task: tuple[str, str, str | None]) -> None:
        """Make it."""
        self._evidence = evidence
        self._task = task

    async def pack(self, keep_work: Callable[[Path], Awaitable[list[str]]]) -> None:
        """Pack the oracle's work before the real verifier starts. Errors are not raised, and end the trial.

        An error that is not retryable is stored as the clean room's result.

        Args:
            keep_work: Packs the work into the directory that it is called with.
        """
        try:
            await keep_work(self._evidence)
        except BenchFlowError as error:
            await asyncio.to_thread(shutil.rmtree, self._evidence, ignore_errors=True)
            if not error.retryable:
                store_fidelity(*self._task, Fidelity(error=error.message))

    async def run(
        self,
        room: CleanRoom,
        alone: ScriptVerifier,
        measure: Callable[[CleanRoom, ScriptVerifier], Awaitable[VerifyResult]],
    ) -> None:
        """Score the packed work in the room, and store rewards or error in the task's `Fidelity`.

        Does nothing if `pack` failed. No `BenchFlowError` is raised; after a retryable one nothing is stored.

        Args:
            room: The clean room.
            alone: The verifier for a clean room.
            measure: Called with both; runs the verifier in the room, and returns its result.
        """
        if not self._evidence.is_dir():
            return
        try:
            result = await room.run_once(lambda: measure(room, alone))
            found = Fidelity(separate=result.rewards)
        except BenchFlowError as error:
            if error.retryable:
                # Nothing was measured: the next oracle's rollout may succeed.
                return
            found = Fidelity(error=error.message)
        finally:
            await asyncio.to_thread(shutil.rmtree, self._evidence, ignore_errors=True)
        store_fidelity(*self._task, found)
