"""`bench results`: what a job came to, read from its directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchflow.cli.command import Json

if TYPE_CHECKING:
    from benchflow.cli.terminal import Screen
    from benchflow.contracts.rollout import RolloutResult
    from benchflow.paths import JobPaths
    from benchflow.results.summary import Summary


def results(
    job: Annotated[str, typer.Argument(metavar="NAME_OR_DIR", help="A job's name or directory.", show_default=False)],
    jobs_dir: Annotated[
        Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")
    ] = Path("jobs"),
    show_all: Annotated[bool, typer.Option("--all", help="List every rollout, however many.")] = False,
    as_json: Json = False,
) -> None:
    """What a job came to: mean rewards, pass@k, errors, phase times, rollouts.

    Computed from the rollouts' own files, so it is right while the job runs.
    """
    from benchflow.cli.modes import show_mode
    from benchflow.cli.report import MAX_ROWS, document, show_errors, show_place, show_rows, show_totals
    from benchflow.cli.screen import console, print_json
    from benchflow.cli.terminal import line
    from benchflow.contracts import ids
    from benchflow.results.summary import read_results, read_spec, summarize

    paths = job_paths(job, jobs_dir)
    spec, found = read_spec(paths), read_results(paths)
    summary = summarize(spec.name, spec.total, found)
    if as_json:
        job_id = ids.job_id(spec.name, str(paths.root.parent))
        facts = {"id": job_id, "name": spec.name, "directory": str(paths.root), "ui": None, "total": spec.total}
        return print_json(document(facts, summary, found, spec.run.mode))
    screen = console()
    screen.print(line((spec.name, "bold")), soft_wrap=True)
    _show_agents(summary, found, screen)
    _show_pass_at_k(summary, screen)
    _show_errors_by_category(summary, screen)
    _show_phases(summary, screen)
    show_rows(found, screen, limit=len(found) if show_all else MAX_ROWS)
    show_mode(paths, spec.run.mode, found, screen, limit=None if show_all else MAX_ROWS)
    show_errors(found, screen)
    show_totals(summary, screen)
    show_place("results", str(paths.root), screen)


def job_paths(job: str, jobs_dir: Path) -> JobPaths:
    """A directory that is a job's, else the job of this name."""
    from benchflow.paths import JobPaths

    given = Path(job).expanduser()
    if (given / "config.json").is_file():
        return JobPaths.of(given.absolute().parent, given.absolute().name)
    return JobPaths.of(jobs_dir, job)


def _show_agents(summary: Summary, found: Sequence[RolloutResult], screen: Screen) -> None:
    from benchflow.cli.report import agent_label
    from benchflow.cli.screen import reward, table
    from benchflow.cli.terminal import Text

    right: dict[str, Any] = {"justify": "right", "no_wrap": True}
    rows = table(
        "agent", ("rollouts", right), ("passed", right), ("scored", right), ("mean reward", right), "95 % of it"
    )
    for agent in sorted({agent_label(result) for result in found}):
        mine = [result for result in found if agent_label(result) == agent]
        value = summary.by_agent.get(agent)
        sure = value is not None and value.low is not None and value.high is not None
        rows.add_row(
            agent,
            str(len(mine)),
            str(sum(result.status == "passed" for result in mine)),
            str(value.n if value else 0),
            Text(reward(value.mean if value else None), "bold"),
            f"{value.low:.3f} … {value.high:.3f}" if value and sure else "–",
        )
    if found:
        screen.print(rows)


def _show_pass_at_k(summary: Summary, screen: Screen) -> None:
    from benchflow.cli.report import show_place

    values = "   ".join(f"k={k} {value:.3f}" for k, value in summary.pass_at_k.items())
    show_place("pass@k", values or None, screen)


def _show_errors_by_category(summary: Summary, screen: Screen) -> None:
    from benchflow.cli.report import show_place

    show_place("errors", "   ".join(f"{name} {count}" for name, count in summary.errors.items()) or None, screen)


def _show_phases(summary: Summary, screen: Screen) -> None:
    from benchflow.cli.report import show_place
    from benchflow.cli.screen import seconds

    known = summary.phase_seconds
    show_place("phases", "   ".join(f"{name} {seconds(value)}" for name, value in known.items()) or None, screen)
