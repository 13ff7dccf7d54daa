"""Builds that were made anew on request, beside those before, from which sandboxes may still be started.

A build goes by its identity: all that it is made from. One that is made anew goes by that and by the name of the
request, so that everybody who has the same request finds it, and nobody repeats it. The newest is recorded on this host
for those who have none.
"""

from __future__ import annotations

import hashlib

from benchflow.paths import state_dir
from benchflow.store import write_atomic


def build_key(identity: str, rebuild: str | None) -> str:
    """Return the key of the build to use: of the request `rebuild`, or of the newest one.

    Args:
        identity: A digest.
        rebuild: The name of the request; None if there is none.
    """
    request = rebuild or _newest(identity)
    return identity if request is None else hashlib.sha256(f"{identity}\0{request}".encode()).hexdigest()


def record_rebuild(identity: str, rebuild: str) -> None:
    """Make the build of a request, which is done, the newest one of its identity."""
    write_atomic(state_dir() / "rebuilds" / identity, rebuild.encode())


def _newest(identity: str) -> str | None:
    try:
        return (state_dir() / "rebuilds" / identity).read_text()
    except FileNotFoundError:
        return None
