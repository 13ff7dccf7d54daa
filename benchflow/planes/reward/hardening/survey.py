"""A look at what in a sandbox may work on a verifier by itself: one script, and one archive that it leaves to be read.

The same look is taken before the agent and after it; what differs is judged on this host. Names are bytes to the
sandbox: here they are text that keeps every byte.
"""

from __future__ import annotations

import io
import os
import posixpath
import shlex
import tarfile
from collections.abc import Iterable, Sequence

from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxLostError, VerifierError
from benchflow.planes.reward.hardening.names import BUILD_PATTERNS, DOTFILES, HOOKS, SHADOWED, SITE, STARTUP

ROOM = "/run/benchflow/hardening"
_KNOWN = f"{ROOM}/known"
_OUT = f"{ROOM}/out.tar"

_NAMES = " -o ".join(
    f"-name {shlex.quote(name)}"
    for name in (*BUILD_PATTERNS, "conftest.py", "__pycache__", *(f"{hook}*" for hook in HOOKS), "*.pth")
)
_SITE_NAMES = " -o ".join(f"-name '{name}'" for name in (*(f"{hook}*" for hook in HOOKS), "*.pth"))
# $1 the workspace, empty for none; $2 the verifier's home; $3 PATH; $4 PYTHONPATH; $5 seconds since the epoch of the
# look before, empty for none. What was known then is in `known`: only that is looked into.
_SCRIPT = rf"""
ws=$1 home=$2 path=$3 modules=$4 since=$5 more=
if [ ! -d {ROOM} ]; then umask 022; mkdir -p {posixpath.dirname(ROOM)}; umask 077; mkdir {ROOM}; fi
cd {ROOM} || exit 1
umask 077
: >links; : >found; : >fresh; [ -n "$since" ] || date +%s >now
put() {{ for f; do if [ -e "$f" ] || [ -h "$f" ]; then printf '%s\0' "$f"; fi; done >>found; }}
if [ -n "$ws" ]; then
  # One pass where `find` can do it.
  find "$ws" -xdev -type l -fprintf links '%p\0%l\0' , \( {_NAMES} \) -fprint0 found , \
    -type f -path '*/__pycache__/*' -newerct "@${{since:-0}}" -fprint0 fresh 2>/dev/null || {{
    find "$ws" -xdev \( {_NAMES} \) -print0 >found
    find "$ws" -xdev -type l -exec sh -c 'for l; do printf "%s\0%s\0" "$l" "$(readlink "$l")"; done' sh {{}} + >links
    find "$ws" -xdev -type f -path '*/__pycache__/*' -print0 >fresh
  }}
fi
IFS=:
for d in $ws $modules; do
  for n in {" ".join(SHADOWED)}; do put "$d/$n.py" "$d/$n.pyc" "$d/$n/__init__.py" "$d/$n".*so; done
done
set --
for d in $path "$home/.local/bin"; do
  d=${{d%/*}}/lib
  # Where it is a link, it is the same as below /usr.
  [ ! -h "$d" ] || continue
  for l in "$d"/python3*; do [ ! -d "$l" ] || set -- "$@" "$l"; done
done
[ $# = 0 ] || find "$@" -maxdepth 2 \( {_SITE_NAMES} \) -print0 >>found 2>/dev/null
unset IFS
for f in {" ".join(DOTFILES)}; do put "$home/$f"; done
put {" ".join(STARTUP)}
find /logs/verifier /tests /verifier -maxdepth 1 -print0 >>found 2>/dev/null
if [ -f known ]; then
  mv known list
  tr '\0' '\n' <found | grep '\.pth$' | head -n 200 >candidates
else
  : >list
  tr '\0' '\n' <found | head -n 2000 >candidates
fi
tr '\n' '\0' <candidates | xargs -0 sh -c '[ $# = 0 ] || find "$@" -maxdepth 0 -type f -size -129' sh >>list
[ -n "$since" ] || more=now
tar -cf out.tar $more links found fresh -T list 2>/dev/null
[ -s out.tar ]
"""


class KeptFile(Model):
    """A file as it was. content: in Latin-1, which holds any byte."""

    content: str
    mode: int
    uid: int
    gid: int


class Survey(Model):
    """files: what was looked into; found: all that has a name that is looked for; links: of the workspace, with what
    they say; fresh: caches of bytecode that were written since. now: of a first look, seconds since the epoch.
    """

    now: int = 0
    files: dict[str, KeptFile] = {}
    found: list[str] = []
    links: dict[str, str] = {}
    fresh: list[str] = []


async def take_survey(
    sandbox: Sandbox,
    *,
    home: str,
    path: str,
    modules: str = "",
    known: Sequence[str] = (),
    since: int | None = None,
) -> Survey:
    """Look. known, since: what was looked into before, and when; without them every file is looked into."""
    workspace = workspace_of(sandbox)
    if since is not None:
        await sandbox.write_file(_KNOWN, encode("".join(f"{file}\n" for file in known)), mode=0o600)
    asked = [workspace, home, path, modules, "" if since is None else str(since)]
    script = _SCRIPT if since is not None else f"rm -rf {ROOM}\n{_SCRIPT}"
    result = await sandbox.control(script, *asked, timeout=120)
    if result.return_code != 0:
        raise VerifierError(
            "the sandbox could not be looked through",
            remedy="see that the image has `find` and `tar`",
            log_tail=result.stderr[-2000:],
        )
    try:
        packed = await sandbox.read_file(_OUT)
    except SandboxLostError:
        raise
    except FileNotFoundError:
        return Survey()
    return _read(packed)


def workspace_of(sandbox: Sandbox) -> str:
    """The workspace; empty where that is the whole file system, which is nobody's in particular."""
    workspace = posixpath.normpath(sandbox.ref.workdir)
    return "" if workspace == "/" else workspace


def encode(text: str) -> bytes:
    """The bytes of a name."""
    return text.encode(errors="surrogateescape")


def _read(packed: bytes) -> Survey:
    lists: dict[str, list[str]] = {}
    files: dict[str, KeptFile] = {}
    with tarfile.open(fileobj=io.BytesIO(packed), errors="surrogateescape") as archive:
        for member in archive:
            try:
                # One that has several names is held once.
                held = archive.extractfile(member) if member.isreg() or member.islnk() else None
            except KeyError:
                held = None
            if held is None:
                continue
            content = held.read()
            if member.name in ("now", "links", "found", "fresh"):
                lists[member.name] = [os.fsdecode(name) for name in content.split(b"\0") if name]
                continue
            name = "/" + member.name.lstrip("/")
            files[name] = KeptFile(
                content=content.decode("latin-1"), mode=member.mode & 0o7777, uid=member.uid, gid=member.gid
            )
    links = lists.get("links", [])
    return Survey(
        now=int(lists.get("now", ["0"])[0]),
        files=files,
        found=sorted(set(filter(is_looked_for, lists["found"]))),
        links=dict(zip(links[0::2], links[1::2], strict=False)),
        fresh=lists["fresh"],
    )


def is_looked_for(path: str) -> bool:
    """Whether a path means what its name says: weights of a model end in `.pth`, too."""
    name = posixpath.basename(path)
    if name.endswith(".pth"):
        return posixpath.basename(posixpath.dirname(path)) in SITE
    if name.startswith(HOOKS):
        return name.partition(".")[0] in HOOKS
    return True


def in_workspace(path: str, workspace: str) -> bool:
    return bool(workspace) and (path == workspace or path.startswith(f"{workspace}/"))


def is_below(path: str, parents: Iterable[str]) -> bool:
    """Whether a path is one of these, or lies in one."""
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)
