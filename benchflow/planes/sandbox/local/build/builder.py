"""Builds: a Dockerfile's steps are carried out on this machine's root, each kept as a layer that later builds find.

The key of a layer is a digest of what made it: the host, the layer below, and the instruction with all that it depends
on. The key of an image is a digest of the host and the context's digest, so that neither the Dockerfile nor a sandbox
is needed to find it again.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import (
    ImageBuildError,
    ImagePullError,
    SandboxError,
    SandboxLostError,
    SandboxUnavailableError,
)
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.bases import resolve_bases
from benchflow.planes.sandbox.build_context import Context, read_context, read_files
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.local.build.copied_files import Copy
from benchflow.planes.sandbox.local.build.dockerfile import PROXY_ARGS, read_recipe
from benchflow.planes.sandbox.local.build.recipe import Base, BuildInstruction, LayerConfig, MakeDirectory, Recipe, Run
from benchflow.planes.sandbox.local.local_images import WHOLE
from benchflow.planes.sandbox.rebuilds import choose_build_key, record_rebuild
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.planes.sandbox.transcript import Transcript

T = TypeVar("T")

VERSION = 1
"""Raised when the same Dockerfile is carried out differently, so that old layers are no longer found."""

_ARCHIVE = "/.benchflow-copy.tar"
"""Path in the sandbox of the archive that a step copies."""

_MAKE = """
mk() { d=$1; n=; while [ ! -d "$d" ] && [ "$d" != / ]; do n=$d; d=${d%/*}; [ -n "$d" ] || d=/; done
  mkdir -p -- "$1" || return 1; [ -z "$n" ] || chown -R "$2" -- "$n"; }
umask 022
"""
_TABLES = ("/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group")
"""Files that programs of the image read before they create a directory for a user."""

# $1: target, $2: owner of what is created, $3: `into` if it must be a directory. Prints its kind and its real path.
_PREPARE = f"""{_MAKE}
if [ -z "$3" ] && [ ! -d "$1" ]; then
  p=${{1%/*}}; mk "${{p:-/}}" "$2" || exit 1; echo file; readlink -f -- "$1"
else mk "$1" "$2" || exit 1; echo directory; readlink -f -- "$1"; fi
"""
# $1: archive, $2: directory.
_UNPACK = 'tar -xpf "$1" -C "$2"; c=$?; rm -f -- "$1"; exit $c'


class Workshop(Protocol):
    """The layers, and the sandboxes in which steps are carried out."""

    def fingerprint(self) -> str:
        """Return a fingerprint of all below the first layer: this host, and what sandboxes see of it."""
        ...

    async def find(self, key: str) -> ImageRef | None:
        """Return the layer or image with a key; None if there is none."""
        ...

    async def describe(self, reference: str) -> LayerConfig | None:
        """Return the configuration of an image to build upon; None if there is none that can be used."""
        ...

    async def ready(self, config: ImageConfig, log: Path | None) -> ImageRef:
        """Return the ready image that a configuration names, unpacked into the store if it was not before."""
        ...

    async def open(self, base: str | None, name: str, hidden: tuple[str, ...]) -> Sandbox:
        """Start a root sandbox with a network on the image `base`, or on the bare host, without the `hidden` paths."""
        ...

    async def keep(self, sandbox: Sandbox, key: str, config: LayerConfig) -> ImageRef:
        """Capture a sandbox's files as the layer `key`, and return its reference. The sandbox runs on."""
        ...


class Builder:
    """A builder of images in one workshop."""

    def __init__(self, workshop: Workshop) -> None:
        """Make it."""
        self._workshop = workshop

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Find or build the image of a configuration. Concurrent builds of one digest are one build.

        Raises `ImageBuildError`, `ImagePullError` for a missing base image, and `UnsupportedFeatureError`.
        """
        host, made_up = await asyncio.to_thread(self._workshop.fingerprint), []
        if config.image is None:
            context = await asyncio.to_thread(read_context, config)
        else:
            ready = await self._workshop.ready(config, log)
            if config.context is None:
                return ready
            own = {ready.reference: ready.reference}
            config = config.model_copy(update={"image": ready.reference, "bases": own})
            context = await asyncio.to_thread(read_files, config, ready.workdir)
            # The digest covers the files alone, and nothing of the host lies below them.
            host, made_up = WHOLE, [context.text]
        given = config.digest
        digest = given if given is not None else await asyncio.to_thread(context.compute_digest)
        used = await asyncio.to_thread(resolve_bases, context.text, config.bases)
        what = used.extend_digest(digest.removeprefix("sha256:"))
        identity = _make_key("image", host, what, *(["entrypoint"] if config.entrypoint else []), *made_up)
        key = await asyncio.to_thread(choose_build_key, identity, config.rebuild)
        if found := await self._workshop.find(key):
            return found
        async with hold_lock_async(_locate_lock(key)):
            if found := await self._workshop.find(key):
                return found
            bases = {name: await self._base(context, name, reference) for name, reference in used.used.items()}
            recipe = await asyncio.to_thread(lambda: read_recipe(context, bases=bases, entrypoint=config.entrypoint))
            build = _Build(self._workshop, config, context, recipe, host, key, Transcript(log))
            image = await build.run()
            if config.rebuild is not None:
                await asyncio.to_thread(record_rebuild, identity, config.rebuild)
            return image

    async def _base(self, context: Context, name: str, reference: str) -> Base:
        """Return a base image of the Dockerfile. Raise `ImagePullError` if it is missing."""
        known = await self._workshop.describe(reference)
        if known is None:
            raise ImagePullError(
                f"an image that the build starts from cannot be had ({name}): {reference} is not on this host",
                file=context.shown,
                key="FROM",
                remedy="build it again",
            )
        return Base(reference, known)


class _Build:
    """A build in progress."""

    def __init__(
        self,
        workshop: Workshop,
        config: ImageConfig,
        context: Context,
        recipe: Recipe,
        host: str,
        key: str,
        transcript: Transcript,
    ) -> None:
        self._workshop = workshop
        self._config = config
        self._context = context
        self._recipe = recipe
        self._host = host
        self._key = key
        self._transcript = transcript
        self._plain = LayerConfig(base=recipe.config.base)
        self._sandbox: Sandbox | None = None
        self._base: str | None = recipe.upon
        self._step: BuildInstruction | None = None

    async def run(self) -> ImageRef:
        """Build the image within the configured time, and remove the sandbox at the end."""
        try:
            async with awake_timeout(self._config.timeout_sec) as timer:
                return await self._carry_out(await self._reading(self._layer_identities))
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise self._error(
                f"the build took longer than {self._config.timeout_sec:g} s",
                "raise build_timeout_sec, or make the build smaller",
            ) from error
        except (SandboxLostError, SandboxUnavailableError, ImageBuildError):
            raise
        except SandboxError as error:
            if error.retryable:
                raise
            raise self._error(error.message, error.remedy) from error
        finally:
            await self._close()

    async def _carry_out(self, identities: list[str | None]) -> ImageRef:
        """Reuse the layers up to the newest one that exists, make the others, and capture the image."""
        rebuild = self._config.rebuild
        keys = [None if one is None else await asyncio.to_thread(choose_build_key, one, rebuild) for one in identities]
        newest = await self._newest(keys)
        for number, (step, key) in enumerate(zip(self._recipe.steps, keys, strict=True)):
            self._step = step
            self._say(f"Step {number + 1}/{len(keys)} : {step.title}")
            if key is None:
                continue
            if number <= newest:
                self._reuse(key)
            else:
                await self._layer(step, key)
        if rebuild is not None:
            for identity in filter(None, identities):
                await asyncio.to_thread(record_rebuild, identity, rebuild)
        self._step = None
        image = await self._workshop.keep(await self._open(), self._key, self._recipe.config)
        self._say(f"Built {image.reference}")
        return image

    # --- layers --------------------------------------------------------------------------------------

    def _layer_identities(self) -> list[str | None]:
        """Return the digest of each step's inputs; None for steps that make no layer."""
        keys: list[str | None] = []
        below = self._recipe.upon or ""
        for step in self._recipe.steps:
            if step.action is None:
                keys.append(None)
                continue
            made = asdict(step.action)
            if isinstance(step.action, Copy):
                # The key depends on the copied files, not on their names in the context.
                made["sources"] = self._recipe.tree.digest(step.action)
                made["directory"] = step.action.directory
            below = _make_key("layer", self._host, below, type(step.action).__name__, made)
            keys.append(below)
        return keys

    async def _newest(self, keys: list[str | None]) -> int:
        """Return the index of the last step whose layer exists, -1 for none; layers before it need not exist."""
        for number in reversed(range(len(keys))):
            key = keys[number]
            if key is not None and await self._workshop.find(key):
                return number
        return -1

    async def _layer(self, step: BuildInstruction, key: str) -> None:
        """Carry out a step and capture its layer, or wait for another build that is doing that."""
        async with hold_lock_async(_locate_lock(key)):
            if await self._workshop.find(key):
                await self._close()
                self._reuse(key)
                return
            sandbox = await self._open()
            match step.action:
                case Run():
                    await self._run(sandbox, step.action)
                    await sandbox.kill_processes(keep="nothing")
                case Copy():
                    await self._require_tables(sandbox)
                    await self._copy(sandbox, step.action)
                case MakeDirectory():
                    await self._require_tables(sandbox)
                    await self._control(sandbox, f'{_MAKE} mk "$1" 0:0', step.action.path)
            await self._workshop.keep(sandbox, key, self._plain)
            self._base = key

    def _reuse(self, key: str) -> None:
        self._base = key
        self._say(" ---> Using cache")

    async def _open(self) -> Sandbox:
        """Return the sandbox of this build, started on the newest layer."""
        if self._sandbox is None:
            # If it were cancelled halfway, it would leave a sandbox that `_close` does not know.
            await run_to_completion(self._start())
        assert self._sandbox is not None
        return self._sandbox

    async def _start(self) -> None:
        # A random name, so that a half-started sandbox that a crash has left is never taken for this one.
        name = f"build-{self._key[:12]}-{secrets.token_hex(4)}"
        self._sandbox = await self._workshop.open(self._base, name, self._config.hidden)

    async def _close(self) -> None:
        """Remove the sandbox, even if this is cancelled meanwhile."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await run_to_completion(sandbox.stop())

    # --- steps ---------------------------------------------------------------------------------------

    async def _run(self, sandbox: Sandbox, run: Run) -> None:
        """Run a command of RUN, with its output in the transcript. Raise `ImageBuildError` unless it ends with 0."""
        decode = {stream: codecs.getincrementaldecoder("utf-8")("replace").decode for stream in ("stdout", "stderr")}
        code: int | None = None
        output = sandbox.exec_stream(run.argv, env=_read_proxies() | run.env, cwd=run.workdir, user=run.user)
        async for chunk in output:
            if chunk.stream == "exit":
                code = chunk.return_code
            else:
                self._transcript.write(decode[chunk.stream](chunk.data))
        if code != 0:
            raise self._error(
                f"the command ended with exit status {code}",
                "mend the step; the whole log is kept with the results",
            )

    async def _copy(self, sandbox: Sandbox, copy: Copy) -> None:
        """Create the target of a copy in the sandbox, and upload and unpack the files."""
        owner = await self._owner(sandbox, copy.owner)
        shown = f"{owner[0]}:{owner[1]}"
        said = await self._control(sandbox, _PREPARE, copy.target, shown, "into" if copy.directory else "")
        kind, _, place = said.removesuffix("\n").partition("\n")
        name: str | None = None
        if kind == "file":
            place, _, name = place.rpartition("/")
        with tempfile.NamedTemporaryFile(prefix="benchflow-copy-") as packed:
            await self._reading(lambda: self._recipe.tree.pack(copy, packed, owner, name))
            packed.flush()
            await sandbox.upload(Path(packed.name), _ARCHIVE)
        await self._control(sandbox, _UNPACK, _ARCHIVE, place or "/")

    async def _reading(self, work: Callable[[], T]) -> T:
        """Run `work`, which reads the context, in a thread. Raise `ImageBuildError` if a file can't be read."""
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise self._error(
                f"the build context {self._context.root} cannot be read: {error}",
                "make its files readable, or list them in .dockerignore",
            ) from error

    async def _require_tables(self, sandbox: Sandbox) -> None:
        """Raise `ImageBuildError` if an earlier step left anything but a small regular file where C libraries open one.

        A pipe in its place would block every `chown` and `tar`, and so the build, until its timeout. So would a sparse
        file of a terabyte, which costs nothing to make.
        """
        for file in _TABLES:
            try:
                await sandbox.read_bytes(file)
            except FileNotFoundError:
                continue
            except SandboxError as error:
                raise self._error(
                    f"{file} of the image {error.message}",
                    "leave it a regular file in the step before",
                ) from error

    async def _control(self, sandbox: Sandbox, script: str, *args: str) -> str:
        """Run a script of the builder in the sandbox, and return its stdout. Raise `ImageBuildError` if it fails."""
        result = await sandbox.control(script, *args, timeout=self._config.timeout_sec)
        if result.return_code != 0:
            self._say(result.stderr)
            raise self._error(
                f"the files cannot be written (exit status {result.return_code})", "mend the target of the step"
            )
        return result.stdout

    async def _owner(self, sandbox: Sandbox, given: str | None) -> tuple[int, int]:
        """Return a `--chown` as uid and gid, by the image's accounts. A user alone has a group of the same number."""
        if given is None:
            return 0, 0
        user, colon, group = given.partition(":")
        uid = await self._number(sandbox, "/etc/passwd", user or "0")
        return uid, await self._number(sandbox, "/etc/group", group) if colon and group else uid

    async def _number(self, sandbox: Sandbox, file: str, name: str) -> int:
        """Return the id of a name in an account table of the image, or a number as it is."""
        if name.isdecimal() and len(name) < 11:
            return int(name)
        try:
            accounts = (await sandbox.read_bytes(file)).decode(errors="replace")
        except FileNotFoundError:
            accounts = ""
        for line in accounts.splitlines():
            fields = line.split(":")
            if fields[0] == name and len(fields) > 2 and fields[2].isdecimal() and len(fields[2]) < 11:
                return int(fields[2])
        raise self._error(
            f"--chown: {name} is not in {file} of the image", "create it with RUN before this step, or give its number"
        )

    # --- log and errors ------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._transcript.write(text.rstrip("\n") + "\n")

    def _error(self, reason: str, remedy: str | None) -> ImageBuildError:
        step = self._step
        return ImageBuildError(
            f"line {step.line}: {step.title}: {reason}" if step else reason,
            file=self._context.shown,
            key=step.word if step else None,
            remedy=remedy,
            log_tail=self._transcript.tail,
        )


def _make_key(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([VERSION, *parts], sort_keys=True).encode()).hexdigest()


def _locate_lock(key: str) -> Path:
    return find_state_dir() / "locks" / f"local-{key[:32]}.lock"


def _read_proxies() -> dict[str, str]:
    """Return the engine's own proxies, as Docker passes its client's to a build, without those on the loopback."""
    found = {name: os.environ[name] for name in PROXY_ARGS if os.environ.get(name)}
    return {name: value for name, value in found.items() if not _is_loopback(value)}


def _is_loopback(url: str) -> bool:
    host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
