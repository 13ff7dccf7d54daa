"""The image's own entrypoint as the container's first process: its secrets and its status.

Secrets go to a first process: a shell script, which reads them from its stdin and then becomes the entrypoint. So they
are in no file, image or configuration, and the entrypoint starts only once, however often they are sent by processes
that die and are replaced. A resource limit that the shell sets just before shows that the entrypoint has started.

The script also switches to the image's USER. The container is not created with that user, although the switch would
then be needless: under no-new-privileges, no later command in it could be root.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.sandbox_provider import EntrypointState
from benchflow.errors import ConfigError, SandboxError, SandboxStartError
from benchflow.planes.sandbox.docker.container_config import IDLE, NO_SHELL, make_no_image_error
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient
from benchflow.planes.sandbox.docker.root_shell import RootShell
from benchflow.planes.sandbox.docker.translation import NotFoundError
from benchflow.planes.sandbox.timeouts import awake_timeout

LOG_BYTES = 64 * 1024
"""Maximum number of bytes of an entrypoint's log that are returned."""

LOG_LINES = 4000
"""Maximum number of log lines that are requested from the daemon."""

_ROOT = ("", "0", "root", "0:0", "root:root")
"""Values of USER that mean root."""

_START_TIMEOUT = 60.0
"""Timeout in seconds for the entrypoint to start."""

_SEND_INTERVAL = 5.0
"""Seconds after which the secrets are sent again if the entrypoint has not started."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# `_BECOME` sets the soft limit of the resident set, which Linux does not enforce, to a finite value before
# it executes the entrypoint. The limit is read from /proc with builtins of the shell alone.
_STARTED = 'while read -r a b c s l; do [ "$b" != resident ] || [ "$s" = unlimited ] || echo yes; done </proc/1/limits'

_SCRIPT = "benchflow-entrypoint"
"""Name of the script below, as its `$0`."""

# $1: `wait` to read secrets; $2: user, empty for root; $3: `own` if HOME was set on purpose; the rest: the command.
# Secrets are one message: `begin NONCE`, shell lines after a `|` each, `end NONCE`. A truncated message is discarded.
_BECOME = r"""
set -f
bf_s=; bf_w=$1; bf_u=$2; bf_o=$3; shift 3
if [ -n "$bf_w" ]; then
  bf_n=
  while IFS= read -r bf_l; do case $bf_l in
  "begin "*) bf_n=${bf_l#begin }; bf_s=;;
  "end $bf_n") [ -z "$bf_n" ] || break;;
  "|"*) bf_s="$bf_s${bf_l#?}
";;
  esac; done
  [ -n "$bf_n" ] || exit 125
fi
if [ -n "$bf_u" ]; then
  bf_name=${bf_u%%:*}; bf_group=; bf_uid=; bf_gid=0; bf_home=/
  case $bf_u in *:*) bf_group=${bf_u#*:};; esac
  while IFS=: read -r bf_a bf_x bf_i bf_j bf_c bf_d bf_r; do
    if [ "$bf_a" = "$bf_name" ] || [ "$bf_i" = "$bf_name" ]; then
      bf_name=$bf_a; bf_uid=$bf_i; bf_gid=$bf_j; bf_home=$bf_d; break
    fi
  done </etc/passwd
  if [ -z "$bf_uid" ]; then
    case $bf_name in *[!0-9]*) echo "the image has no user $bf_name" >&2; exit 125;; esac
    bf_uid=$bf_name
  fi
  bf_all=
  while IFS=: read -r bf_a bf_x bf_i bf_m; do
    if [ -n "$bf_group" ]; then
      [ "$bf_a" != "$bf_group" ] || { bf_group=$bf_i; break; }
    else
      case ",$bf_m," in *",$bf_name,"*) bf_all=$bf_all,$bf_i;; esac
    fi
  done </etc/group
  case $bf_group in *[!0-9]*) echo "the image has no group $bf_group" >&2; exit 125;; esac
  bf_gid=${bf_group:-$bf_gid}; bf_all=$bf_gid$bf_all
  if setpriv --reuid="$bf_uid" --regid="$bf_gid" --groups="$bf_all" true 2>/dev/null; then
    set -- setpriv --reuid="$bf_uid" --regid="$bf_gid" --groups="$bf_all" "$@"
  elif chroot --userspec="$bf_uid:$bf_gid" --groups="$bf_all" --skip-chdir / true 2>/dev/null; then
    set -- chroot --userspec="$bf_uid:$bf_gid" --groups="$bf_all" --skip-chdir / "$@"
  elif [ -z "$bf_group" ] && su -m -s /bin/sh -c : "$bf_name" 2>/dev/null; then
    set -- su -m -s /bin/sh -c 'exec "$@"' "$bf_name" sh "$@"
  else
    echo "neither setpriv nor chroot nor su can run the entrypoint as the image's USER $bf_u" >&2; exit 125
  fi
  [ -n "$bf_o" ] || export HOME="$bf_home"
fi
ulimit -S -m 9007199254740991
eval "$bf_s"
unset bf_s bf_w bf_u bf_o bf_n bf_l bf_name bf_group bf_uid bf_gid bf_home bf_all
unset bf_a bf_x bf_i bf_j bf_c bf_d bf_r bf_m
set +f
exec "$@" </dev/null
"""


@dataclass(frozen=True)
class Program:
    """The command that an image runs by itself."""

    argv: tuple[str, ...]
    """ENTRYPOINT, then CMD."""

    user: str
    """USER of the image; `0` if it has none."""

    workdir: str
    """WORKDIR of the image; `/` if it has none."""

    env: frozenset[str]
    """Names of the variables that ENV sets."""


async def read_program(engine: DockerDaemon, reference: str) -> Program:
    """Return the command that an image runs by itself.

    Raises:
        SandboxStartError: The image is missing, or has neither ENTRYPOINT nor CMD.
    """
    config = await _read_config(engine, reference)
    argv = (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))
    if not argv:
        raise SandboxStartError(
            f"the image {reference} has neither ENTRYPOINT nor CMD, so that nothing starts its world",
            key="image",
            remedy="write what starts the services as ENTRYPOINT or CMD in its Dockerfile, or declare the services",
        )
    env = frozenset(entry.partition("=")[0] for entry in config.get("Env") or ())
    return Program(argv, config.get("User") or "0", config.get("WorkingDir") or "/", env)


async def _read_config(engine: DockerDaemon, reference: str) -> dict[str, Any]:
    try:
        image = await engine.inspect_image(reference)
    except NotFoundError as error:
        raise make_no_image_error(reference, error) from error
    return image.get("Config") or {}


async def define_first_process(
    engine: DockerDaemon, spec: SandboxSpec, secret_env: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of the daemon's `create_container` that define a container's first process.

    Args:
        engine: The daemon.
        spec: The sandbox.
        secret_env: Secrets of the entrypoint, of which only the names are used: with any, the process waits for them.

    Raises:
        ConfigError: The name of a secret is no valid variable name.
        SandboxStartError: The image is missing, or has no entrypoint to run.
    """
    idle = [IDLE]
    # The image's USER is for its own programs. The engine needs root, and sets a user per command.
    if spec.entrypoint == "wraps" and (await _read_config(engine, spec.image.reference)).get("Entrypoint"):
        return {"command": idle, "user": "0"}
    if spec.entrypoint in ("wraps", "none"):
        return {"entrypoint": idle, "user": "0"}
    program = await read_program(engine, spec.image.reference)
    if spec.entrypoint == "below":
        return {"entrypoint": idle, "user": "0"}
    for name in secret_env:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be told to an entrypoint: it is not a name of letters, digits and underscores",
                key="forward_env",
                remedy="give the variable another name",
            )
    if not secret_env and program.user in _ROOT:
        return {"user": "0"}
    mode = ("wait" if secret_env else "", "" if program.user in _ROOT else program.user)
    home = "own" if "HOME" in program.env | spec.env.keys() else ""
    argv = ["/bin/sh", "-c", _BECOME, _SCRIPT, *mode, home, *program.argv]
    return {"entrypoint": argv, "user": "0", "stdin_open": bool(secret_env)}


async def send_secrets(engine: DockerDaemon, shell: RootShell, container: str, secret_env: Mapping[str, str]) -> None:
    """Send the secrets to a first process that waits for them, until it has become the entrypoint.

    A container whose first process is not that script is left alone.

    Args:
        engine: The daemon.
        shell: Root shell of the container.
        container: Id of the container.
        secret_env: Secrets, by variable name.

    Raises:
        SandboxError: The entrypoint did not start within 60 s.
    """
    config = (await engine.inspect(container))["Config"]
    if _SCRIPT not in (config["Entrypoint"] or ()):
        return
    script = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in secret_env.items())
    nonce = secrets.token_hex(8)
    lines = ["", f"begin {nonce}", *(f"|{line}" for line in script.split("\n")), f"end {nonce}", ""]
    try:
        async with awake_timeout(_START_TIMEOUT):
            while not await _has_started(shell, 0.0):
                if config["OpenStdin"]:
                    await engine.call(lambda client: _send(client, container, "\n".join(lines)))
                if await _has_started(shell, _SEND_INTERVAL):
                    return
    except TimeoutError as error:
        raise SandboxError("the image's entrypoint did not begin", remedy=NO_SHELL) from error


async def _has_started(shell: RootShell, within: float) -> bool:
    """Return whether the first process has become the entrypoint, polling for up to `within` seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        if (await shell.run(_STARTED)).out:
            return True
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(0.01)


def _send(client: RecordingClient, container: str, text: str) -> None:
    """Write a text to the stdin of a container's first process."""
    raw = client.attach_socket(container, params={"stdin": 1, "stream": 1})
    try:
        getattr(raw, "_sock", raw).sendall(text.encode(errors="surrogateescape"))
    finally:
        raw.close()


async def read_first_state(engine: DockerDaemon, container: dict[str, Any]) -> EntrypointState:
    """Return the status of an entrypoint that is the container's first process, with the end of its log.

    Args:
        engine: The daemon.
        container: `inspect` data of the container.
    """
    state = container["State"]
    log = await engine.call(lambda client: client.logs(container["Id"], tail=LOG_LINES))
    ended = not state["Running"] and state["Status"] != "created"
    return EntrypointState(
        running=state["Running"],
        exit_code=state["ExitCode"] if ended else None,
        log=log[-LOG_BYTES:].decode(errors="replace"),
    )
