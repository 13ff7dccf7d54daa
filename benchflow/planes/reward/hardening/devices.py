"""The devices of a sandbox, which an agent that is root may replace, and which nobody inside can make again.

They lie in no layer of the sandbox's files, so that no list of changed files has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox

_NAMES = "null zero full random urandom tty fd stdin stdout stderr"
_LIST = f"cd /dev && stat -c '%t:%T %N' {_NAMES} 2>/dev/null; :"


async def list_devices(sandbox: Sandbox) -> list[str]:
    """Return a line for each device that programs expect: its numbers, its name, and where it leads if it is a link."""
    return (await sandbox.control(_LIST)).stdout.splitlines()


def replaced_devices(before: Sequence[str], now: Sequence[str], item: str) -> list[HardeningFinding]:
    """Return a finding for each device that is another one now. One that is missing misleads nobody.

    item: Of `verifier.hardening`.
    """
    known = {_name(line): line for line in before}
    changed = [_name(line) for line in now if _name(line) in known and known[_name(line)] != line]
    return [
        HardeningFinding(
            item=item, action="found", path=f"/dev/{name}", detail="is another device, or none", weight="tampering"
        )
        for name in changed
    ]


def _name(line: str) -> str:
    return line.split()[1].strip("'\"") if len(line.split()) > 1 else ""
