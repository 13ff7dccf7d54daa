"""The contract of a sandbox driver: the operations that each kind of sandbox implements itself.

A driver has ten methods, and three more if its sandboxes can be captured. `Sandbox.over(driver)` makes a provider of
it, whose sandboxes run commands exactly once, stream their output, copy files, distinguish the agent's processes from
the world's, fork and restore. A driver that can do some of that faster also has the methods of one of the protocols in
`accelerators`, which are then called instead.

Every call may come from a new process, since workers die: a driver holds nothing in memory that it could not find
again by a sandbox's name or handle. Errors are those of `benchflow.errors`: `SandboxLostError` when the sandbox is
gone, `SandboxStartError` when it cannot be started, else `SandboxError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from benchflow.contracts.base import Model
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Capabilities, SandboxSpec
from benchflow.contracts.sandbox_provider import OwnedSandbox
from benchflow.errors import ConfigError, SandboxLostError, UnsupportedFeatureError

SCRIPT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "ENV": "",
    "BASH_ENV": "",
    "LD_PRELOAD": "",
    "LD_LIBRARY_PATH": "",
    "TAR_OPTIONS": "",
}
"""Environment of the engine's scripts. It overrides the image's, which could change their behaviour."""


class Process(Model):
    """A process to start in a sandbox, with an empty stdin."""

    id: str
    """Id that the engine chooses, unique within the sandbox: at most 80 letters, digits, `-` and `_`."""

    argv: tuple[str, ...]
    """Program and its arguments, without a shell."""

    env: dict[str, str] = {}
    """Variables added to the environment that every process of the sandbox has."""

    cwd: str = "/"
    """Absolute working directory."""

    user: str = "0"
    """User: a name or a uid, either with an optional `:group`. `0` is root."""

    is_limited: bool = True
    """Whether the process counts against the sandbox's limits. False for processes of the engine itself."""

    is_kept: bool = False
    """Whether other processes of the engine may ask for its status and output later, also after this one has died."""


class ProcessStatus(Model):
    """Status of a process, as far as the driver knows it. By default nothing is known."""

    was_started: bool | None = None
    """Whether the process was ever started; None if the driver can't tell. With False the engine may start it."""

    is_running: bool = False
    """Whether the process is known to run now."""

    exit_code: int | None = None
    """Exit status, or 128 plus the number of the signal that ended the process. None while it runs, and if the driver
    can't tell."""

    error: str | None = None
    """Why the process could not be started, such as a missing directory or user; None if it could."""


class ScriptResult(Model):
    """The result of a shell script of the engine."""

    exit_code: int
    """Exit status of the shell."""

    out: bytes = b""
    """Stdout. Empty if it was passed to a `sink`."""

    err: bytes = b""
    """Stderr."""

    @property
    def complaint(self) -> str:
        """Return the stderr as text, or else the exit status in words."""
        return self.err.decode(errors="replace").strip() or f"exit status {self.exit_code}"


class StartedSandbox(Model):
    """A sandbox that a driver has started, or found."""

    handle: str
    """Id that the driver gives the sandbox. A later sandbox of the same name has another one."""

    warnings: tuple[str, ...] = ()
    """Limits of the spec that can't be enforced: a sentence for each, with the name of the field."""

    workdir: str | None = None
    """Absolute path of the workspace, from a driver that creates the directories of every sandbox itself. With None the
    engine creates them by a script."""


class FoundSandbox(Model):
    """A sandbox that a driver has found by its name."""

    handle: str
    """Id that the driver gave the sandbox, as in `StartedSandbox`."""

    is_running: bool
    """Whether the sandbox runs. True for a frozen one."""

    labels: dict[str, str] = {}
    """Labels of the sandbox, among them those of its spec."""


class SandboxDriver(ABC):
    """One kind of sandbox on this host.

    Make a subclass, name it in the entry points of `benchflow.sandboxes`, and run
    `benchflow.testing.sandbox_conformance` over it.
    """

    name: str
    """Name by which `--sandbox` selects the driver's provider."""

    # --- what every driver does ----------------------------------------------------------------------

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return the capabilities of the sandboxes. A task that asks for more is refused before it starts."""

    @abstractmethod
    async def start(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> StartedSandbox:
        """Find the running sandbox of this name, else create and start one.

        `spec.image` was returned by `build` or `capture`, or names an image that the driver knows.

        Args:
            spec: The sandbox to start.
            secrets: Environment of the image's entrypoint, for drivers that run it. Written to no record or capture.

        Raises:
            SandboxStartError: The image is not there, or another stack's sandbox has the name.
        """

    @abstractmethod
    async def find(self, name: str) -> FoundSandbox | None:
        """Return the sandbox with a name, running or not; None if there is none."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """End the sandbox with a name and remove all that it owns. A missing one is success."""

    @abstractmethod
    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """Return all sandboxes with the label `benchflow.stack` of a stack, running or not."""

    @abstractmethod
    async def run_script(
        self,
        handle: str,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        """Run a short script of the engine with /bin/sh, as root in `/`, and return its result.

        It has an empty stdin, and the environment of the sandbox with that of `SCRIPT_ENVIRONMENT` over it. It may be
        run twice. It may be longer than an argument: pass it on the shell's stdin, as one compound command.

        Args:
            handle: The sandbox.
            script: Text of the script.
            sink: Callback that receives stdout in pieces, as they come; then the result has none.
            timeout: Seconds after which the script is killed and `SandboxError` raised. None for no limit.
        """

    @abstractmethod
    async def spawn(self, handle: str, process: Process) -> None:
        """Start a process and return without waiting for its end. One that was started already is success.

        Raises:
            ProcessNotStartedError: There is no such directory or user. A program that can't be run raises nothing: the
                process ends with status 126 or 127.
        """

    @abstractmethod
    async def put(self, handle: str, directory: str, archive: IO[bytes]) -> None:
        """Unpack a tar archive into a directory, with its owners and modes. A missing directory is created."""

    @abstractmethod
    async def get(self, handle: str, path: str, take: Callable[[bytes], None]) -> bool | None:
        """Pass a file, or the content of a directory, to the callback `take` as pieces of a tar archive.

        A link at `path` itself is followed; no other one is.

        Returns:
            Whether `path` is a single file. None if there is nothing at `path`.
        """

    @abstractmethod
    async def address(self, handle: str, port: int) -> tuple[str, int] | None:
        """Return the host and port at which this host reaches a TCP port of the sandbox; None if it has no network."""

    # --- for drivers with the capability `snapshot` ---------------------------------------------------

    async def capture(self, handle: str, name: str) -> ImageRef:
        """Capture all files of a running sandbox, as of one moment, as an image. The sandbox runs on.

        A capture that exists under this name is returned. It has the configuration of the sandbox's image, without the
        environment and labels of the sandbox.

        Args:
            handle: The sandbox.
            name: Name of the capture: at most 200 letters, digits and `.`, `_`, `-`, `/`.
        """
        raise self.unsupported("snapshot", "its files cannot be captured")

    async def remove_image(self, image: ImageRef) -> None:
        """Remove a capture, or an image that the driver has built. A missing one is success."""
        return None

    async def remove_captures(self, prefix: str) -> None:
        """Remove the captures whose names begin with `prefix`."""
        return None

    # --- with a default -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise `SandboxUnavailableError`, with the remedy, if no sandbox can be started on this host now."""
        return None

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Build an image, or find it, and return its reference.

        By default a ready image is referred to by its name, and all that has to be built is refused.

        Args:
            config: The image.
            log: File for the output of the build; None for none.
        """
        if config.image is None and config.context is None:
            raise ConfigError("there is nothing to build: neither an image nor a context", key="image")
        if config.image is None or config.context is not None:
            raise self.unsupported("dockerfile", "it builds no images", remedy="give the task a ready image")
        return ImageRef(reference=config.image)

    async def require(self, name: str, handle: str) -> None:
        """Raise `SandboxLostError` unless the sandbox with this name and handle runs."""
        found = await self.find(name)
        if found is None or not found.is_running or found.handle != handle:
            raise SandboxLostError(f"the sandbox {name} no longer runs")

    async def status(self, handle: str, process_id: str) -> ProcessStatus:
        """Return the status of a process. By default it is unknown, and the engine looks into the sandbox."""
        return ProcessStatus()

    async def kill(self, handle: str, process_id: str) -> bool:
        """Kill a process and all its descendants, and return True once they are gone.

        Return False if the driver does not know them: then the engine looks for them in the sandbox's process table.
        """
        return False

    async def renew_scripts(self, handle: str) -> None:
        """Have the next script run in a new shell, since a root process may have changed the open files of the old one.

        By default nothing is done, for drivers that start a shell for each script.
        """
        return None

    async def ping(self) -> None:
        """Raise `DaemonUnavailableError` if the daemon that runs the sandboxes does not answer now."""
        return None

    async def sweep(self, stack_id: str) -> None:
        """Remove the resources that the stack's sandboxes share, such as networks, once no sandbox is left.

        Leftovers of engine processes that died are removed as well.
        """
        return None

    async def close(self) -> None:
        """Close the connections of this process. Sandboxes run on."""
        return None

    def unsupported(self, key: str, why: str, *, remedy: str | None = None) -> UnsupportedFeatureError:
        """Return the error for a feature that this driver does not have.

        Args:
            key: Name of the feature.
            why: Clause about the driver's sandboxes that states the reason.
            remedy: Advice to the user; by default to use another sandbox.
        """
        return UnsupportedFeatureError(
            f"the sandbox {self.name!r} does not support {key}: {why}",
            key=key,
            remedy=remedy or "use --sandbox docker or local",
        )
