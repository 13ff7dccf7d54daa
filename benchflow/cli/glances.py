"""Entries of a list of jobs: each job's summary, and whether this user has submitted it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from benchflow.cli.screen import find_first_line, print_note
from benchflow.errors import StoreError
from benchflow.paths import JobPaths
from benchflow.provenance import is_own
from benchflow.results.summary import Summary, read_results, read_spec, summarize
from benchflow.stored_files import read_stored


def list_job_directories(jobs_dir: Path) -> list[Path]:
    """Return the directories of jobs in `jobs_dir`, newest first."""
    if not jobs_dir.is_dir():
        return []
    found = [path for path in jobs_dir.iterdir() if (path / "config.json").is_file()]
    return sorted(found, key=lambda path: (path / "config.json").stat().st_mtime, reverse=True)


def glance(directory: Path) -> tuple[Summary, bool] | None:
    """Return a job's summary, and whether this user submitted the job. If it is no job, print a warning, return None.

    The summary is read from disk if it is not older than the results, else it is made from them. Its numbers come from
    the author of the directory, its name is the directory's: with another job's name, they would pass for that job's.
    """
    paths = JobPaths(directory)
    try:
        if paths.summary.is_file() and paths.results.is_file():
            rows, summed = paths.results.stat().st_mtime_ns, paths.summary.stat().st_mtime_ns
            # A summary that an earlier version wrote has other fields.
            with suppress(ValidationError):
                if rows <= summed:
                    summary = Summary.model_validate_json(read_stored(paths.summary))
                    return summary.model_copy(update={"job": directory.name}), is_own(paths)
        spec = read_spec(paths)
        return summarize(directory.name, spec.total, read_results(paths), spec), is_own(paths)
    except StoreError as error:
        print_note(f"warning: {directory} cannot be read as a job: {find_first_line(str(error))}")
        return None
