"""`bench env …`: check that a manifest's world works on this machine, and compare two of its states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchflow.cli import command
from benchflow.cli.command import BenchCommand, Json

if TYPE_CHECKING:
    from benchflow.planes.environment.environment_trial import EnvironmentCheck

app = typer.Typer(help="Environments: check a manifest, compare states.", no_args_is_help=True)

JobsDir = Annotated[Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")]

_SIGNS = {
    "holds": ("✓", "green"),
    "fails": ("✗", "bold red"),
    "unproven": ("!", "yellow"),
    "not declared": ("–", "dim"),
    "not tried": ("·", "dim"),
}


@app.command(cls=BenchCommand)
def check(
    manifest: Annotated[
        Path, typer.Argument(metavar="MANIFEST", help="The manifest: environment.toml, or YAML.", show_default=False)
    ],
    task: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Try the world of this task: its image, its id, its setup.")
    ] = None,
    sandbox: Annotated[
        str, typer.Option(metavar="NAME", help="Where: docker, local, or auto for the one that this machine has.")
    ] = "auto",
    write: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[:BODY]",
            help="A POST by which a service writes, to see it rolled back; repeatable. "
            "Without it, SQLite writes a row into each declared database.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a manifest's world, wait for it, roll it back, end it; say what holds.

    Where the manifest declares URLs to observe, or the verifier of --task reads
    some, a copy of the world, as a child of a branch has one, is held against
    it by their answers, after the task's oracle or --write has changed them.
    bench submit --branch knows what was proven.

    Everything happens in a sandbox of its own, which is removed in any case.
    Exit status: 0 all that is declared holds, 1 something does not, 2 the
    manifest is wrong or does not fit the task.
    """
    from benchflow.cli.in_job import run_in_job
    from benchflow.cli.screen import make_console, print_error, print_json
    from benchflow.errors import UnsupportedFeatureError
    from benchflow.jobs.trial_job import NO_TASK, plan_trial, try_world

    if ":" in str(manifest) and not manifest.exists():
        raise UnsupportedFeatureError(
            "tries manifests, and this names an environment in code",
            key="MANIFEST",
            remedy="try it with its conformance suite: benchflow.testing.environment_conformance",
        )
    plan = plan_trial(manifest, task, sandbox, write or [])
    screen = make_console(stderr=True)
    found = run_in_job(lambda on_start: try_world(plan, on_start), screen)
    if as_json:
        print_json({"ok": found.ok, **found.model_dump(mode="json")})
    else:
        _show(found)
        if found.failure is not None:
            print_error(found.failure)
            if task is None:
                screen.print(f"It was tried without a task, as {NO_TASK!r}: --task DIR tries the world of one.")
    raise typer.Exit(command.ALL_SCORED if found.ok else command.SOME_ERRORED)


def _show(found: EnvironmentCheck) -> None:
    """Print the findings of a check as a table."""
    from benchflow.cli.screen import make_console, make_table
    from benchflow.cli.terminal import Text, make_line

    screen = make_console()
    heading = make_line((found.name, "bold"), f"  {found.source}, in sandbox {found.sandbox}")
    screen.print(heading, soft_wrap=True)
    rows = make_table(("what", {"no_wrap": True}), ("took", {"justify": "right", "no_wrap": True}), "what was seen")
    for finding in found.findings:
        sign, style = _SIGNS[finding.outcome]
        holds = finding.outcome in ("holds", "fails", "unproven")
        said = finding.detail if holds else f"{finding.outcome}{': ' if finding.detail else ''}{finding.detail}"
        rows.add_row(Text(f"{sign} {finding.what}", style), _took(finding.seconds), Text(said, "" if holds else "dim"))
    screen.print(rows)


def _took(value: float | None) -> str:
    """Return a duration of so many seconds for display; empty for None."""
    from benchflow.cli.screen import format_seconds

    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if value < 1 else format_seconds(value)


@app.command(cls=BenchCommand)
def diff(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A snapshot's directory; or a rollout, as JOB/TASK or by its directory.",
            show_default=False,
        ),
    ],
    after: Annotated[
        str | None,
        typer.Argument(metavar="B", help="The same. Without it, A is a rollout: its first state and its last one."),
    ] = None,
    rows: Annotated[int, typer.Option(help="The most rows that are listed of a table.", min=0)] = 100,
    jobs_dir: JobsDir = Path("jobs"),
    as_json: Json = False,
) -> None:
    """What differs between two states of a world, row by row.

    A snapshot is what a rollout keeps in environment/snapshots/NAME; of a
    rollout given as one of two, its last state is meant.
    """
    from benchflow.cli.screen import make_console, print_json
    from benchflow.cli.state_diff import choose_states, show_diff
    from benchflow.planes.environment.world_state import diff_snapshots

    one, other = choose_states(before, after, jobs_dir)
    found = diff_snapshots(one, other, limit=rows)
    if as_json:
        return print_json(found.model_dump(mode="json"))
    show_diff(one, other, found, make_console())
