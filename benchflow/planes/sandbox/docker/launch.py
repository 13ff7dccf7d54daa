"""What a container is started with, and what is said of one that does not come up."""

from __future__ import annotations

from typing import Any

import docker.types

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import BenchFlowError, SandboxLostError, SandboxStartError, SandboxUnavailableError
from benchflow.planes.sandbox.docker.engine import Engine, NotFound

MAIN = "trap 'exit 0' TERM INT; while :; do sleep 2147483647 & wait $!; done"
"""A main process that does nothing and ends at once on SIGTERM, so that stopping costs no grace period."""

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

PIDS_LIMIT = 4096
LOG_TAIL = 30


def warnings_of(spec: SandboxSpec, info: dict[str, Any]) -> tuple[str, ...]:
    """The limits of a spec that this daemon cannot enforce, as sentences."""
    found = []
    if spec.storage_mb is not None:
        found.append(f"storage_mb = {spec.storage_mb} is not enforced: the {info['Driver']} driver has no quota here")
    if spec.cpus is not None and spec.cpus > info["NCPU"]:
        found.append(f"cpus = {spec.cpus:g} is more than the {info['NCPU']} that this host has")
    if spec.memory_mb is not None and not info.get("MemoryLimit", True):
        found.append(f"memory_mb = {spec.memory_mb} is not enforced: the kernel has no memory limits")
    return tuple(found)


async def create(engine: Engine, spec: SandboxSpec, network: str, info: dict[str, Any], init: bool) -> str:
    """Make the container, not started; its id. Raises `Conflict` when the name is taken."""
    memory = f"{spec.memory_mb}m" if spec.memory_mb is not None else None

    def make(client: Any) -> str:
        host = client.create_host_config(
            init=init,
            network_mode=network,
            nano_cpus=int(min(spec.cpus, info["NCPU"]) * 1e9) if spec.cpus is not None else None,
            mem_limit=memory,
            # Equal to the memory limit means no swap; without it, a task would get the same again in swap.
            memswap_limit=memory,
            pids_limit=PIDS_LIMIT,
            cap_drop=["ALL"],
            cap_add=list(CAPABILITIES),
            security_opt=["no-new-privileges"],
            mounts=[
                docker.types.Mount(mount.target, mount.source, type="bind", read_only=mount.read_only)
                for mount in spec.mounts
            ],
        )
        made = client.create_container(
            spec.image.reference,
            ["/bin/sh", "-c", MAIN],
            name=spec.name,
            hostname="sandbox",
            # The image's USER is for its own programs; the engine needs root, and names a user per command.
            user="0",
            environment=spec.env,
            labels=spec.labels,
            working_dir=spec.workdir,
            healthcheck={"test": ["NONE"]},
            stop_signal="SIGTERM",
            host_config=host,
        )
        return str(made["Id"])

    try:
        return await engine.call(make)
    except NotFound as error:
        raise SandboxStartError(
            f"the image {spec.image.reference} is not on this host: {error.message}",
            key="image",
            remedy="pull or build it first",
        ) from error


async def start_error(engine: Engine, container: str, cause: BenchFlowError) -> BenchFlowError:
    """The error for a container that did not come up: its own last words, if it had any."""
    if isinstance(cause, SandboxUnavailableError):
        return cause
    try:
        state = (await engine.call(lambda client: client.inspect_container(container)))["State"]
        log = await engine.call(lambda client: client.logs(container, tail=LOG_TAIL, stdout=True, stderr=True))
    except (SandboxLostError, NotFound):
        return SandboxStartError("the container was removed while it started")
    if state["Running"] or state["Status"] == "created":
        return SandboxStartError(f"the container did not come up: {cause.message}", remedy=cause.remedy)
    return SandboxStartError(
        f"the container ended at once with exit status {state['ExitCode']}"
        + (f": {state['Error']}" if state["Error"] else "")
        + (" (out of memory)" if state["OOMKilled"] else ""),
        remedy="the image's ENTRYPOINT must run the command that it is given as arguments and stay; "
        'end it with `exec "$@"`, or leave it out',
        log_tail=log.decode(errors="replace").strip() or None,
    )


def no_init(error: BenchFlowError) -> bool:
    """Whether a start failed because the daemon has no init program to put before the main process."""
    return "init" in error.message and "executable file not found" in error.message


def no_network(error: BenchFlowError) -> bool:
    """Whether a start failed because its network was removed in the meantime."""
    return "network" in error.message and "not found" in error.message
