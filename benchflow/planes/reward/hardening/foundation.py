"""Compare the programs and libraries that a verifier depends on with the baseline, and plan their restoration.

Two lists of changed files are compared, which the host has made without running any program of the sandbox. Changed
tools are restored from the image, and new files that would be taken in place of one are removed. Other changes of the
system are reported as findings only: they may be the work.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from benchflow.contracts.file_changes import FileChanges, FileState
from benchflow.contracts.reward import HardeningFinding, Weight
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import VerifierError
from benchflow.planes.reward.hardening.verifier_dependencies import (
    CODE,
    FIRST_SEARCHED,
    INTERPRETED,
    LOADER_FILES,
    LOCAL,
    LOCALES,
    PACKAGE_RECORDS,
    PYTHON_LANDMARKS,
    SITE,
    SYSTEM,
    TEST_DISTRIBUTIONS,
    TEST_PACKAGES,
    TOOLS,
)
from benchflow.planes.reward.hardening.verifier_tools import ACCOUNTS, ToolSet

ITEM = "verify_tools"

_MAX_LINKS = 40
_LOADED_FROM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64")
CLEAN_ROOM = 'verify in a sandbox of its own: --verify-in separate, or sandbox_mode "separate"'
"""Remedy for what can't be undone in the agent's sandbox."""


@dataclass
class Repairs:
    """The plan by which the changed tools are restored."""

    put: dict[str, tuple[FileState, bytes]] = field(default_factory=dict)
    """Files and links to write from outside. A new file that shadows a tool is replaced by a link to that tool."""

    remove: dict[str, Weight] = field(default_factory=dict)
    """New files to remove once the sandbox's own programs can be trusted."""

    directories: dict[str, FileState] = field(default_factory=dict)
    """Directories whose owners and modes are to be restored."""

    found: list[HardeningFinding] = field(default_factory=list)
    """Findings about files that are restored, and about changes that are left."""

    @property
    def is_any(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.put or self.remove or self.directories)


async def compare_tools(
    sandbox: Sandbox, tools: ToolSet, before: FileChanges, after: FileChanges, repairs: Repairs
) -> None:
    """Add the repairs for all tools that the agent has changed, with the findings.

    Args:
        sandbox: Sandbox whose image has the originals.
        tools: Tools of the baseline.
        before: Files that differed from the image before the agent acted.
        after: Files that differ from it now.
        repairs: Plan that is extended.

    Raises:
        VerifierError: A tool was changed and can't be restored.
    """
    await _Comparison(sandbox, tools, before, after, repairs).run()


class _Comparison:
    """One comparison of the tools."""

    def __init__(
        self, sandbox: Sandbox, tools: ToolSet, before: FileChanges, after: FileChanges, repairs: Repairs
    ) -> None:
        self.repairs = repairs
        self._sandbox = sandbox
        self._tools = tools
        self._before = before
        self._after = after
        self._image: dict[str, FileState | None] = {}
        self._names = {posixpath.basename(program): program for program in reversed(tools.programs)}
        self._sonames = {posixpath.basename(library): library for library in tools.libraries}

    async def run(self) -> None:
        """Fill the repairs."""
        changed = self._before.differences(self._after)
        if not changed:
            return
        await self._load_originals(changed)
        changed = [path for path in changed if not _is_same(self._get_old_state(path), self._get_new_state(path))]
        used = [*self._tools.programs, *self._tools.libraries, *self._tools.pythons]
        searched = [*self._tools.loaded_from, *self._tools.path.split(":")]
        hops, real = await self._follow([*used, *self._tools.files, *searched, "/bin/sh"])
        directories = {real.get(directory, directory) for directory in self._tools.path.split(":")}
        loaded_from = {posixpath.dirname(real[library]) for library in self._tools.libraries if library in real}
        loaded_from |= {real.get(directory, directory) for directory in self._tools.loaded_from}
        pythons = {real[python] for python in self._tools.pythons if python in real}
        packages = {f"{python}/{site}/{name}" for python in pythons for site in SITE for name in TEST_PACKAGES}
        added = [posixpath.basename(path) for path in changed if posixpath.dirname(path) in directories]
        programs = {f"{directory}/{name}" for directory in directories for name in added}
        libraries = [posixpath.basename(path) for path in changed if ".so" in posixpath.basename(path)]
        loaded = {f"{place}/{name}" for place in (*loaded_from, *_LOADED_FROM) for name in libraries}
        locales = {_get_locale_directory(path) for path in changed if path.startswith(LOCALES)}
        # The states of all paths that these may shadow are loaded in one request.
        await self._load_originals((packages | programs | loaded | locales) - self._image.keys())
        for path in changed:
            if path == ACCOUNTS:
                await self._restore_accounts()
            elif path in LOADER_FILES:
                await self._restore_loader(path)
            elif path in hops and self._is_redirect(path):
                self._remove(path, "tampering")
            elif (
                (path in hops and self._get_old_state(path) is not None)
                # Any program may load charset converters of the C library.
                or ("/gconv/" in path and path.startswith(SYSTEM))
                or self._is_locale(path)
                or self._is_python(path, pythons)
            ):
                await self._restore(path)
            elif self._get_old_state(path) is None:
                self._judge_new(path, directories, loaded_from, pythons)
            else:
                self._judge_changed(path, changed)

    # --- states --------------------------------------------------------------------------------------

    def _get_old_state(self, path: str) -> FileState | None:
        """Return the state of a path before the agent acted; None for no file."""
        return self._before.files[path] if path in self._before.files else self._image.get(path)

    def _get_new_state(self, path: str) -> FileState | None:
        """Return the state of a path now; None for no file."""
        return self._after.files[path] if path in self._after.files else self._image.get(path)

    async def _load_originals(self, paths: Collection[str]) -> None:
        """Load the states that the image has at these paths."""
        if self._before.base:
            found = await self._sandbox.originals(self._before.base, list(paths))
            self._image |= {path: found.get(path) for path in paths}
        else:
            self._image |= dict.fromkeys(paths)

    async def _follow(self, paths: Iterable[str]) -> tuple[set[str], dict[str, str]]:
        """Resolve paths in the state before the agent; return all components passed, and each resolved path."""
        wanted = [path for path in dict.fromkeys(paths) if path.startswith("/")]
        while True:
            hops: set[str] = set()
            unknown: set[str] = set()
            real: dict[str, str] = {}
            for path in wanted:
                self._walk(path, hops, unknown, real)
            if not unknown:
                return hops, real
            await self._load_originals(unknown)

    def _walk(self, path: str, hops: set[str], unknown: set[str], real: dict[str, str]) -> None:
        """Resolve one path as it was, as far as states are loaded.

        Args:
            path: Absolute path.
            hops: Receives all paths on the way.
            unknown: Receives the paths whose states have to be loaded first.
            real: Receives the resolved path.
        """
        at, rest, links = "", path.split("/"), 0
        while rest:
            part = rest.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                at = posixpath.dirname(at)
                continue
            at = f"{at.rstrip('/')}/{part}"
            if at not in self._before.files and at not in self._image:
                unknown.add(at)
                unknown.update(f"{at}/{'/'.join(rest[:number])}" for number in range(1, len(rest) + 1))
                return
            hops.add(at)
            state = self._get_old_state(at)
            if state is not None and state.kind == "link" and (links := links + 1) <= _MAX_LINKS:
                rest = [*state.target.split("/"), *rest]
                at = "" if state.target.startswith("/") else posixpath.dirname(at)
        real[path] = at

    # --- what was there ------------------------------------------------------------------------------

    async def _restore_loader(self, path: str) -> None:
        """Restore a file of the dynamic loader; one that is new is emptied now, and removed later."""
        was, kept = self._get_old_state(path), base64.b64decode(self._tools.loader.get(path, ""))
        self.repairs.put[path] = (was or FileState(kind="file", mode=0o644), kept)
        if was is None:
            self.repairs.remove[path] = "note"
        # Package managers rewrite the loader's cache whenever they install something.
        weight: Weight = "note" if path.endswith(".cache") else "tampering"
        self._add_finding("restored", path, weight)

    async def _restore_accounts(self) -> None:
        """Restore the accounts that have become root's, and report new ones of root's. Other changes are left."""
        now, was = self._get_new_state(ACCOUNTS), self._tools.accounts
        if now is None or now.kind != "file" or not was:
            return
        content = (await self._sandbox.read_outside(ACCOUNTS) or b"").decode("latin-1")
        known = {line.partition(":")[0]: line for line in was.splitlines()}
        lines = []
        for line in content.splitlines():
            before = known.get(line.partition(":")[0])
            if _is_root(line) and before is not None and not _is_root(before):
                lines.append(before)
            else:
                lines.append(line)
                if _is_root(line) and before is None:
                    self._add_finding("found", ACCOUNTS, "tampering", f"{line.partition(':')[0]} is new, and is root")
        if lines != content.splitlines():
            self.repairs.put[ACCOUNTS] = (now, "".join(f"{line}\n" for line in lines).encode("latin-1"))
            self._add_finding("restored", ACCOUNTS, "tampering", "an account that had become root's")

    async def _restore(self, path: str) -> None:
        """Plan to restore a path: remove a new file, rewrite a changed one, reset owner and mode of a directory.

        Raises:
            VerifierError: It was a directory and is none any more, or its content can't be restored.
        """
        was, now = self._get_old_state(path), self._get_new_state(path)
        if was is None:
            self._remove(path, "note" if _is_bytecode(path) else "tampering")
            return
        if was.kind == "directory":
            if now is None or now.kind != "directory":
                raise VerifierError(
                    "was a directory of programs or libraries, and the agent has put something else in its place",
                    file=path,
                    key=f"verifier.hardening.{ITEM}",
                    remedy=CLEAN_ROOM,
                )
            self.repairs.directories[path] = was
            self._add_finding("restored", path, "tampering", "its owner or mode")
            return
        content = b"" if was.kind == "link" else await self._read_original(path, was)
        self.repairs.put[path] = (was, content)
        self._add_finding("restored", path, "tampering")

    async def _read_original(self, path: str, was: FileState) -> bytes:
        """Return the content of a file of the image. Raise `VerifierError` if it isn't the content of the baseline."""
        content = await self._sandbox.read_original(path)
        kept = self._before.files.get(path)
        digest = hashlib.sha256(content).hexdigest() if content is not None else ""
        if content is None or was.kind != "file" or (kept is not None and kept.digest != digest):
            raise VerifierError(
                "was changed by the agent, and the image does not have it as it was",
                file=path,
                key=f"verifier.hardening.{ITEM}",
                remedy=CLEAN_ROOM,
            )
        return content

    def _is_python(self, path: str, pythons: Collection[str]) -> bool:
        """Return whether a file is code of a standard library, or of pytest as it was installed."""
        for python in pythons:
            if not path.startswith(f"{python}/"):
                continue
            parts = path[len(python) + 1 :].split("/")
            if parts[0] in SITE:
                return self._get_old_state(path) is not None and len(parts) > 1 and parts[1] in TEST_PACKAGES
            is_code = path.endswith(CODE) or self._is_link(path) or self._is_directory(path)
            return is_code and parts[0] not in ("test", "tests")
        return False

    def _is_locale(self, path: str) -> bool:
        """Return whether a file is of a locale that was there, or of a new spelling of one, which is found first."""
        if not path.startswith(LOCALES):
            return False
        name, _, file = path[len(LOCALES) :].partition("/")
        is_changed = bool(file) and self._get_old_state(path) is not None
        return is_changed or (
            self._get_old_state(f"{LOCALES}{name}") is None
            and self._get_old_state(_get_locale_directory(path)) is not None
        )

    def _is_redirect(self, path: str) -> bool:
        """Return whether a path component is new and no directory, and so redirects the lookup of a tool."""
        was, now = self._get_old_state(path), self._get_new_state(path)
        return was is None and now is not None and now.kind != "directory"

    def _is_link(self, path: str) -> bool:
        """Return whether a path was a link, or is one now."""
        was, now = self._get_old_state(path), self._get_new_state(path)
        return any(state is not None and state.kind == "link" for state in (was, now))

    def _is_directory(self, path: str) -> bool:
        """Return whether a directory was removed, or replaced by something else."""
        was, now = self._get_old_state(path), self._get_new_state(path)
        return was is not None and was.kind == "directory" and (now is None or now.kind != "directory")

    def _judge_changed(self, path: str, changed: Collection[str]) -> None:
        """Report a changed or removed program that is none of the known tools: a verifier may call it."""
        was = self._get_old_state(path)
        assert was is not None
        if was.kind == "directory" or not path.startswith(SYSTEM) or _is_bytecode(path) or not self._tools.is_whole:
            return
        if was.is_program or was.kind == "link" or path.endswith(CODE) or ".so." in path:
            is_work = path.startswith(LOCAL) or self._is_packaged(path, changed)
            weight: Weight = "note" if is_work else "tampering"
            detail = "was removed" if self._get_new_state(path) is None else "was changed"
            self._add_finding("found", path, weight, f"{detail}; no tool that is put back")

    def _is_packaged(self, path: str, changed: Collection[str]) -> bool:
        """Return whether a package manager seems to have changed a path. An agent that is root can forge that."""
        site = next((f"{path.partition(f'/{name}/')[0]}/{name}/" for name in SITE if f"/{name}/" in path), None)
        if site is not None:
            return any(other.startswith(site) and ".dist-info" in other for other in changed)
        return any(other.startswith(PACKAGE_RECORDS) for other in changed)

    # --- what is new ---------------------------------------------------------------------------------

    def _judge_new(
        self, path: str, directories: Collection[str], loaded_from: Collection[str], pythons: Collection[str]
    ) -> None:
        """Remove or report a new file, if it shadows a tool, or is loaded by the loader, an interpreter or make."""
        directory, name = posixpath.split(path)
        state = self._get_new_state(path)
        if state is None:
            return
        if directory in directories:
            if name in self._names:
                self._replace(path, self._names[name])
            elif (name in TOOLS and not self._tools.is_whole) or name.endswith("._pth") or name in PYTHON_LANDMARKS:
                self._remove(path, "tampering")
            elif hidden := [
                f"{other}/{name}" for other in directories if self._get_old_state(f"{other}/{name}") is not None
            ]:
                weight: Weight = "note" if all(other.startswith(LOCAL) for other in hidden) else "tampering"
                self._add_finding("found", path, weight, f"is new, and has the name of {hidden[0]}")
        elif name in self._sonames and state.kind != "directory" and _is_loaded_from(directory, loaded_from):
            self._replace(path, self._sonames[name])
        elif (path.startswith(INTERPRETED) and path.endswith(CODE) and self._tools.is_whole) or (
            ".so" in name
            and _is_loaded_from(directory, loaded_from)
            and self._hides_library(name, directory, loaded_from)
        ):
            self._remove(path, "tampering")
        elif path.startswith(FIRST_SEARCHED) and self._tools.is_whole:
            self._add_finding("found", path, "tampering", "is new where an interpreter, or make, looks first")
        elif self._is_taken_by_python(path, pythons):
            self._remove(path, "note" if _is_bytecode(path) else "tampering")

    def _hides_library(self, name: str, directory: str, loaded_from: Collection[str]) -> bool:
        """Return whether another directory of the loader's had a library of this name."""
        places = {*loaded_from, *_LOADED_FROM} - {directory}
        return any(self._get_old_state(f"{place}/{name}") is not None for place in places)

    def _is_taken_by_python(self, path: str, pythons: Collection[str]) -> bool:
        """Return whether a new file changes what a Python imports: an archive, a configuration, another pytest."""
        directory, name = posixpath.split(path)
        for python in pythons:
            above = posixpath.dirname(python)
            if directory == above and name.startswith("python") and name.endswith(".zip"):
                return True
            if directory == posixpath.dirname(above) and name in PYTHON_LANDMARKS:
                return True
            if path.startswith(f"{python}/"):
                site, _, rest = path[len(python) + 1 :].partition("/")
                part = rest.partition("/")[0]
                is_test = part in TEST_PACKAGES or part.startswith(TEST_DISTRIBUTIONS)
                # Of a package that is new as a whole, only the top directory is reported.
                return (
                    site in SITE
                    and is_test
                    and (rest == part or self._get_old_state(f"{python}/{site}/{part}") is not None)
                )
        return False

    def _replace(self, path: str, known: str) -> None:
        """Plan to replace a new file by a link to the tool that it shadows, until it can be removed."""
        self.repairs.put[path] = (FileState(kind="link", target=known), b"")
        self._remove(path, "tampering")

    def _remove(self, path: str, weight: Weight) -> None:
        self.repairs.remove[path] = weight

    def _add_finding(self, action: str, path: str, weight: Weight, detail: str = "") -> None:
        finding = {"item": ITEM, "action": action, "path": path, "detail": detail, "weight": weight}
        self.repairs.found.append(HardeningFinding.model_validate(finding))


def _is_same(one: FileState | None, other: FileState | None) -> bool:
    """Return whether two states are known to be equal, or both are None."""
    return one is other or (one is not None and one.is_same(other))


def _is_root(line: str) -> bool:
    """Return whether a line of `/etc/passwd` has the user id 0."""
    fields = line.split(":")
    return len(fields) > 2 and fields[2].strip().lstrip("0") == ""


def _get_locale_directory(path: str) -> str:
    """Return the directory of the locale of a file, with the codeset in the C library's own spelling."""
    language, _, codeset = path[len(LOCALES) :].partition("/")[0].partition(".")
    return f"{LOCALES}{language}.{codeset.replace('-', '').lower()}" if codeset else f"{LOCALES}{language}"


def _is_bytecode(path: str) -> bool:
    return "/__pycache__/" in path


def _is_loaded_from(directory: str, places: Collection[str]) -> bool:
    """Return whether the loader searches a directory: one of these places, a default one, or one directly below it."""
    above = directory.partition("/glibc-hwcaps")[0]
    return any(at in places or at in _LOADED_FROM or posixpath.dirname(at) in _LOADED_FROM for at in (directory, above))
