"""Where things of the repository lie, for tests that read or run them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""

BENCHMARKS = ROOT / "benchmarks"
SUPPORT = Path(__file__).parent
"""These modules; some of them are also programs that tests start, or copy into sandboxes."""
