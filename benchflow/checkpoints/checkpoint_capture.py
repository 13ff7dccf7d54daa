"""Capture of a checkpoint: all layers as of one moment, or none.

The environment's state is captured first, then the files, which contain the state's copies. Counters of everything that
may change are read before and after. If one has changed, the layers are not of one moment: they are discarded and
captured again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchflow.contracts.checkpoint import FilesLayer, StateLayer
from benchflow.contracts.environment import StateSnapshot
from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import CheckpointError, SandboxError, StateBusyError

FENCE = "/var/lib/benchflow/fence"
"""Path in a sandbox of the consistency token of its last checkpoint, readable for root alone."""

ATTEMPTS = 5
"""Maximum number of attempts to capture all layers as of one moment."""

Counters = Callable[[], Awaitable[Mapping[str, int | str]]]
"""Reads counters that change with activity outside of the sandbox's files: journals, model calls."""

# $1: the consistency token to write; empty to leave it. Then paths. Prints inode, size and time of each existing one
# and of SQLite's files beside it: every commit changes one of these.
_READ_STAMPS = f"""
if [ -n "$1" ]; then umask 077; mkdir -p {FENCE.rpartition("/")[0]} && printf %s "$1" >{FENCE} || exit 1; fi
shift
for f; do
  for g in "$f" "$f-wal" "$f-journal"; do if [ -e "$g" ]; then stat -c '%n %i %s %Y %y' "$g"; fi; done
done
:
"""


@dataclass(frozen=True)
class Captured:
    """The layers of a captured checkpoint."""

    fence: str
    """Consistency token in the files; the state has one of its own."""

    files: FilesLayer
    state: StateLayer | None = None
    """State layer; None without a stateful environment."""

    attempts: int = 1
    """Number of attempts that the capture took."""

    by_layer: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part (`quiesce`, `state`, `files`), of all attempts."""


async def _count_nothing() -> Mapping[str, int | str]:
    return {}


async def capture(
    name: str,
    sandbox: Sandbox,
    provider: SandboxProvider,
    world: StatefulEnvironment | None = None,
    *,
    paths: Sequence[str] = (),
    counters: Counters = _count_nothing,
    attempts: int = ATTEMPTS,
) -> Captured:
    """Capture the files and the state of a sandbox as of one moment.

    Args:
        name: Name of the capture, which must be unused. Each attempt has a number after it.
        sandbox: The sandbox.
        provider: Its provider, which removes discarded images.
        world: A stateful environment; None to capture the files only.
        paths: Paths of the environment's databases.
        counters: Reads further counters that must not change during the capture.
        attempts: Maximum number of attempts.

    Raises:
        CheckpointError: Something changed in every attempt. No layer is left behind.
    """
    spent = dict.fromkeys(("quiesce", "state", "files"), 0.0)
    moved: dict[str, None] = {}
    for attempt in range(1, attempts + 1):
        taken = _Attempt(f"{name}-{attempt}", sandbox, provider, spent)
        try:
            before = await taken.read_counters(secrets.token_hex(16), paths, counters)
            await taken.take(world)
            after = await taken.read_counters("", paths, counters)
        except StateBusyError as error:
            await taken.discard()
            moved[error.key or "a database"] = None
            continue
        except BaseException:
            # The layers of an interrupted attempt must not remain.
            await asyncio.shield(taken.discard())
            raise
        if after == before:
            return taken.finish(attempt)
        await taken.discard()
        moved |= dict.fromkeys(sorted(key for key in {*before, *after} if before.get(key) != after.get(key)))
    raise CheckpointError(
        f"the world did not stand still in {attempts} attempts to capture it: {', '.join(moved)}",
        remedy="branch where nothing is at work, or stop what writes all the time",
    )


class _Attempt:
    """One attempt to capture the layers, under a name of its own. Its seconds by layer are added to `spent`."""

    def __init__(self, name: str, sandbox: Sandbox, provider: SandboxProvider, spent: dict[str, float]) -> None:
        self._name = name
        self._sandbox = sandbox
        self._provider = provider
        self._spent = spent
        self._fence = ""
        self._state: StateSnapshot | None = None
        self._image: ImageRef | None = None
        self._seconds: dict[str, float] = {}

    @contextmanager
    def _time_layer(self, layer: str) -> Iterator[None]:
        """Add the seconds of the block to those of a layer."""
        began = time.monotonic()
        yield
        self._seconds[layer] = time.monotonic() - began
        self._spent[layer] += self._seconds[layer]

    async def read_counters(self, fence: str, paths: Sequence[str], counters: Counters) -> dict[str, int | str]:
        """Write the fence (a consistency token) unless it is empty; return the databases' file stamps and the counters.

        Args:
            fence: Token to write in the sandbox; empty to write none.
            paths: Files of the databases.
            counters: Called afterwards; returns the counters by name.

        Returns:
            File stamps by path, and counters by name.

        Raises:
            SandboxError: The token was not written.
        """
        self._fence = fence or self._fence
        with self._time_layer("quiesce"):
            told = await self._sandbox.control(_READ_STAMPS, fence, *paths)
            if told.return_code != 0:
                raise SandboxError("the sandbox's fence could not be written", log_tail=told.stderr[-2000:])
            found: dict[str, int | str] = {}
            for line in told.stdout.splitlines():
                path, *stamp = line.rsplit(" ", 6)
                found[path] = " ".join(stamp)
            return found | dict(await counters())

    async def take(self, world: StatefulEnvironment | None) -> None:
        """Capture the state, if there is an environment, and then the files."""
        if world is not None:
            with self._time_layer("state"):
                self._state = await world.snapshot(self._name)
        with self._time_layer("files"):
            self._image = await self._sandbox.snapshot(self._name)

    async def discard(self) -> None:
        """Remove the layers that this attempt has captured."""
        await discard(self._provider, self._image, self._sandbox, self._state)

    def finish(self, attempts: int) -> Captured:
        """Return the captured layers. `attempts`: the number of attempts that it took."""
        assert self._image is not None
        files = FilesLayer(image=self._image, digest=self._image.reference, seconds=self._seconds["files"])
        state = None
        if self._state is not None:
            digest = short_hash("\n".join(f"{file.path} {file.sha256}" for file in self._state.files), 64)
            seconds = self._seconds["state"]
            state = StateLayer(snapshot=self._state, digest=digest, size_bytes=self._state.size, seconds=seconds)
        return Captured(fence=self._fence, files=files, state=state, attempts=attempts, by_layer=dict(self._spent))


async def discard(
    provider: SandboxProvider,
    image: ImageRef | None,
    sandbox: Sandbox | None = None,
    state: StateSnapshot | None = None,
) -> None:
    """Remove the layers of a checkpoint; from a sandbox that continues to run, also its copies of the state.

    Args:
        provider: Provider of the image.
        image: Image of the files; None for none.
        sandbox: Sandbox that continues to run; None for none.
        state: Snapshot of the state, whose copies are in the sandbox; None for none.
    """
    if image is not None:
        await provider.remove_image(image)
    if sandbox is not None and state is not None:
        await sandbox.control('rm -rf -- "$1"', state.directory)
