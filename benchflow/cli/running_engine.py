"""The engine on a server that exists already: commands that only read or control must not start one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchflow.jobs import Engine


def has_server() -> bool:
    """Return whether there is a server: a cluster that the environment names, or a running embedded stack."""
    from benchflow import stack
    from benchflow.paths import StatePaths
    from benchflow.temporal import is_cluster_named

    return is_cluster_named() or stack.find_running(StatePaths.default()) is not None


async def find_engine() -> Engine | None:
    """Return an engine on the existing server; None if there is none or it does not answer. Never starts a server."""
    if not has_server():
        return None
    import os

    from benchflow import stack
    from benchflow.errors import ServerUnavailableError
    from benchflow.jobs import Engine
    from benchflow.paths import StatePaths
    from benchflow.temporal import connect, find_cluster_target, make_stack_target

    target, ui = find_cluster_target(), os.environ.get("TEMPORAL_UI_URL")
    if target is None:
        record = stack.find_running(StatePaths.default())
        if record is None or record.state != "running":
            return None
        target, ui = make_stack_target(record), record.ui
    try:
        return Engine(await connect(target), target, ui)
    except ServerUnavailableError:
        return None
