"""The engine's plugin of pytest, as it is put into a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchflow.planes.reward.hardening.baseline import HardeningBaseline

PLUGIN = "benchflow_pytest_plugins"
_SOURCE = Path(__file__).with_name("pytest_session.py")


def plugin_source(baseline: HardeningBaseline, declared: Sequence[str]) -> str:
    """The plugin. declared: the task's `verifier.pytest_plugins`, names of entry points or of modules."""
    names = f"\nALLOWED[:] = {json.dumps(baseline.plugins)}\nDECLARED[:] = {json.dumps(list(declared))}\n"
    return _SOURCE.read_text() + names
