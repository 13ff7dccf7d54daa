"""What is done to a sandbox between the agent's last action and the verifier's first command, so that neither what the
agent left running nor what it left lying decides how it is scored.

A baseline is taken before the agent acts and kept on this host. Whoever was root in the sandbox may have changed any
program there: what the rest stands on is then judged, and put back, from outside.
"""

from benchflow.planes.reward.hardening.baseline import (
    HardeningBaseline,
    keep_baseline,
    read_baseline,
    skipped,
    take_baseline,
)
from benchflow.planes.reward.hardening.environment import (
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
