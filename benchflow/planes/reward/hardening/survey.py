"""Survey the files in a sandbox that may influence a verifier: one script, which packs them into one archive.

The same survey is taken before and after the agent; the differences are judged on this host. Names are bytes to the
sandbox: here they are text that keeps every byte (`surrogateescape`).
"""

from __future__ import annotations

import io
import os
import posixpath
import shlex
import tarfile
from collections.abc import Iterable, Sequence

from benchflow.archive_reader import ArchiveLimits, read_archive
from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, SandboxLostError, VerifierError
from benchflow.planes.reward.hardening.build_files import list_includes, list_undeclared_targets
from benchflow.planes.reward.hardening.contents import FILES, LISTS, PASS, PASSES, READ
from benchflow.planes.reward.hardening.escaping_archives import PATTERNS as ARCHIVES
from benchflow.planes.reward.hardening.verifier_dependencies import (
    BUILD_PATTERNS,
    DOTFILES,
    GIT_DIRECTORIES,
    GIT_FILES,
    HOOKS,
    MAKE_SOURCES,
    NODE_BUILD,
    PYTEST_FILES,
    RAKE_BUILD,
    RUNNER_FILES,
    SHADOWED,
    SITE,
    STANDARD,
    STARTUP,
)

SURVEY_DIRECTORY = "/run/benchflow/hardening"
MAX_COMMAND = 32 * 1024
"""Maximum number of characters of a command; a longer one is passed by a file, which is one more round trip."""
_MAX_TEMPORARY = 40_000
"""Maximum number of bytes of the names listed from the temporary directories."""

_OWN_LISTS = ("links", "found", "fresh", "top", "modules", "packed", "temporary")
"""Names of the lists that a survey returns, beside those about contents."""

_KNOWN = f"{SURVEY_DIRECTORY}.known"
ARCHIVE = f"{SURVEY_DIRECTORY}/out.tar"
"""File in the sandbox that a survey is read from."""


def _match_names(names: Iterable[str]) -> str:
    return " -o ".join(f"-name {shlex.quote(name)}" for name in names)


_GIT_OF_HOME = ".config/git/config"
_SITE_NAMES = _match_names((*(f"{hook}*" for hook in HOOKS), "*.pth"))
_NODE = rf"\( {_match_names(NODE_BUILD)} \) ! -path '*/node_modules/*'"
_MODULES = "-name '*.py' ! -path '*-packages/*' ! -path '*/node_modules/*'"
_NAMES = (
    f"{_match_names((*BUILD_PATTERNS, *MAKE_SOURCES, *RAKE_BUILD, *RUNNER_FILES, *PYTEST_FILES))} -o {_SITE_NAMES}"
    f" -o {_match_names(('.gitattributes', 'conftest.py', 'pyvenv.cfg', '__pycache__'))}"
    rf" -o {_NODE} -o ! -type d ! -path '*/{_GIT_OF_HOME}' \( {_match_names(GIT_FILES)} \)"
    rf" -o -type d \( {_match_names(GIT_DIRECTORIES)} \)"
)
_PACKED = _match_names(ARCHIVES)
_READ = (
    *("[.]pth$", "/[.]gitattributes$", "/[.]gitconfig$", "/git/config$"),
    *("^/etc/gitconfig$", "^/etc/apt/", "^/etc/dpkg/", "^/etc/default/locale$", "^/etc/locale[.]conf$"),
    "^/etc/login[.]defs$",
)
"""Patterns of new files that are read, because their content decides about them."""

_SMALL = "grep " + " ".join(
    f"-e '{pattern}'" for pattern in (*_READ, *(f"/{name.replace('.', '[.]')}$" for name in GIT_FILES))
)
# $1: workspace, empty for none. $2: the verifier's home. $3: PATH. $4: PYTHONPATH. $5: time of the survey before in
# seconds since the epoch, empty for the first. $6: files that were read then, or the file `known` has them if they are
# long; only these are read again, and new files that match _SMALL. $7: further files to look for, a line each.
_SCRIPT = rf"""
ws=$1 home=${{2%/}} path=$3 modules=$4 since=$5 known=$6 wanted=$7 more=
rm -rf {SURVEY_DIRECTORY}
umask 022; mkdir -p {posixpath.dirname(SURVEY_DIRECTORY)} || exit 1
umask 077; mkdir {SURVEY_DIRECTORY} && cd {SURVEY_DIRECTORY} || exit 1
if [ -f {_KNOWN} ]; then mv {_KNOWN} known; fi
for f in stamp {" ".join((*_OWN_LISTS, *FILES, *LISTS))}; do : >$f; done
# By the kernel's clock: what a sandbox's own programs say of the time may be anything.
[ -n "$since" ] || {{ : >now; stat -c %Z now >told 2>/dev/null && mv told now || date +%s >now; }}
recent=$since; [ -n "$since" ] || read -r recent <now
later="-newer stamp"
touch -d "@$(($(stat -c %Z stamp 2>/dev/null || date +%s) + 60))" stamp 2>/dev/null || later="-name /"
put() {{ for f; do if [ -e "$f" ] || [ -h "$f" ]; then printf '%s\0' "$f"; fi; done; }}
above() {{
  d=$1
  while [ -n "$d" ]; do
    d=${{d%/*}}
    put "$d/conftest.py" "$d/.git/config" "$d/.git/config.worktree" "$d/.git/commondir" "$d/.git/objects" "$d/.git/refs"
    [ -d "$d/.git" ] || put "$d/.git"
  done
}}
if [ -n "$ws" ]; then
  set -- "$ws"
  # A volume in the workspace is a file system of its own.
  while read -r a b c d m rest; do
    case $m in "$ws"/*) ;; *) continue;; esac
    case $rest in *" - proc "*|*" - sysfs "*|*" - cgroup"*) ;; *) [ ! -d "$m" ] || set -- "$@" "$m";; esac
  done </proc/self/mountinfo
  # One pass where `find` can do it.
  find "$@" -xdev -type l -fprintf links '%p\0%l\0' , \( {_NAMES} \) -fprint0 found , \
    {_MODULES} -fprint0 modules , \
    -type f \( {_PACKED} \) -newerct "@${{since:-0}}" -fprint0 packed , \
    -type f -path '*/__pycache__/*' -newerct "@${{since:-0}}" -fprint0 fresh , \
    {PASS} 2>/dev/null || {{
    find "$@" -xdev \( {_NAMES} \) -print0 >found
    find "$@" -xdev -type l -exec sh -c 'for l; do printf "%s\0%s\0" "$l" "$(readlink "$l")"; done' sh {{}} + >links
    find "$@" -xdev -type f -path '*/__pycache__/*' -print0 >fresh
    find "$@" -xdev {_MODULES} -print0 >modules
    find "$@" -xdev -type f \( {_PACKED} \) -print0 >packed
    {PASSES}
  }}
  {{ above "$ws"; above "$(cd -P "$ws" 2>/dev/null && pwd)"; }} >>found
fi
above "$home/-" >>found
printf '%s\n' "$wanted" | while IFS= read -r f; do [ -z "$f" ] || put "$f"; done >>found
IFS=:; set -- ${{ws:+"$ws"}} $modules; unset IFS
# A verifier that starts in / has Python look there first.
for d in "" /tmp /var/tmp "$@"; do put "$d"/*.py "$d"/*.pyc "$d"/*.so "$d"/*/__init__.*; done >top
IFS=:; set --
for d in $path "$home/.local/bin"; do
  d=${{d%/*}}/lib
  # Where it is a link, it is the same as below /usr.
  [ ! -h "$d" ] || continue
  for l in "$d"/python3*; do [ ! -d "$l" ] || set -- "$@" "$l"; done
done
[ $# = 0 ] || find "$@" -maxdepth 2 \( {_SITE_NAMES} \) -print0 >>found 2>/dev/null
unset IFS
[ -z "$since" ] || for l; do put "$l"/*-packages/*-info/entry_points.txt; done >>points
{READ}
for f in {" ".join(DOTFILES)}; do put "$home/$f"; done >>found
put {" ".join(STARTUP)} >>found
find /logs/verifier /tests /verifier -maxdepth 1 -print0 >>found 2>/dev/null
find /tmp /var/tmp -mindepth 1 -maxdepth 1 ! -name '.*' -print0 2>/dev/null | head -c {_MAX_TEMPORARY} >temporary
if [ -n "$since" ]; then
  [ -f known ] || printf %s "$known" >known
  mv known list
  tr '\0' '\n' <found | {_SMALL} | head -n 2000 >candidates
else
  : >list
  tr '\0' '\n' <found | head -n 2000 >candidates
fi
tr '\n' '\0' <candidates | xargs -0 sh -c '[ $# = 0 ] || find "$@" -maxdepth 0 -type f -size -129' sh >>list
[ -n "$since" ] || more=now
# Layers of a file system may number files alike, which are then taken for one: each is to be packed for itself.
LC_ALL=C sort -u list >each
more="$more {" ".join((*_OWN_LISTS, *LISTS))}"
tar --hard-dereference -cf out.tar $more -T each 2>/dev/null
[ -s out.tar ] || tar -cf out.tar $more -T each 2>/dev/null
[ -s out.tar ]
"""


class KeptFile(Model):
    """A file that was read."""

    content: str
    """Content in Latin-1, which has a character for each byte."""

    mode: int
    """Permission bits."""

    uid: int
    """User id of the owner."""

    gid: int
    """Group id."""


class Survey(Model):
    """Files in a sandbox that may influence a verifier."""

    now: int = 0
    """Time of a first survey, in seconds since the epoch; 0 for a second one."""

    files: dict[str, KeptFile] = {}
    """Files that were read, by path."""

    found: list[str] = []
    """Paths with a name that tools look for."""

    links: dict[str, str] = {}
    """Symbolic links of the workspace, with their targets."""

    fresh: list[str] = []
    """Files in a `__pycache__` that were written since the survey before; all of them in a first one."""

    top: list[str] = []
    """Python modules, with the names of ones that pytest needs, in directories that Python searches first."""

    git: list[str] = []
    """Files that describe repositories."""

    includes: list[str] = []
    """Files that Makefiles of the workspace and git configurations include, whether or not they exist."""

    targets: list[str] = []
    """Files that would keep make from running a rule that makes no file."""

    packed: list[str] = []
    """Archives of the workspace that have changed since the survey before; all of them in a first one."""

    shadows: list[str] = []
    """Modules of the workspace with the name of one of the standard library."""

    naming: list[str] = []
    """Files of the workspace that name a directory of the verifier."""

    acting: dict[str, list[str]] = {}
    """Statements in SQLite databases that create triggers and views, by file."""

    equal: list[str] = []
    """Files of the workspace with Python objects that are equal to everything."""

    plugins: dict[str, list[str]] = {}
    """Pytest plugins that packages declare, by the file that declares them."""

    packages: list[str] = []
    """Packages and modules in a `node_modules` that have new or changed files."""

    hooks: list[str] = []
    """New or changed programs that may be hooks of repositories."""

    journals: list[str] = []
    """New or changed journals of SQLite databases."""

    orphans: list[str] = []
    """Journals without a database beside them."""

    dashed: list[str] = []
    """Paths of the workspace with names that begin with `-`."""

    future: list[str] = []
    """Files of the workspace that were last changed later than now, as far as their time says."""

    modules: list[str] = []
    """Python modules of the workspace, except those of installed packages."""

    temporary: list[str] = []
    """Paths at the top of the temporary directories, except names that begin with a dot."""


async def take_survey(
    sandbox: Sandbox,
    *,
    home: str,
    path: str,
    modules: str = "",
    known: Sequence[str] = (),
    since: int | None = None,
    wanted: Sequence[str] = (),
) -> Survey:
    """Return a survey of the sandbox.

    Args:
        sandbox: The sandbox.
        home: Home of the verifier's user.
        path: PATH of the verifier.
        modules: PYTHONPATH of the verifier.
        known: Files that an earlier survey read, to be read again.
        since: Time of that survey; None for the first one, which reads every file that it finds.
        wanted: Further files to look for.

    Raises:
        VerifierError: The script failed, or its archive is gone or can't be read.
    """
    workspace = get_workspace(sandbox)
    listed = "".join(f"{file}\n" for file in known)
    if since is not None and not (listed.isascii() and len(listed) <= MAX_COMMAND):
        await sandbox.write_file(_KNOWN, encode(listed), mode=0o600)
        listed = ""
    asked = [workspace, home, path, modules, "" if since is None else str(since), listed, "\n".join(wanted)]
    result = await sandbox.control(_SCRIPT, *asked, timeout=120)
    if result.return_code != 0:
        raise VerifierError(
            "the sandbox could not be looked through",
            remedy="see that the image has `find` and `tar`",
            log_tail=result.stderr[-2000:],
        )
    try:
        packed = await sandbox.read_bytes(ARCHIVE)
    except FileNotFoundError as error:
        # The script has just written it: a process of the agent's that is still there would have nothing removed.
        raise VerifierError(
            "the list of what is in the sandbox was gone before it could be read",
            remedy="see what the agent has left running in it",
        ) from error
    except SandboxLostError:
        raise
    except SandboxError as error:
        if error.retryable:
            raise
        # It is larger than may be read, or no file. Another attempt would be the agent's reward for that.
        raise VerifierError(
            f"the list of what is in the sandbox could not be read: {error.message}",
            remedy="see what the agent has left in it: very many files, or very long names",
        ) from error
    return _read_archive(packed)


def make_empty_archive() -> bytes:
    """Return the archive of a sandbox in which nothing is found, for providers that run no scripts."""
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in (*_OWN_LISTS, *LISTS):
                archive.addfile(tarfile.TarInfo(name))
        return packed.getvalue()


def get_workspace(sandbox: Sandbox) -> str:
    """Return the workspace of a sandbox; empty if that is `/`, which is not the agent's alone."""
    workspace = posixpath.normpath(sandbox.ref.workdir)
    return "" if workspace == "/" else workspace


def encode(text: str) -> bytes:
    """Return the bytes of a name that keeps undecodable bytes as surrogates."""
    return text.encode(errors="surrogateescape")


def format_name(name: str) -> str:
    """Return a name as text for a report, with bytes that are not UTF-8 escaped."""
    return encode(name).decode(errors="backslashreplace")


def _read_archive(packed: bytes) -> Survey:
    """Return the survey in the archive that the script has packed."""
    lists: dict[str, list[str]] = {}
    files: dict[str, KeptFile] = {}
    contents: dict[str, bytes] = {}
    try:
        # A `tar` archive is at least as long as its content, unless it was told to leave out holes.
        for member in read_archive(io.BytesIO(packed), ArchiveLimits(size=len(packed))):
            info, name = member.info, "/".join(member.parts)
            # A hard link has no content of its own: its first name has it.
            held = contents.get(posixpath.normpath(info.linkname)) if info.islnk() else None
            content = held if member.content is None else member.content.read()
            if content is None:
                continue
            contents[name] = content
            if name == "now" or name in (*_OWN_LISTS, *LISTS):
                # What follows the last NUL was cut off. An empty text is part of a pair.
                lists[name] = [os.fsdecode(each) for each in content.split(b"\0")[: None if name == "now" else -1]]
                continue
            files[f"/{name}"] = KeptFile(
                content=content.decode("latin-1"), mode=info.mode & 0o7777, uid=info.uid, gid=info.gid
            )
        now = int(lists.get("now", ["0"])[0])
        links, names, fresh, top = lists["links"], set(lists["found"]), lists["fresh"], lists["top"]
        contained = {name: lists[name] for name in LISTS}
    except (tarfile.TarError, ValueError, LookupError) as error:
        raise VerifierError(
            f"the sandbox could not be looked through: its answer is garbled: {error}",
            remedy="see that nothing in the image has replaced `find` and `tar`",
        ) from error
    git = {path for path in names if _is_repository_file(path, names)}
    found = {path for path in names - git if is_relevant(path)}
    standard = [path for path in lists["modules"] if get_module_name(path) in STANDARD]
    kept = {path: file for path, file in files.items() if path in found or path in git}
    return Survey(
        now=now,
        files=kept,
        includes=sorted({name for path, file in kept.items() for name in list_includes(path, file.content)}),
        targets=sorted({name for path, file in kept.items() for name in list_undeclared_targets(path, file.content)}),
        found=sorted(found),
        links=dict(zip(links[0::2], links[1::2], strict=False)),
        fresh=fresh,
        top=[path for path in top if is_shadowing(path)],
        git=sorted(git),
        shadows=sorted(standard),
        packed=sorted(lists["packed"]),
        naming=contained["naming"],
        acting=_group_texts(contained["acting"]),
        equal=contained["equal"],
        plugins=_group_texts(contained["plugins"]),
        packages=contained["packages"],
        hooks=sorted(contained["hooks"]),
        journals=sorted(contained["journals"]),
        orphans=sorted(contained["orphans"]),
        dashed=sorted(contained["dashed"]),
        future=sorted(contained["future"]),
        modules=sorted(lists["modules"]),
        temporary=sorted(lists["temporary"]),
    )


def _group_texts(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts of each file, from a list in which a file and a text alternate."""
    texts: dict[str, list[str]] = {}
    for path, text in zip(pairs[0::2], pairs[1::2], strict=False):
        texts.setdefault(path, []).append(text)
    return texts


def is_relevant(path: str) -> bool:
    """Return whether tools read a file of this name at this path: a `.pth`, say, may be weights of a model."""
    name = posixpath.basename(path)
    if name in (*GIT_FILES, *GIT_DIRECTORIES):
        return path.endswith(f"/{_GIT_OF_HOME}")
    if name.endswith(".pth"):
        return posixpath.basename(posixpath.dirname(path)) in SITE
    if name.startswith(HOOKS):
        return name.partition(".")[0] in HOOKS
    return True


def get_module_name(path: str) -> str:
    """Return the name by which Python imports a file: of its package for an `__init__`, else its own."""
    directory, name = posixpath.split(path)
    stem = name.partition(".")[0]
    return posixpath.basename(directory) if stem == "__init__" else stem


def is_shadowing(path: str) -> bool:
    """Return whether a module, in a directory that Python searches first, shadows one that a verifier needs."""
    stem = get_module_name(path)
    return stem in SHADOWED or stem.startswith("_sysconfigdata")


def _is_repository_file(path: str, names: set[str]) -> bool:
    """Return whether a file belongs to a repository, and does not only have such a name.

    Args:
        path: Path of the file.
        names: All paths that were found, of which those beside a `config` decide.
    """
    directory, name = posixpath.split(path)
    if name != "config":
        return name in GIT_FILES
    return posixpath.basename(directory) == ".git" or all(f"{directory}/{one}" in names for one in GIT_DIRECTORIES)


def is_in_workspace(path: str, workspace: str) -> bool:
    """Return whether a path is the workspace, or lies in it; false if the workspace is empty."""
    return bool(workspace) and (path == workspace or path.startswith(f"{workspace}/"))


def is_below(path: str, parents: Iterable[str]) -> bool:
    """Return whether a path is one of `parents`, or lies in one."""
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)
