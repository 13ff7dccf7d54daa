"""The whole command line, put together from the modules of its verbs.

Verb modules import nothing heavy at their top: `bench --help` must not pay for the engine.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Annotated

import typer

from benchflow import __version__
from benchflow.cli import (
    bench_agent,
    bench_env,
    bench_job,
    bench_rescore,
    bench_results,
    bench_rollout,
    bench_stack,
    bench_submit,
    bench_tasks,
    bench_tree,
    bench_worker,
)
from benchflow.cli.command import BenchCommand, RootCommand, Verbose
from benchflow.cli.submit_options import SubmitCommand
from benchflow.paths import PRIVATE_UMASK

app = typer.Typer(
    name="bench",
    cls=RootCommand,
    help="Score agents on tasks, durably: every rollout survives a crash of any process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
evaluations = typer.Typer(help="Evaluations: another name for jobs that score and stop.", no_args_is_help=True)

app.command("submit", cls=SubmitCommand)(bench_submit.submit)
evaluations.command("create", cls=SubmitCommand)(bench_submit.submit)
app.command("results", cls=BenchCommand)(bench_results.results)
app.command("rescore", cls=bench_rescore.RescoreCommand)(bench_rescore.rescore)
app.add_typer(bench_job.app, name="job")
app.add_typer(bench_rollout.app, name="rollout")
app.add_typer(bench_tree.app, name="tree")
app.add_typer(bench_tasks.app, name="tasks")
app.add_typer(bench_agent.app, name="agent")
app.add_typer(bench_env.app, name="env")
app.add_typer(evaluations, name="eval")
app.add_typer(bench_stack.app, name="stack")
app.command("worker", cls=BenchCommand)(bench_worker.worker)


def _print_version(wanted: bool) -> None:
    from benchflow.cli.screen import make_console

    if wanted:
        make_console().print(f"benchflow {__version__}")
        raise typer.Exit()


@app.callback()
def bench(
    context: typer.Context,
    verbose: Verbose = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Set up each command: register the global options, and set the umask while it runs."""
    # Files of `bench tasks` are the user's own work, for which the user's umask holds; all others are the engine's.
    if context.invoked_subcommand != "tasks":
        before = os.umask(PRIVATE_UMASK)
        context.call_on_close(lambda: os.umask(before))


def select_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line for these arguments: only the verb that they begin with, or all verbs if they name none.

    Typer evaluates the annotations of each command that it is given, which takes longer than many a command.
    """
    verb = arguments[0] if arguments else ""
    commands = [command for command in app.registered_commands if command.name == verb]
    groups = [group for group in app.registered_groups if group.name == verb]
    if not commands and not groups:
        return app
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = commands, groups
    return alone
