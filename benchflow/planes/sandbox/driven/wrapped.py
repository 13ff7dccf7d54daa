"""Commands behind a small shell that writes outputs and exit code to files, for drivers that only start processes.

Output goes to files rather than to an attached stream, so that a command may leave a server behind, whose output would
hold the stream open, and so that any process of the engine can read the result after a crash. Each command has a
directory of its own. Its files belong to the command's user, and root of the sandbox can change them: they are evidence
of the output, no more. The exit code in them counts only where the driver does not know it.
"""

from __future__ import annotations

import shlex
from typing import Literal

from benchflow.contracts.accelerators import ProcessOutput
from benchflow.contracts.driver import Process
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.driven.engine_scripts import DISK_FULL, ENGINE_DIRECTORY, EngineScripts, raise_if_full
from benchflow.planes.sandbox.outcome import LEFT_OUT, OUTPUT_CAP, OUTPUT_ON_DISK

COMMANDS = f"{ENGINE_DIRECTORY}/exec"
"""Directory in a sandbox that holds the directories of commands."""

MARKER = "BENCHFLOW_EXEC"
"""Variable in the environment of a command, by which its descendants are known. Its value is the process id."""

MARK_AGENT = "ulimit -m 9007199254740991 2>/dev/null; "
"""Prefix of the script of every shell that enters a sandbox, except on the way to its entrypoint. It lowers a limit, by
which `table` distinguishes the two.
"""

STARTED = "begun"
"""Content of the exit code's file while the command runs."""

STATUS_WIDTH = len(STARTED)
"""Characters of the line in the exit code's file. The line is written when the directory is made, blank before the
command begins. Overwritten in place, it needs no more of a disk that may be full by then.
"""

_NO_DIRECTORY = 44
"""Exit code of a script that finds no directory of the command."""

# $1: directory; the rest: the command. The shell's own output is discarded, even its message that its child was killed:
# what arrives on the attached stream is the driver's reason not to start the process.
_WRAPPER = (
    'exec 2>/dev/null; {mark}d=$1; shift; {claim}printf "%-{width}s\\n" {begun} 1<>"$d/exit"; '
    '(exec "$@") </dev/null >>"$d/out" 2>>"$d/err"; c=$?; printf "%-{width}s\\n" $c 1<>"$d/exit"; exit $c'
)

# A program of the driver may outlive the process of the engine that ran it, and start the command late, when another
# one has started it, too. Only the first one that makes this file runs it. If the disk is full, the file cannot be
# made, and all run it.
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


def wrap_process(process: Process, *, is_world: bool = False) -> Process:
    """Return the process that runs another one behind the shell. is_world: whether it belongs to the world."""
    script = _WRAPPER.format(mark="" if is_world else MARK_AGENT, claim=_CLAIM, begun=STARTED, width=STATUS_WIDTH)
    argv = ("/bin/sh", "-c", script, "benchflow-exec", locate_command(process.id), *process.argv)
    return process.model_copy(update={"argv": argv})


def wrap_unlogged(process: Process) -> Process:
    """Return the process that runs another one without files: its output goes to the attached stream alone."""
    return process.model_copy(
        update={"argv": ("/bin/sh", "-c", f'{MARK_AGENT}exec "$@"', "benchflow-exec", *process.argv)}
    )


def locate_command(process_id: str) -> str:
    """Return the path of a command's directory in the sandbox."""
    return f"{COMMANDS}/{process_id}"


class CommandFiles:
    """The directories of the commands of one sandbox.

    Args:
        scripts: Runner of scripts in the sandbox.
        cap: Maximum bytes of an output that is returned.
        on_disk: Maximum bytes of an output on the disk, while it grows.
    """

    def __init__(self, scripts: EngineScripts, *, cap: int = OUTPUT_CAP, on_disk: int = OUTPUT_ON_DISK) -> None:
        """Make it."""
        self._scripts = scripts
        self._cap, self._on_disk = cap, on_disk

    async def make(self, process_id: str, user: str) -> None:
        """Make a command's directory, in which its user may write the output files and nothing else.

        Raises:
            SandboxSpaceError: The disk is full.
            SandboxError: There is no such user.
        """
        room = locate_command(process_id)
        give = "" if user == "0" else f" && chown -- {shlex.quote(user)} out err exit claim"
        blank = " " * STATUS_WIDTH
        # Root in the sandbox may have replaced them by links to files that the engine would overwrite.
        unlink = "for f in out err exit claim; do [ ! -h $f ] || rm -f $f; done"
        # Not every shell reports a failed write, therefore the line is read again.
        answer = await self._scripts.run(
            f"[ ! -h {room} ] || rm -f {room}\nmkdir -p {room} && cd {room} || exit\n{unlink}\n"
            f"mkdir -p claim && chmod 0711 {ENGINE_DIRECTORY} {COMMANDS} {room} && : >>out && : >>err || exit\n"
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
        """Return the line in a command's exit file: its exit code, `STARTED`, or blanks before it began.

        Returns:
            Empty if root of the sandbox has removed or emptied the file; None if the command has no directory.
        """
        room = locate_command(process_id)
        answer = await self._scripts.run(f"cat {room}/exit || [ -d {room} ] || exit {_NO_DIRECTORY}")
        return None if answer.exit_code == _NO_DIRECTORY else answer.out.decode(errors="replace")

    async def output(self, process_id: str, *, remove: bool = False) -> ProcessOutput:
        """Return the output of a command, without its middle if it is too long.

        Args:
            process_id: Id of the command's process.
            remove: Whether to delete its directory.

        Raises:
            SandboxError: The directory is gone.
        """
        room = locate_command(process_id)
        left_out = LEFT_OUT.replace("\n", "\\n")
        script = _SHOW.format(room=room, cap=self._cap, half=self._cap // 2, left_out=left_out)
        if remove:
            # The directory stays if it could not be read, so that a retry can read it.
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
        """Return the last `limit` bytes of stdout as text."""
        answer = await self._scripts.run(f"tail -c {limit} {locate_command(process_id)}/out")
        return answer.out.decode(errors="replace")

    async def after(self, process_id: str, out: int, err: int) -> dict[Literal["stdout", "stderr"], bytes]:
        """Return the available output from these offsets on. out, err: offsets in stdout and stderr, in bytes."""
        room = locate_command(process_id)
        answer = await self._scripts.run(f"tail -c +{out + 1} {room}/out; tail -c +{err + 1} {room}/err >&2")
        return {"stdout": answer.out, "stderr": answer.err}

    async def trim(self, process_id: str) -> None:
        """Remove the middle of outputs that are too large from the disk, while the command runs."""
        await self._scripts.run(_TRIM.format(room=locate_command(process_id), limit=self._on_disk, half=self._cap // 2))
