"""Values are taken out of the files of a directory that a sandbox has filled, and of no other file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow import secrets
from benchflow.errors import UnsafePathError
from benchflow.secrets import Redactor

VALUE = "the-very-secret-value"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    directory = tmp_path / "results"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "log").write_text(f"it is {VALUE}!")
    (directory / "deep" / "log").chmod(0o640)
    return directory


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    file = tmp_path / "canary"
    file.write_text(f"the host's own {VALUE}")
    return file


def test_files_at_any_depth_are_cleaned_and_keep_their_mode(results: Path) -> None:
    Redactor({"KEY": VALUE}).clean_below(results)
    assert (results / "deep" / "log").read_text() == "it is [KEY]!"
    assert (results / "deep" / "log").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in (results / "deep").iterdir()] == ["log"]


def test_a_directory_that_is_not_there_needs_no_cleaning(tmp_path: Path) -> None:
    Redactor({"KEY": VALUE}).clean_below(tmp_path / "nowhere")


def test_links_pipes_and_planted_part_files_lead_nowhere(results: Path, canary: Path) -> None:
    (results / "link").symlink_to(canary)
    (results / "elsewhere").symlink_to(canary.parent)
    os.mkfifo(results / "pipe")
    # The name that a part file had.
    (results / "deep" / ".log.clean").symlink_to(canary)
    (results / "deep" / ".log.part").symlink_to(canary)
    Redactor({"KEY": VALUE}).clean_below(results)
    assert canary.read_text() == f"the host's own {VALUE}"
    assert (results / "deep" / "log").read_text() == "it is [KEY]!"


def test_a_tree_that_is_too_deep_is_refused(results: Path) -> None:
    results.joinpath(*["d"] * 130).mkdir(parents=True)
    with pytest.raises(UnsafePathError, match="deeper than 128"):
        Redactor({"KEY": VALUE}).clean_below(results)


def test_a_large_file_of_one_line_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each read is bounded, so that a value lies across every border of two reads in turn.
    monkeypatch.setattr(secrets, "_CHUNK", 7)
    (tmp_path / "log").write_text(f"{VALUE}x" * 50)
    Redactor({"KEY": VALUE}).clean_below(tmp_path)
    assert (tmp_path / "log").read_text() == "[KEY]x" * 50


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.sampled_from([VALUE, json.dumps(VALUE + "ü"), "the-very", "-value", "ü", "\n", "x", VALUE[:-1]])),
    chunk=st.integers(1, 40),
)
def test_a_file_is_cleaned_as_a_text_is(tmp_path_factory: pytest.TempPathFactory, parts: list[str], chunk: int) -> None:
    redact = Redactor({"KEY": VALUE, "LONGER": VALUE + "ü"})
    directory, text = tmp_path_factory.mktemp("results"), "".join(parts)
    (directory / "log").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "_CHUNK", chunk)
        redact.clean_below(directory)
    assert (directory / "log").read_bytes().decode() == redact(text)
