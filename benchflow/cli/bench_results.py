"""`bench results`: the results of a job, read from its directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchflow.cli.command import Json

if TYPE_CHECKING:
    from benchflow.paths import JobPaths


def results(
    job: Annotated[str, typer.Argument(metavar="NAME_OR_DIR", help="A job's name or directory.", show_default=False)],
    jobs_dir: Annotated[
        Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")
    ] = Path("jobs"),
    show_all: Annotated[bool, typer.Option("--all", help="List every rollout, however many.")] = False,
    as_json: Json = False,
) -> None:
    """What a job came to: each agent's mean reward, pass@k, errors and phase times; rollouts.

    Computed from the rollouts' own files, so it is right while the job runs.
    """
    from benchflow.cli.figures import show_agents, show_details
    from benchflow.cli.job_report import MAX_ROWS, make_document, show_errors, show_rows, show_totals
    from benchflow.cli.mode_display import show_mode
    from benchflow.cli.screen import make_console, print_json, show_place
    from benchflow.cli.terminal import make_line
    from benchflow.contracts import ids
    from benchflow.results.summary import read_results, read_spec, summarize

    paths = find_job_paths(job, jobs_dir)
    spec, found = read_spec(paths), read_results(paths)
    summary = summarize(spec.name, spec.total, found, spec)
    if as_json:
        job_id = ids.job_id(spec.name, str(paths.root.parent))
        facts = {"id": job_id, "name": spec.name, "directory": str(paths.root), "ui": None, "total": spec.total}
        return print_json(make_document(facts, summary, found, spec.run.mode))
    screen = make_console()
    screen.print(make_line((spec.name, "bold")), soft_wrap=True)
    show_agents(summary, screen)
    show_details(summary, screen)
    show_rows(found, screen, limit=len(found) if show_all else MAX_ROWS)
    show_mode(paths, spec.run.mode, found, screen, limit=None if show_all else MAX_ROWS)
    show_errors(found, screen)
    show_totals(summary, screen)
    show_place("results", str(paths.root), screen)


def find_job_paths(job: str, jobs_dir: Path) -> JobPaths:
    """Return the paths of a job, given by its directory, or by its name in `jobs_dir`."""
    from benchflow.paths import JobPaths

    given = Path(job).expanduser()
    if (given / "config.json").is_file():
        return JobPaths.of(given.absolute().parent, given.absolute().name)
    return JobPaths.of(jobs_dir, job)
