"""The programs and libraries that a verifier stands on, where the agent was root and could have changed them.

What is needed to look at all is read from outside, and put back from the image. With that, the rest is found from
inside: by the time of a file's last change, which no program can set, and then by its digest. New programs are the
agent's work and stay, unless they would be taken in place of one that was there.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import posixpath
import re
from collections.abc import Iterable

from benchflow.contracts.base import Model
from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, SandboxLostError, VerifierError
from benchflow.planes.reward.hardening.names import FIRST, LOADER_FILES, TEST_PACKAGES, TOOLS, TRACED

ITEM = "verify_tools"

_ROUNDS = 3

# $1 PATH; $2 seconds since the epoch of the look before, empty for none; then libraries that were found before.
# Parts with a line `==` after each: programs; what they are, links followed; libraries as they are loaded; digests,
# of what has changed if there was a look before; files that a Python starts with, likewise.
_SCRIPT = rf"""
path=$1 since=$2; shift 2
case $(date +%s.%N) in *N) date +%s;; *) date +%s.%N;; esac; echo ==
known=$(printf '%s\n' "$@")
newer=; [ -z "$since" ] || newer="-newerct @$since"
IFS=:; set --
for d in $path; do
  case $d in /*) ;; *) continue;; esac
  for n in {" ".join(TOOLS)}; do
    if [ -f "$d/$n" ] && [ -x "$d/$n" ]; then set -- "$@" "$d/$n"; fi
  done
done
unset IFS
follow() {{ readlink -f -- "$@" 2>/dev/null || for f; do readlink -f "$f"; done; }}
printf '%s\n' "$@"; echo ==
real=$(follow "$@"); printf '%s\n==\n' "$real"
loaded() {{ LD_TRACE_LOADED_OBJECTS=1 "$1"; }}
if [ -n "$since" ]; then
  for n in {" ".join(TRACED)}; do
    for f; do case $f in */$n) loaded "$f"; break;; esac; done
  done </dev/null 2>/dev/null | grep '(0x'
else
  libs=$(for f in $(printf '%s\n' "$real" | sort -u); do
    case $f in */ldconfig|*/uv|*/uvx) ;; *) loaded "$f";; esac
  done </dev/null 2>/dev/null | grep '(0x' | sort -u)
  printf '%s\n' "$libs"
  known=$(follow $(printf '%s\n' "$libs" | sed -n 's/^.*[[:space:]]\(\/[^ ]*\) (0x.*$/\1/p'))
fi; echo ==
files=$(printf '%s\n%s\n' "$real" "$known" | sort -u)
[ -z "$newer" ] || files=$(find $files -maxdepth 0 $newer 2>/dev/null)
[ -z "$files" ] || sha256sum $files 2>/dev/null; echo ==
for p in $(printf '%s\n' "$@" "$real" | sed -n 's,/bin/\(python\|pytest\)[^/]*$,,p' | sort -u); do
  for l in "$p"/lib/python3*; do
    [ -d "$l" ] || continue
    find "$l" \( -name site-packages -o -name dist-packages -o -name test \) -prune -o -type f $newer -print
    for n in {" ".join(TEST_PACKAGES)}; do
      for t in "$l"/*-packages/$n; do [ ! -e "$t" ] || find "$t" -type f $newer -print; done
    done
  done
done; echo ==
"""


class ToolSet(Model):
    """programs: by path, with what they are when links are followed. libraries: by the name that is asked for, where
    the loader finds them. digests: of both, by paths without links. modules: what Pythons start with. loader: contents
    of the loader's own files, in base64. first: what is looked at from outside. path: which directories; now: when.
    """

    path: str = ""
    programs: dict[str, str] = {}
    libraries: dict[str, list[str]] = {}
    digests: dict[str, str] = {}
    modules: list[str] = []
    loader: dict[str, str] = {}
    first: list[str] = []
    now: str = ""


async def take_tools(sandbox: Sandbox, path: str, *, everything: bool) -> ToolSet:
    """What is there before the agent acts. path: the directories that it may write; everything: it may write all."""
    seen = await _look(sandbox, path)
    if not everything:
        return seen.model_copy(update={"path": path})
    loader = {file: content for file in LOADER_FILES if (content := await sandbox.read_outside(file)) is not None}
    first = await _first(sandbox, seen)
    return seen.model_copy(
        update={
            "path": path,
            "loader": {file: base64.b64encode(held).decode() for file, held in loader.items()},
            "first": first,
        }
    )


async def _first(sandbox: Sandbox, seen: ToolSet) -> list[str]:
    """The paths, as they are used, of what is looked at from outside."""
    tools = {posixpath.basename(path): path for path in reversed(seen.programs)}
    chosen = [tools[name] for name in FIRST if name in tools]
    told = await sandbox.control('for f; do LD_TRACE_LOADED_OBJECTS=1 "$f" </dev/null; done 2>/dev/null', *chosen)
    loaded = [place for places in _libraries(told.stdout.splitlines()).values() for place in places]
    # A shell is started by this name, whatever PATH says.
    return ["/bin/sh", *chosen, *loaded]


async def secure_first(sandbox: Sandbox, tools: ToolSet, *, kill: bool) -> list[HardeningFinding]:
    """Put back what everything else is looked at with, and end what the agent left running, in that order of trust.

    A process that still runs may change it again, so that it is looked at once more after they have ended. kill:
    whether they may be ended.
    """
    found: list[HardeningFinding] = []
    for _ in range(_ROUNDS):
        again = await _put_back_first(sandbox, tools)
        found += again
        if not again:
            return found
        if kill:
            await sandbox.kill_processes()
    raise VerifierError(
        f"{found[-1].path} of the sandbox is changed again and again",
        remedy='verify in a sandbox of its own: sandbox_mode "separate"',
    )


async def _put_back_first(sandbox: Sandbox, tools: ToolSet) -> list[HardeningFinding]:
    paths = list(dict.fromkeys(tools.first))
    contents = await asyncio.gather(*(_outside(sandbox, path) for path in (*LOADER_FILES, *paths)))
    held = dict(zip((*LOADER_FILES, *paths), contents, strict=True))
    found = []
    for file in LOADER_FILES:
        kept = base64.b64decode(tools.loader.get(file, ""))
        if (held[file] or b"") != kept:
            await sandbox.write_outside(file, kept, mode=0o644)
            found.append(HardeningFinding(item=ITEM, action="restored", path=file))
    for path in paths:
        canonical = tools.programs.get(path) or tools.programs.get(f"/usr{path}") or path
        digest = tools.digests.get(canonical) or tools.digests.get(_usr(canonical))
        if digest is not None and _digest(held[path]) != digest:
            found.append(await _restore(sandbox, path, canonical, digest))
    return found


async def _outside(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return await sandbox.read_outside(path)
    except SandboxLostError:
        raise
    except SandboxError as error:
        if error.retryable:
            raise
        return None


def _usr(path: str) -> str:
    """Where a path of the root directory lies, where `/lib` and `/bin` are links."""
    return path if path.startswith("/usr/") else f"/usr{path}"


async def _restore(sandbox: Sandbox, path: str, canonical: str, digest: str | None) -> HardeningFinding:
    """Put one file back as the image has it. Raises `VerifierError` where that is not what it was."""
    for place in dict.fromkeys((canonical, _usr(canonical))):
        original = await sandbox.read_original(place)
        if original is not None and digest in (None, _digest(original)):
            await sandbox.write_outside(place, original)
            if path != place and _digest(await _outside(sandbox, path)) != _digest(original):
                await sandbox.write_outside(path, original)
            return HardeningFinding(item=ITEM, action="restored", path=path)
    raise VerifierError(
        "was changed by the agent, and the image does not have it as it was",
        file=path,
        key=f"verifier.hardening.{ITEM}",
        remedy='verify in a sandbox of its own: sandbox_mode "separate"',
    )


async def verify_tools(sandbox: Sandbox, before: ToolSet) -> tuple[list[HardeningFinding], list[str]]:
    """Put back programs, libraries and modules that have changed; also the paths of what is new and in their way."""
    now = await _look(sandbox, before.path, before)
    found, remove = [], []
    for file, digest in now.digests.items():
        if file in before.digests and digest != before.digests[file]:
            found.append(await _restore(sandbox, file, file, before.digests[file]))
    for file in _gone(before, now):
        found.append(await _restore(sandbox, file, before.programs[file], before.digests.get(before.programs[file])))
    names = {posixpath.basename(program) for program in before.programs} if before.first else set(TOOLS)
    remove += [new for new in now.programs if new not in before.programs and posixpath.basename(new) in names]
    known = {place for places in before.libraries.values() for place in places}
    for name in now.libraries.keys() & before.libraries.keys():
        remove += [place for place in now.libraries[name] if place not in known]
    modules = set(before.modules)
    for file in now.modules:
        if file in modules:
            if await _differs(sandbox, file):
                found.append(await _restore(sandbox, file, file, None))
        elif _is_in_the_way(file, modules):
            remove.append(file)
    return found, remove


def _gone(before: ToolSet, now: ToolSet) -> list[str]:
    """Programs that are not there any more, or lead elsewhere."""
    return [program for program, real in before.programs.items() if now.programs.get(program) != real]


async def _differs(sandbox: Sandbox, file: str) -> bool:
    """Whether a file is not what the image has there; it may only have been touched."""
    return await _outside(sandbox, file) != await sandbox.read_original(file)


def _is_in_the_way(file: str, known: set[str]) -> bool:
    """Whether a new file would be taken in place of a known module: bytecode, an extension, a package of its name."""
    if "/__pycache__/" in file or posixpath.basename(file).startswith(TEST_PACKAGES):
        return True
    if any(f"/{package}/" in file for package in TEST_PACKAGES):
        return True
    directory, name = posixpath.split(file)
    stem = name.partition(".")[0]
    return f"{directory}/{stem}.py" in known or (name.startswith("__init__.") and f"{directory}.py" in known)


async def _look(sandbox: Sandbox, path: str, before: ToolSet | None = None) -> ToolSet:
    known = sorted(before.digests) if before else []
    since = before.now if before else ""
    result = await sandbox.control(_SCRIPT, path, since, *known, timeout=120)
    parts = [part.strip("\n").split("\n") for part in result.stdout.split("==\n")]
    if len(parts) < 7:
        raise VerifierError("the sandbox's programs could not be looked at", log_tail=result.stderr[-2000:])
    [now], programs, real, loaded, digests, modules = ([line for line in part if line] for part in parts[:6])
    pairs = (line.split(None, 1) for line in digests)
    return ToolSet(
        programs=dict(zip(programs, real, strict=False)),
        libraries=_libraries(loaded),
        digests={pair[1]: pair[0] for pair in pairs if len(pair) == 2},
        modules=modules,
        now=now,
    )


def _libraries(lines: Iterable[str]) -> dict[str, list[str]]:
    """Where the loader finds what programs ask for."""
    found: dict[str, list[str]] = {}
    for line in lines:
        told = re.match(r"\s*(\S+)(?: => (\S+))? \(0x", line)
        if told and (told.group(2) or told.group(1)).startswith("/"):
            place = told.group(2) or told.group(1)
            places = found.setdefault(posixpath.basename(told.group(1)), [])
            if place not in places:
                places.append(place)
    return found


def _digest(content: bytes | None) -> str | None:
    return hashlib.sha256(content).hexdigest() if content is not None else None
