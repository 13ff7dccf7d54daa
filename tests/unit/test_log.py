"""What a log line may hold, whoever wrote what it quotes."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from support.hostile_text import FORGED, RAW

from benchflow.log import GuardedStream, configure_logging, configure_quiet_logging, guard_stderr

RECORD = "\n2026-01-01T00:00:00Z [error    ] forged by a value"


@pytest.fixture(autouse=True)
def _undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def log_with_the_standard_library() -> None:
    """Log hostile text as a message, an argument and a traceback."""
    text = FORGED + RECORD
    other = logging.getLogger("third.party")
    other.error("it said %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        other.exception("failed: %r", text)


def log_with_structlog() -> None:
    """Log hostile text as an event, a key, a value, an object, bytes and a traceback."""
    text = FORGED + RECORD
    ours = structlog.get_logger("benchflow.test")
    ours.warning(text, value=text, nested={text: [text]}, thing=ValueError(text), raw=b"\x9b\x1b[2J\n")
    try:
        raise ValueError(text)
    except ValueError:
        ours.exception("failed")


def records_in(written: str) -> list[str]:
    """Return the lines that begin a record: none is set off."""
    return [line for line in written.splitlines() if line.strip() and not line.startswith("  │ ")]


def test_a_short_commands_log_steers_no_terminal_and_holds_no_forged_record(capsys: pytest.CaptureFixture[str]) -> None:
    configure_quiet_logging()
    log_with_the_standard_library()
    written = capsys.readouterr().err
    assert RAW.search(written) is None
    assert [record.split()[:2] for record in records_in(written)] == [["ERROR", "third.party:"]] * 2
    assert written.count("forged by a value") == 3


def test_a_verbose_commands_log_steers_no_terminal_and_holds_no_forged_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging(verbose=True)
    log_with_structlog()
    log_with_the_standard_library()
    written = capsys.readouterr().err
    assert RAW.search(written) is None
    assert len(records_in(written)) == 4
    assert not any(line.startswith("2026-01-01T00:00:00Z") for line in written.splitlines())


def test_in_a_file_each_record_is_a_line_of_json_without_controls(tmp_path: Path) -> None:
    file = tmp_path / "worker.log"
    configure_logging(file=file)
    log_with_structlog()
    log_with_the_standard_library()
    text = file.read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert len(records) == 4
    assert RAW.search(text) is None and RAW.search(json.dumps(records, ensure_ascii=False)) is None
    assert "forged by a value" in records[1]["exception"] and "\n" not in records[0]["event"]


def test_what_is_written_around_the_log_is_sanitised_too(capsys: pytest.CaptureFixture[str]) -> None:
    guard_stderr()
    guard_stderr()
    print(FORGED, file=sys.stderr)
    sys.excepthook(ValueError, ValueError(FORGED), None)
    assert isinstance(sys.stderr, GuardedStream) and not isinstance(sys.stderr.unguarded, GuardedStream)
    written = capsys.readouterr().err
    assert written.count("owned") == 2
    assert RAW.search(written) is None


def test_what_a_background_process_prints_is_sanitised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(file=tmp_path / "worker.log")
    print(FORGED)
    print(FORGED, file=sys.stderr)
    written = capsys.readouterr()
    assert "owned" in written.out and "owned" in written.err
    assert RAW.search(written.out + written.err) is None


def test_a_traceback_shows_no_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(verbose=True)
    key = "local-" + "secret"
    try:
        raise ValueError(len(key))
    except ValueError:
        structlog.get_logger("benchflow.test").exception("failed")
    written = capsys.readouterr().err
    assert "ValueError: 12" in written
    assert key not in written
