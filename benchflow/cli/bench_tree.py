"""`bench tree …`: draw the tree of a rollout that branched, and show the trajectory that leads to a node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchflow.cli.command import BenchCommand, Json

if TYPE_CHECKING:
    from benchflow.paths import RolloutPaths
    from benchflow.trajectories.stored import StoredTree

app = typer.Typer(help="Trees: rollouts that branched, and what their states are worth.", no_args_is_help=True)

Which = Annotated[
    str,
    typer.Argument(metavar="ROLLOUT", help="Its directory, or JOB/TASK, JOB/TASK__ID, its id.", show_default=False),
]
JobsDir = Annotated[Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")]
JOBS = Path("jobs")

MAX_LINES = 100
"""Maximum number of lines of a tree on a terminal, without `--all`. A file or a pipe gets the whole tree."""


@app.command(cls=BenchCommand)
def show(
    rollout: Which,
    jobs_dir: JobsDir = JOBS,
    depth: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Draw so many branches below each other, and fold what is below."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Draw so many children of each node, and fold the others.")
    ] = None,
    draw_all: Annotated[bool, typer.Option("--all", help="Fold nothing, however large it is.")] = False,
    as_json: Json = False,
) -> None:
    """Draw a rollout's tree: rewards, V(s) with its standard error, advantages, what failed.

    Of a rollout that runs, what has grown so far. On a terminal a tree of
    more than 100 lines is folded until it fits. Starts nothing.
    """
    from benchflow.cli.job_report import show_errors
    from benchflow.cli.screen import make_console, print_json, show_place
    from benchflow.cli.terminal import Text
    from benchflow.contracts.rollout_records import RolloutResult
    from benchflow.trajectories.drawing import draw_tree
    from benchflow.trajectories.stored import read_model

    stored = _load_stored(rollout, jobs_dir)
    if as_json:
        print_json(stored.tree.model_dump(mode="json") | {"directory": str(stored.paths.root)})
        return
    screen = make_console()
    most = MAX_LINES if screen.is_terminal and not draw_all else None
    screen.print(draw_tree(stored.tree, width=screen.width, depth=depth, limit=limit, most=most), soft_wrap=True)
    result = read_model(RolloutResult, stored.paths.result) if os.path.lexists(stored.paths.result) else None
    if result is None:
        screen.print(Text("It has no result yet; this is how far it has grown.", "yellow"))
    elif stored.value is None:
        show_errors([result], screen)
    show_place("results", str(stored.paths.root), screen)


@app.command(cls=BenchCommand)
def path(
    rollout: Which,
    node: Annotated[str, typer.Argument(metavar="NODE", help="As bench tree show names it.", show_default=False)],
    jobs_dir: JobsDir = JOBS,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line.")] = False,
) -> None:
    """Show the trajectory from the root to a node, through the parents' files and the children's."""
    from benchflow.cli.rollout_watch import AsData, AsText
    from benchflow.cli.screen import make_console

    to = AsData() if as_json else AsText(make_console(), lively=False)
    for event in _load_stored(rollout, jobs_dir).trajectory(node):
        to.take(event)
    to.close()


def _load_stored(rollout: str, jobs_dir: Path) -> StoredTree:
    """Return the stored tree of a rollout. Raise `UsageError` if it has none yet."""
    from benchflow.errors import UsageError
    from benchflow.trajectories.stored import load_tree

    paths = _find_paths(rollout, jobs_dir)
    if not os.path.lexists(paths.tree):
        raise UsageError(
            "this rollout has no tree yet: it is written when the first child has ended, or the rollout",
            file=str(paths.root),
            key="ROLLOUT",
            remedy="bench job watch shows how far it is",
        )
    return load_tree(paths.root)


def _find_paths(rollout: str, jobs_dir: Path) -> RolloutPaths:
    """Return the paths of a rollout, given by its directory, or by a name or id as for `choose`."""
    from benchflow.cli.chosen import choose
    from benchflow.errors import UsageError
    from benchflow.paths import RolloutPaths

    directory = RolloutPaths(Path(rollout).expanduser().absolute())
    # A job's directory has a file of that name, too.
    if os.path.lexists(directory.tree) or (directory.config.is_file() and directory.trajectory.parent.is_dir()):
        return directory
    if directory.root.is_dir() and (Path(rollout).is_absolute() or rollout.startswith((".", "~"))):
        inside = sorted(file.parent.name for file in directory.root.glob("*/tree.json"))[:5]
        raise UsageError(
            "this is no rollout's directory",
            file=str(directory.root),
            key="ROLLOUT",
            remedy=f"give one of its rollouts: {', '.join(inside)}" if inside else "give <jobs_dir>/<job>/<task>__<id>",
        )
    return choose(rollout, jobs_dir).paths
