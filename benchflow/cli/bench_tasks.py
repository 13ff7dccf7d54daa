"""`bench tasks …`: check, make and migrate tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from benchflow.cli import command
from benchflow.cli.command import BenchCommand, Json

if TYPE_CHECKING:
    from benchflow.cli.terminal import Screen
    from benchflow.contracts.task import Task
    from benchflow.user_files.problems import Problem

app = typer.Typer(help="Tasks: check, init, migrate.", no_args_is_help=True)

_STYLES = {"error": "bold red", "unsupported": "bold magenta", "warning": "yellow"}


@app.command(cls=BenchCommand)
def check(
    path: Annotated[Path, typer.Argument(help="A task, or a directory of tasks.", show_default=False)],
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    context_root: Annotated[Path | None, typer.Option(metavar="DIR", help="As for bench submit.")] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run the oracle too: is a clean room faithful to the task?")
    ] = False,
    sandbox: Annotated[str | None, typer.Option(metavar="NAME", help="For --run, as for bench submit.")] = None,
    as_json: Json = False,
) -> None:
    """Every problem of a task, with file, key and what to do.

    Runs nothing, unless with --run: then the oracle's work is scored where it
    works and in a clean room, and whether both tell the same is kept for later
    rollouts on this host.

    Exit status: 0 every task can be run, 1 some cannot, 2 there is no task.
    With --run, 1 also if an oracle was not scored.
    """
    from benchflow.cli.oracles import list_fidelity, run_oracles, show_fidelity
    from benchflow.cli.screen import make_console, print_json
    from benchflow.cli.variables import list_variables, make_variables_document, show_variables
    from benchflow.tasks import check as check_tasks
    from benchflow.tasks import find_tasks, read_task

    found = find_tasks(path)
    usable = [(root, task) for root in found if (task := read_task(root, context_root=context_root).task)]
    taken = list_variables(usable)
    problems = check_tasks(path, strict=strict, context_root=context_root)
    problems += [problem for root, task in usable for problem in _check_rewards(root, task)]
    unusable = any(problem.severity != "warning" for problem in problems)
    job = None
    if run and not unusable:
        job = run_oracles(path, context_root=context_root, sandbox=sandbox, screen=make_console(stderr=as_json))
    if as_json:
        tasks = [str(task) for task in found]
        rows = [problem.model_dump(mode="json") for problem in problems]
        print_json(
            {
                "path": str(path),
                "tasks": tasks,
                "ok": not unusable,
                "problems": rows,
                "variables": make_variables_document(taken),
                **({"oracles": list_fidelity(job.results())} if job is not None else {}),
            }
        )
    else:
        _show(problems, len(found), make_console())
        show_variables(taken, make_console())
        if job is not None:
            show_fidelity(job.results(), make_console())
    is_unscored = job is not None and any(result.rewards is None for result in job.results())
    raise typer.Exit(command.SOME_ERRORED if unusable or is_unscored else command.ALL_SCORED)


def _check_rewards(root: Path, task: Task) -> list[Problem]:
    """Return what keeps a task's reward functions from being made, as far as that is known without their code."""
    if task.reward is None:
        return []
    from benchflow.contracts.allowed_code import allowing
    from benchflow.errors import BenchFlowError
    from benchflow.planes.reward.functions import check_declared
    from benchflow.user_files.problems import Problem

    file = str(root / task.config_file)
    try:
        return [
            Problem(
                severity="warning",
                kind="value",
                file=file,
                key=key,
                message=f"names code of this host, {name!r}, which is not imported unless it is allowed",
                suggestion=allowing(name),
            )
            for key, name in list(check_declared(task.reward, file=file))
        ]
    except BenchFlowError as error:
        return [
            Problem(
                severity="error",
                kind="value",
                file=file,
                key=error.key,
                message=error.message,
                suggestion=error.remedy,
            )
        ]


def _show(problems: list[Problem], tasks: int, screen: Screen) -> None:
    from benchflow.cli.screen import format_count, indent_lines
    from benchflow.cli.terminal import Text, make_line

    file = ""
    for problem in problems:
        if problem.file != file:
            file = problem.file
            screen.print(make_line((file, "bold")), soft_wrap=True)
        key = (f"{problem.key}: ", "cyan") if problem.key else ""
        head = make_line("  ", (f"{problem.severity}: ", _STYLES[problem.severity]), key)
        text = Text.assemble(head, indent_lines(problem.message))
        if problem.suggestion:
            text.append("\n    remedy: ", "bold").append(indent_lines(problem.suggestion))
        screen.print(text)
    kinds = [problem.severity for problem in problems]
    words = {"error": "error", "unsupported": "unsupported feature", "warning": "warning"}
    counts = [format_count(kinds.count(kind), word) for kind, word in words.items() if kind in kinds]
    screen.print(f"{format_count(tasks, 'task')}: {', '.join(counts) or 'no problem'}")


@app.command(cls=BenchCommand)
def init(
    name: Annotated[str, typer.Argument(help="The task's name, or org/name.", show_default=False)],
    layout: Annotated[
        Literal["native", "split"], typer.Option(help="native: task.md; split: task.toml and instruction.md.")
    ] = "native",
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the task's directory goes.")] = Path(),
) -> None:
    """Make a small, complete task to start from."""
    from benchflow.cli.screen import make_console
    from benchflow.cli.terminal import make_line
    from benchflow.tasks import init_task

    root = init_task(directory, name, layout=layout)
    screen = make_console()
    files = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    screen.print(make_line((str(root), "bold")), soft_wrap=True)
    for file in files:
        screen.print(make_line(f"  {file}"))
    screen.print(make_line(("try it:", "dim"), f" bench submit {root} --agent oracle"), soft_wrap=True)


@app.command(cls=BenchCommand)
def migrate(
    path: Annotated[Path, typer.Argument(help="A task, or a directory of tasks.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Turn split tasks (task.toml) into native ones (task.md), in place; native ones are left alone."""
    from benchflow.cli.screen import format_count, make_console, print_json
    from benchflow.cli.terminal import make_line
    from benchflow.tasks import find_tasks, migrate_task

    reports = [migrate_task(task) for task in find_tasks(path) if not (task / "task.md").exists()]
    if as_json:
        return print_json({"migrated": [report.model_dump(mode="json") for report in reports]})
    screen = make_console()
    for report in reports:
        screen.print(make_line((str(report.path), "bold")), soft_wrap=True)
        for old, new in report.moved:
            screen.print(make_line(f"  {old} → {new}"), soft_wrap=True)
        for key in report.kept:
            screen.print(make_line(("  kept, not known here:", "dim"), f" {key}"), soft_wrap=True)
        for warning in report.warnings:
            screen.print(make_line(("  warning:", "yellow"), f" {warning}"), soft_wrap=True)
    screen.print(f"{format_count(len(reports), 'task')} migrated.")
