"""The image's own entrypoint as the first process: what it is told, and how it fares.

Its secrets go to a first process that waits for them on its standard input and then becomes the entrypoint (see
`become`). So they are in no file, no image and no configuration, and however often they are sent (whoever sends may
die, and another sends again), the entrypoint begins once. That it has begun shows in a limit that the shell sets just
before.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchflow.contracts.provider import EntrypointState
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import ConfigError, SandboxError, SandboxStartError
from benchflow.planes.sandbox.docker.become import BECOME, SCRIPT
from benchflow.planes.sandbox.docker.engine import Engine, RecordingClient
from benchflow.planes.sandbox.docker.launch import IDLE, NO_SHELL, no_image
from benchflow.planes.sandbox.docker.shell import RootShell
from benchflow.planes.sandbox.docker.translation import NotFound
from benchflow.planes.sandbox.timeouts import awake_timeout

LOG_BYTES = 64 * 1024
LOG_LINES = 4000

_ROOT = ("", "0", "root", "0:0", "root:root")
_PATIENCE = 60.0
_SEND_AGAIN = 5.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The soft limit of the first process's resident set is that of the script above from when it goes on.
_BEGAN = 'while read -r a b c s l; do [ "$b" != resident ] || [ "$s" = unlimited ] || echo yes; done </proc/1/limits'


@dataclass(frozen=True)
class Program:
    """What an image runs by itself. argv: ENTRYPOINT, then CMD. env: the names that ENV sets."""

    argv: tuple[str, ...]
    user: str
    workdir: str
    env: frozenset[str]


async def program_of(engine: Engine, reference: str) -> Program:
    """Raises `SandboxStartError` for an image that is not here, or has nothing to run."""
    config = await _config_of(engine, reference)
    argv = (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))
    if not argv:
        raise SandboxStartError(
            f"the image {reference} has neither ENTRYPOINT nor CMD, so that nothing starts its world",
            key="image",
            remedy="write what starts the services as ENTRYPOINT or CMD in its Dockerfile, or declare the services",
        )
    env = frozenset(entry.partition("=")[0] for entry in config.get("Env") or ())
    return Program(argv, config.get("User") or "0", config.get("WorkingDir") or "/", env)


async def _config_of(engine: Engine, reference: str) -> dict[str, Any]:
    try:
        image = await engine.call(lambda client: client.inspect_image(reference))  # type: ignore[no-untyped-call]
    except NotFound as error:
        raise no_image(reference, error) from error
    return image.get("Config") or {}


async def first_process(engine: Engine, spec: SandboxSpec, told: Mapping[str, str]) -> dict[str, Any]:
    """Return a container's main process, as the daemon is to be asked for it. told: the entrypoint's secrets."""
    idle = [IDLE]
    # The image's USER is for its own programs; the engine needs root, and names a user per command.
    if spec.entrypoint == "wraps" and (await _config_of(engine, spec.image.reference)).get("Entrypoint"):
        return {"command": idle, "user": "0"}
    if spec.entrypoint in ("wraps", "none"):
        return {"entrypoint": idle, "user": "0"}
    program = await program_of(engine, spec.image.reference)
    if spec.entrypoint == "below":
        return {"entrypoint": idle, "user": "0"}
    for name in told:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be told to an entrypoint: it is not a name of letters, digits and underscores",
                key="forward_env",
                remedy="give the variable another name",
            )
    if not told and program.user in _ROOT:
        return {"user": "0"}
    mode = ("wait" if told else "", "" if program.user in _ROOT else program.user)
    home = "own" if "HOME" in program.env | spec.env.keys() else ""
    argv = ["/bin/sh", "-c", BECOME, SCRIPT, *mode, home, *program.argv]
    return {"entrypoint": argv, "user": "0", "stdin_open": bool(told)}


async def tell(engine: Engine, shell: RootShell, container: str, told: Mapping[str, str]) -> None:
    """See to it that a first process that waits for its secrets has them, and becomes the entrypoint."""
    config = (await engine.about(container, lambda client: client.inspect_container(container)))["Config"]
    if SCRIPT not in (config["Entrypoint"] or ()):
        return
    script = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in told.items())
    nonce = secrets.token_hex(8)
    lines = ["", f"begin {nonce}", *(f"|{line}" for line in script.split("\n")), f"end {nonce}", ""]
    try:
        async with awake_timeout(_PATIENCE):
            while not await _began(shell, 0.0):
                if config["OpenStdin"]:
                    await engine.call(lambda client: _send(client, container, "\n".join(lines)))
                if await _began(shell, _SEND_AGAIN):
                    return
    except TimeoutError as error:
        raise SandboxError("the image's entrypoint did not begin", remedy=NO_SHELL) from error


async def _began(shell: RootShell, within: float) -> bool:
    deadline = asyncio.get_running_loop().time() + within
    while True:
        if (await shell.run(_BEGAN)).out:
            return True
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(0.01)


def _send(client: RecordingClient, container: str, text: str) -> None:
    raw = client.attach_socket(container, params={"stdin": 1, "stream": 1})
    try:
        getattr(raw, "_sock", raw).sendall(text.encode(errors="surrogateescape"))
    finally:
        raw.close()


async def first_state(engine: Engine, container: dict[str, Any]) -> EntrypointState:
    """Return how an entrypoint fares that is the first process. container: as the daemon describes it."""
    state = container["State"]
    log = await engine.call(lambda client: client.logs(container["Id"], tail=LOG_LINES))
    ended = not state["Running"] and state["Status"] != "created"
    return EntrypointState(
        running=state["Running"],
        exit_code=state["ExitCode"] if ended else None,
        log=log[-LOG_BYTES:].decode(errors="replace"),
    )
