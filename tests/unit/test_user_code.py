"""Code that the user names, imported from a directory that is on no path, or is on it already."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchflow.errors import ConfigError
from benchflow.user_code import import_anew


@pytest.mark.parametrize("before", [False, True], ids=["unknown", "on-the-path"])
@pytest.mark.parametrize("text", ["thing = 1\n", "import nothing_at_all\n"])
def test_the_path_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool, text: str) -> None:
    (tmp_path / "code_of_a_user.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path] if before else [*sys.path])
    path = [*sys.path]
    if "nothing" in text:
        with pytest.raises(ConfigError, match="cannot be imported"):
            import_anew("code_of_a_user:thing", str(tmp_path), key="any")
    else:
        assert import_anew("code_of_a_user:thing", str(tmp_path), key="any") == 1
    assert sys.path == path
