"""`bench worker`: run a worker of a cluster on this host."""

from __future__ import annotations

import typer


def worker() -> None:
    """Work for the cluster that TEMPORAL_ADDRESS names, until SIGTERM.

    The local stack needs none: it brings its own.
    """
    from benchflow.worker import main

    raise typer.Exit(main([]))
