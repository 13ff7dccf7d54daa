"""What a command printed: two files in its room inside the container, shown whole, cut, or as they end.

The files belong to the command's user, and the container's root may do with them what it likes: they are evidence of
what was printed, no more.
"""

from __future__ import annotations

from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.docker.shell import RootShell
from benchflow.planes.sandbox.outcome import LEFT_OUT, OUTPUT_CAP, OUTPUT_ON_DISK

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


class Output:
    """The outputs of the commands of one container. cap: bytes kept of each in the end; on_disk: while it grows."""

    def __init__(self, shell: RootShell, *, cap: int = OUTPUT_CAP, on_disk: int = OUTPUT_ON_DISK) -> None:
        self._shell = shell
        self._cap, self._on_disk = cap, on_disk

    async def collect(
        self, room: str, code: int, *, timed_out: bool = False, remove: bool = False
    ) -> SandboxExecResult:
        """The result of a command that ended with `code`. remove: its room with it."""
        left_out = LEFT_OUT.replace("\n", "\\n")
        script = _SHOW.format(room=room, cap=self._cap, half=self._cap // 2, left_out=left_out)
        if remove:
            script = f"(\n{script}\n)\nr=$?; rm -rf {room}; exit $r"
        answer = await self._shell.run(script)
        if answer.code > 1:
            raise SandboxError(f"a command's output is gone from the sandbox: {answer.complaint}")
        return SandboxExecResult(
            return_code=code,
            stdout=answer.out.decode(errors="replace"),
            stderr=answer.err.decode(errors="replace"),
            timed_out=timed_out,
            truncated=answer.code == 1,
        )

    async def tail(self, room: str, limit: int) -> str:
        """The last bytes of standard output."""
        answer = await self._shell.run(f"tail -c {limit} {room}/out")
        return answer.out.decode(errors="replace")

    async def trim(self, room: str) -> None:
        """Give back the middle of what has grown too large, while the command goes on."""
        await self._shell.run(_TRIM.format(room=room, limit=self._on_disk, half=self._cap // 2))
