"""Hardening: the measures in a sandbox between the agent's last action and the verifier's first command.

They keep processes and files that the agent left from deciding its score. A baseline is taken before the agent acts and
kept on this host. An agent that was root may have changed any program of the sandbox: the programs on which all else
depends are therefore compared, and restored, from outside.
"""

from benchflow.planes.reward.hardening.baseline import (
    HardeningBaseline,
    keep_baseline,
    read_baseline,
    skipped,
    take_baseline,
)
from benchflow.planes.reward.hardening.verifier_environment import (
    files_of,
    misses_plugin,
    note_doubts,
    own_modules,
    put_plugins,
    verifier_env,
)
from benchflow.planes.reward.hardening.work import harden

__all__ = [
    "HardeningBaseline",
    "files_of",
    "harden",
    "keep_baseline",
    "misses_plugin",
    "note_doubts",
    "own_modules",
    "put_plugins",
    "read_baseline",
    "skipped",
    "take_baseline",
    "verifier_env",
]
