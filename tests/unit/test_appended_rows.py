"""Rows that are appended to a job's files: each is whole, whatever became of the one before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchflow import host_files
from benchflow.errors import DiskFullError
from benchflow.host_files import find_end_of_lines
from benchflow.results.write import append_line


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        ('{"a": 1}\n', '{"a": 1}\n'),
        ('{"a": 1}\n{"b": ', '{"a": 1}\n'),
        ('{"b": ', ""),
        ('{"a": 1}\n{"b": 2}', '{"a": 1}\n{"b": 2}\n'),
        ('{"a": 1}\n' + "x" * 200_000, '{"a": 1}\n'),
        ("", ""),
    ],
)
def test_a_row_is_glued_to_nothing_that_a_writer_left(tmp_path: Path, left: str, kept: str) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(left)
    append_line(file, '{"c": 3}\n')
    assert file.read_text() == f'{kept}{{"c": 3}}\n'


def test_a_disk_that_fills_up_in_mid_line_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.jsonl"
    append_line(file, '{"a": 1}\n')

    def write(fd: int, data: bytes) -> int:
        if len(data) < 5:
            raise OSError(28, "No space left on device")
        return written(fd, data[: len(data) // 2])

    written = os.write
    monkeypatch.setattr(host_files.os, "write", write)
    with pytest.raises(DiskFullError):
        append_line(file, '{"b": 2}\n')
    monkeypatch.undo()
    assert file.read_text() == '{"a": 1}\n'
    append_line(file, '{"b": 2}\n')
    assert file.read_text() == '{"a": 1}\n{"b": 2}\n'


def test_the_end_of_the_lines_of_a_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    for text in ("", "a", "a\n", "a\nb", "\n" + "b" * 65_536, "\n" + "b" * 65_535, "b" * 200_000):
        file.write_text(text)
        with file.open() as opened:
            assert find_end_of_lines(opened.fileno()) == text.rfind("\n") + 1
