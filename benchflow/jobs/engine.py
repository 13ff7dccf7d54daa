"""The Temporal server that jobs run on: found, or started, and connected to."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from urllib.parse import quote

from temporalio.client import Client

from benchflow import stack
from benchflow.errors import ServerUnavailableError
from benchflow.temporal import Target, cluster_target, connect, stack_target

RESTART_SEC = 10.0
"""How long a client waits for the embedded server to be restarted."""


@dataclass
class Engine:
    """The Temporal server that jobs run on, as a client sees it."""

    client: Client
    target: Target
    ui: str | None

    @classmethod
    async def open(cls) -> Engine:
        """The cluster that the environment names, else the embedded stack, started if need be."""
        target = cluster_target()
        if target is not None:
            return cls(await connect(target), target, os.environ.get("TEMPORAL_UI_URL"))
        deadline = asyncio.get_running_loop().time() + RESTART_SEC
        while True:
            record = await asyncio.to_thread(stack.ensure)
            target = stack_target(record)
            try:
                return cls(await connect(target), target, record.ui)
            except ServerUnavailableError:
                # It died just now, and its supervisor is starting it again.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.1)

    @property
    def has_login(self) -> bool:
        """Whether the Web UI asks for a token, as that of an enclosed server does."""
        return self.target.socket is not None

    def ui_of(self, workflow_id: str) -> str | None:
        """Where the Web UI shows a workflow."""
        if self.ui is None:
            return None
        return f"{self.ui}/namespaces/{self.target.namespace}/workflows/{quote(workflow_id, safe='')}"
