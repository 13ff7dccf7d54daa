"""The memory counters of a container: those of its control group while it runs, the daemon's flag afterwards."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.memory_use import MemoryUse
from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.shell import RootShell
from benchflow.planes.sandbox.memory import V1_FILES, V2_FILES, loss_for_memory, parse_memory
from benchflow.planes.sandbox.outcome import KILLED

# The container's own group is the root of what it sees of version 1, and of version 2 where it has a namespace of its
# own. Where it shares the host's, whose root has no such files, /proc says where it is. By builtins alone: memory is
# short, and an image may have no cat. Each line of a file is printed behind the file's name.
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


async def memory_use(engine: Engine, shell: RootShell, container: str) -> MemoryUse | None:
    """Return the counters of a container that runs, or what the daemon knows of one that has ended.

    Raises `SandboxLostError` for one that is removed.
    """
    try:
        answer = await shell.run(_READ)
    except SandboxLostError:
        return last_use(await engine.about(container, lambda client: client.inspect_container(container)))
    files: dict[str, str] = {}
    for line in answer.out.decode(errors="replace").splitlines():
        name, _, text = line.partition(" ")
        files[name] = f"{files.get(name, '')}{text}\n"
    return parse_memory(files)


def last_use(container: dict[str, Any]) -> MemoryUse | None:
    """Return the counters of a container that has ended, whose control group is gone. container: as inspected.

    The daemon's flag says that some process was killed for want of memory, and not how many, nor that it was the first
    one: only with that one's exit status does it tell why the container has ended.
    """
    state = container["State"]
    if state["Running"]:
        return None
    is_killed = state["OOMKilled"] and state["ExitCode"] == KILLED
    return MemoryUse(kills=int(is_killed), limit_mb=(container["HostConfig"]["Memory"] or 0) >> 20 or None)


def lost_error(name: str, container: dict[str, Any] | None) -> SandboxLostError:
    """Return the error for a sandbox whose container has ended. container: as inspected, None for one removed."""
    if container is None:
        return SandboxLostError(f"the sandbox {name} is gone")
    ended = f"the sandbox {name} no longer runs (exit status {container['State']['ExitCode']})"
    return loss_for_memory(name, last_use(container)) or SandboxLostError(ended)
