"""Temporal client: address of the server, and connection to it.

All processes use it: `TEMPORAL_ADDRESS` (or a profile of Temporal's own configuration) names a cluster; without one,
the embedded stack of the state directory is used.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import HttpConnectProxyConfig, RPCError

from benchflow.contracts import temporal_names
from benchflow.contracts.ids import short_hash
from benchflow.errors import ConfigError, ServerUnavailableError
from benchflow.messages import make_converter
from benchflow.paths import make_socket_address
from benchflow.workflows.activity_options import NAMESPACE

if TYPE_CHECKING:
    from benchflow.stack import StackRecord

CONNECT_SEC = 30.0
"""Timeout of a new connection, in seconds."""

_CLUSTER_VARIABLES = ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE")


@dataclass(frozen=True)
class Target:
    """Address of a Temporal server, and the options for connecting to it."""

    address: str
    """host:port of the server."""
    namespace: str = NAMESPACE
    embedded: bool = True
    """Whether it is the local stack's server."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the client: TLS, API key and the like."""
    socket: str | None = None
    """Path of the relay's socket, if the server has a network namespace of its own; None otherwise."""

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is on loopback."""
        host = self.address.rpartition(":")[0].strip("[]")
        return host in ("localhost", "::1") or host.startswith("127.")


def make_stack_target(record: StackRecord) -> Target:
    """Return the target of the embedded stack's server."""
    return Target(record.address, record.namespace, socket=record.socket)


def is_cluster_named() -> bool:
    """Return whether the environment names a cluster."""
    return any(os.environ.get(name) for name in _CLUSTER_VARIABLES)


def find_cluster_target() -> Target | None:
    """Return the target of the cluster that the environment names; None for the embedded stack.

    Raises:
        ConfigError: Temporal's configuration is invalid.
    """
    if not is_cluster_named():
        return None
    from temporalio.envconfig import ClientConfig

    try:
        found: dict[str, Any] = {**ClientConfig.load_client_connect_config()}
    except (RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"Temporal's configuration cannot be used: {error}",
            key="TEMPORAL_*",
            remedy="set TEMPORAL_ADDRESS=host:port, or unset the TEMPORAL_ variables for the embedded stack",
        ) from error
    address = found.pop("target_host", None) or "127.0.0.1:7233"
    namespace = found.pop("namespace", None) or "default"
    return Target(address=address, namespace=namespace, embedded=False, options=found)


_CAUSE = re.compile(r'Caused by:\s+(.+)|message: "([^"]+)"')
"""Cause of a failed connection, in the error text of the SDK's transport (temporalio 1.35)."""


async def connect(target: Target) -> Client:
    """Return a client connected to a server. Raise `ServerUnavailableError`, with a remedy."""
    options = dict(target.options)
    try:
        if target.socket is not None:
            relay = f"unix:{make_socket_address(Path(target.socket))}"
            options["http_connect_proxy_config"] = HttpConnectProxyConfig(target_host=relay)
        # Through a frozen relay the SDK would wait for ever.
        async with asyncio.timeout(CONNECT_SEC):
            return await Client.connect(
                target.address,
                namespace=target.namespace,
                data_converter=make_converter(),
                runtime=_make_quiet_runtime(),
                **options,
            )
    except (RuntimeError, RPCError, OSError) as error:
        remedy = "bench stack start" if target.embedded else "check TEMPORAL_ADDRESS and that the server runs"
        said = str(error) or f"no answer within {CONNECT_SEC:g} s"
        # The SDK's message is the transport's whole state, with the cause somewhere in it.
        cause = _CAUSE.search(said)
        why = cause[1] or cause[2] if cause else said.splitlines()[0].partition(" Status {")[0].rstrip(": ")
        raise ServerUnavailableError(f"no Temporal server answers at {target.address}: {why}", remedy=remedy) from error


@functools.cache
def _make_quiet_runtime() -> Runtime:
    """Return the SDK's runtime for all clients of a process.

    The SDK's default runtime (temporalio 1.35) logs to stdout, where the output of commands belongs: its records go to
    Python's logging instead. Filtered out are its warnings of each request that it retries, which are many a second
    while a server is unavailable, and, at each connection by HTTP CONNECT, that it does without DNS load balancing.
    """
    usual = TelemetryFilter(core_level="WARN", other_level="ERROR").formatted()
    logging_config = LoggingConfig(
        filter=f"{usual},temporalio_client::retry=OFF,temporal_sdk_bridge::client=ERROR",
        forwarding=LogForwardingConfig(logger=logging.getLogger("temporalio.core")),
    )
    return Runtime(telemetry=TelemetryConfig(logging=logging_config))


async def read_stack_id(client: Client) -> str:
    """Return the id of a stack for labels: 12 hex digits, from the server's cluster and the namespace."""
    info = await client.workflow_service.get_cluster_info(GetClusterInfoRequest())
    return short_hash(f"{info.cluster_id}/{client.namespace}", 12)


async def ensure_search_attributes(client: Client) -> None:
    """Register our search attributes with a cluster that lacks some. Raise `ConfigError` if that is not permitted."""
    wanted = dict.fromkeys(temporal_names.KEYWORD_ATTRIBUTES, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    wanted |= dict.fromkeys(temporal_names.DOUBLE_ATTRIBUTES, IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE)
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
        missing = {name: kind for name, kind in wanted.items() if name not in listed.custom_attributes}
        if missing:
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
            )
    except RPCError as error:
        raise ConfigError(
            f"the search attributes {', '.join(wanted)} cannot be registered: {error.message}",
            remedy="let an administrator of the namespace add them (Keyword; BenchflowReward: Double)",
        ) from error
