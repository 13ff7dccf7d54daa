"""Records of a world's services in its sandbox: the latest epoch, and the status of each service in it.

An epoch is one run of the supervisor. They are numbered within one boot of the sandbox, so that a sandbox that
was restored or forked, which has the files of its parent but not its processes, starts with none. The records are read
and changed by small scripts in the sandbox and nothing is held in memory, so that another process can continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.errors import WorldError
from benchflow.planes.sandbox.outcome import LEFT_OUT

WORLD = "/run/benchflow/world"
"""Directory of the services' files in the sandbox. Only root may enter it."""

_LEFT_OUT = LEFT_OUT.replace("\n", "\\n")

State = Literal["waiting", "running", "ended", "left_out", "taken", "lost"]

# Sets `d`, the directory of the last epoch, and `n`, its number, 0 if there was none; `boot` of this boot.
_FIND_EPOCH = f"""
birth() {{
  born=0; state=
  {{ IFS= read -r row <"/proc/$1/stat"; }} 2>/dev/null || return 1
  set -- ${{row##*) }}
  state=$1 born=${{20}}
}}
lives() {{ birth "$1" && [ "$born" = "$2" ] && [ "$state" != Z ]; }}
birth 1; boot={WORLD}/$born n=0
for d in "$boot"/[0-9]*; do
  [ -d "$d" ] && [ "${{d##*/}}" -gt $n ] && n=${{d##*/}}
done
d=$boot/$n
"""

# The rest: names of services. A line for the epoch, then one for each service.
_READ_EPOCH = f"""{_FIND_EPOCH}
stage=open
[ $n = 0 ] && stage=none
[ -e "$d/stopping" ] && stage=stopping
[ -e "$d/stopped" ] && stage=stopped
up=0; read -r up _ </proc/uptime
alive=no; pid=; at=
[ -e "$d/supervisor" ] && {{ alive=gone; read -r pid at <"$d/supervisor"; lives "$pid" "$at" && alive=yes; }}
echo "$boot $n $stage $alive $up"
for name; do
  f=$d/$name code=- began=- ended=-
  [ -e "$f.pid" ] && read -r pid at began <"$f.pid"
  if [ -e "$f.exit" ]; then read -r code ended <"$f.exit"; now=ended
  elif [ -e "$f.pid" ]; then now=running; lives $pid $at || now=lost
  elif [ -e "$f.left_out" ]; then read -r code <"$f.left_out"; now=left_out
  elif [ -e "$f.taken" ]; then now=taken
  else now=waiting; fi
  echo "$now $code $began $ended"
done
"""

_READ_UPTIME = f"""{_FIND_EPOCH}
read -r up _ </proc/uptime; echo "${{boot##*/}} $up"
"""

# Clock ticks per second in /proc/PID/stat: USER_HZ, which is 100 whatever the kernel's own tick rate is.
_TICKS = 100

_CLAIM_EPOCH = f"""{_FIND_EPOCH}
if [ $n = 0 ] || [ -e "$d/stopped" ]; then
  n=$((n + 1)); d=$boot/$n
  mkdir -p {WORLD} && chmod 0700 {WORLD} && mkdir -p "$d" || exit 1
fi
echo $n
"""

# $1: number. Prints `pid start-time` of each process to which it sent SIGTERM.
_TERMINATE = f"""{_FIND_EPOCH}
d=$boot/$1
: >"$d/stopping" || exit 1
family=
for f in "$d"/*.pid "$d"/*.probing "$d/supervisor"; do
  {{ read -r pid at _ <"$f"; }} 2>/dev/null || continue
  [ -z "$at" ] || lives "$pid" "$at" || continue
  family="$family $pid "
done
supervisor=; {{ read -r supervisor _ <"$d/supervisor"; }} 2>/dev/null
grown=yes
while [ $grown = yes ]; do
  grown=no
  for p in /proc/[0-9]*; do
    p=${{p#/proc/}}
    case $family in *" $p "*) continue ;; esac
    parent=
    {{ while read -r key value; do [ "$key" = PPid: ] && parent=$value && break; done <"/proc/$p/status"; }} 2>/dev/null
    case $family in *" $parent "*) family="$family $p " grown=yes ;; esac
  done
done
for p in $family; do
  [ "$p" = "$supervisor" ] && continue
  lives "$p" "$(birth "$p"; echo $born)" || continue
  echo "$p $born"
  kill -TERM "$p"
done 2>/dev/null
exit 0
"""

# $1: `pid start-time` lines. Success if one of them still runs.
_IS_ANY_RUNNING = f"""{_FIND_EPOCH}
set -- $1
while [ $# -gt 1 ]; do lives "$1" "$2" && exit 0; shift 2; done
exit 1
"""

_MARK_STOPPED = f"""{_FIND_EPOCH}
[ -d "$boot/$1" ] && : >"$boot/$1/stopped"
"""

# $1: bytes, or `all`; the rest: files of the log directory. Each after a NUL.
_READ_LOGS = f"""{_FIND_EPOCH}
many=$1; shift
show() {{
  if [ "$many" != all ]; then tail -c "$many" "$1"; return; fi
  [ -e "$1.head" ] && cat "$1.head" && printf '{_LEFT_OUT}'
  cat "$1"
}}
for name; do
  printf '\\0'
  if [ -e "$boot/logs/$name" ]; then show "$boot/logs/$name" | tr -d '\\000'; fi
done
"""


@dataclass(frozen=True)
class ServiceRecord:
    """Status of a service in an epoch."""

    state: State
    """`waiting` for its start; `left_out`: not in this image; `taken`: its port was; `lost`: it is gone, and its exit
    status is not recorded.
    """

    code: int | None = None
    """Exit status of the service, or of its probe where it was left out."""

    ran: float | None = None
    """Seconds that it has run; None if it was not started."""

    ended_ago: float | None = None
    """Seconds since its exit status was recorded."""


@dataclass(frozen=True)
class ServiceEpoch:
    """The latest epoch of the services in a sandbox."""

    boot: str
    """Directory of this boot of the sandbox."""

    number: int
    """Number of the epoch in this boot; 0 if there is none."""

    stage: Literal["none", "open", "stopping", "stopped"]
    supervised: bool | None
    """Whether its supervisor runs; None if it has not started yet."""

    records: tuple[ServiceRecord, ...]
    """Statuses of the services, in the order in which they were asked for."""

    def key(self, number: int) -> str:
        """Return the `exec_once` key of the epoch `number` of this boot."""
        return f"world-{self.boot.rpartition('/')[2]}-{number}"


async def read_epoch(sandbox: Sandbox, names: Sequence[str]) -> ServiceEpoch:
    """Return the latest epoch, with the status of each of the services `names` in it."""
    said = await _run_script(sandbox, _READ_EPOCH, *names)
    first, *rows = said.stdout.splitlines()
    boot, number, stage, alive, up = first.split()
    records = []
    for row in rows:
        state, code, began, ended = row.split()
        finish = float(ended) if ended != "-" else float(up)
        records.append(
            ServiceRecord(
                state=state,  # type: ignore[arg-type]
                code=int(code) if code.isdigit() else None,
                ran=finish - float(began) if began != "-" else None,
                ended_ago=float(up) - float(ended) if ended != "-" else None,
            )
        )
    supervised = {"no": None, "yes": True, "gone": False}[alive]
    return ServiceEpoch(boot, int(number), stage, supervised, tuple(records))  # type: ignore[arg-type]


async def read_uptime(sandbox: Sandbox) -> float:
    """Return how long the sandbox has been running, in seconds: the age of its first process."""
    born, up = (await _run_script(sandbox, _READ_UPTIME)).stdout.split()
    return max(0.0, float(up) - int(born) / _TICKS)


async def claim_epoch(sandbox: Sandbox) -> int:
    """Return the number of the current epoch; if there is none, or it was stopped, create the next one."""
    return int((await _run_script(sandbox, _CLAIM_EPOCH)).stdout)


async def terminate_processes(sandbox: Sandbox, number: int) -> str:
    """Send SIGTERM to all descendants of an epoch's supervisor and return them, in a form for `is_any_running`."""
    return (await _run_script(sandbox, _TERMINATE, str(number))).stdout


async def is_any_running(sandbox: Sandbox, told: str) -> bool:
    """Return whether one of the processes that `terminate_processes` has returned still runs."""
    return bool(told.strip()) and (await sandbox.control(_IS_ANY_RUNNING, told)).return_code == 0


async def mark_stopped(sandbox: Sandbox, number: int) -> None:
    """Record that an epoch is stopped."""
    await _run_script(sandbox, _MARK_STOPPED, str(number))


async def read_logs(sandbox: Sandbox, files: Sequence[str], tail: int | None) -> list[str]:
    """Return the texts of files of the log directory, whole or their last `tail` bytes; empty for a missing one."""
    if not files:
        return []
    said = await _run_script(sandbox, _READ_LOGS, "all" if tail is None else str(tail), *files)
    return said.stdout.split("\0")[1:]


async def _run_script(sandbox: Sandbox, script: str, *args: str) -> SandboxExecResult:
    """Run a script in the sandbox. Raise `WorldError` if it fails."""
    said = await sandbox.control(script, *args)
    if said.return_code != 0:
        raise WorldError(
            "the services' records in the sandbox cannot be read or written",
            file=WORLD,
            log_tail=(said.stderr or said.stdout)[-2000:] or None,
        )
    return said
