"""A rubric that the user names as `module:object`: where it is looked for."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from benchflow.errors import ConfigError
from benchflow.hosting.rubric_code import load_scorer
from benchflow.rescoring.rubrics import load_given_rubric

RUBRIC = "from support.own_rewards import Politeness\nquality = Politeness()\n"


def test_it_may_lie_in_the_current_directory_which_takes_no_part_in_any_other_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    (tmp_path / "rubric_of_mine.py").write_text(f"import sys\nassert sys.path[-1] == {str(tmp_path)!r}\n{RUBRIC}")
    found = load_given_rubric("rubric_of_mine:quality")
    assert found is not None and found.label == "quality"
    assert sys.path == before


def test_a_file_of_the_directory_takes_the_place_of_no_installed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (tmp_path / "colorsys.py").write_text(RUBRIC)
    with pytest.raises(ConfigError, match="has no attribute 'quality'"):
        load_given_rubric("colorsys:quality")


def scorer_of(root: Path) -> str:
    """Return the words that a rubric of a directory says of itself."""
    return str(load_scorer("same_name:quality", str(root)).words)  # type: ignore[attr-defined]


def test_rubrics_of_two_directories_and_what_they_import_there_may_have_the_same_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "same_parts").mkdir(parents=True)
        (tmp_path / name / "same_parts" / "__init__.py").write_text("")
        (tmp_path / name / "same_parts" / "words.py").write_text(f"WORDS = {name!r}\n")
        (tmp_path / name / "same_name.py").write_text(
            f"from same_parts.words import WORDS\n{RUBRIC}object.__setattr__(quality, 'words', {name!r} + WORDS)\n"
        )
    assert [scorer_of(tmp_path / name) for name in ("a", "b", "a")] == ["aa", "bb", "aa"]


def test_what_is_installed_below_the_directory_is_not_imported_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / ".venv" / "lib"
    packages.mkdir(parents=True)
    (packages / "installed_there.py").write_text("")
    monkeypatch.syspath_prepend(packages)
    before = importlib.import_module("installed_there")
    (tmp_path / "same_name.py").write_text(f"{RUBRIC}object.__setattr__(quality, 'words', 'own')\n")
    assert scorer_of(tmp_path) == "own"
    assert sys.modules["installed_there"] is before
