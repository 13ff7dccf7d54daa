"""A rubric that the user names as `module:object`: where it is looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchflow.errors import ConfigError
from benchflow.rescoring.rubrics import given_rubric

RUBRIC = "from support.own_rewards import Politeness\nquality = Politeness()\n"


def test_it_may_lie_in_the_current_directory_which_takes_no_part_in_any_other_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    (tmp_path / "rubric_of_mine.py").write_text(f"import sys\nassert sys.path[-1] == {str(tmp_path)!r}\n{RUBRIC}")
    found = given_rubric("rubric_of_mine:quality")
    assert found is not None and found.label == "quality"
    assert sys.path == before


def test_a_file_of_the_directory_takes_the_place_of_no_installed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (tmp_path / "colorsys.py").write_text(RUBRIC)
    with pytest.raises(ConfigError, match="has no attribute 'quality'"):
        given_rubric("colorsys:quality")
