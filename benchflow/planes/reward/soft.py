"""Room in a sandbox for a verifier while the agent is still there: made beside what is its, and put back as it was.

What lies where the verifier belongs is set aside meanwhile. Both scripts may be broken off anywhere and run again.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import VerifierError

LOGS = "/logs/verifier"
KEPT = ".benchflow-kept"
"""What the name of that which was set aside ends with; `.new` behind it while it is being moved."""

ENV = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
"""Keeps the usual verifier from leaving caches in the workspace, which would tell the agent what is tested."""

# $1 the verifier's directory, $2 its user, then files outside its directories that it writes.
_SCRIPT = r"""
set -e
target=$1 user=$2
shift 2
back() {
  k=$1.benchflow-kept
  if [ -d "$k" ]; then rm -rf "$1" && mv "$k" "$k.new"; fi
  if [ -e "$k.new/was" ] || [ -h "$k.new/was" ]; then mv "$k.new/was" "$1"; fi
  rm -rf "$k.new"
}
aside() {
  k=$1.benchflow-kept
  mkdir -p "${1%/*}/" && mkdir -m 700 "$k.new"
  if [ -e "$1" ] || [ -h "$1" ]; then mv "$1" "$k.new/was"; fi
  mv "$k.new" "$k"
}
back "$target"; back /logs/verifier; back /tests
rm -rf "$@"
"""
_MAKE = r"""
aside "$target"; aside /logs/verifier
mkdir -m 700 "$target" /logs/verifier
chown "$user" "$target" /logs/verifier
if [ "$target" = /verifier ] && { [ -h /tests ] || [ ! -e /tests ]; }; then aside /tests; ln -s /verifier /tests; fi
"""


async def make_room(sandbox: Sandbox, target: str, user: str, outputs: Sequence[str]) -> None:
    """Make the verifier's directories, which are `user`'s and nobody else's."""
    await _run(sandbox, _SCRIPT + _MAKE, target, user, outputs)


async def clear_room(sandbox: Sandbox, target: str, user: str, outputs: Sequence[str]) -> None:
    """Remove all that a verifier was given and has written there, and put back what was set aside."""
    await _run(sandbox, _SCRIPT, target, user, outputs)


async def _run(sandbox: Sandbox, script: str, target: str, user: str, outputs: Sequence[str]) -> None:
    result = await sandbox.control(script, target, user, *outputs)
    if result.return_code != 0:
        raise VerifierError("no room could be made for the verifier beside the agent", log_tail=result.stderr[-4000:])
