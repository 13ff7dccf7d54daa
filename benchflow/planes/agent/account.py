"""The account of an agent in its sandbox: a non-root user with small directories of its own and the workspace.

Nothing is copied and no tool tree is touched: programs live on shared prefixes, so that the cost does not depend on
the size of the image, only on the workspace.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchflow.contracts.agent import AgentPlace
from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, SandboxSetupError
from benchflow.planes.sandbox.timeouts import awake_timeout

AGENT_USER = "agent"
"""Name of the account."""
AGENT_UID = 61000
"""Uid of the account: none of any distribution's own accounts, and above those that `useradd` assigns."""

# $1 user, $2 uid, $3 workspace. Entries are written directly: not every image has `useradd`.
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


# $1: user. Prints uid, gid and home, each on a line.
_ACCOUNT = """id -u -- "$1" && id -g -- "$1" || exit 1
{ getent passwd "$1" 2>/dev/null || grep "^$1:" /etc/passwd; } | cut -d: -f6"""


@dataclass(frozen=True)
class SandboxAccount:
    """An account of a sandbox."""

    name: str
    uid: int
    gid: int
    home: str


async def find_account(sandbox: Sandbox, user: str | int) -> SandboxAccount:
    """Return the account of a user of the sandbox. Raise `SandboxError` if there is none."""
    if user in ("root", 0, "0"):
        return SandboxAccount("root", 0, 0, "/root")
    answer = await sandbox.control(_ACCOUNT, str(user))
    rows = answer.stdout.split("\n")
    if answer.return_code != 0 or len(rows) < 3 or not (rows[0].isdigit() and rows[1].isdigit()):
        raise SandboxError(
            f"there is no user {user!r} in the sandbox", key="agent.user", log_tail=answer.stderr or None
        )
    return SandboxAccount(str(user), int(rows[0]), int(rows[1]), rows[2] or "/")


async def create_session_record(place: AgentPlace, index: int) -> AgentSession:
    """Return the record of a new session, for an agent that acts as its place's user in the workspace.

    Args:
        place: Place of the agent.
        index: Number of the session in its rollout.
    """
    account = await find_account(place.sandbox, place.user)
    # The name has the rollout namespace, since a sandbox may serve several rollouts.
    name = f"{place.sandbox.ref.episode}{index}.0"
    return AgentSession(
        index=index,
        id=name,
        directory=name,
        user=account.name,
        uid=account.uid,
        gid=account.gid,
        home=account.home,
        cwd=place.sandbox.ref.workdir,
        agent=place.record.name,
        version=place.record.version,
        model_access=place.access,
    )


async def prepare_account(sandbox: Sandbox, record: AgentRecord, wanted: str | int | None, timeout: float) -> str | int:
    """Create the agent's account unless it exists, give it the workspace, and return the user.

    Args:
        sandbox: Sandbox of the agent.
        record: Registry record of the agent, for its default user.
        wanted: User that the task names; None for the default.
        timeout: Seconds after which it fails.

    Raises:
        SandboxSetupError: It takes too long.
        SandboxError: The account cannot be created.
    """
    user = wanted if wanted is not None else AGENT_USER if record.user == "agent" else "root"
    if user in ("root", 0, "0"):
        return "root"
    if isinstance(user, int) or user.isdecimal():
        script = 'find "$3" -xdev ! -user "$1" -exec chown -h "$1:$1" {} +'
    else:
        script = _PREPARE
    late = SandboxSetupError(
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
