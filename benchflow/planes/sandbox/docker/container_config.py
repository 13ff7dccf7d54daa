"""The configuration with which containers are created, and the errors for containers that do not come up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import docker.types

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import (
    BenchFlowError,
    SandboxBusyError,
    SandboxLostError,
    SandboxStartError,
    SandboxUnavailableError,
)
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.docker.docker_daemon import PIDS_LIMIT, DockerDaemon
from benchflow.planes.sandbox.docker.docker_networks import STACK_LABEL
from benchflow.planes.sandbox.docker.translation import NotFoundError
from benchflow.planes.sandbox.driven.engine_scripts import ENGINE_DIRECTORY
from benchflow.planes.sandbox.timeouts import awake_timeout

ENTRYPOINT_LABEL = "benchflow.entrypoint"
"""Label of a container that runs its image's entrypoint: `first` or `below`."""

PROGRAMS = "/dev/benchflow"
"""Mount point of the volume with the idle program. `/dev` is the one directory that no image decides: it is mounted
over in every container, so that root inside can neither remove nor rename it. Elsewhere an image may have a link like
`/sbin -> /proc/self/cwd`, which leads the runtime to one place as it mounts and to another as it executes."""

IDLE = f"{PROGRAMS}/idle"
"""Path of the program of a first process that does nothing."""

CAPABILITIES = (
    # Package managers, `su`, `chown` and services that bind low ports or change user need these. Left out of
    # Docker's default set: MKNOD (no task makes devices), NET_RAW (forging packets on the shared bridge),
    # SETFCAP (file capabilities mean nothing under no-new-privileges). SYS_PTRACE is never in: with it root in
    # a container could seize the runtime's own process while it enters the container.
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)

LOG_TAIL = 30
"""Number of log lines in the error for a container that ended at once."""

NOT_FOUND = 127
"""Exit status of a container whose program was not found."""

CREATE_SEC = 60.0
"""Timeout in seconds for a container's name to become free, or its holder to be found."""
_MAX_POLLS = 1200
"""Maximum number of polls for a container's end: a busy daemon notices it late."""
POLL_INTERVAL = 0.05
"""Poll interval in seconds."""

LOG = {"type": "json-file", "config": {"max-size": "16m", "max-file": "2"}}
"""Log configuration of containers, whose size Docker does not limit by default."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts in DOCKER_HOST that mean this host."""

STAY = "mend the image's entrypoint, which must stay in the foreground and get all that it needs; its log says more"
"""Remedies in errors."""

RUN_AND_STAY = (
    "the image's ENTRYPOINT must run the command that it is given as arguments and stay; "
    'end it with `exec "$@"`, or leave it out'
)
NO_SHELL = "the image needs /bin/sh and the usual small commands (coreutils or busybox)"


def read_label(container: dict[str, Any], label: str, default: str = "") -> str:
    """Return the value of a container's label, from `inspect` data; `default` if it has none."""
    return str((container["Config"]["Labels"] or {}).get(label, default))


def list_warnings(spec: SandboxSpec, info: dict[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each limit of a spec that this daemon, by its `info`, cannot enforce."""
    found = []
    if spec.storage_mb is not None:
        found.append(f"storage_mb = {spec.storage_mb} is not enforced: the {info['Driver']} driver has no quota here")
    if spec.cpus is not None and spec.cpus > info["NCPU"]:
        found.append(f"cpus = {spec.cpus:g} is more than the {info['NCPU']} that this host has")
    if spec.memory_mb is not None and not info.get("MemoryLimit", True):
        found.append(f"memory_mb = {spec.memory_mb} is not enforced: the kernel has no memory limits")
    return tuple(found)


@asynccontextmanager
async def limit_creation(engine: DockerDaemon) -> AsyncIterator[None]:
    """Limit the block, in which a container is created, to `CREATE_SEC`.

    Raises:
        SandboxBusyError: It took longer.
        DaemonUnavailableError: It took longer, and the daemon does not answer.
    """
    try:
        async with awake_timeout(CREATE_SEC):
            yield
    except TimeoutError:
        await engine.require_answer()
        raise SandboxBusyError(f"the Docker daemon made no container within {CREATE_SEC:g} s") from None


async def create_container(
    engine: DockerDaemon, spec: SandboxSpec, network: str, info: dict[str, Any], init: bool, first: dict[str, Any]
) -> str:
    """Create a container, without starting it, and return its id.

    Args:
        engine: The daemon.
        spec: The sandbox.
        network: Name of the network; `none` for none.
        info: The daemon's `info`.
        init: Whether the first process runs below the daemon's init program.
        first: Arguments of `create_container` that define the first process, from `define_first_process`.

    Raises:
        Conflict: The name is taken.
        SandboxStartError: The image is missing.
    """
    ports = spec.ports if network != "none" else ()
    memory = f"{spec.memory_mb}m" if spec.memory_mb is not None else None

    def make(client: Any) -> str:
        host = client.create_host_config(
            init=init,
            network_mode=network,
            port_bindings={port: (find_publish_address(),) for port in ports},
            # Any process inside can write to the log, through PID 1's descriptors, and the daemon sets no limit itself.
            log_config=LOG,
            nano_cpus=int(min(spec.cpus, info["NCPU"]) * 1e9) if spec.cpus is not None else None,
            mem_limit=memory,
            # Equal to the memory limit means no swap; by default, a task could use as much swap again.
            memswap_limit=memory,
            pids_limit=PIDS_LIMIT,
            cap_drop=["ALL"],
            cap_add=list(CAPABILITIES),
            security_opt=["no-new-privileges"],
            mounts=[
                _make_volume(spec, ENGINE_DIRECTORY),
                _make_volume(spec, PROGRAMS),
                *(
                    docker.types.Mount(mount.target, mount.source, type="bind", read_only=mount.read_only)
                    for mount in spec.mounts
                ),
            ],
        )
        made = client.create_container(
            spec.image.reference,
            name=spec.name,
            hostname="sandbox",
            environment=spec.env,
            labels=spec.labels | ({ENTRYPOINT_LABEL: spec.entrypoint} if spec.runs_entrypoint else {}),
            ports=list(ports),
            detach=True,
            working_dir=spec.workdir,
            healthcheck={"test": ["NONE"]},
            # The kernel delivers a PID 1 no signals without a handler, and the idle program has none; SIGKILL works.
            stop_signal="SIGKILL" if first.get("entrypoint") == [IDLE] else "SIGTERM",
            host_config=host,
            **first,
        )
        return str(made["Id"])

    try:
        # Run to completion even if cancelled: a container that appeared after its removal would be an orphan.
        return await run_to_completion(engine.call(make))
    except NotFoundError as error:
        raise make_no_image_error(spec.image.reference, error) from error


def _make_volume(spec: SandboxSpec, target: str) -> docker.types.Mount:
    labels = {STACK_LABEL: spec.labels.get(STACK_LABEL, "")}
    return docker.types.Mount(target, None, type="volume", no_copy=True, labels=labels)


def make_no_image_error(reference: str, error: NotFoundError) -> SandboxStartError:
    """Return the error for an image that is not on this host."""
    return SandboxStartError(
        f"the image {reference} is not on this host: {error.message}", key="image", remedy="pull or build it first"
    )


def find_publish_address() -> str:
    """Return the daemon host's address on which ports are published: loopback only, if that host is this one."""
    return "127.0.0.1" if find_daemon_host() in LOOPBACK else "0.0.0.0"


def find_daemon_host() -> str:
    """Return the host at which the published ports of containers are reached from here."""
    address = os.environ.get("DOCKER_HOST") or "unix:"
    host = None if address.startswith(("unix:", "npipe:", "fd:")) else urlsplit(address).hostname
    return "127.0.0.1" if host is None or host in LOOPBACK else host


async def explain_failed_start(
    engine: DockerDaemon,
    container: str,
    cause: BenchFlowError,
    entrypoint: str = "wraps",
    *,
    every: float = POLL_INTERVAL,
) -> BenchFlowError:
    """Return the error for a container that did not come up, with its exit status and the end of its log.

    An error that is retryable, or about the daemon, is returned as it is.

    Args:
        engine: The daemon.
        container: Id of the container.
        cause: Error of the start.
        entrypoint: `SandboxSpec.entrypoint` of the sandbox, for the remedy.
        every: Poll interval in seconds for the container's end.
    """
    if isinstance(cause, SandboxUnavailableError) or cause.retryable:
        return cause
    try:
        # Without a shell in the image, the start failed, but the container need not end.
        lacks_shell = '"/bin/sh"' in cause.message
        state = await _await_end(engine, container, 1 if lacks_shell else _MAX_POLLS, every)
        log = await engine.call(lambda client: client.logs(container, tail=LOG_TAIL, stdout=True, stderr=True))
    except (SandboxLostError, NotFoundError):
        return SandboxStartError("the container was removed while it started")
    if state["Running"] or state["Status"] == "created":
        remedy = NO_SHELL if lacks_shell else cause.remedy or (STAY if entrypoint == "first" else None)
        return SandboxStartError(f"the container did not come up: {cause.message}", remedy=remedy)
    return SandboxStartError(
        f"the container ended at once with exit status {state['ExitCode']}"
        + (f": {state['Error']}" if state["Error"] else "")
        + (" (out of memory)" if state["OOMKilled"] else ""),
        remedy=_choose_remedy(entrypoint, state["ExitCode"]),
        log_tail=log.decode(errors="replace").strip() or None,
    )


async def _await_end(engine: DockerDaemon, container: str, polls: int, every: float) -> dict[str, Any]:
    """Poll until a container has ended, at most `polls` times, and return its state: the daemon notices an end late."""
    for _ in range(polls):
        state: dict[str, Any] = (await engine.call(lambda client: client.inspect_container(container)))["State"]
        if not state["Running"]:
            break
        await asyncio.sleep(every)
    return state


def _choose_remedy(entrypoint: str, code: int) -> str:
    """Return the remedy for a container that ended at once, by its `SandboxSpec.entrypoint` and exit status."""
    if entrypoint == "first":
        return STAY
    # The first process is the engine's program then, so that no entrypoint is at fault.
    return NO_SHELL if entrypoint in ("below", "none") and code == NOT_FOUND else RUN_AND_STAY


def lacks_init(error: BenchFlowError) -> bool:
    """Return whether a start failed because the daemon has no init program to run before the first process."""
    return "init" in error.message and "executable file not found" in error.message


def lacks_network(error: BenchFlowError) -> bool:
    """Return whether a start failed because its network was removed meanwhile."""
    return "network" in error.message and "not found" in error.message
