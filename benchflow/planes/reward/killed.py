"""Decides whether a verifier's reward counts if the kernel killed for want of memory while it ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchflow.contracts.memory_use import MemoryUse
from benchflow.errors import VerifierError, VerifierMemoryError, VerifierTimeoutError
from benchflow.planes.sandbox.memory import KillNote
from benchflow.planes.sandbox.outcome import KILLED


@contextmanager
def explaining_kills(
    use: MemoryUse | None, note: KillNote | None, return_code: int, program: str, log_tail: str | None
) -> Iterator[list[str]]:
    """Read a verifier's verdict in a block. Yields warnings of the kills that it survived.

    A verifier that ended with the status of a killed process passes on how its tests ended, whatever it wrote; one that
    has another status, and a reward, has gone on after the kill: what it tested may well be what needed the memory.

    Args:
        use: The counters after the verifier.
        note: The count before it; None where all kills are its own.
        return_code: The verifier's exit status.
        program: The verifier's main program.
        log_tail: The end of its output.

    Raises:
        VerifierMemoryError: It was killed, or the block raised a `VerifierError` after kills.
    """
    kills = 0 if use is None else use.kills if note is None else note.kills(use)
    if use is None or not kills:
        yield []
        return
    said = use.explanation(kills)

    def error(what: str) -> VerifierMemoryError:
        remedy = use.remedy("memory_mb")
        return VerifierMemoryError(
            f"{said} while the verifier ran, and {what}",
            file=program,
            key="memory_mb",
            remedy=remedy,
            log_tail=log_tail,
        )

    try:
        yield [f"{said} while the verifier ran; it went on, and its reward counts"]
    except VerifierTimeoutError:
        # It says itself what to do, and has no reward either.
        raise
    except VerifierError as cause:
        raise error(cause.message) from cause
    if return_code == KILLED:
        raise error(f"it ended with exit status {KILLED}: what it has written does not count")
