"""`office-check FILE`: runs a check with the interpreter that has `office_check`."""

from __future__ import annotations

import runpy
import sys

HELP = """\
usage: office-check FILE

Runs a verifier's check.py, which writes /logs/verifier/reward.json.
"""


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] in ("--help", "-h"):
        print(HELP, end="")
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0
