"""The variables that a verifier runs with: what the image says, and nothing that an agent could have left.

pytest loads no plugin by itself; a small plugin of the engine's, which is put beside the verifier, loads those that
the image had, those that the task names, and those that were installed after the agent had ended.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import VerifierConfig
from benchflow.planes.reward.hardening.baseline import HardeningBaseline

PLUGIN = "benchflow_pytest_plugins"
PLUGINS = "/run/benchflow/verifier"
"""The directory of that plugin, in the sandbox."""

_SOURCE = '''"""Loads the plugins of pytest that may be loaded: see `verifier.pytest_plugins`."""
import importlib.metadata
import os

ALLOWED = {allowed}
OWN = os.stat(__file__).st_ctime


def _is_newer(distribution):
    try:
        return os.stat(str(distribution._path)).st_ctime >= OWN
    except (AttributeError, OSError):
        return False


def pytest_addoption(parser, pluginmanager):
    declared = {declared}
    seen = set()
    for distribution in importlib.metadata.distributions():
        for point in distribution.entry_points:
            if point.group != "pytest11" or point.name in seen:
                continue
            seen.add(point.name)
            if point.name in declared or point.name in ALLOWED or _is_newer(distribution):
                pluginmanager.import_plugin(point.name, consider_entry_points=True)
    for name in declared:
        if name not in seen:
            pluginmanager.import_plugin(name)
'''
# Hooks and file system monitors are programs that the repository's owner chooses.
_GIT = {
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": "/dev/null",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
}
_EMPTY = ("BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTEST_PLUGINS")
"""What names programs that shells and interpreters run first."""


def verifier_env(baseline: HardeningBaseline, config: VerifierConfig, *, target: str, workspace: str) -> dict[str, str]:
    """What is pinned while a verifier runs; the task's own `verifier.env` goes over it. target: its directory."""
    if not config.hardening.pin_environment:
        return {}
    home, before = baseline.home, baseline.survey.files
    env = dict.fromkeys(_EMPTY, "")
    env |= {
        "PATH": ":".join(baseline.directories) or baseline.path,
        "HOME": home,
        "PYTHONPATH": ":".join(part for part in (PLUGINS, baseline.modules) if part),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": f"-c /dev/null --confcutdir={target} --rootdir={workspace} -p no:cacheprovider -p {PLUGIN}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **_GIT,
    }
    own = posixpath.join(home, ".gitconfig")
    env["GIT_CONFIG_GLOBAL"] = own if own in before else "/dev/null"
    if "/etc/gitconfig" not in before:
        env["GIT_CONFIG_NOSYSTEM"] = "1"
    pip = ("/etc/pip.conf", f"{home}/.config/pip/pip.conf", f"{home}/.pip/pip.conf")
    if not any(file in before for file in pip):
        env["PIP_CONFIG_FILE"] = "/dev/null"
    return env


async def put_plugins(sandbox: Sandbox, baseline: HardeningBaseline, declared: Sequence[str]) -> None:
    """Put the plugin in place that loads pytest's plugins."""
    await sandbox.write_file(f"{PLUGINS}/{PLUGIN}.py", plugin_source(baseline, declared))


def plugin_source(baseline: HardeningBaseline, declared: Sequence[str]) -> str:
    """The plugin. declared: the task's `verifier.pytest_plugins`, names of entry points or of modules."""
    return _SOURCE.format(allowed=json.dumps(baseline.plugins), declared=json.dumps(list(declared)))
