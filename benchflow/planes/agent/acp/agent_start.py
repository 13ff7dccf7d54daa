"""The start of an agent's process: its command, account and settings, and the files that it reads in its home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_config import McpServer
from benchflow.errors import AgentExitError
from benchflow.planes.agent.account import SandboxAccount
from benchflow.planes.agent.agent_settings import AgentSettings


@dataclass(frozen=True)
class AgentStart:
    """Everything that is needed to start an agent."""

    record: AgentRecord
    """Registry record of the agent."""

    settings: AgentSettings
    """Settings for this start, among them the files that are written below its home."""

    pump: tuple[str, ...]
    """Command of the stdio proxy."""

    argv: tuple[str, ...]
    """Command of the agent."""

    account: SandboxAccount
    """Account that it runs as."""

    cwd: str
    """Absolute path of its working directory."""

    env: Mapping[str, str] = field(repr=False)
    """Variables of its process, secrets included."""

    secret_files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Content of secret files by path below its home. They lie in memory, so that no snapshot has them."""

    mcp_servers: Sequence[McpServer] = ()
    """MCP servers that the session is given."""

    effort: str | None = None
    """Reasoning effort, as the agent's record spells it; None for the agent's default."""


# Files that the agent reads, written as its own user: a link that it left in its home must not lead root elsewhere. $1:
# home, then pairs of a path below it and the variable that holds the content; `-` makes a directory. Secrets lie in
# memory.
_HOME = r"""umask 077; cd -- "$1" || exit 1; shift
while [ $# -gt 0 ]; do
  case $2 in
    -) mkdir -p -- "$1" ;;
    SECRET_*) mkdir -p -- "$(dirname -- "$1")"; place=$(mktemp -d /dev/shm/benchflow.XXXXXX) || exit 1
      eval "printf %s \"\$$2\"" >"$place/content"; ln -sfn "$place/content" "$1" ;;
    *) mkdir -p -- "$(dirname -- "$1")"; rm -f -- "$1"; eval "printf %s \"\$$2\"" >"$1" ;;
  esac || exit 1
  shift 2
done"""


async def prepare_home(sandbox: Sandbox, start: AgentStart) -> None:
    """Make the directories and files in the agent's home that it reads at its start.

    Raises:
        AgentExitError: They cannot be written.
    """
    words: list[str] = []
    env: dict[str, str] = {}
    for path in start.record.home_dirs:
        words += [path, "-"]
    for kind, files in (("FILE", start.settings.files), ("SECRET", start.secret_files)):
        for number, (path, content) in enumerate(files.items()):
            env[f"{kind}_{number}"] = content
            words += [path, f"{kind}_{number}"]
    if not words:
        return
    account = start.account
    made = await sandbox.exec(
        ["sh", "-c", _HOME, "sh", account.home, *words], env=env, user=account.name, cwd="/", timeout=60
    )
    if made.return_code != 0:
        raise AgentExitError(
            f"the files of agent {start.record.name!r} could not be written below {account.home}",
            remedy="look whether the agent's user may write there",
            log_tail=made.stderr[-2000:] or None,
        )
