"""Rebuilds: builds that were made anew on request, beside earlier ones, from which sandboxes may still be started.

A build's key is its identity: a digest of all that it is made from. The key of a rebuild is a digest of that and of the
request's name, so that all with the same request share one build. The newest rebuild is recorded on this host, for
builds without a request.
"""

from __future__ import annotations

import contextlib
import hashlib

from benchflow.host_files import write_atomic
from benchflow.paths import find_state_dir


def choose_build_key(identity: str, rebuild: str | None) -> str:
    """Return the key of the build to use: that of a request, else that of the newest rebuild, else the identity.

    Args:
        identity: Digest of all that the build is made from.
        rebuild: Name of the request; None if there is none.
    """
    request = rebuild or None
    if request is None:
        with contextlib.suppress(FileNotFoundError):
            request = (find_state_dir() / "rebuilds" / identity).read_text()
    return identity if request is None else hashlib.sha256(f"{identity}\0{request}".encode()).hexdigest()


def record_rebuild(identity: str, rebuild: str) -> None:
    """Record the finished build of a request as the newest one of its identity."""
    write_atomic(find_state_dir() / "rebuilds" / identity, rebuild.encode())
