"""The list of the slowest tests that hold no guarantee, `tests/slowest.txt`: `make test-all` alone runs them.

`python tools/test_times.py --records DIR --keep SECONDS` writes the list from measured times.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from support.paths import ROOT

LIST = ROOT / "tests" / "slowest.txt"
GUARANTEES = ROOT / "tests" / "GUARANTEES.md"

TOGETHER = ("tests/system/agents/test_questions.py",)
"""Files whose tests answer the questions of one job's rollouts: without one test, others wait for a slot forever."""

ROW = re.compile(
    r"^\| (?P<guarantee>.+?) \| `(?P<test>[^`]+)` \| (?P<lane>\w+) \| (?:`(?P<mutant>[^`]+)`|unproven) \|$", re.M
)
"""Pattern of a row of the guarantees that a test holds in every run."""


def name_of(node_id: str) -> str:
    """Return the name of a test without its parameters: all cases of a test are in the same run."""
    return node_id.partition("[")[0]


def listed() -> frozenset[str]:
    """Return the names in the list."""
    return frozenset(line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))


def guaranteed() -> frozenset[str]:
    """Return the files and functions (`file::function`) that hold a guarantee in every run."""
    return frozenset(f"tests/{row['test']}" for row in ROW.finditer(GUARANTEES.read_text()))


def is_always_run(name: str, guarantees: Collection[str]) -> bool:
    """Return whether a test is a unit test, holds one of the guarantees, or is of a file in `TOGETHER`."""
    file, _, function = name.partition("::")
    names = {file, f"{file}::{function.rpartition('::')[2]}"}
    return file.startswith("tests/unit/") or file in TOGETHER or not names.isdisjoint(guarantees)
