"""Evaluation of a verifier's program after its end: exit status and reward files become a result or a typed error."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchflow.confined import ConfinedPath
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.reward import HardeningFinding, JudgeRubric, VerifyResult
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.contracts.verifier import VerifierConfig, VerifierDocument
from benchflow.errors import VerifierError, VerifierMemoryError, VerifierTimeoutError
from benchflow.planes.reward import kit
from benchflow.planes.reward.hardening import is_plugin_missing, note_doubts
from benchflow.planes.reward.script_reward import OUTPUT, parse_rewards
from benchflow.planes.reward.strict import read_tail
from benchflow.planes.sandbox.outcome import KILLED, NOT_STARTED
from benchflow.planes.sandbox.sandbox_memory import KillNote

TAIL = 4000
"""Number of bytes, at the end of a program's output, that an error quotes."""

_MAX_READ = 4 * 1024 * 1024
_ENDED = "ended by itself"
_LINKED = "linked "
# A separate shell waits for the verifier, because an exit status alone does not tell death by a signal from an exit
# with 128 + its number: the shell reports a signal that ended its child on its stderr, to which nothing else writes,
# and it does not print `_ENDED` if it is killed as well.
RUN = f"""
chmod +x {{script}} 2>/dev/null
(
{{command}}
) >{{output}} 2>&1
c=$?
for f in {{rewards}}; do [ ! -h "$f" ] || echo "{_LINKED}$f"; done
echo {_ENDED}
exit $c
"""


def check_end(
    outcome: SandboxExecResult, logs: Path, config: VerifierConfig, *, program: str, directory: str, is_pinned: bool
) -> None:
    """Raise an error if a verifier's program ended in a way after which its reward does not count.

    Args:
        outcome: Result of `RUN`.
        logs: Copy of its files on this host.
        config: Configuration of the verifier.
        program: Program in the sandbox, for errors.
        directory: Directory in which it started.
        is_pinned: Whether its environment was pinned by a baseline.

    Raises:
        VerifierTimeoutError: It did not finish in time.
        VerifierError: It could not be started, was killed, left a reward file that is a link out of its directory, or
            its pytest did not find the engine's plugin.
    """
    tail = read_output_tail(logs)
    if outcome.timed_out:
        raise VerifierTimeoutError(
            f"the verifier did not finish in {config.timeout_sec:g} s",
            file=program,
            key="verifier.timeout_sec",
            remedy="raise verifier.timeout_sec, or find what hangs",
            log_tail=tail,
        )
    if outcome.return_code == NOT_STARTED and _ENDED not in outcome.stdout:
        raise VerifierError(
            f"the verifier cannot be started in {directory}: {outcome.stderr.strip() or 'it is no directory'}",
            file=program,
            remedy="see what the agent has made of its workspace; verifier.hardening.own_workspace makes it anew",
            log_tail=tail,
        )
    # A signal ended the verifier's process, as far as a shell reports it: not SIGINT and SIGPIPE.
    if outcome.return_code > 128 and (_ENDED not in outcome.stdout or outcome.stderr.strip()):
        raise VerifierError(
            f"the verifier was killed (exit status {outcome.return_code}): what it has written does not count",
            file=program,
            remedy="let what it tests not run as its user, and see whether it runs out of memory",
            log_tail=tail,
        )
    lines = outcome.stdout.splitlines()
    linked = {posixpath.basename(path): path for line in lines if (path := line.removeprefix(_LINKED)) != line}
    # The download leaves out a link that leads out of the directory. Without this check the other file would count.
    lost = [name for name in linked if ConfinedPath(logs, name).status() is None]
    if lost and any(ConfinedPath(logs, name).status() is not None for name in ("reward.txt", "reward.json")):
        raise VerifierError(
            "the reward file is a link that leads out of its directory",
            file=linked[lost[0]],
            remedy="write a regular file, and let what the verifier tests not write to its directory",
            log_tail=tail,
        )
    if is_pinned and is_plugin_missing(read_output_tail(logs, _MAX_READ) or ""):
        raise VerifierError(
            "its pytest did not find the plugin that the engine gives it, so that no test was run: a Python of the "
            "verifier's own is isolated from $PYTHONPATH, or is given another one",
            file=program,
            key="verifier.hardening.pin_environment",
            remedy='keep what is there (PYTHONPATH="/app:$PYTHONPATH"), or set pin_environment = false',
            log_tail=tail,
        )


@contextmanager
def explain_kills(
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
    explanation = use.explanation(kills)

    def make_error(what: str) -> VerifierMemoryError:
        remedy = use.remedy("memory_mb")
        return VerifierMemoryError(
            f"{explanation} while the verifier ran, and {what}",
            file=program,
            key="memory_mb",
            remedy=remedy,
            log_tail=log_tail,
        )

    try:
        yield [f"{explanation} while the verifier ran; it went on, and its reward counts"]
    except VerifierTimeoutError:
        # This error has a remedy of its own, and there is no reward in any case.
        raise
    except VerifierError as cause:
        raise make_error(cause.message) from cause
    if return_code == KILLED:
        raise make_error(f"it ended with exit status {KILLED}: what it has written does not count")


def read_result(
    logs: Path,
    *,
    config: VerifierConfig,
    document: VerifierDocument | None,
    rubrics: Mapping[str, JudgeRubric],
    exit_code: int,
    is_split: bool = False,
    is_lenient: bool = False,
) -> VerifyResult:
    """Return the result in a verifier's files, by the task's declarations. Errors are those of `parse_rewards`.

    Args:
        logs: Copy of the verifier's files on this host.
        config: Configuration of the verifier.
        document: The verifier's document; None if the task has none.
        rubrics: Rubrics of the task, by path.
        exit_code: Exit status of the verifier.
        is_split: Whether the task has the split layout, where several keys without a scalar are a reward.
        is_lenient: See `parse_rewards`.
    """
    policy = document.outputs.aggregate_policy if document else None
    criteria = kit.find_criteria(document.strategy, rubrics) if document else None
    if criteria is not None and document is not None:
        policy = kit.make_policy(document, criteria)
    result = parse_rewards(
        logs,
        reward_range=config.reward_range,
        exit_code=exit_code,
        aggregate=policy,
        now=datetime.now(UTC),
        reward_key=config.reward_key,
        is_split=is_split,
        is_lenient=is_lenient,
    )
    if criteria is not None and policy is not None:
        kit.check_criteria(result, criteria, policy)
    return result


def read_doubts(logs: Path) -> list[HardeningFinding]:
    """Return findings about pytest runs that counted as failed because of actions of the tested code."""
    return note_doubts(read_output_tail(logs, _MAX_READ) or "")


def read_output_tail(logs: Path, most: int = TAIL) -> str | None:
    """Return the last `most` bytes of a verifier's output; None if there is no output file that can be read."""
    return read_tail(ConfinedPath(logs, OUTPUT), most)
