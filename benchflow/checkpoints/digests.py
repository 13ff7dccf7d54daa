"""Comparison of two worlds that were reached in different ways: the one by an agent, the other by its replay.

Compared are the files of the workspace and the rows of the databases, which are the agent's work. Left out are
modification times, and files elsewhere: homes hold names of sessions, and logs hold times. Python's `__pycache__` is
left out because it holds times of its sources.
"""

from __future__ import annotations

from benchflow.contracts.checkpoint import WorldDigests
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import SandboxError

# $1: the workspace. Digests names, kinds, modes, contents, and targets of links.
_DIGEST = r"""
cd -- "$1" || exit 1
for program in find sha256sum stat readlink sort; do command -v "$program" >/dev/null || exit 1; done
{
  find . -name __pycache__ -prune -o -type f -exec sha256sum {} +
  find . -name __pycache__ -prune -o -type l -exec sh -c 'for f; do echo "$f -> $(readlink "$f")"; done' sh {} +
  find . -name __pycache__ -prune -o ! -type l -exec stat -c '%n %F %a' {} +
} | LC_ALL=C sort | sha256sum
"""

_TIMEOUT_SEC = 300.0


async def digest_world(sandbox: Sandbox, world: StatefulEnvironment | None) -> WorldDigests:
    """Return digests of the workspace's files and of the databases' rows.

    Args:
        sandbox: The sandbox.
        world: Its environment; without a stateful one there are no rows.

    Raises:
        SandboxError: The workspace cannot be read, or the image lacks one of the needed programs.
        StateError: The databases cannot be read.
    """
    told = await sandbox.control(_DIGEST, sandbox.ref.workdir, timeout=_TIMEOUT_SEC)
    if told.return_code != 0 or not told.stdout.strip():
        raise SandboxError(
            f"the files of {sandbox.ref.workdir} could not be compared with those of another sandbox",
            remedy="use an image that has find, sha256sum, stat, readlink and sort",
            log_tail=told.stderr[-2000:] or None,
        )
    state = await world.query() if world is not None and world.is_stateful else None
    return WorldDigests(workspace=told.stdout.split()[0], rows=state.digest if state is not None else None)


def describe_difference(before: WorldDigests, now: WorldDigests) -> str | None:
    """Return how two worlds differ, as a phrase for a message; None if they are equal."""
    if before.workspace != now.workspace:
        return "the files of the workspace are others"
    return "the rows of the databases are others" if before.rows != now.rows else None
