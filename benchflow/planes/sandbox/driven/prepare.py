"""Creation of the directories that every sandbox has."""

from __future__ import annotations

import shlex

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.driven.engine_scripts import ENGINE_DIRECTORY, EngineScripts, raise_if_full
from benchflow.planes.sandbox.driven.wrapped import COMMANDS

# The agent's and the artifacts' directories are writable for all, since the agent may be any user; the verifier's is
# root's.
_PREPARE = f"""umask 022
mkdir -p /logs/agent /logs/verifier /logs/artifacts {COMMANDS} || exit 1
chmod 0755 /logs /logs/verifier; chmod 0777 /logs/agent /logs/artifacts; chmod 0711 {ENGINE_DIRECTORY} {COMMANDS}
"""


async def prepare_sandbox(scripts: EngineScripts, spec: SandboxSpec, *, is_new: bool = False) -> str:
    """Make the directories that every sandbox has, and its workspace, and return the workspace. Repeatable.

    Args:
        scripts: Runner of scripts in the sandbox.
        spec: Specification of the sandbox.
        is_new: Whether nothing has run in it yet. Stored outputs of commands are then those of its image, and removed.

    Raises:
        SandboxSpaceError: The disk is full.
        SandboxError: The directories cannot be made.
    """
    chosen = spec.named_workdir
    find = f"w={shlex.quote(chosen)}" if chosen else "if [ -d /app ]; then w=/app; else w=/root; fi"
    clear = f"rm -rf {COMMANDS}\n" if is_new else ""
    answer = await scripts.run(f'{clear}{_PREPARE}{find}\nmkdir -p -- "$w" && printf %s "$w"')
    if answer.exit_code:
        raise_if_full(answer.complaint)
        raise SandboxError(f"the sandbox cannot be prepared: {answer.complaint}")
    return answer.out.decode()
