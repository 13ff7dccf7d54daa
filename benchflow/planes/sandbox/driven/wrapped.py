"""Commands behind a small shell, for drivers that only start processes: it puts outputs and exit code in files inside.

Output goes to files rather than to an attached stream, so that a command may leave a server behind, whose output would
hold the stream open, and so that any process of the engine can read the result after a crash. Each command has a
directory of its own. Its files belong to the command's user, and root of the sandbox may do with them what it likes:
they are evidence of what was printed, no more. The exit code in them counts only where the driver does not know it.
"""

from __future__ import annotations

import shlex
from typing import Literal

from benchflow.contracts.accelerators import ProcessOutput
from benchflow.contracts.driver import Process
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.driven.scripts import DISK_FULL, ROOM, Scripts, raise_if_full
from benchflow.planes.sandbox.outcome import LEFT_OUT, OUTPUT_CAP, OUTPUT_ON_DISK

COMMANDS = f"{ROOM}/exec"

MARKER = "BENCHFLOW_EXEC"
"""A variable in the environment of a command: its mark."""

MARK_AGENT = "ulimit -m 9007199254740991 2>/dev/null; "
"""What every shell begins with that enters a sandbox, but not on the way to its entrypoint: see `processes`."""

BEGUN = "begun"
"""In the file of the exit code, until there is one."""

STATUS_WIDTH = len(BEGUN)
"""Characters of the line in that file, which is written when the directory is made, and blank before the command
begins. Overwritten in place, it needs no more of a disk that may be full by then.
"""

_NO_ROOM = 44

# $1: directory; the rest: the command. The shell's own output carries nothing, not even its remark that its child was
# killed: what arrives there is the driver's reason not to start.
_WRAPPER = (
    'exec 2>/dev/null; {mark}d=$1; shift; {claim}printf "%-{width}s\\n" {begun} 1<>"$d/exit"; '
    '(exec "$@") </dev/null >>"$d/out" 2>>"$d/err"; c=$?; printf "%-{width}s\\n" $c 1<>"$d/exit"; exit $c'
)

# A program that starts the command may outlive the process of the engine that ran it, and start it late, when another
# one has started it, too. The first one that makes this file runs it; where the disk is full, nobody can tell.
_CLAIM = '(set -C; : >"$d/claim/taken") || [ ! -e "$d/claim/taken" ] || exit 0; '

_SHOW = """
show() {{
  s=$(wc -c <"$1"); h=0
  if [ -f "$1.head" ]; then cat "$1.head"; h=1; fi
  if [ "$s" -le {cap} ] && [ $h = 0 ]; then cat "$1"; return 0; fi
  [ $h = 1 ] || head -c {half} "$1"
  printf '{left_out}'
  tail -c {half} "$1"; return 1
}}
cd {room} || exit 9
t=0; show out || t=1; show err >&2 || t=1; exit $t
"""

_TRIM = """
cd {room} || exit 0
for f in out err; do
  [ "$(wc -c <$f)" -gt {limit} ] || continue
  [ -f $f.head ] || head -c {half} $f >$f.head
  tail -c {half} $f >$f.tail; cat $f.tail >$f; rm -f $f.tail
done
"""


def wrapped(process: Process, *, is_world: bool = False) -> Process:
    """Return a process that runs another one behind the shell. is_world: it belongs to the world."""
    script = _WRAPPER.format(mark="" if is_world else MARK_AGENT, claim=_CLAIM, begun=BEGUN, width=STATUS_WIDTH)
    argv = ("/bin/sh", "-c", script, "benchflow-exec", room_of(process.id), *process.argv)
    return process.model_copy(update={"argv": argv})


def unlogged(process: Process) -> Process:
    """Return a process that runs another one whose outputs go to nobody but whoever is attached."""
    return process.model_copy(
        update={"argv": ("/bin/sh", "-c", f'{MARK_AGENT}exec "$@"', "benchflow-exec", *process.argv)}
    )


def room_of(process_id: str) -> str:
    """Return the directory of a command."""
    return f"{COMMANDS}/{process_id}"


class CommandFiles:
    """The directories of the commands of one sandbox.

    Args:
        cap: Bytes of an output that are kept in the end.
        on_disk: Bytes of an output that are kept while it grows.
    """

    def __init__(self, scripts: Scripts, *, cap: int = OUTPUT_CAP, on_disk: int = OUTPUT_ON_DISK) -> None:
        self._scripts = scripts
        self._cap, self._on_disk = cap, on_disk

    async def make(self, process_id: str, user: str) -> None:
        """Make a command's directory, whose files the command's user may write, and nothing else there."""
        room = room_of(process_id)
        give = "" if user == "0" else f" && chown -- {shlex.quote(user)} out err exit claim"
        blank = " " * STATUS_WIDTH
        # Whoever is root inside may have made links of these, to what the engine would write over.
        unlink = "for f in out err exit claim; do [ ! -h $f ] || rm -f $f; done"
        # Not every shell tells that it could not write.
        answer = await self._scripts.run(
            f"[ ! -h {room} ] || rm -f {room}\nmkdir -p {room} && cd {room} || exit\n{unlink}\n"
            f"mkdir -p claim && chmod 0711 {ROOM} {COMMANDS} {room} && : >>out && : >>err || exit\n"
            f"echo '{blank}' >exit; [ \"$(cat exit)\" = '{blank}' ] || {{ echo '{DISK_FULL}' >&2; exit 1; }}\n"
            f"chmod 0600 out err exit && chmod 0700 claim{give}"
        )
        if answer.exit_code:
            raise_if_full(answer.complaint)
            raise SandboxError(
                f"the user {user!r} cannot run commands: {answer.complaint}",
                key="user",
                remedy="name a user that exists in the image, or add it in the Dockerfile",
            )

    async def exit_line(self, process_id: str) -> str | None:
        """Return the line that a command's shell has left: its exit code, `BEGUN`, or blanks before it began.

        Empty where the sandbox's root has made away with it: nobody can tell. None where it has no directory.
        """
        room = room_of(process_id)
        answer = await self._scripts.run(f"cat {room}/exit || [ -d {room} ] || exit {_NO_ROOM}")
        return None if answer.exit_code == _NO_ROOM else answer.out.decode(errors="replace")

    async def output(self, process_id: str, *, remove: bool = False) -> ProcessOutput:
        """Return what a command has printed. remove: its directory with it."""
        room = room_of(process_id)
        left_out = LEFT_OUT.replace("\n", "\\n")
        script = _SHOW.format(room=room, cap=self._cap, half=self._cap // 2, left_out=left_out)
        if remove:
            # What could not be shown is asked for again.
            script = f"(\n{script}\n)\nr=$?; [ $r -gt 1 ] || rm -rf {room}; exit $r"
        answer = await self._scripts.run(script)
        if answer.exit_code > 1:
            raise SandboxError(f"a command's output is gone from the sandbox: {answer.complaint}")
        return ProcessOutput(
            stdout=answer.out.decode(errors="replace"),
            stderr=answer.err.decode(errors="replace"),
            truncated=answer.exit_code == 1,
        )

    async def tail(self, process_id: str, limit: int) -> str:
        """Return the last bytes of standard output."""
        answer = await self._scripts.run(f"tail -c {limit} {room_of(process_id)}/out")
        return answer.out.decode(errors="replace")

    async def after(self, process_id: str, out: int, err: int) -> dict[Literal["stdout", "stderr"], bytes]:
        """Return what a command has printed beyond so many bytes of each output, as far as it is there now."""
        room = room_of(process_id)
        answer = await self._scripts.run(f"tail -c +{out + 1} {room}/out; tail -c +{err + 1} {room}/err >&2")
        return {"stdout": answer.out, "stderr": answer.err}

    async def trim(self, process_id: str) -> None:
        """Free the disk from the middle of what has grown too large, while the command goes on."""
        await self._scripts.run(_TRIM.format(room=room_of(process_id), limit=self._on_disk, half=self._cap // 2))
