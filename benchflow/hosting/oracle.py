"""Run the oracle: the task's own solution, mostly as root. It measures the task, not a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout_records import TurnResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import AgentExitError, AgentTimeoutError, UnsupportedFeatureError

OUTPUT = "/logs/agent/oracle.txt"
_TAIL = 4000
# Solutions are published with and without a shebang, and are written for bash.
_RUN = f'exec >{OUTPUT} 2>&1; command -v bash >/dev/null && exec bash "$0"; exec sh "$0"'


# A solution that was migrated from /solution may still name that path. The output of the step before is removed: it may
# belong to another user, and then could not be overwritten.
_PLACE = """
rm -rf "$1" "$2"
if [ "$1" = /oracle ] && { [ -h /solution ] || [ ! -e /solution ]; }; then ln -sfn /oracle /solution; fi
"""


async def run_oracle(
    sandbox: Sandbox,
    *,
    key: str,
    source: Path | None,
    target: str,
    env: dict[str, str],
    timeout: float | None,
    cwd: str | None = None,
    user: str | int | None = None,
) -> tuple[TurnResult, list[dict[str, Any]]]:
    """Run a step's `solve.sh` in the sandbox, at most once under a key, and return its turn.

    A retry uploads nothing, and awaits the execution that an earlier attempt started. A nonzero exit status or a
    timeout is a failure in the result, and not raised.

    Args:
        sandbox: The sandbox.
        key: Idempotency key of the command.
        source: Directory of the oracle on this host; None if the task has none.
        target: Absolute path in the sandbox to which it is uploaded, in place of an earlier step's.
        env: Environment of the script.
        timeout: Seconds after which the script is killed; None for no limit.
        cwd: Directory in which it starts; None for the workspace.
        user: User as whom it runs; None for root.

    Returns:
        The result of the turn, and its lines for the trajectory: command, exit status and output, then a timeout.

    Raises:
        UnsupportedFeatureError: There is no `solve.sh`.
    """
    if source is None or not (source / "solve.sh").is_file():
        raise UnsupportedFeatureError(
            "the task has no oracle: there is no solve.sh", key="agent", remedy="run it with another agent"
        )
    if not await sandbox.was_started(key):
        # A step's solution must not find the files of the step before.
        await sandbox.control(_PLACE, target, OUTPUT)
        await sandbox.upload(source, target)
    script = f"{target}/solve.sh"
    cwd = cwd or sandbox.ref.workdir
    result = await sandbox.exec_once(key, ["sh", "-c", _RUN, script], env=env, cwd=cwd, user=user, timeout=timeout)
    try:
        output = (await sandbox.read_bytes(OUTPUT)).decode(errors="replace")
    except FileNotFoundError:
        output = result.stdout + result.stderr
    line = {
        "type": "oracle",
        "command": script,
        "return_code": result.return_code,
        "stdout": output[-100_000:],
    }
    failure = None
    lines: list[dict[str, Any]] = [line]
    if result.timed_out:
        failure = failure_of(AgentTimeoutError(f"the oracle did not finish in {timeout:g} s", log_tail=output[-_TAIL:]))
        lines.append({"type": "agent_timeout", "reason": "wall_clock", "timeout_sec": timeout})
    elif result.return_code != 0:
        failure = failure_of(AgentExitError(f"the oracle ended with {result.return_code}", log_tail=output[-_TAIL:]))
    stop = "timeout" if result.timed_out else "end_turn" if failure is None else "error"
    return TurnResult(stop_reason=stop, failure=failure), lines
