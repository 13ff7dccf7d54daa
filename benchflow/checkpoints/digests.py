"""Whether two worlds are the same that were reached in different ways: the one by an agent, the other by its replay.

Compared is what agents work at: the files of the workspace and the rows of the databases. Not when a file was changed,
nor what lies elsewhere: homes hold the names of sessions, and logs the time. What an interpreter keeps beside its
sources tells of times, too.
"""

from __future__ import annotations

from benchflow.contracts.checkpoint import WorldDigests
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.world import Environment
from benchflow.errors import SandboxError

# $1: the workspace. Names, kinds, modes, contents, and where links lead.
_DIGEST = r"""
cd -- "$1" || exit 1
for program in find sha256sum stat readlink sort; do command -v "$program" >/dev/null || exit 1; done
{
  find . -name __pycache__ -prune -o -type f -exec sha256sum {} +
  find . -name __pycache__ -prune -o -type l -exec sh -c 'for f; do echo "$f -> $(readlink "$f")"; done' sh {} +
  find . -name __pycache__ -prune -o ! -type l -exec stat -c '%n %F %a' {} +
} | LC_ALL=C sort | sha256sum
"""

_LIMIT_SEC = 300.0


async def world_digests(sandbox: Sandbox, world: Environment | None) -> WorldDigests:
    """What a world is compared by. Raises `SandboxError` where its sandbox cannot tell, and `StateError`."""
    told = await sandbox.control(_DIGEST, sandbox.ref.workdir, timeout=_LIMIT_SEC)
    if told.return_code != 0 or not told.stdout.strip():
        raise SandboxError(
            f"the files of {sandbox.ref.workdir} could not be compared with those of another sandbox",
            remedy="use an image that has find, sha256sum, stat, readlink and sort",
            log_tail=told.stderr[-2000:] or None,
        )
    state = await world.query() if world is not None and world.is_stateful else None
    return WorldDigests(workspace=told.stdout.split()[0], rows=state.digest if state is not None else None)


def difference(before: WorldDigests, now: WorldDigests) -> str | None:
    """In what two worlds differ; None where they do not."""
    if before.workspace != now.workspace:
        return "the files of the workspace are others"
    return "the rows of the databases are others" if before.rows != now.rows else None
