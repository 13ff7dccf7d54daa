"""The rule whether a verifier's reward counts after the kernel's out-of-memory killer struck while it ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchflow.contracts.memory_use import MemoryUse
from benchflow.errors import VerifierError, VerifierMemoryError, VerifierTimeoutError
from benchflow.planes.sandbox.outcome import KILLED
from benchflow.planes.sandbox.sandbox_memory import KillNote


@contextmanager
def explaining_kills(
    use: MemoryUse | None, note: KillNote | None, return_code: int, program: str, log_tail: str | None
) -> Iterator[list[str]]:
    """Yield warnings of out-of-memory kills to a block that reads a verifier's result, and judge that result.

    Exit status 137 after kills means that the tests were killed, whatever reward was written. With another status and a
    reward the verifier survived: the kill may have hit the program under test.

    Args:
        use: Memory counters after the verifier; None if there are none.
        note: Count of kills before it; None if all kills are its own.
        return_code: The verifier's exit status.
        program: The verifier's main program.
        log_tail: The end of its output.

    Raises:
        VerifierMemoryError: After kills the exit status is 137, or the block raised a `VerifierError` other than a
            timeout.
    """
    kills = 0 if use is None else use.kills if note is None else note.count_kills(use)
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
        # This error has a remedy of its own, and there is no reward in any case.
        raise
    except VerifierError as cause:
        raise error(cause.message) from cause
    if return_code == KILLED:
        raise error(f"it ended with exit status {KILLED}: what it has written does not count")
