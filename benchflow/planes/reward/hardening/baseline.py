"""The baseline: the state of a sandbox before its agent acts, kept on this host, where the agent can't change it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.contracts.driver import SCRIPT_ENVIRONMENT
from benchflow.contracts.file_changes import FileChanges
from benchflow.contracts.sandbox import Sandbox
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.planes.reward.hardening.devices import list_devices
from benchflow.planes.reward.hardening.git_state import (
    find_overlooked_paths,
    find_replaced_histories,
    list_repositories,
)
from benchflow.planes.reward.hardening.survey import Survey, get_workspace, is_below, take_survey
from benchflow.planes.reward.hardening.verifier_dependencies import SCHEDULERS, SHADOWED, STANDARD, VERIFIERS
from benchflow.planes.reward.hardening.verifier_tools import ToolSet, take_tools
from benchflow.stored_files import read_stored

BASELINE = "baseline.json"
_VENV_FILES = ("pyvenv.cfg", "bin/activate", "bin/activate.csh", "bin/activate.fish", "bin/activate_this.py")
_ENTRY_POINT = re.compile(r"\s*([\w.-]+)\s*=")
_MODULE_FILE = re.compile(r"\b([a-z_][a-z0-9_]*)\.py\b")

_NOT_COMPARED = (*VERIFIERS, "/logs", "/run/benchflow", "/oracle", "/solution", "/tmp", "/var/tmp")

# $1: the agent's user. $2: the workspace. Prints PATH, PYTHONPATH and HOME; then the directories of PATH, with `!` if
# the agent may write there; with `^`, programs of the workspace's `node_modules`; with `~`, the directories of
# LD_LIBRARY_PATH; with `+`, `~/.local/bin`, which verifiers put on PATH, if the agent may write there; `@` if a daemon
# that starts scheduled jobs runs; then an empty line, entry points of pytest plugins, and with `=`, the directories of
# their packages.
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
for p in /proc/[0-9]*; do
  c=; { read -r c <$p/comm; } 2>/dev/null
  case $c in SCHEDULERS) echo "@"; break;; esac
done
echo
unset IFS
for d in $(IFS=:; for p in $PATH; do printf '%s\n' "${p%/*}/lib/python3*"; done | sort -u); do
  for e in "$d"/*/*-info/entry_points.txt; do
    if [ -f "$e" ]; then sed -n '/^\[pytest11\]/,/^\[/p' "$e"; fi
  done
  for s in "$d"/site-packages "$d"/dist-packages; do [ ! -d "$s" ] || echo "=$s"; done
done
""".replace("SCHEDULERS", "|".join(SCHEDULERS))


# $1: the agent's user, who may have no account yet. $2: another user. Succeeds if that one exists and is not the agent.
_IS_OTHER_USER = """
uid() { case $1 in *[!0-9]*) id -u -- "$1" 2>/dev/null;; *) echo "$1";; esac; }
other=$(uid "$2") || exit 1
agent=$(uid "$1") || exit 0
[ "$agent" -ne "$other" ]
"""


class HardeningBaseline(Model):
    """The state of a sandbox before its agent acts, as far as the hardening needs it."""

    path: str
    """PATH of the verifier's user, as in the image."""

    modules: str = ""
    """PYTHONPATH of the verifier's user, as in the image."""

    home: str = "/root"
    """HOME of the verifier's user."""

    directories: list[str] = []
    """Directories of `path` that exist."""

    plugins: list[str] = []
    """Pytest plugins of the image's own packages, by the names of their entry points."""

    sites: list[str] = []
    """Package directories (`site-packages`) of the Pythons on `path`."""

    survey: Survey = Survey()
    """Survey of the files that may influence a verifier."""

    tools: ToolSet | None = None
    """Tools that the agent can change; None if it can change none: an agent that is not root can't change root's."""

    overlooked: dict[str, list[str]] = {}
    """Paths whose changes git overlooks by flags in the index, by repository."""

    replaced: list[str] = []
    """Paths of repositories that replaced objects, or cut off history, already."""

    named: list[str] = []
    """Modules with the names of standard ones that the task's instruction names, e.g. as `queue.py`."""

    changes: FileChanges | None = None
    """Files that differ from the image, `list_skipped` ones left out. None if no tool is compared."""

    devices: list[str] = []
    """Lines of `list_devices`; empty if the agent can't change devices."""

    has_schedulers: bool = False
    """Whether a daemon that starts scheduled jobs (cron, at) runs in the world."""

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
    """Return the baseline of a sandbox, before the agent's first action.

    If the agent is the `default` user itself, the verifier is root instead: the agent must not gain access to a running
    verifier because the task named no user.

    Args:
        sandbox: Sandbox in which no agent has acted yet.
        agent: User of the agent; None for root.
        verifier: User of the verifier; None for `default`.
        default: User of a verifier for which the task names none.
        is_listed: Whether to list the files that differ from the image even if the agent can change no tool.
        instruction: Instruction of the task. Modules that it names may be the work.

    Raises:
        VerifierError: The sandbox can't be surveyed.
    """
    is_root = agent in (None, "root", 0, "0")
    if default is not None and not await is_other_user(sandbox, agent, default):
        default = None
    verifier = default if verifier is None else verifier
    asked = await sandbox.exec(
        ["sh", "-c", _ASK, "sh", str(agent or 0), get_workspace(sandbox)], user=verifier, cwd="/", timeout=60
    )
    lines = asked.stdout.split("\n") + [""] * 3
    path, modules, home = lines[0], lines[1], lines[2] or "/root"
    end = lines.index("", 3)
    directories = [line.removeprefix("!") for line in lines[3:end] if not line.startswith(("+", "~", "^", "@"))]
    open_to_agent = [line[1:] for line in lines[3:end] if line.startswith(("!", "+"))]
    survey = await take_survey(sandbox, home=home, path=path, modules=modules)
    if others := [file for file in (*survey.includes, *survey.targets) if file not in survey.files]:
        survey = await take_survey(sandbox, home=home, path=path, modules=modules, wanted=others)
    # A verifier may call programs of the project's virtual environments.
    venvs = [posixpath.dirname(file) for file in survey.found if file.endswith("/pyvenv.cfg")]
    open_to_agent += [f"{venv}/bin" for venv in venvs]
    tools = None
    packaged = [line[1:] for line in lines[3:end] if line.startswith("^")]
    loaded_from = [line[1:] for line in lines[3:end] if line.startswith("~")]
    if is_root or open_to_agent or loaded_from or packaged:
        # The engine's own scripts search other directories than the verifier.
        searched = dict.fromkeys([*path.split(":"), *SCRIPT_ENVIRONMENT["PATH"].split(":")])
        looked = [*searched, *open_to_agent] if is_root or loaded_from else open_to_agent
        tools = await take_tools(sandbox, ":".join(looked), is_whole=is_root)
        starts = [f"{venv}/{name}" for venv in venvs for name in _VENV_FILES]
        tools = tools.model_copy(update={"files": [*starts, *packaged], "loaded_from": loaded_from})
    return HardeningBaseline(
        path=path,
        modules=modules,
        home=home,
        directories=directories,
        sites=sorted({line[1:] for line in lines[end:] if line.startswith("=")}),
        plugins=sorted({found[1] for line in lines[end:] if (found := _ENTRY_POINT.match(line))}),
        survey=survey,
        tools=tools,
        overlooked=await find_overlooked_paths(sandbox, list_repositories(survey)),
        replaced=await find_replaced_histories(sandbox, list_repositories(survey)),
        named=sorted({match for match in _MODULE_FILE.findall(instruction) if match in STANDARD | SHADOWED}),
        changes=await sandbox.changes(skip=list_skipped(sandbox, tools)) if tools is not None or is_listed else None,
        devices=await list_devices(sandbox) if is_root else [],
        has_schedulers="@" in lines[3:end],
        user=default,
    )


def list_skipped(sandbox: Sandbox, tools: ToolSet | None) -> list[str]:
    """Return the paths that are not compared from outside: the workspace, and directories made anew for each verifier.

    Args:
        sandbox: The sandbox.
        tools: Tools, none of whose directories is skipped.
    """
    searched = [*tools.path.split(":"), *tools.loaded_from, *tools.files] if tools is not None else []
    places = [get_workspace(sandbox), *_NOT_COMPARED]
    return [place for place in places if place and not any(is_below(directory, [place]) for directory in searched)]


async def is_other_user(sandbox: Sandbox, agent: str | int | None, user: str) -> bool:
    """Return whether a user exists in the sandbox, and is not the agent.

    Args:
        sandbox: The sandbox.
        agent: User of the agent; None for root.
        user: Name or uid, either with `:group`.
    """
    answer = await sandbox.control(_IS_OTHER_USER, str(agent or 0), user.partition(":")[0])
    return answer.return_code == 0


def store_baseline(baseline: HardeningBaseline, evidence: Path) -> None:
    """Write a baseline below a rollout's evidence, for this verification and for later ones.

    Args:
        baseline: The baseline.
        evidence: Directory of the evidence, which is made if it does not exist.

    Raises:
        StoreError: The file can't be written.
    """
    file = evidence / BASELINE
    with raise_storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, baseline.model_dump_json().encode(), durable=False)


def read_baseline(evidence: Path) -> HardeningBaseline | None:
    """Return the baseline below a rollout's evidence; None if there is none."""
    try:
        return HardeningBaseline.model_validate_json(read_stored(evidence / BASELINE))
    except FileNotFoundError:
        return None
