"""The contract of a sandbox driver: what differs from one kind of sandbox to the next, and nothing else.

A driver has ten methods, and three more if its sandboxes can be captured. `Sandbox.over(driver)` makes of it a
provider whose sandboxes can do everything: run commands exactly once, stream their output, copy files, tell the
agent's processes from the world's, fork and restore. A driver may do some of that faster than it can be built from the
methods: then it also has the methods of one of the protocols in `accelerators`, and is called there instead.

Every call may come from a new process, since workers die: a driver keeps nothing in memory that it could not find
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
from benchflow.contracts.provider import OwnedSandbox
from benchflow.contracts.sandbox import Capabilities, SandboxSpec
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
"""Environment of the engine's scripts: the image's own must not change what they mean."""


class Process(Model):
    """A process to start in a sandbox, with an empty standard input."""

    id: str
    """Unique within the sandbox: at most 80 letters, digits, `-` and `_`."""

    argv: tuple[str, ...]

    env: dict[str, str] = {}
    """Added to the environment that every process of the sandbox has."""

    cwd: str = "/"

    user: str = "0"
    """A name or a uid, either with an optional `:group`. `0` for root."""

    is_limited: bool = True
    """Whether it counts against the limits of the sandbox. False for what the engine does for itself."""

    is_kept: bool = False
    """Whether other processes of the engine may ask for it later, also after this one has died."""


class ProcessStatus(Model):
    """What a driver knows of a process."""

    was_started: bool | None = None
    """Whether it ever began to run; None if the driver can't tell. False permits to start it."""

    is_running: bool = False

    exit_code: int | None = None
    """128 plus the number of the signal that ended it, if one did. None while it runs, and where the driver can't
    tell."""

    error: str | None = None
    """Why it could not be started: there is no such directory, or no such user."""


class ScriptResult(Model):
    """A shell script of the engine's that has ended."""

    exit_code: int
    out: bytes = b""
    """Standard output. Empty if it was passed on in parts."""

    err: bytes = b""

    @property
    def complaint(self) -> str:
        """What it says on standard error, or else its exit code."""
        return self.err.decode(errors="replace").strip() or f"exit status {self.exit_code}"


class StartedSandbox(Model):
    """A sandbox that a driver has started, or found."""

    handle: str
    """The driver's own id of it. A later sandbox of the same name has another."""

    warnings: tuple[str, ...] = ()
    """The limits of the spec that can't be enforced, a sentence each, with the name of the field."""

    workdir: str | None = None
    """The workspace, from a driver that makes the directories of every sandbox (`prepare_script`) itself."""


class FoundSandbox(Model):
    """A sandbox as a driver finds it under a name."""

    handle: str
    is_running: bool
    labels: dict[str, str] = {}


class SandboxDriver(ABC):
    """One kind of sandbox on this host.

    Make a subclass, name it in the entry points of `benchflow.sandboxes`, and run
    `benchflow.testing.sandbox_conformance` over it.
    """

    name: str
    """What `--sandbox` calls it."""

    # --- what every driver does ----------------------------------------------------------------------

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what its sandboxes can do. What a task asks for beyond that is refused before it starts."""

    @abstractmethod
    async def start(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> StartedSandbox:
        """Find the running sandbox of this name, else create and start one.

        `spec.image` is what `build` or `capture` has returned, or names an image that the driver knows.

        Args:
            spec: What to start.
            secrets: Environment of the image's entrypoint, for drivers that run it. In no record and no capture.

        Raises:
            SandboxStartError: The image is not there, or another stack's sandbox has the name.
        """

    @abstractmethod
    async def find(self, name: str) -> FoundSandbox | None:
        """Return the sandbox of a name, running or not; None if there is none."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """End the sandbox of a name and remove all it owns. A missing one is success."""

    @abstractmethod
    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """Return all sandboxes whose label `benchflow.stack` is this, running or not."""

    @abstractmethod
    async def run_script(
        self,
        handle: str,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        """Run a short script of the engine's with /bin/sh, as root in `/`, and return how it ended.

        It has no input, the environment `SCRIPT_ENVIRONMENT` over what the sandbox has, and may be run twice. It may be
        longer than an argument can be: pass it on standard input, as one compound command.

        Args:
            sink: Gets the parts of its standard output as they come; then there is none in the result.
            timeout: Seconds after which it is killed and `SandboxError` raised. None for no limit.
        """

    @abstractmethod
    async def spawn(self, handle: str, process: Process) -> None:
        """Start a process and return without waiting for its end. Starting one that was started is success.

        Raises:
            ProcessNotStartedError: There is no such directory or user. A program that can't be run is no error here: it
                ends with status 126 or 127.
        """

    @abstractmethod
    async def put(self, handle: str, directory: str, archive: IO[bytes]) -> None:
        """Unpack a tar archive in a directory, which is made if it is missing. Owners and modes are the archive's."""

    @abstractmethod
    async def get(self, handle: str, path: str, take: Callable[[bytes], None]) -> bool | None:
        """Pass a file, or the content of a directory, to `take` as the parts of a tar archive.

        A link at `path` itself is followed; no other one is.

        Returns:
            Whether it is a single file. None if there is nothing at `path`.
        """

    @abstractmethod
    async def address(self, handle: str, port: int) -> tuple[str, int] | None:
        """Return the host and port at which this host reaches a TCP port of the sandbox; None if it has no network."""

    # --- for drivers whose capabilities say `snapshot` ------------------------------------------------

    async def capture(self, handle: str, name: str) -> ImageRef:
        """Keep all files of a running sandbox as they are at one moment, as an image; the sandbox goes on.

        A capture that exists under this name is the one meant. It has the image's own configuration: no environment
        and no labels of the sandbox. `name` has letters, digits and `.`, `_`, `-`, `/`, at most 200 of them.
        """
        raise self.unsupported("snapshot", "its files cannot be captured")

    async def remove_image(self, image: ImageRef) -> None:
        """Remove a capture, or an image that was built. A missing one is success."""
        return None

    async def remove_captures(self, prefix: str) -> None:
        """Remove the captures whose names begin with `prefix`."""
        return None

    # --- with a default -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise `SandboxUnavailableError`, with the remedy, if no sandbox could be started here now."""
        return None

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Make, or find, an image. By default a ready one is taken as it is named, and nothing else is built."""
        if config.image is None and config.context is None:
            raise ConfigError("there is nothing to build: neither an image nor a context", key="image")
        if config.image is None or config.context is not None:
            raise self.unsupported("dockerfile", "it builds no images", remedy="give the task a ready image")
        return ImageRef(reference=config.image)

    async def require(self, name: str, handle: str) -> None:
        """Raise `SandboxLostError` unless the sandbox of this name and handle runs."""
        found = await self.find(name)
        if found is None or not found.is_running or found.handle != handle:
            raise SandboxLostError(f"the sandbox {name} no longer runs")

    async def status(self, handle: str, process_id: str) -> ProcessStatus:
        """Return how a process fares. By default the driver can't tell, and the engine looks into the sandbox."""
        return ProcessStatus()

    async def kill(self, handle: str, process_id: str) -> bool:
        """Kill a process and all that it has started; return True once they are gone.

        False if the driver does not know them: then the engine looks for them in the sandbox's table of processes.
        """
        return False

    async def renew_scripts(self, handle: str) -> None:
        """Run the next script in a new shell: a process of root's may have changed what the old one has open."""
        return None

    async def ping(self) -> None:
        """Raise `DaemonUnavailableError` if what runs the sandboxes does not answer now."""
        return None

    async def sweep(self, stack_id: str) -> None:
        """Remove what the stack's sandboxes shared, once none of them is left, and what died makers have left."""
        return None

    async def close(self) -> None:
        """Close connections. Sandboxes run on."""
        return None

    def unsupported(self, key: str, why: str, *, remedy: str | None = None) -> UnsupportedFeatureError:
        """Return the error for what this driver does not do. why: a clause about its sandboxes."""
        return UnsupportedFeatureError(
            f"the sandbox {self.name!r} does not support {key}: {why}",
            key=key,
            remedy=remedy or "use --sandbox docker or local",
        )
