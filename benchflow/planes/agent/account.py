"""The account that an agent acts as: a non-root user with small directories of its own and the workspace.

Nothing is copied and no tool tree is touched: programs live on shared prefixes, so that the cost does not depend on
what the image holds, only on the workspace.
"""

from __future__ import annotations

from benchflow.contracts.agent import AgentRecord
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, SandboxSetupTimeoutError
from benchflow.planes.sandbox.timeouts import awake_timeout

AGENT_USER = "agent"
AGENT_UID = 61000
"""Not a uid of any distribution's own accounts, and above those that `useradd` hands out."""

# $1 user, $2 uid, $3 workspace. Lines are written directly: `useradd` is not in every image.
_PREPARE = r"""
set -eu
user=$1 uid=$2 workspace=$3
if ! grep -q "^$user:" /etc/passwd; then
  while grep -q "^[^:]*:[^:]*:$uid:" /etc/passwd; do uid=$((uid + 1)); done
  grep -q "^$user:" /etc/group || echo "$user:x:$uid:" >> /etc/group
  gid=$(grep "^$user:" /etc/group | cut -d: -f3)
  echo "$user:x:$uid:$gid::/home/$user:/bin/sh" >> /etc/passwd
  if [ -e /etc/shadow ]; then echo "$user:*:19000:0:99999:7:::" >> /etc/shadow; fi
fi
line=$(grep "^$user:" /etc/passwd | head -n 1)
uid=$(echo "$line" | cut -d: -f3) gid=$(echo "$line" | cut -d: -f4) home=$(echo "$line" | cut -d: -f6)
[ -n "$home" ] && [ "$home" != / ] || home=/home/$user
for directory in "$home" "$home/.config" "$home/.cache" "$home/.local" "$home/.local/share"; do
  [ -d "$directory" ] || { mkdir -p "$directory"; chown "$uid:$gid" "$directory"; chmod 700 "$directory"; }
done
find "$workspace" -xdev ! -user "$uid" -exec chown -h "$uid:$gid" {} +
chown "$uid:$gid" /logs/agent /logs/artifacts
"""


async def prepare_account(sandbox: Sandbox, record: AgentRecord, wanted: str | int | None, timeout: float) -> str | int:
    """Make the agent's account ready and return its user. `wanted`: what the task asks for.

    Raises `SandboxSetupTimeoutError` after `timeout` seconds.
    """
    user = wanted if wanted is not None else AGENT_USER if record.user == "agent" else "root"
    if user in ("root", 0, "0"):
        return "root"
    if isinstance(user, int) or user.isdecimal():
        script = 'find "$3" -xdev ! -user "$1" -exec chown -h "$1:$1" {} +'
    else:
        script = _PREPARE
    late = SandboxSetupTimeoutError(
        f"preparing the agent's account took longer than {timeout:g} s",
        key="sandbox_setup_timeout",
        remedy="raise sandbox_setup_timeout, or make the workspace smaller",
    )
    try:
        async with awake_timeout(timeout + 10):
            result = await sandbox.control(script, str(user), str(AGENT_UID), sandbox.ref.workdir, timeout=timeout)
    except TimeoutError as error:
        raise late from error
    if result.timed_out:
        raise late
    if result.return_code != 0:
        raise SandboxError(
            f"the account {user!r} could not be made ready", key="agent.user", log_tail=result.stderr[-2000:]
        )
    return user
