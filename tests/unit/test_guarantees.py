"""The table of guarantees names tests and mutants that exist."""

from __future__ import annotations

import re
import tomllib

from support import slowest
from support.paths import ROOT
from support.slowest import GUARANTEES, ROW

MUTANTS = ROOT / "tools" / "mutants"
CONFORMANCE = ROOT / "benchflow" / "testing" / "sandbox_conformance"
LONG_FILE = re.compile(r"^pytestmark = .*\.(long|soak)", re.M)


def test_each_row_names_a_test_of_its_lane() -> None:
    rows = list(ROW.finditer(GUARANTEES.read_text()))
    assert len(rows) > 50
    suite = "".join(file.read_text() for file in sorted(CONFORMANCE.glob("*.py")))
    for row in rows:
        file, _, name = row["test"].partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert file.startswith(f"{row['lane']}/")
        assert not name or f"def {name}(" in text or ("conformance" in file and f"def {name}(" in suite), row["test"]
        # Only in a long run would nothing hold it.
        assert not LONG_FILE.search(text), row["test"]
        assert not re.search(rf"^@pytest\.mark\.(long|soak)\n(@.*\n)*(async )?def {name}\(", text, re.M), row["test"]


def test_each_mutant_shows_one_guarantee_and_is_run_against_its_test() -> None:
    rows = {row["mutant"]: row for row in ROW.finditer(GUARANTEES.read_text()) if row["mutant"]}
    assert rows.keys() == {file.stem for file in MUTANTS.glob("*.toml")}
    for name, row in rows.items():
        mutant = tomllib.loads((MUTANTS / f"{name}.toml").read_text())
        assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1, name
        test = mutant["test"]
        assert test.removeprefix("tests/").split("::")[0] == row["test"].split("::")[0]
        assert test.split("::")[-1] == row["test"].split("::")[-1] or "::" not in test


def test_each_test_that_is_left_to_long_runs_exists_and_holds_no_guarantee() -> None:
    guarantees = slowest.guaranteed()
    assert guarantees
    places = ("benchflow/testing", "tests/support", "tests/provider")
    suites = "".join(file.read_text() for place in places for file in sorted((ROOT / place).rglob("*.py")))
    for name in slowest.listed():
        file, _, function = name.partition("::")
        text = (ROOT / file).read_text()
        defined = f"def {function.rpartition('::')[2]}("
        assert defined in text or ("conformance" in file and defined in suites), name
        assert not slowest.is_always_run(name, guarantees), name
