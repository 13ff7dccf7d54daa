"""A build may print for as long as it runs: its transcript takes neither the disk nor the worker's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.planes.sandbox import transcript
from benchflow.planes.sandbox.transcript import Transcript


def test_a_build_that_prints_for_ever_fills_neither_its_log_nor_the_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "MAX_LOG_CHARACTERS", 1000)
    monkeypatch.setattr(transcript, "MAX_LINE_CHARACTERS", 100)
    log = tmp_path / "build.log"
    said = Transcript(log)
    for _ in range(50):
        said.write("x" * 99)
    assert log.read_text() == "x" * 1000 + transcript.CUT
    assert said.tail == "x" * 100
    said.write("y" * 500 + "\nthe step failed\n")
    assert said.tail == "y" * 100 + "\nthe step failed"
    assert log.read_text().endswith(transcript.CUT)


def test_what_fits_is_kept_whole(tmp_path: Path) -> None:
    said = Transcript(tmp_path / "build.log")
    for piece in ("one\ntw", "o\n\n", "three"):
        said.write(piece)
    assert (tmp_path / "build.log").read_text() == "one\ntwo\n\nthree"
    assert said.tail == "one\ntwo\nthree"
