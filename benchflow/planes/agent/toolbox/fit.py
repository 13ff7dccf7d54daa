"""Whether an image can run a toolbox: shown by running a part of it there, and refused by name where it cannot."""

from __future__ import annotations

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, UnsupportedFeatureError
from benchflow.planes.agent.toolbox.manifest import Toolbox, absolute

_TRY = """
"$@" >/dev/null && exit 0
status=$?
for loader in /lib/ld-musl-* /usr/lib/ld-musl-*; do [ -e "$loader" ] && echo musl; done
exit $status
"""


async def require_runs_in(sandbox: Sandbox, toolbox: Toolbox) -> None:
    """Raise `UnsupportedFeatureError` when the programs of a mounted toolbox do not start in a sandbox's image."""
    probe = absolute(toolbox.manifest.installed.probe, toolbox.mount_path)
    result = await sandbox.control(_TRY, *probe)
    if result.return_code == 0:
        return
    agent = toolbox.manifest.agent
    if "musl" in result.stdout.split():
        raise UnsupportedFeatureError(
            f"agent {agent!r} needs glibc, and the task's image has musl (Alpine)",
            key="sandbox.docker_image",
            remedy="build the task FROM an image with glibc, such as debian or ubuntu",
        )
    if "GLIBC" in result.stderr or "error while loading shared libraries" in result.stderr:
        raise UnsupportedFeatureError(
            f"agent {agent!r} needs newer system libraries than the task's image has",
            key="sandbox.docker_image",
            remedy="build the task FROM an image with glibc 2.28 or newer, and with libstdc++",
            log_tail=result.stderr[-2000:],
        )
    raise SandboxError(
        f"the toolbox of agent {agent!r} does not run at {toolbox.mount_path}",
        remedy="look whether the sandbox mounts it",
        log_tail=result.stderr[-2000:],
    )
