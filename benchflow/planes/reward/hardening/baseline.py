"""What a sandbox is before its agent acts, kept on this host: whoever is root in there could change it otherwise."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.contracts.file_changes import FileChanges
from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.reward.hardening.devices import list_devices
from benchflow.planes.reward.hardening.git_state import overlooked_paths, replaced_histories, repositories_of
from benchflow.planes.reward.hardening.names import SHADOWED, STANDARD, VERIFIERS
from benchflow.planes.reward.hardening.survey import Survey, is_below, take_survey, workspace_of
from benchflow.planes.reward.hardening.tools import ToolSet, take_tools
from benchflow.store import storage_errors, write_atomic
from benchflow.stored_files import read_stored

BASELINE = "baseline.json"
_OF_ENVIRONMENTS = ("pyvenv.cfg", "bin/activate", "bin/activate.csh", "bin/activate.fish", "bin/activate_this.py")
_MODULE_FILE = re.compile(r"\b([a-z_][a-z0-9_]*)\.py\b")

_NOT_COMPARED = (*VERIFIERS, "/logs", "/run/benchflow", "/oracle", "/solution", "/tmp", "/var/tmp")

# $1: who the agent is. PATH, PYTHONPATH, HOME; PATH's directories, with a `!` before those that the agent may write;
# with a `+`, the home's own, which verifiers put on PATH, if the agent may write there. With a `~`, those of
# LD_LIBRARY_PATH; with a `^`, programs of packages of the workspace. $2: that.
_ASK = r"""
printf '%s\n%s\n%s\n' "$PATH" "$PYTHONPATH" "$HOME"
open() { find "$@" -maxdepth 0 \( -user "$agent" -o -perm -002 \) 2>/dev/null; }
agent=$1
IFS=:
for d in $PATH; do
  case $d in /*) ;; *) continue;; esac
  [ -d "$d" ] || continue
  w=$(open "$d/")
  echo "${w:+!}$d"
done
set -- "$2"/node_modules/.bin/*
[ $# -gt 200 ] || for f; do [ ! -e "$f" ] || echo "^$f"; done
for d in $LD_LIBRARY_PATH; do case $d in /*) echo "~$d";; esac; done
w=$(open "$HOME" "$HOME/.local" "$HOME/.local/bin")
[ -z "$w" ] || echo "+$HOME/.local/bin"
echo
unset IFS
for d in $(IFS=:; for p in $PATH; do printf '%s\n' "${p%/*}/lib/python3*"; done | sort -u); do
  for e in "$d"/*/*-info/entry_points.txt; do
    if [ -f "$e" ]; then sed -n '/^\[pytest11\]/,/^\[/p' "$e"; fi
  done
  for s in "$d"/site-packages "$d"/dist-packages; do [ ! -d "$s" ] || echo "=$s"; done
done
"""


# $1 the agent, who may have no account yet; $2 another.
_ARE_OTHERS = """
uid() { case $1 in *[!0-9]*) id -u -- "$1" 2>/dev/null;; *) echo "$1";; esac; }
other=$(uid "$2") || exit 1
agent=$(uid "$1") || exit 0
[ "$agent" -ne "$other" ]
"""


class HardeningBaseline(Model):
    """path, modules, home: PATH, PYTHONPATH and HOME of the verifier's user, as the image has them. directories: of
    PATH, those that are there. plugins: of pytest, by the names that the image's own packages give them; sites: the
    directories of those packages. tools: those that the agent could change, None where there are none: of root's, an
    agent that is not root can change nothing.
    """

    path: str
    modules: str = ""
    home: str = "/root"
    directories: list[str] = []
    plugins: list[str] = []
    sites: list[str] = []
    survey: Survey = Survey()
    tools: ToolSet | None = None
    overlooked: dict[str, list[str]] = {}
    """By repository, the paths that git is told to overlook."""

    replaced: list[str] = []
    """Paths of repositories that had git show another history already."""

    named: list[str] = []
    """Modules with the name of one of the standard library's that the task's instruction names, as `queue.py`."""

    changes: FileChanges | None = None
    """Files that differ from the image, of what `skipped` does not leave out. None where no tool is compared."""

    devices: list[str] = []
    """Lines of `list_devices`, where the agent could change them."""

    user: str | None = None
    """User of a verifier for which the task names none; None for root."""


async def take_baseline(
    sandbox: Sandbox,
    *,
    agent: str | int | None = None,
    verifier: str | int | None = None,
    default: str | None = None,
    is_listed: bool = False,
    instruction: str = "",
) -> HardeningBaseline:
    """Look at the sandbox before the agent's first action.

    Where the agent is the `default` user itself, the verifier is root: what an agent could read or write while the
    verifier runs must not become more because nobody was named.

    Args:
        sandbox: Where nobody has acted yet.
        agent: The agent's user; root when None.
        verifier: The verifier's; `default` when None.
        default: Who the verifier is where its table names nobody.
        is_listed: Whether the files that differ from the image are wanted although the agent could change no tool.
        instruction: The task's. Modules that it names are the work.
    """
    is_root = agent in (None, "root", 0, "0")
    if default is not None and not await are_others(sandbox, agent, default):
        default = None
    verifier = default if verifier is None else verifier
    asked = await sandbox.exec(
        ["sh", "-c", _ASK, "sh", str(agent or 0), workspace_of(sandbox)], user=verifier, cwd="/", timeout=60
    )
    lines = asked.stdout.split("\n") + [""] * 3
    path, modules, home = lines[0], lines[1], lines[2] or "/root"
    end = lines.index("", 3)
    directories = [line.removeprefix("!") for line in lines[3:end] if not line.startswith(("+", "~", "^"))]
    open_to_agent = [line[1:] for line in lines[3:end] if line.startswith(("!", "+"))]
    survey = await take_survey(sandbox, home=home, path=path, modules=modules)
    if others := [file for file in (*survey.includes, *survey.targets) if file not in survey.files]:
        survey = await take_survey(sandbox, home=home, path=path, modules=modules, wanted=others)
    # Programs of a virtual environment of the project's are among those that a verifier calls.
    venvs = [posixpath.dirname(file) for file in survey.found if file.endswith("/pyvenv.cfg")]
    open_to_agent += [f"{venv}/bin" for venv in venvs]
    tools = None
    packaged = [line[1:] for line in lines[3:end] if line.startswith("^")]
    loaded_from = [line[1:] for line in lines[3:end] if line.startswith("~")]
    if is_root or open_to_agent or loaded_from or packaged:
        looked = [path, *open_to_agent] if is_root or loaded_from else open_to_agent
        tools = await take_tools(sandbox, ":".join(looked), is_whole=is_root)
        starts = [f"{venv}/{name}" for venv in venvs for name in _OF_ENVIRONMENTS]
        tools = tools.model_copy(update={"files": [*starts, *packaged], "loaded_from": loaded_from})
    return HardeningBaseline(
        path=path,
        modules=modules,
        home=home,
        directories=directories,
        sites=sorted({line[1:] for line in lines[end:] if line.startswith("=")}),
        plugins=sorted({name for line in lines[end:] if (name := _plugin(line))}),
        survey=survey,
        tools=tools,
        overlooked=await overlooked_paths(sandbox, repositories_of(survey)),
        replaced=await replaced_histories(sandbox, repositories_of(survey)),
        named=sorted({match for match in _MODULE_FILE.findall(instruction) if match in STANDARD | SHADOWED}),
        changes=await sandbox.changes(skip=skipped(sandbox, tools)) if tools is not None or is_listed else None,
        devices=await list_devices(sandbox) if is_root else [],
        user=default,
    )


def skipped(sandbox: Sandbox, tools: ToolSet | None) -> list[str]:
    """Return the places that are not compared from outside: the work, and what is made anew for each verifier."""
    searched = [*tools.path.split(":"), *tools.loaded_from, *tools.files] if tools is not None else []
    places = [workspace_of(sandbox), *_NOT_COMPARED]
    return [place for place in places if place and not any(is_below(directory, [place]) for directory in searched)]


async def are_others(sandbox: Sandbox, agent: str | int | None, user: str) -> bool:
    """Return whether a user, `name` or `uid`, either with `:group`, is in the sandbox, and is not the agent."""
    answer = await sandbox.control(_ARE_OTHERS, str(agent or 0), user.partition(":")[0])
    return answer.return_code == 0


def keep_baseline(baseline: HardeningBaseline, evidence: Path) -> None:
    """Keep it with what is kept of the rollout, for its verifier now and for those that come later."""
    file = evidence / BASELINE
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, baseline.model_dump_json().encode(), durable=False)


def read_baseline(evidence: Path) -> HardeningBaseline | None:
    """What was kept; None where nothing was."""
    try:
        return HardeningBaseline.model_validate_json(read_stored(evidence / BASELINE))
    except FileNotFoundError:
        return None


def _plugin(line: str) -> str | None:
    """The name that an entry point's line gives a plugin."""
    found = re.match(r"\s*([\w.-]+)\s*=", line)
    return found.group(1) if found else None
