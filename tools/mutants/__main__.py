"""Put faults into a copy of the package, one at a time, and check that the test which guards against each one fails.

    python tools/mutants [NAME ...] [--lane] [--keep]

Each `*.toml` beside this file is a mutant: `file`, `old` and `new` (the fault), `guarantee`, and `test`, the test that
kills it (a pytest node id, or a file). A mutant is run against that test; with `--lane` against its whole lane, which
also shows what else notices the fault. The exit status is 1 when a mutant survives, or no longer applies because the
code that it changes is gone. `tests/GUARANTEES.md` says which guarantee each one is about.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("benchflow", "benchmarks", "tests", "tools", "docs", "deploy", "pyproject.toml", "README.md", "Makefile")
OUTCOME = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file`, the text `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    guarantee: str
    test: str

    @classmethod
    def read(cls, path: Path) -> Mutant:
        return cls(name=path.stem, **tomllib.loads(path.read_text()))

    @property
    def lane(self) -> str:
        return "/".join(self.test.split("/")[:2])

    def put_into(self, root: Path) -> None:
        """Change the copy. Raises `ValueError` when the code that it changes is not there exactly once."""
        text = (root / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"no longer applies: {self.file} has its text {text.count(self.old)} times, not once")
        (root / self.file).write_text(text.replace(self.old, self.new))


def run(mutant: Mutant, *, whole_lane: bool, keep: bool) -> str | None:
    """Run a mutant. Returns why it is wrong, or None when its test, and no infrastructure, has failed."""
    root = Path(tempfile.mkdtemp(prefix=f"mutant-{mutant.name}-"))
    try:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, root / name)
        try:
            mutant.put_into(root)
        except ValueError as error:
            return str(error)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=-ra --strict-markers"]
        command += ["--reruns", "0", "-m", "not soak and not long", "--tb=line"]
        command += ["-n", "3", "--dist", "loadfile", mutant.lane] if whole_lane else [mutant.test]
        # Before the installed package; the processes that tests start inherit it.
        environment = os.environ | {"PYTHONPATH": str(root)}
        # What a mutant breaks need not be waited for as on a busy machine.
        environment["BENCHFLOW_TEST_TIMEOUT_SEC"] = "40"
        ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        failed = sorted(set(OUTCOME.findall(ran.stdout)))
        if ran.returncode not in (0, 1):
            return f"pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        others = [name for name in failed if not name.startswith(mutant.test)]
        if len(others) == len(failed):
            return f"survived {mutant.test}" + (f"; killed by {', '.join(others)}" if others else "")
        if others:
            print(f"    also killed by {len(others)}: {', '.join(others[:5])}")
        return None
    finally:
        if keep:
            print(f"    kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants to run; all by default")
    parser.add_argument("--lane", action="store_true", help="run the whole lane of each mutant")
    parser.add_argument("--keep", action="store_true", help="keep the changed copies")
    options = parser.parse_args()
    mutants = [Mutant.read(path) for path in sorted(Path(__file__).parent.glob("*.toml"))]
    if unknown := set(options.names) - {mutant.name for mutant in mutants}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    wrong = 0
    for mutant in mutants:
        started = time.monotonic()
        problem = run(mutant, whole_lane=options.lane, keep=options.keep)
        verdict, seconds = "WRONG" if problem else "killed", time.monotonic() - started
        print(f"{verdict:6} {seconds:5.0f} s  {mutant.name}: {mutant.guarantee}", flush=True)
        if problem:
            wrong += 1
            print(f"    {problem}")
    print(f"mutants: {len(mutants) - wrong} killed, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
