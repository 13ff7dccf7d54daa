"""Source of the engine's pytest plugin, as it is copied into a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchflow.planes.reward.hardening.baseline import HardeningBaseline

PLUGIN = "benchflow_pytest_plugins"
_SOURCE = Path(__file__).with_name("pytest_session.py")


def plugin_source(baseline: HardeningBaseline, declared: Sequence[str], workspace: str = "") -> str:
    """Return the source of the plugin, with the names of the plugins that it may load.

    Args:
        baseline: Baseline with the plugins that the image had.
        declared: The task's `verifier.pytest_plugins`: names of entry points or of modules.
        workspace: Directory of the agent's work; empty where that is pytest's root directory.
    """
    settings = {"ALLOWED": baseline.plugins, "DECLARED": list(declared), "WORKSPACE": workspace}
    return _SOURCE.read_text() + "".join(f"\n{name} = {json.dumps(value)}" for name, value in settings.items()) + "\n"
