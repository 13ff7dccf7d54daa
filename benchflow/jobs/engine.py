"""The Temporal server that jobs run on: found, or started, and connected to."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from urllib.parse import quote

from temporalio.client import Client

from benchflow import stack
from benchflow.errors import ServerUnavailableError, StackError
from benchflow.temporal import Target, cluster_target, connect, stack_target

log = logging.getLogger("benchflow.jobs")

RESTART_SEC = 10.0
"""Seconds that a client waits for the embedded server to be restarted."""

WARN_AFTER_SEC = 30.0
"""Seconds without an answer of the server after which a waiting client says so."""

RETRY_SEC = 0.2
"""Seconds before the first try to reach a server again; they double up to `MAX_RETRY_SEC`."""

MAX_RETRY_SEC = 2.0
"""Longest pause between two tries to reach a server."""


class ServerWait:
    """Paces the tries to reach a server that is away, and says once that it is waited for."""

    def __init__(self, awaited: str) -> None:
        """Begin to wait. awaited: the server, as the warning names it."""
        self._awaited = awaited
        self._began = time.monotonic()
        self._is_warned = False
        self._pause = RETRY_SEC

    async def pause(self, error: StackError) -> None:
        """Wait before the next try. error: of the last one."""
        if not self._is_warned and time.monotonic() - self._began > WARN_AFTER_SEC:
            self._is_warned = True
            log.warning("waiting for %s: %s", self._awaited, error.message)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_RETRY_SEC)


@dataclass
class Engine:
    """The Temporal server that jobs run on, as a client sees it."""

    client: Client
    target: Target
    ui: str | None

    @classmethod
    async def open(cls) -> Engine:
        """Connect to the cluster that the environment names, else to the embedded stack, started if need be."""
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

    @classmethod
    async def reach(cls) -> Engine:
        """Return the engine as `open` does, however long the embedded stack's server is away, and say so once."""
        wait = ServerWait("the Temporal server of the local stack")
        while True:
            try:
                return await cls.open()
            except ServerUnavailableError as error:
                if cluster_target() is not None:
                    raise
                await wait.pause(error)

    @property
    def has_login(self) -> bool:
        """Whether the Web UI asks for a token, as that of an enclosed server does."""
        return self.target.socket is not None

    def ui_of(self, workflow_id: str) -> str | None:
        """Return where the Web UI shows a workflow."""
        if self.ui is None:
            return None
        return f"{self.ui}/namespaces/{self.target.namespace}/workflows/{quote(workflow_id, safe='')}"
