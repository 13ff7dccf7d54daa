"""Directories in a sandbox for a verifier that runs while the agent is still there, and their removal without a trace.

Files at the verifier's paths are moved aside meanwhile. Both scripts may be interrupted anywhere and run again.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import VerifierError

LOGS = "/logs/verifier"
ASIDE_SUFFIX = ".benchflow-kept"
"""Suffix of files that were moved aside; followed by `.new` while they are being moved."""

ENV = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
"""Variables that keep Python and pytest from leaving caches in the workspace, which would show the agent the tests."""

# $1 the verifier's directory, $2 its user, then files outside its directories that it writes, which are removed.
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


async def create_directories(sandbox: Sandbox, target: str, user: str, outputs: Sequence[str]) -> None:
    """Create the verifier's directories, which only `user` and root may enter; move existing ones aside first.

    Args:
        sandbox: The agent's sandbox.
        target: Directory of the verifier.
        user: User of the verifier.
        outputs: Files outside of its directories that it writes: they are removed.

    Raises:
        VerifierError: The script failed.
    """
    await _run(sandbox, _SCRIPT + _MAKE, target, user, outputs)


async def restore_directories(sandbox: Sandbox, target: str, user: str, outputs: Sequence[str]) -> None:
    """Remove the verifier's directories and `outputs`, and move back the files that were moved aside.

    Arguments and errors are those of `create_directories`.
    """
    await _run(sandbox, _SCRIPT, target, user, outputs)


async def _run(sandbox: Sandbox, script: str, target: str, user: str, outputs: Sequence[str]) -> None:
    result = await sandbox.control(script, target, user, *outputs)
    if result.return_code != 0:
        raise VerifierError("no room could be made for the verifier beside the agent", log_tail=result.stderr[-4000:])
