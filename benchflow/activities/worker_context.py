"""The context that all activities of one worker process share: the host, and the client of the Temporal server."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.client import Client

from benchflow.hosting.worker_host import Host


@dataclass(kw_only=True)
class WorkerContext(Host):
    """The host of a worker process, with its connection to the server."""

    client: Client
    """Connection to the Temporal server."""
