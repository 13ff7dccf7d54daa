"""Models of the sandbox that a task declares: its image, resources, network, setup, healthcheck and MCP servers."""

from __future__ import annotations

import posixpath
from typing import Literal

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import NetworkMode


class Healthcheck(Model):
    """The `healthcheck` table: a command that exits 0 once the world is healthy.

    Intervals and retries mean the same as in Docker, except that the first try starts at once. The rollout fails with a
    `ReadinessError` if the command does not succeed in time.
    """

    command: str
    """Command for `sh -c`. It runs as root in the workspace."""

    interval_sec: float = Field(default=5.0, ge=0)
    """Seconds between two tries, after the start period."""

    timeout_sec: float = Field(default=30.0, gt=0)
    """Seconds that one try may take. A try that takes longer has failed."""

    start_period_sec: float = Field(default=0.0, ge=0)
    """Seconds from the first try on in which failed tries do not count. 0 for no such period."""

    start_interval_sec: float = Field(default=5.0, ge=0)
    """Seconds between two tries within the start period."""

    retries: int = Field(default=3, ge=1)
    """Number of failed tries after which the world counts as unhealthy. Tries in the start period, and the first one
    after it, do not count.
    """


class McpServer(Model):
    """An MCP server that the agent gets when its ACP session opens: an entry of `sandbox.mcp_servers`.

    In task.toml the list is `environment.mcp_servers`. The agent itself starts or reaches the server. An agent that
    does not support the transport is refused.
    """

    name: str
    """Name that the agent knows the server by."""

    transport: Literal["sse", "streamable-http", "stdio"] = "sse"
    """Transport of the connection: HTTP with server-sent events, streamable HTTP, or stdin and stdout of a process.
    Files may write `http` for `streamable-http`.
    """

    url: str | None = None
    """Address of the server; required for `sse` and `streamable-http`, unused for `stdio`."""

    command: str | None = None
    """Program that the agent starts; required for `stdio`, unused otherwise."""

    args: list[str] = []
    """Arguments of `command`."""

    env: dict[str, str] = {}
    """Environment variables of `command`. Values may name host variables, as in `SandboxConfig.env`."""

    headers: dict[str, str] = {}
    """HTTP headers of `sse` and `streamable-http`. Values may name host variables, as in `SandboxConfig.env`."""


class SetupCommand(Model):
    """A shell command that prepares the sandbox once, before the agent: an entry of `sandbox.setup_commands`.

    In task.toml the list is `environment.setup_commands`. A non-zero exit status fails the rollout with a
    `SandboxSetupError`.
    """

    command: str
    """Command for `sh -c`."""

    timeout_sec: float = Field(default=600.0, gt=0)
    """Seconds that the command may take. A command that takes longer has failed."""

    cwd: str | None = None
    """Working directory; None for the workspace."""

    env: dict[str, str] = {}
    """Environment variables added to those of the sandbox. Values may name host variables, as there."""

    user: str | int | None = None
    """User name or uid that the command runs as; None for root."""


class SandboxConfig(Model):
    """The sandbox that a task asks for: the `environment` (task.toml) or `sandbox` (task.md) table.

    The same schema describes the clean room of a verifier (`verifier.environment` or `verifier.sandbox`).
    """

    docker_image: str | None = None
    """Reference of a ready image (alias `image`), used instead of `environment/Dockerfile`; None to build that file.
    Files of an `environment/` without Dockerfile and compose file are copied into the workspace.
    """

    build_timeout_sec: float = Field(default=600.0, gt=0)
    """Seconds that building or pulling the image may take."""

    os: str = "linux"
    """Operating system, in lower case. Any other than `linux` is refused."""

    cpus: float = Field(default=1, gt=0)
    """Number of CPU cores that the sandbox may use at most."""

    memory_mb: int = Field(default=2048, gt=0)
    """MiB of memory that all processes of the sandbox may use together. `memory = "2G"` is the deprecated form."""

    storage_mb: int = Field(default=10240, gt=0)
    """MiB of disk that the sandbox may use at most. A value other than the default is a recorded warning where the
    provider cannot enforce it. `storage = "10G"` is the deprecated form.
    """

    gpus: int = Field(default=0, ge=0)
    """Number of GPUs. More than 0 is refused."""

    gpu_types: list[str] | None = None
    """Acceptable models of GPU; None for any. Without effect, because GPUs are refused."""

    env: dict[str, str] = {}
    """Environment variables. A value is literal, or refers to variables of the host where the job was submitted (on a
    cluster: of the worker) by `${VAR}` or `${VAR:-default}`; in the split layout only as a whole value. Values with
    references reach commands, not PID 1.
    """

    workdir: str | None = None
    """Absolute path of the workspace; None for the image's working directory, else `/app` if it exists, else `/root`.
    The image's `/` counts as unset.
    """

    network_mode: NetworkMode = "public"
    """Network of the sandbox: `public` reaches the internet, `no-network` has loopback only, `allowlist` is refused.
    `allow_internet` is the deprecated form.
    """

    allowed_hosts: list[str] = []
    """Hosts that network mode `allowlist` lets through; an error with any other mode. Never applied, because the mode
    itself is refused.
    """

    mcp_servers: list[McpServer] = []
    """MCP servers of the agent. Refused in the sandbox of a verifier, where no agent acts."""

    skills_dir: str | None = None
    """Directory of skills for the agent. Refused if set."""

    healthcheck: Healthcheck | None = None
    """Check that must succeed before the agent, or the verifier of a clean room, starts; None for no check."""

    setup_commands: list[SetupCommand] = []
    """Commands that run once after the sandbox has started, in order, before the healthcheck. A clean room that starts
    from the task's image has them, too.
    """

    @property
    def works_in_root(self) -> bool:
        """Return whether `workdir` names `/`."""
        return self.workdir is not None and posixpath.normpath(f"/{self.workdir}") in ("/", "//")
