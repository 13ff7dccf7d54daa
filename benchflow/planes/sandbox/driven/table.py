"""The process table of a sandbox: scripts that list and stop processes, and functions over the list.

It is read from /proc by the shell's own builtins, since an image may have no `ps`, and evaluated on the host. A
command's processes are found by a marker in their environment, which survives a double fork and a new session, and by
descent and session, which survive a changed environment.

Processes of an image's entrypoint are distinguished from all others by a limit: every other way into the sandbox lowers
one that no kernel has enforced for twenty years (of the resident set), and a process that has lowered or inherited it
cannot raise it again. Neither a double fork nor a new session nor a cleared environment hides that.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchflow.contracts.process_table import RunningProcess
from benchflow.errors import SandboxError

INITS = (b"docker-init", b"tini", b"tini-static", b"catatonit", b"dumb-init")
"""Names of init programs that run the main process as a child."""

# NUL-separated, six fields a process: stat line (its name may hold anything but NUL), uid:gid, marked (1, 0, or ? for
# unreadable), hard limit of the resident set, arguments (without their separators), whether it executes the same file
# as its parent (1, 0, or ? for unreadable).
_LIST = """
for p in /proc/[0-9]*; do
  {{ while IFS= read -r l || [ -n "$l" ]; do printf '%s\\n' "$l"; done <$p/stat; }} 2>/dev/null
  u=; g=; {{ while read -r k v l; do
    case $k in Uid:) u=$v;; Gid:) g=$v; break;; esac; done <$p/status; }} 2>/dev/null
  h=; {{ while read -r a b c s l r; do [ "$b" = resident ] && h=$l; done <$p/limits; }} 2>/dev/null
  c=; {{ while IFS= read -r l || [ -n "$l" ]; do c="$c$l "; done <$p/cmdline; }} 2>/dev/null
  o=0; {{ while read -r k v l; do case $k in PPid:) o=$v; break;; esac; done <$p/status; }} 2>/dev/null
  f=0; if [ -e $p/exe ] && [ -e /proc/$o/exe ]; then [ $p/exe -ef /proc/$o/exe ] && f=1; else f='?'; fi 2>/dev/null
  m={unmarked}
  {look}
  printf '\\0%s:%s\\0%s\\0%s\\0%s\\0%s\\0' "$u" "$g" "$m" "$h" "$c" "$f"
done
"""
# If the first thread has ended, only the remaining threads have a readable environment.
_FIND_MARKER = """m=0; for t in $p $p/task/*; do o=
    { while IFS= read -r e || [ -n "$e" ]; do
      o=1; case $e in *%s*) m=1;; esac; done <$t/environ; } 2>/dev/null || m='?'
    case $o$m in 0) ;; *) break;; esac
  done"""

# The kernel stops all processes at once, so that none can escape by a fork, except PID 1 and the shell that sends the
# signal. Those to be spared are resumed a moment later, with all that they have started, until no new one is found.
_STOP = """
kill -STOP -1 2>/dev/null
spared=' {spared} '
read -r p l </proc/self/stat
while [ "${{p:-0}}" -gt 0 ]; do
  spared="$spared$p " n=0
  while read -r k v l; do case $k in PPid:) n=$v; break;; esac; done </proc/$p/status
  p=$n
done
going=' ' new=1
while [ -n "$new" ]; do
  new=
  for d in /proc/[0-9]*; do
    q=${{d#/proc/}} p=1
    case "$going" in *" $q "*) continue;; esac
    {{ while read -r k v l; do case $k in PPid:) p=$v; break;; esac; done <$d/status; }} 2>/dev/null
    case $spared in *" $q "*) ;; *) [ "$p" != 1 ] || continue; case $spared in *" $p "*) ;; *) continue;; esac;; esac
    kill -CONT "$q" 2>/dev/null
    spared="$spared$q " going="$going$q " new=1
  done
done
"""


def make_list_script(marker: str | None = None) -> str:
    """Return the script that lists processes for `parse_processes`. marker: text to look for in their environments."""
    return _LIST.format(unmarked="'?'" if marker else "0", look=_FIND_MARKER % marker if marker else "")


def make_stop_script(spared: Iterable[int]) -> str:
    """Return a script that stops all processes but PID 1, these ones, and their descendants.

    Processes that multiply, or replace themselves by forks, are missed by any listing that does not begin with that.
    """
    return _STOP.format(spared=" ".join(map(str, sorted({1, *spared}))))


def parse_processes(listing: bytes) -> dict[int, RunningProcess]:
    """Return the processes of a listing by pid. Those that ended while it was written are left out.

    Raises:
        SandboxError: A line is malformed.
    """
    table = {}
    fields = listing.split(b"\0")
    for stat, user, mark, limit, argv, same in zip(*(fields[at::6] for at in range(6)), strict=False):
        # The name is in parentheses and may hold any byte; nothing after it holds one.
        head, _, tail = stat.strip().rpartition(b") ")
        pid, _, name = head.partition(b" (")
        rest = tail.split()
        if not pid.isdigit() or len(rest) < 20 or user == b":":
            continue
        marked = None if mark == b"?" else mark == b"1"
        entered = limit != b"unlimited"
        try:
            parent, session, started = (int(rest[place]) for place in (1, 3, 19))
            # A process whose first thread has ended is a zombie to the kernel, but runs as long as it has others.
            state = "S" if rest[0] == b"Z" and int(rest[17]) > 1 else rest[0].decode()
            is_same = None if same == b"?" else same == b"1"
            found = RunningProcess(
                int(pid), parent, session, started, state, name, user.decode(), marked, entered, argv, is_same
            )
        except ValueError as error:
            # If it were left out, it would not be killed. The kernel writes no such line: programs of the sandbox were
            # changed.
            raise SandboxError(
                f"a line of the sandbox's list of processes is none: {stat[:80]!r}",
                remedy="look at the sandbox's shell and tools",
            ) from error
        table[found.pid] = found
    return table


def find_descendants(table: dict[int, RunningProcess], seeds: Iterable[int], spared: set[int]) -> set[int]:
    """Return the pids of the seeds, their descendants, and all processes in sessions that one of them began.

    Args:
        table: All processes.
        seeds: Pids to begin with.
        spared: Pids that are left out, and whose descendants do not count.
    """
    found = set(seeds) - spared
    while True:
        sessions = {table[pid].session for pid in found} & found
        more = {
            process.pid
            for process in table.values()
            if process.pid not in spared and (process.parent in found or process.session in sessions)
        }
        if more <= found:
            return found
        found |= more


def find_main_processes(table: dict[int, RunningProcess]) -> set[int]:
    """Return the pids of PID 1 and of the main process below it: when either ends, the sandbox ends.

    Without an init, PID 1 is the main process itself.
    """
    children = sorted(process.pid for process in table.values() if process.parent == 1)
    if not children or 1 not in table:
        return {1}
    if table[1].name in INITS:
        return {1, children[0]}
    return {1}
