"""Environment variables that are pinned while a verifier runs: as in the image, with no influence of the agent.

pytest loads no plugins by entry points; a small plugin of the engine, put beside the verifier, loads those that the
image had, those that the task names, and those that were installed after the agent had ended.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import VerifierError
from benchflow.planes.reward.hardening.baseline import HardeningBaseline
from benchflow.planes.reward.hardening.git_state import VARIABLES
from benchflow.planes.reward.hardening.hardening_record import MAX_NAMED
from benchflow.planes.reward.hardening.judgement import ENVIRONMENT
from benchflow.planes.reward.hardening.survey import get_module_name, get_workspace

PLUGIN = "benchflow_pytest_plugins"
"""Name of the engine's plugin, as a module."""

PLUGINS = "/run/benchflow/verifier"
"""Directory of the engine's plugin, in the sandbox."""

_OWN = f"{PLUGINS}/.config"
# The verifier's user owns the directory, because git writes a configuration by a new file beside it.
_PUT = f"""
set -e
umask 022
rm -rf {PLUGINS}
mkdir -p {_OWN}
printf %s "$1" >{PLUGINS}/{PLUGIN}.py
[ -z "$3" ] || printf %s "$3" >{PLUGINS}/sitecustomize.py
: >{_OWN}/gitconfig
: >{_OWN}/pip.conf
chown -R "$2" {_OWN}
shift 3
for f; do [ ! -d "${{f%/*}}" ] || {{ rm -rf -- "$f"; cp {PLUGINS}/{PLUGIN}.py "$f"; }}; done
"""

# Hooks and file system monitors are programs that a repository's configuration names.
_GIT = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": "/dev/null",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
    # The commit graph lists the parents of each commit, and git trusts it.
    "GIT_CONFIG_KEY_2": "core.commitGraph",
    "GIT_CONFIG_VALUE_2": "false",
}
_EMPTY = ("BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTEST_PLUGINS", "MAKEFILES")
"""Variables that name programs or files that shells, interpreters and make run first."""


_DOUBT = re.compile(r"^benchflow: this run of pytest counts as failed: (.{1,300})", re.MULTILINE)
"""Pattern of the line in which the plugin reports why it does not believe a run."""

_START = Path(__file__).with_name("python_start.py")
_SESSION = Path(__file__).with_name("pytest_session.py")


def make_plugin_source(baseline: HardeningBaseline, declared: Sequence[str], workspace: str = "") -> str:
    """Return the source of the plugin, with the names of the plugins that it may load.

    Args:
        baseline: Baseline with the plugins that the image had.
        declared: The task's `verifier.pytest_plugins`: names of entry points or of modules.
        workspace: Directory of the agent's work; empty where that is pytest's root directory.
    """
    settings = {"ALLOWED": baseline.plugins, "DECLARED": list(declared), "WORKSPACE": workspace}
    return _SESSION.read_text() + "".join(f"\n{name} = {json.dumps(value)}" for name, value in settings.items()) + "\n"


def make_start_source(own: Sequence[str]) -> str:
    """Return the source of the startup code of each Python.

    Args:
        own: Names of modules that may shadow the standard library.
    """
    return f"{_START.read_text()}\nOWN[:] = {json.dumps(sorted(own))}\nstart()\n"


def list_own_modules(baseline: HardeningBaseline) -> list[str]:
    """Return the names of modules that may shadow the standard library: those of the project, and of the task."""
    return sorted({*baseline.named, *(get_module_name(path) for path in baseline.survey.shadows)})


def make_verifier_env(
    baseline: HardeningBaseline, config: VerifierConfig, *, target: str, workspace: str
) -> dict[str, str]:
    """Return the variables that are pinned while a verifier runs, which the task's `verifier.env` may override.

    Args:
        baseline: Baseline of the sandbox.
        config: The task's verifier.
        target: Directory of the verifier.
        workspace: Root directory for pytest.

    Returns:
        The variables; none if `pin_environment` is off.
    """
    if not config.hardening.pin_environment:
        return {}
    home, before = baseline.home, baseline.survey.files
    absolute = [place for place in baseline.path.split(":") if place.startswith("/")]
    # Directories of PATH that did not exist come last, so that they shadow no program.
    searched = [*baseline.directories, *(place for place in absolute if place not in baseline.directories)]
    env = dict.fromkeys(_EMPTY, "") | (VARIABLES if config.hardening.repository_state else {})
    env |= {
        "PATH": ":".join(searched) or baseline.path,
        "HOME": home,
        "PYTHONPATH": ":".join(part for part in (PLUGINS, baseline.modules) if part),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": f"-c /dev/null --confcutdir={target} --rootdir={workspace} -p no:cacheprovider -p {PLUGIN}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **_GIT,
    }
    own = posixpath.join(home, ".gitconfig")
    env["GIT_CONFIG_GLOBAL"] = own if own in before else f"{_OWN}/gitconfig"
    if "/etc/gitconfig" not in before:
        env["GIT_CONFIG_NOSYSTEM"] = "1"
    pip = ("/etc/pip.conf", f"{home}/.config/pip/pip.conf", f"{home}/.pip/pip.conf")
    if not any(file in before for file in pip):
        env["PIP_CONFIG_FILE"] = f"{_OWN}/pip.conf"
    if not any(file in before for file in ("/etc/uv/uv.toml", f"{home}/.config/uv/uv.toml")):
        # uv reads settings, such as the URL of its index, from the directory in which it starts.
        env["UV_NO_CONFIG"] = "1"
    return env


def list_plugin_files(baseline: HardeningBaseline) -> list[str]:
    """Return the paths that `put_plugins` writes in a sandbox."""
    return [PLUGINS, *_list_copies(baseline)]


def _list_copies(baseline: HardeningBaseline) -> list[str]:
    """Return the paths of copies of the plugin, for Pythons that ignore or change PYTHONPATH."""
    return [f"{site}/{PLUGIN}.py" for site in baseline.sites]


def is_plugin_missing(printed: str) -> bool:
    """Return whether a pytest could not find the plugin: its Python has another PYTHONPATH, and no copy of it.

    Args:
        printed: Output of the verifier.
    """
    return f'Error importing plugin "{PLUGIN}"' in printed


def note_doubts(printed: str) -> list[HardeningFinding]:
    """Return notes about the runs that the plugin did not believe, at most `MAX_NAMED`.

    Args:
        printed: Output of the verifier.
    """
    reasons = list(dict.fromkeys(_DOUBT.findall(printed)))[:MAX_NAMED]
    return [
        HardeningFinding(item=ENVIRONMENT, action="found", detail=f"a run of pytest failed: {why}") for why in reasons
    ]


async def put_plugins(
    sandbox: Sandbox,
    baseline: HardeningBaseline,
    declared: Sequence[str],
    *,
    user: str | int | None = None,
    own: Sequence[str] | None = None,
) -> None:
    """Write the files that the pinned variables name.

    These are the plugin that loads pytest's plugins, the startup code of each Python, and empty configurations, which
    the verifier may fill.

    Args:
        sandbox: Sandbox of the verifier.
        baseline: Its baseline.
        declared: The task's `verifier.pytest_plugins`.
        user: User of the verifier; None for root.
        own: Names of modules that may shadow the standard library; None to write no startup code.

    Raises:
        VerifierError: The files can't be written.
    """
    source = make_plugin_source(baseline, declared, get_workspace(sandbox))
    start = make_start_source(own) if own is not None else ""
    result = await sandbox.control(_PUT, source, "root" if user is None else str(user), start, *_list_copies(baseline))
    if result.return_code != 0:
        raise VerifierError("the verifier's own files could not be put in place", log_tail=result.stderr[-4000:])
