"""`bench submit` and its alias `bench eval create`: run agents on tasks, and print a table of rewards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchflow.cli import command
from benchflow.cli.command import Json, Yes
from benchflow.cli.submit_options import AGENT, JOB, TASKS

if TYPE_CHECKING:
    from benchflow.cli.submit_request import FileRequest
    from benchflow.cli.terminal import Screen
    from benchflow.jobs import Job, JobPlan

_SHOW = "What is shown"


def submit(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="A task, a directory of tasks, or a package (tasks/).", show_default=False),
    ] = None,
    tasks_dir: Annotated[
        list[Path] | None,
        typer.Option("--tasks-dir", metavar="DIR", help="The same as PATH.", rich_help_panel=TASKS),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="For the agents that name none; provider/model, or as the agent's first provider spells it.",
            rich_help_panel=AGENT,
        ),
    ] = None,
    agent_import_path: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="An agent of your own: an AgentRecord, or what makes one; repeatable.",
            rich_help_panel=AGENT,
        ),
    ] = None,
    yes: Yes = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML; the command line wins over it.", rich_help_panel=JOB),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it and return at once.", rich_help_panel=_SHOW)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, start nothing.", rich_help_panel=_SHOW)
    ] = False,
    as_json: Json = False,
) -> None:
    """Run agents on tasks and score them.

    Starts the local stack if need be, shows progress, and ends with a table
    of rewards. Ctrl-C detaches: the job runs on.

    Exit status: 0 all scored, 1 some errored, 2 bad request, 130 detached.
    """
    from benchflow.cli.printed_plan import show_plan
    from benchflow.cli.submit_request import make_job_config
    from benchflow.jobs import plan_job

    request, of_file = make_job_config(
        paths=[*(paths or []), *(tasks_dir or [])],
        config=config,
        model=model,
        imported=agent_import_path,
        **context.obj,
    )
    plan = plan_job(request)
    if dry_run:
        show_plan(plan, as_json, of_file)
    else:
        start(plan, of_file=of_file, detach=detach, as_json=as_json, yes=yes)


def start(
    plan: JobPlan,
    *,
    of_file: FileRequest | None = None,
    again: tuple[str, ...] = (),
    detach: bool = False,
    as_json: bool = False,
    yes: bool = False,
) -> None:
    """Submit a plan, follow the job to its end unless `detach`, and exit the process with its status.

    Stored rollouts whose status or error category is in `again` are run again. Unless `yes`, the user is asked about
    the variables that the tasks and the configuration file (`of_file`) take.
    """
    from benchflow.cli.job_report import finish, show_detached
    from benchflow.cli.screen import make_console
    from benchflow.cli.variables import confirm_variables

    confirm_variables(plan, of_file, is_agreed=yes)
    screen = make_console(stderr=as_json)
    submitted: list[Job] = []

    async def work() -> None:
        job = await submit_and_print(plan, again, screen, asks=not detach and screen.is_terminal and sys.stdin.isatty())
        submitted.append(job)
        if not detach and (job.started or job.attached):
            # Imported while the job starts.
            from benchflow.cli.watch import follow

            await follow(job, screen)

    try:
        command.run(work())
    except KeyboardInterrupt:
        if not submitted:
            raise
        detach_from(submitted[0], screen)
    job = submitted[0]
    if detach:
        show_detached(job, screen, as_json)
        raise typer.Exit(command.ALL_SCORED)
    raise typer.Exit(finish(job, screen, as_json))


def detach_from(job: Job, screen: Screen) -> None:
    """Print that the job runs on, or waits for an answer, and exit with the status of Ctrl-C."""
    from benchflow.cli.job_report import format_waiting, show_way_back
    from benchflow.cli.terminal import Text

    state = format_waiting(job.directory) if job.is_asking else "The job runs on."
    screen.print(Text.assemble("\n", ("Detached.", "bold"), " ", state), soft_wrap=True)
    show_way_back(job, screen)
    raise typer.Exit(command.INTERRUPTED)


async def submit_and_print(plan: JobPlan, again: tuple[str, ...], screen: Screen, *, asks: bool) -> Job:
    """Submit a plan, and print which job it is. asks: whether the user can decide about a job with equal errors."""
    from benchflow.cli.job_report import describe, show_ui
    from benchflow.cli.printed_plan import show_endpoints, show_warnings
    from benchflow.cli.screen import format_count
    from benchflow.cli.terminal import make_line
    from benchflow.jobs import submit as submit_plan

    screen.print(make_line((plan.name, "bold"), f"  {describe(plan.config, len(plan.tasks))}"), soft_wrap=True)
    if plan.sandbox_reason:
        screen.print(make_line(f"sandbox {plan.config.sandbox}: {plan.sandbox_reason}", style="dim"), soft_wrap=True)
    show_warnings(plan, screen)
    show_endpoints(plan, screen)
    if screen.is_terminal:
        with screen.waiting(f"submitting {format_count(len(plan.tasks), 'task')} …"):
            job = await submit_plan(plan, again=again, asks=asks)
    else:
        job = await submit_plan(plan, again=again)
    for warning in job.warnings:
        screen.print(make_line(("warning: ", "yellow"), warning), soft_wrap=True)
    show_ui(job.engine, job.id, screen)
    if job.attached:
        screen.print("This job runs already; attached to it.")
    elif not job.started:
        screen.print("Every rollout of this job has its result; nothing is run again.")
    elif job.started < job.spec.total:
        screen.print(
            f"{job.spec.total - job.started} of {format_count(job.spec.total, 'rollout')} have their result already."
        )
    return job
