"""Read reward files with Harbor's verifier, none of which it has run itself. Runs in Harbor's environment.

    read_files.py ROOT

Each ROOT/<name>/verifier is what a verifier left. ROOT/readings.json has by name the rewards, or null for an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harbor.models.trial.paths import TrialPaths
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.verifier import Verifier


def read(directory: Path) -> Any:
    # What it reads of a verifier is the paths alone.
    verifier: Any = SimpleNamespace(trial_paths=TrialPaths(directory))
    try:
        if verifier.trial_paths.reward_json_path.exists():
            rewards = Verifier._parse_reward_json(verifier)
        else:
            rewards = Verifier._parse_reward_text(verifier)
        return VerifierResult(rewards=rewards).rewards
    except Exception:
        return None


if __name__ == "__main__":
    root = Path(sys.argv[1])
    readings = {path.name: read(path) for path in sorted(root.iterdir()) if path.is_dir()}
    (root / "readings.json").write_text(json.dumps(readings))
