"""Check that an agent can be installed and started on this host: build its toolbox, and send it `initialize`.

Nothing is prompted and no key is needed. The agent gets an empty home of its own and, of this process's environment,
only the variables for the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from acp.schema import ClientCapabilities, FileSystemCapabilities, Implementation, InitializeRequest, InitializeResponse
from pydantic import BaseModel, ValidationError

from benchflow import __version__
from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.base import Model
from benchflow.errors import ACPError, AgentConnectionError, AgentExitError, AgentTimeoutError, ConfigError
from benchflow.paths import StatePaths
from benchflow.planes.agent.agent_settings import make_settings
from benchflow.planes.agent.bounds import MAX_LINE
from benchflow.planes.agent.toolbox import Toolbox, ensure_toolbox
from benchflow.planes.agent.toolbox.build_steps import read_tail
from benchflow.planes.sandbox.timeouts import awake_timeout

_PASSED_ON = ("PATH", "LANG", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE")
_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""


class AgentCheck(Model):
    """The findings of a check."""

    agent: str
    """Name of the agent."""

    version: str | None
    """Version in its registry record."""

    reported: dict[str, Any] | None
    """Name and version as the agent reports them; None if it does not."""

    protocol_version: int
    """Version of the protocol that it speaks."""

    capabilities: dict[str, Any]
    """Capabilities that it advertises."""

    auth_methods: tuple[str, ...]
    """Ids of the authentication methods that it advertises."""

    start_sec: float
    """Seconds from the start of the process to its answer."""

    toolbox: str | None = None
    """Directory of its toolbox; None if there is none."""

    runtime: str | None = None
    """Runtime in the toolbox, as `node 24.21.0`."""

    size: int | None = None
    """Bytes of the toolbox on disk."""

    built: bool = False
    """Whether this check has built the toolbox."""

    build_sec: float | None = None
    """Seconds that the build of the toolbox took."""

    problems: tuple[str, ...] = ()
    """Differences from the record, a sentence each; empty if there are none."""

    @property
    def ok(self) -> bool:
        """Return whether there are no problems."""
        return not self.problems


async def check_agent(record: AgentRecord, *, timeout: float = 90.0, paths: StatePaths | None = None) -> AgentCheck:
    """Build the agent's toolbox, start the agent, and compare its `initialize` response with its record.

    Args:
        record: Registry record of the agent.
        timeout: Seconds for the response.
        paths: State paths with the toolboxes; None for the default.

    Raises:
        ConfigError: The agent does not speak ACP, or its program is missing.
        AgentInstallError: The toolbox cannot be built.
        AgentExitError: The agent exits before it responds.
        AgentTimeoutError: It does not respond in time.
        ACPError: Its response is invalid.
    """
    if record.protocol not in ("acp", "acpx"):
        what = "Python code, and was imported" if record.protocol == "python" else "a part of the engine"
        raise ConfigError(
            f"agent {record.name!r} is {what}: there is nothing to check",
            key="agent",
            remedy="check an agent that speaks ACP",
        )
    toolbox = await ensure_toolbox(record, paths)
    home = Path(tempfile.mkdtemp(prefix="benchflow-agent-"))
    try:
        started = time.monotonic()
        answer = await _ask(record, toolbox, home, timeout)
        start_sec = time.monotonic() - started
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
    manifest = toolbox.manifest if toolbox else None
    return AgentCheck(
        agent=record.name,
        version=record.version,
        reported=_dump_message(answer.agent_info) if answer.agent_info else None,
        protocol_version=answer.protocol_version,
        capabilities=_dump_message(answer.agent_capabilities) if answer.agent_capabilities else {},
        auth_methods=tuple(str(getattr(method, "id", "")) for method in answer.auth_methods or ()),
        start_sec=round(start_sec, 2),
        toolbox=str(toolbox.root) if toolbox else None,
        runtime=manifest.installed.runtime if manifest else None,
        size=manifest.size if manifest else None,
        built=toolbox.built if toolbox else False,
        build_sec=manifest.seconds if manifest else None,
        problems=tuple(_find_problems(record, answer)),
    )


def _find_problems(record: AgentRecord, answer: InitializeResponse) -> list[str]:
    problems = []
    if answer.protocol_version != record.session.protocol_version:
        problems.append(
            f"it speaks version {answer.protocol_version} of the protocol, not {record.session.protocol_version}"
        )
    said = answer.agent_info.version if answer.agent_info else None
    # Behind acpx the agent itself is asked, and the record's version begins with that of acpx.
    expected = record.version.partition("-")[2] if record.version and record.protocol == "acpx" else record.version
    if said and expected and said != expected:
        problems.append(f"it says that it is version {said}, the registry says {expected}")
    capabilities = answer.agent_capabilities
    if record.session.rung == "load" and not (capabilities and capabilities.load_session):
        problems.append("it does not advertise session/load, which the registry counts on")
    return problems


def _dump_message(value: BaseModel) -> dict[str, Any]:
    """Return the message as the agent sent it, without the protocol's defaults."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)


async def _ask(record: AgentRecord, toolbox: Toolbox | None, home: Path, timeout: float) -> InitializeResponse:
    """Start the agent in an empty home, and return its response to `initialize`."""
    workspace = home / "workspace"
    workspace.mkdir()
    root = str(toolbox.root) if toolbox else None
    settings = make_settings(record, home=str(home), workspace=str(workspace), toolbox=root)
    passed_on = {name: os.environ[name] for name in (*_PASSED_ON, *_CERTIFICATES) if name in os.environ}
    env = {**passed_on, "HOME": str(home), "TMPDIR": str(home), **settings.env}
    argv = toolbox.make_argv(record, at=root) if toolbox else record.launch
    errors = home / ".stderr"
    try:
        async with _run_agent(argv, workspace, env, errors) as process, awake_timeout(timeout):
            return await _initialize(process, record)
    except TimeoutError as error:
        raise AgentTimeoutError(
            f"agent {record.name!r} did not answer initialize within {timeout:g} s", log_tail=read_tail(errors) or None
        ) from error
    except EOFError as error:
        raise AgentExitError(
            f"agent {record.name!r} ended before it answered initialize",
            remedy="; ".join(record.session.hazards) or None,
            log_tail=read_tail(errors) or None,
        ) from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no program {argv[0]!r} on this host",
            file=record.source,
            key="launch",
            remedy="install it, or let the toolbox bring it: [install]",
        ) from error
    except OSError as error:
        raise AgentConnectionError(f"agent {record.name!r}: {error}", log_tail=read_tail(errors) or None) from error


@contextlib.asynccontextmanager
async def _run_agent(
    argv: tuple[str, ...], cwd: Path, env: Mapping[str, str], errors: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield the agent in a process group of its own, which is killed afterwards."""
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=dict(env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            limit=MAX_LINE,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with awake_timeout(_GRACE):
                await process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _initialize(process: asyncio.subprocess.Process, record: AgentRecord) -> InitializeResponse:
    """Send `initialize` and return the response. Raise `EOFError` if the agent closes its stdout first."""
    assert process.stdin is not None and process.stdout is not None
    needs = record.session.client
    request = InitializeRequest(
        protocol_version=record.session.protocol_version,
        client_capabilities=ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file="fs" in needs, write_text_file="fs" in needs),
            terminal="terminal" in needs,
        ),
        client_info=Implementation(name="benchflow", title="BenchFlow", version=__version__),
    )
    params = request.model_dump(mode="json", by_alias=True, exclude_none=True)
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    process.stdin.write(json.dumps(message).encode() + b"\n")
    with contextlib.suppress(ConnectionError):
        await process.stdin.drain()
    while line := await process.stdout.readline():
        answer = _parse_message(line, record)
        # Notifications and requests of its own are skipped.
        if "method" in answer or answer.get("id") != 0:
            continue
        if "error" in answer:
            raise ACPError(f"agent {record.name!r} refuses initialize: {answer['error']}")
        try:
            return InitializeResponse.model_validate(answer.get("result"))
        except ValidationError as error:
            raise ACPError(f"agent {record.name!r} answers initialize with what is no answer: {error}") from error
    raise EOFError


def _parse_message(line: bytes, record: AgentRecord) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ACPError(
            f"agent {record.name!r} writes what is not JSON-RPC to its output",
            remedy="an agent that speaks ACP may write its log only to stderr",
            log_tail=line[:500].decode(errors="replace"),
        )
    return message
