"""Memory counters of a container: those of its control group while it runs, the daemon's OOM flag afterwards."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.memory_use import MemoryUse
from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.root_shell import RootShell
from benchflow.planes.sandbox.outcome import KILLED
from benchflow.planes.sandbox.sandbox_memory import V1_FILES, V2_FILES, make_memory_error, parse_memory

# With cgroup v1, and with v2 in a cgroup namespace of its own, the container sees its own group as the root. With v2 in
# the host's namespace, whose root has no such files, /proc has the path. Shell builtins only, because memory is short,
# and an image may have no cat. Each line is printed after the name of its file.
_READ = f"""
own=
while IFS=: read -r n c p; do [ "$n:$c" = 0: ] && own=$p; done </proc/self/cgroup
for d in /sys/fs/cgroup "/sys/fs/cgroup$own" /sys/fs/cgroup/memory; do
  for f in {" ".join((*V2_FILES, *V1_FILES))}; do
    [ -r "$d/$f" ] && while read -r l; do printf '%s %s\\n' "$f" "$l"; done <"$d/$f"
  done
  [ -r "$d/{V2_FILES[0]}" ] || [ -r "$d/{V1_FILES[0]}" ] && exit 0
done
exit 0
"""


async def read_memory_use(engine: DockerDaemon, shell: RootShell, container: str) -> MemoryUse | None:
    """Return the memory counters of a container; of one that has ended, those that the daemon knows.

    Raises:
        SandboxLostError: The container was removed.
    """
    try:
        answer = await shell.run(_READ)
    except SandboxLostError:
        return find_last_use(await engine.inspect(container))
    files: dict[str, str] = {}
    for line in answer.out.decode(errors="replace").splitlines():
        name, _, text = line.partition(" ")
        files[name] = f"{files.get(name, '')}{text}\n"
    return parse_memory(files)


def find_last_use(container: dict[str, Any]) -> MemoryUse | None:
    """Return the counters of a container that has ended, whose control group is gone; None if it runs.

    The daemon's OOM flag means that at least one process was killed, not how many or which. Only together with exit
    status 137 of the first process it explains why the container has ended.

    Args:
        container: `inspect` data of the container.
    """
    state = container["State"]
    if state["Running"]:
        return None
    is_killed = state["OOMKilled"] and state["ExitCode"] == KILLED
    return MemoryUse(kills=int(is_killed), limit_mb=(container["HostConfig"]["Memory"] or 0) >> 20 or None)


def make_lost_error(name: str, container: dict[str, Any] | None) -> SandboxLostError:
    """Return the error for a sandbox whose container has ended, which names memory as the cause if it was.

    Args:
        name: Name of the sandbox.
        container: `inspect` data of the container; None if it was removed.
    """
    if container is None:
        return SandboxLostError(f"the sandbox {name} is gone")
    ended = f"the sandbox {name} no longer runs (exit status {container['State']['ExitCode']})"
    return make_memory_error(name, find_last_use(container)) or SandboxLostError(ended)
