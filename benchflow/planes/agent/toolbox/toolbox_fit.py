"""Check that an image can run a toolbox, by running a part of it there."""

from __future__ import annotations

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, UnsupportedFeatureError
from benchflow.planes.agent.toolbox.toolbox_manifest import Toolbox, make_absolute

_TRY = """
"$@" >/dev/null && exit 0
status=$?
for loader in /lib/ld-musl-* /usr/lib/ld-musl-*; do [ -e "$loader" ] && echo musl; done
exit $status
"""


async def require_runs_in(sandbox: Sandbox, toolbox: Toolbox) -> None:
    """Raise an error if the programs of a mounted toolbox do not start in a sandbox.

    Raises:
        UnsupportedFeatureError: The image has another C library, or too old libraries.
        SandboxError: There is another reason, such as a toolbox that is not mounted.
    """
    probe = make_absolute(toolbox.manifest.installed.probe, toolbox.mount_path)
    result = await sandbox.control(_TRY, *probe)
    if result.return_code == 0:
        return
    agent = toolbox.manifest.agent
    made_for = toolbox.manifest.installed.libc
    if "musl" in result.stdout.split() and made_for == "glibc":
        raise UnsupportedFeatureError(
            f"the toolbox of agent {agent!r} is made for glibc, and the task's image has musl (Alpine)",
            key="sandbox.docker_image",
            remedy="build the task FROM an image with glibc, such as debian or ubuntu",
        )
    # An older loader ignores a kind of relocation that it does not know, and the program crashes with SIGSEGV (11).
    if made_for == "musl" and ("Error relocating" in result.stderr or result.return_code == 128 + 11):
        raise UnsupportedFeatureError(
            f"agent {agent!r} needs a newer musl than the task's image has",
            key="sandbox.docker_image",
            remedy="build the task FROM an image with musl 1.2.4 or newer (Alpine 3.18), or with glibc",
            log_tail=result.stderr[-2000:] or None,
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
