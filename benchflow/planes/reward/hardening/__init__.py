"""Hardening: the measures in a sandbox between the agent's last action and the verifier's first command.

They keep processes and files that the agent left from deciding its score. A baseline is taken before the agent acts and
kept on this host. An agent that was root may have changed any program of the sandbox: the programs on which all else
depends are therefore compared, and restored, from outside.
"""

from benchflow.planes.reward.hardening.baseline import (
    HardeningBaseline,
    list_skipped,
    read_baseline,
    store_baseline,
    take_baseline,
)
from benchflow.planes.reward.hardening.verifier_environment import (
    is_plugin_missing,
    list_own_modules,
    list_plugin_files,
    make_verifier_env,
    note_doubts,
    put_plugins,
)
from benchflow.planes.reward.hardening.work import harden

__all__ = [
    "HardeningBaseline",
    "harden",
    "is_plugin_missing",
    "list_own_modules",
    "list_plugin_files",
    "list_skipped",
    "make_verifier_env",
    "note_doubts",
    "put_plugins",
    "read_baseline",
    "store_baseline",
    "take_baseline",
]
