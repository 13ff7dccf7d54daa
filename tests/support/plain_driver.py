"""A driver without any fast path: containers without a network, by docker's command line.

It shows that what the engine builds over a driver's methods alone comes to the same as what Docker's own driver does.
"""

from __future__ import annotations

import asyncio
import io
import json
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from benchflow.contracts.driver import (
    SCRIPT_ENVIRONMENT,
    FoundSandbox,
    Process,
    SandboxDriver,
    ScriptResult,
    StartedSandbox,
)
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Capabilities, SandboxSpec
from benchflow.contracts.sandbox_provider import OwnedSandbox
from benchflow.errors import ProcessNotStartedError, SandboxError, SandboxLostError, SandboxStartError
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.timeouts import awake_timeout

STACK = "benchflow.stack"
PIDS = 4096
_FULL = (b" fork", b"init-p: ")
_GONE = ("no such container", "is not running", "marked for removal", "in a stopped state")
_MISSING = "Could not find the file"


class PlainDriver(SandboxDriver):
    """Containers by a command line."""

    name = "plain"

    def capabilities(self) -> Capabilities:
        return Capabilities(
            provider=self.name,
            network_modes=("no-network",),
            users=True,
            snapshot=True,
            fork=True,
            isolation="container",
            lockdown="clean_room",
        )

    # --- sandboxes -----------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> StartedSandbox:
        found = await self.find(spec.name)
        if found is not None and found.labels.get(STACK) != spec.labels.get(STACK):
            raise SandboxStartError(
                f"a container named {spec.name} exists and does not belong to this stack",
                remedy="choose another job name",
            )
        if found is not None and not found.is_running:
            await self.remove(spec.name)
            found = None
        warnings = [name for name in ("cpus", "memory_mb", "storage_mb") if getattr(spec, name) is not None]
        handle = found.handle if found is not None else await self._create(spec)
        return StartedSandbox(handle=handle, warnings=tuple(f"{name} is not enforced" for name in warnings))

    async def _create(self, spec: SandboxSpec) -> str:
        given = [*_pairs("--label", spec.labels), *_pairs("--env", spec.env)]
        fixed = (
            "--detach",
            "--pull=never",
            "--init",
            "--network=none",
            f"--pids-limit={PIDS}",
            "--user=0",
            "--entrypoint=sleep",
        )
        command = ("run", *fixed, f"--name={spec.name}", *given, spec.image.reference, "infinity")
        try:
            _, out = await self._docker(*command)
        except SandboxError as error:
            made_meanwhile = await self.find(spec.name)
            if made_meanwhile is None or not made_meanwhile.is_running:
                raise SandboxStartError(f"{spec.image.reference}: {error.message}") from error
            return made_meanwhile.handle
        return out.decode().split()[-1]

    async def find(self, name: str) -> FoundSandbox | None:
        _, out = await self._docker("inspect", "--type=container", name, ok=(0, 1))
        rows = json.loads(out or b"[]")
        if not rows:
            return None
        return FoundSandbox(
            handle=rows[0]["Id"], is_running=rows[0]["State"]["Running"], labels=rows[0]["Config"]["Labels"] or {}
        )

    async def remove(self, name: str) -> None:
        await self._docker("rm", "--force", "--volumes", name, ok=(0, 1))

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        label = f"--filter=label={STACK}={stack_id}"
        _, out = await self._docker("ps", "--all", "--no-trunc", label, "--format={{.Names}}")
        found = [(name, await self.find(name)) for name in out.decode().split()]
        return [OwnedSandbox(name=name, handle=one.handle, labels=one.labels) for name, one in found if one is not None]

    async def address(self, handle: str, port: int) -> None:
        return None

    # --- processes -----------------------------------------------------------------------------------

    async def spawn(self, handle: str, process: Process) -> None:
        options = (*_pairs("--env", process.env), f"--user={process.user}", f"--workdir={process.cwd}")
        try:
            # A container that is paused takes no command.
            async with hold_lock_async(_lock_of(handle), shared=True):
                await self._docker("exec", "--detach", *options, handle, *process.argv)
        except SandboxLostError:
            raise
        except SandboxError as error:
            raise ProcessNotStartedError(error.message) from error

    async def run_script(
        self,
        handle: str,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        answer = await self._script(handle, script, timeout)
        if answer.exit_code > 1 and any(words in answer.out + answer.err for words in _FULL):
            # A sandbox with as many processes as it may have takes in no other one.
            await self._docker("update", f"--pids-limit={PIDS + 256}", handle)
            try:
                answer = await self._script(handle, script, timeout)
            finally:
                await self._docker("update", f"--pids-limit={PIDS}", handle)
        if sink is None:
            return answer
        sink(answer.out)
        return answer.model_copy(update={"out": b""})

    async def _script(self, handle: str, script: str, timeout: float | None) -> ScriptResult:
        command = ("exec", "--interactive", *_pairs("--env", SCRIPT_ENVIRONMENT), "--user=0", "--workdir=/", handle)
        running: asyncio.subprocess.Process | None = None
        try:
            async with awake_timeout(timeout), hold_lock_async(_lock_of(handle), shared=True):
                running = await _start(*command, "/bin/sh", stdin=asyncio.subprocess.PIPE)
                out, err = await running.communicate(f"(\n{script}\n) </dev/null".encode())
        except BaseException as error:
            if running is not None and running.returncode is None:
                running.kill()
                await running.wait()
            if not isinstance(error, TimeoutError):
                raise
            raise SandboxError(f"a script of the engine did not end within {timeout} s") from None
        code = running.returncode or 0
        if code:
            _raise_if_lost((out + err).decode(errors="replace"))
        if code > 125 or (code and b"unable to upgrade" in err):
            # None of the engine's scripts ends so by itself: it was killed, or could not begin.
            await self._require_running(handle)
        return ScriptResult(exit_code=code, out=out, err=err)

    async def _require_running(self, handle: str) -> None:
        absent, out = await self._docker("inspect", "--type=container", "--format={{.State.Status}}", handle, ok=(0, 1))
        if absent or out.split() not in ([b"running"], [b"paused"]):
            raise SandboxLostError(f"{handle[:12]} does not run")

    # --- files ---------------------------------------------------------------------------------------

    async def put(self, handle: str, directory: str, archive: IO[bytes]) -> None:
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(shutil.copyfileobj, archive, file)
            file.seek(0)
            try:
                await self._docker("cp", "-", f"{handle}:{directory}", stdin=file)
            except SandboxError as error:
                if _MISSING not in error.message or directory == "/":
                    raise
                await self.put(handle, posixpath.dirname(directory), _directory(posixpath.basename(directory)))
                file.seek(0)
                await self._docker("cp", "-", f"{handle}:{directory}", stdin=file)

    async def get(self, handle: str, path: str, take: Callable[[bytes], None]) -> bool | None:
        try:
            await self._docker("cp", f"{handle}:{path.rstrip('/')}/.", "-", take=take)
            return False
        except SandboxError as error:
            if "not a directory" not in error.message and _MISSING not in error.message:
                raise
        try:
            await self._docker("cp", "--follow-link", f"{handle}:{path}", "-", take=take)
            return True
        except SandboxError as error:
            if _MISSING not in error.message:
                raise
            return None

    # --- captures ------------------------------------------------------------------------------------

    async def capture(self, handle: str, name: str) -> ImageRef:
        image = f"plain/{name.lower()}"
        missing, _ = await self._docker("image", "inspect", image, ok=(0, 1))
        if missing:
            async with hold_lock_async(_lock_of(handle)):
                await self._docker("pause", handle)
                try:
                    await self._copy(handle, image)
                finally:
                    await self._docker("unpause", handle)
        return ImageRef(reference=image, built=True)

    async def _copy(self, handle: str, image: str) -> None:
        """Make an image of a container's files. `commit` would keep what the container was started with, too."""
        _, own = await self._docker("inspect", "--type=container", "--format={{.Image}}", handle)
        _, told = await self._docker("image", "inspect", "--format={{json .Config}}", own.decode().strip())
        config = json.loads(told)
        pairs = [pair.partition("=") for pair in config.get("Env") or ()]
        changes = [f"ENV {key}={json.dumps(value).replace('$', chr(92) + '$')}" for key, _, value in pairs]
        changes += [f"{key.upper()} {config[key]}" for key in ("WorkingDir", "User") if config.get(key)]
        changes = [change.replace("WORKINGDIR", "WORKDIR") for change in changes]
        with tempfile.TemporaryFile() as file:
            await self._docker("export", handle, take=file.write)
            file.seek(0)
            await self._docker("import", *(f"--change={change}" for change in changes), "-", image, stdin=file)

    async def remove_image(self, image: ImageRef) -> None:
        await self._docker("rmi", image.reference, ok=(0, 1))

    async def remove_captures(self, prefix: str) -> None:
        _, out = await self._docker("images", "--format={{.Repository}}", "--filter=reference=plain/*")
        for image in out.decode().split():
            if image.startswith(f"plain/{prefix.lower()}"):
                await self.remove_image(ImageRef(reference=image))

    # --- the program ---------------------------------------------------------------------------------

    async def _docker(
        self,
        *args: str,
        stdin: Any = asyncio.subprocess.DEVNULL,
        take: Callable[[bytes], None] | None = None,
        ok: tuple[int, ...] = (0,),
    ) -> tuple[int, bytes]:
        """Run docker, and return its exit status and what it has printed. take: gets that instead."""
        running = await _start(*args, stdin=stdin)
        assert running.stdout is not None and running.stderr is not None
        errors = asyncio.ensure_future(running.stderr.read())
        out = b""
        while piece := await running.stdout.read(1 << 16):
            if take is not None:
                take(piece)
            else:
                out += piece
        said, status = (await errors).decode(errors="replace").strip(), await running.wait()
        if status not in ok:
            _raise_if_lost(said)
            raise SandboxError(said or f"docker {args[0]} ended with {status}")
        return status, out


def _lock_of(handle: str) -> Path:
    return find_state_dir() / "locks" / f"plain-{handle[:16]}.lock"


def _directory(name: str) -> IO[bytes]:
    """Return an archive of an empty directory."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
    packed.seek(0)
    return packed


async def _start(*args: str, stdin: Any) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec("docker", *args, stdin=stdin, stdout=pipe, stderr=pipe)


def _pairs(option: str, table: Mapping[str, str]) -> list[str]:
    return [f"{option}={name}={value}" for name, value in table.items()]


def _raise_if_lost(said: str) -> None:
    if any(text in said.lower() for text in _GONE):
        raise SandboxLostError(said)
