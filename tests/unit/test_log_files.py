"""Log files are bounded while others write to them, and no end of a log is lost."""

from __future__ import annotations

from pathlib import Path

from benchflow.log_files import bound_logs, open_log, read_tail

LIMIT = 1000


def test_a_large_log_is_cut_while_others_have_it_open_and_its_end_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "worker.out"
    lines = [b"line %04d\n" % number for number in range(300)]
    with open_log(path) as one, path.open("a", encoding="utf-8") as other:
        one.write(b"".join(lines))
        one.flush()
        bound_logs(tmp_path, LIMIT)
        one.write(b"first after\n")
        one.flush()
        other.write("second after\n")
    assert path.read_bytes() == b"first after\nsecond after\n"
    kept = (tmp_path / "worker.out.1").read_bytes()
    assert kept and len(kept) <= LIMIT and kept.splitlines(keepends=True) == lines[-len(kept) // 10 :]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["worker.out", "worker.out.1"]
    assert {found.stat().st_mode & 0o777 for found in tmp_path.iterdir()} == {0o600}


def test_what_a_process_wrote_before_the_cut_is_in_the_tail(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("x" * LIMIT + "\npanic: one\npanic: two\n")
    bound_logs(tmp_path, LIMIT)
    assert path.stat().st_size == 0
    assert read_tail(path, 2) == "panic: one\npanic: two"
    path.write_text("started\n")
    assert read_tail(path, 2) == "panic: two\nstarted"
    assert read_tail(tmp_path / "none.log") == ""


def test_a_log_is_cut_also_where_its_end_cannot_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    path.write_text("x" * (LIMIT + 1))
    (tmp_path / ".gateway.log.new").symlink_to("elsewhere")
    bound_logs(tmp_path, LIMIT)
    assert path.stat().st_size == 0
    assert [found.name for found in tmp_path.iterdir()] == ["gateway.log"]


def test_small_logs_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name, size in (("small.log", LIMIT), ("large.db", LIMIT + 1), ("large.log.1", LIMIT + 1)):
        (tmp_path / name).write_text("x" * size)
    (tmp_path / "link.log").symlink_to("large.db")
    bound_logs(tmp_path, LIMIT)
    assert {found.name: len(found.read_text()) for found in tmp_path.iterdir()} == {
        "small.log": LIMIT,
        "large.db": LIMIT + 1,
        "large.log.1": LIMIT + 1,
        "link.log": LIMIT + 1,
    }
