"""Connection to the Temporal server that jobs run on; starts the embedded stack if no cluster is named."""

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
from benchflow.temporal import Target, connect, find_cluster_target, make_stack_target

log = logging.getLogger("benchflow.jobs")

RESTART_SEC = 10.0
"""Seconds for which `Engine.open` retries while the embedded server is restarted."""

WARN_AFTER_SEC = 30.0
"""Seconds without a response of the server after which a waiting client logs a warning."""

RETRY_SEC = 0.2
"""Seconds before the first retry of an unavailable server; doubled each time, up to `MAX_RETRY_SEC`."""

MAX_RETRY_SEC = 2.0
"""Maximum number of seconds between two retries."""


class ServerWait:
    """Exponential backoff for retries of an unavailable server, with one warning."""

    def __init__(self, awaited: str) -> None:
        """Start the backoff.

        Args:
            awaited: Name of the server in the warning.
        """
        self._awaited = awaited
        self._began = time.monotonic()
        self._is_warned = False
        self._pause = RETRY_SEC

    async def pause(self, error: StackError) -> None:
        """Sleep until the next retry.

        Args:
            error: Error of the last try.
        """
        if not self._is_warned and time.monotonic() - self._began > WARN_AFTER_SEC:
            self._is_warned = True
            log.warning("waiting for %s: %s", self._awaited, error.message)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_RETRY_SEC)


@dataclass
class Engine:
    """Connection of a client to the Temporal server that jobs run on."""

    client: Client
    target: Target
    ui: str | None
    """Base URL of the server's Web UI, if known."""

    @classmethod
    async def open(cls) -> Engine:
        """Connect to the cluster that the environment names, else to the embedded stack; start that if it is down.

        Raises:
            StackError: The stack does not start, or the server does not answer.
        """
        target = find_cluster_target()
        if target is not None:
            return cls(await connect(target), target, os.environ.get("TEMPORAL_UI_URL"))
        deadline = asyncio.get_running_loop().time() + RESTART_SEC
        while True:
            record = await asyncio.to_thread(stack.ensure_stack)
            target = make_stack_target(record)
            try:
                return cls(await connect(target), target, record.ui)
            except ServerUnavailableError:
                # It has just died, and its supervisor is restarting it.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.1)

    @classmethod
    async def reach(cls) -> Engine:
        """Connect as `open` does, but retry as long as the embedded server is unavailable, with one warning."""
        wait = ServerWait("the Temporal server of the local stack")
        while True:
            try:
                return await cls.open()
            except ServerUnavailableError as error:
                if find_cluster_target() is not None:
                    raise
                await wait.pause(error)

    @property
    def has_login(self) -> bool:
        """Return whether the Web UI needs a token, as that of an enclosed server does."""
        return self.target.socket is not None

    def ui_of(self, workflow_id: str) -> str | None:
        """Return the URL of a workflow in the Web UI; None if the UI's address is not known."""
        if self.ui is None:
            return None
        return f"{self.ui}/namespaces/{self.target.namespace}/workflows/{quote(workflow_id, safe='')}"
