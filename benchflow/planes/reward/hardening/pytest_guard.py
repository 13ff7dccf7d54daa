"""Source of the engine's pytest plugin, as it is copied into a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchflow.planes.reward.hardening.baseline import HardeningBaseline

PLUGIN = "benchflow_pytest_plugins"
_SOURCE = Path(__file__).with_name("pytest_session.py")


def plugin_source(baseline: HardeningBaseline, declared: Sequence[str]) -> str:
    """Return the source of the plugin, with the names of the plugins that it may load.

    Args:
        baseline: Baseline with the plugins that the image had.
        declared: The task's `verifier.pytest_plugins`: names of entry points or of modules.
    """
    names = f"\nALLOWED[:] = {json.dumps(baseline.plugins)}\nDECLARED[:] = {json.dumps(list(declared))}\n"
    return _SOURCE.read_text() + names
