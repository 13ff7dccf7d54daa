"""The oracle: the task's own solution, run in the workspace, mostly as root. It measures the task, not a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout import TurnResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import AgentExitError, AgentTimeoutError, UnsupportedFeatureError

OUTPUT = "/logs/agent/oracle.txt"
_TAIL = 4000
# Solutions are published with and without a shebang; bash is what they are written for.
_RUN = f'exec >{OUTPUT} 2>&1; command -v bash >/dev/null && exec bash "$0"; exec sh "$0"'


# A solution that was migrated from /solution may still name that path. The output of the step before may be of another
# user, who alone could write on.
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
    """Run `solve.sh` once under `key`; the turn and its trajectory lines.

    source: the oracle's directory on this host; target: where it lies in the sandbox (absolute). cwd: where it starts,
    the workspace by default. user: who it is, root by default.
    """
    if source is None or not (source / "solve.sh").is_file():
        raise UnsupportedFeatureError(
            "the task has no oracle: there is no solve.sh", key="agent", remedy="run it with another agent"
        )
    if not await sandbox.was_started(key):
        # A step's solution must not find that of the step before.
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
