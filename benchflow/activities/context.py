"""The context that the activities of one worker process share: its host, and its client of the server."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.client import Client

from benchflow.hosting.host import Host


@dataclass(kw_only=True)
class WorkerContext(Host):
    """The host of a worker process, with its connection to the server."""

    client: Client
    """Connection to the Temporal server."""
