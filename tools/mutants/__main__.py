"""Put faults into a copy of the package, one at a time, and check that the test which guards against each one fails.

    python tools/mutants [NAME ...] [--lane] [--keep]

Each `*.toml` beside this file is a mutant: `file`, `old` and `new` (the fault), `guarantee`, and `test`, the test that
kills it (a pytest node id, or a file). First these tests are run without a fault, and must pass. Then each mutant is
run against its test, four at a time, as some wait for a limit; with `--lane` against its whole lane, one at a time,
which also shows what else notices the fault. The exit status is 1 when a mutant survives, or no longer applies because
the code that it changes is gone. `tests/GUARANTEES.md` says which guarantee each one is about.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("benchflow", "benchmarks", "tests", "tools", "docs", "deploy", "pyproject.toml", "README.md", "Makefile")
PARALLEL = ("-n", "3", "--dist", "loadfile")
OUTCOME = re.compile(r"^(FAILED|ERROR) (\S+)", re.MULTILINE)


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

    def is_killed_by(self, test: str) -> bool:
        return test == self.test or test.startswith((f"{self.test}[", f"{self.test}::"))

    def put_into(self, root: Path) -> None:
        """Change the copy. Raises `ValueError` when the code that it changes is not there exactly once."""
        text = (root / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"no longer applies: {self.file} has its text {text.count(self.old)} times, not once")
        (root / self.file).write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    seconds: float
    problem: str | None
    """Why it is wrong; None where its test has failed, as it must."""
    others: tuple[str, ...] = ()
    """Other tests that failed, and all that ended in an error."""

    def __str__(self) -> str:
        word = "WRONG" if self.problem else "killed"
        lines = [f"{word:6} {self.seconds:5.0f} s  {self.mutant.name}: {self.mutant.guarantee}"]
        if self.problem:
            lines.append(f"    {self.problem}")
        if self.others:
            lines.append(f"    noticed by {len(self.others)} others: {', '.join(self.others[:5])}")
        return "\n".join(lines)


@contextlib.contextmanager
def copied(name: str, *, keep: bool) -> Iterator[Path]:
    """Copy what tests need of the project to a directory of its own."""
    root = Path(tempfile.mkdtemp(prefix=f"mutant-{name}-"))
    try:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                # With what is compiled of it, and times as they were: only what changes is compiled anew.
                shutil.copytree(source, root / name)
            elif source.exists():
                shutil.copy(source, root / name)
        yield root
    finally:
        if keep:
            print(f"    kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def run_pytest(root: Path, *arguments: str, **variables: str) -> str:
    """Run tests of a copy, and return what pytest prints. Raises `RuntimeError` when it did not come to an end."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=-ra --strict-markers"]
    command += ["-m", "not soak and not long", *arguments]
    # Before the installed package; the processes that tests start inherit it.
    environment = os.environ | {"PYTHONPATH": str(root)} | variables
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


def check_unchanged(tests: Iterable[str]) -> str | None:
    """Run the tests of all mutants without a fault: else a failure would not show that the fault was noticed."""
    with copied("none", keep=False) as root:
        printed = run_pytest(root, *PARALLEL, "--tb=short", *sorted(set(tests)))
    return f"without any fault, these fail:\n{printed}" if OUTCOME.search(printed) else None


def run(mutant: Mutant, *, whole_lane: bool, keep: bool) -> Verdict:
    """Put a mutant into a copy, and run its test there."""
    started = time.monotonic()
    try:
        with copied(mutant.name, keep=keep) as root:
            mutant.put_into(root)
            tests = [*PARALLEL, mutant.lane] if whole_lane else ["--exitfirst", mutant.test]
            # What a fault breaks need be neither run again nor waited for as on a busy machine.
            printed = run_pytest(root, "--reruns", "0", "--tb=no", *tests, BENCHFLOW_TEST_TIMEOUT_SEC="40")
    except (ValueError, RuntimeError) as error:
        return Verdict(mutant, time.monotonic() - started, str(error))
    found = OUTCOME.findall(printed)
    failed = {test for how, test in found if how == "FAILED"}
    broken = {test for how, test in found if how == "ERROR"}
    others = {test for test in failed if not mutant.is_killed_by(test)}
    survived = f"survived {mutant.test}" if others == failed else None
    return Verdict(mutant, time.monotonic() - started, survived, tuple(sorted(others | broken)))


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
    if problem := check_unchanged(mutant.test for mutant in mutants):
        print(problem)
        return 1
    wrong = 0
    with ThreadPoolExecutor(1 if options.lane else 4) as pool:
        for verdict in pool.map(partial(run, whole_lane=options.lane, keep=options.keep), mutants):
            print(verdict, flush=True)
            wrong += verdict.problem is not None
    print(f"mutants: {len(mutants) - wrong} killed, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
