"""`bench job …`: list jobs, show them, watch them, control them, resume them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchflow.cli import command
from benchflow.cli.command import BenchCommand, Json, Trust, Yes
from benchflow.cli.running_engine import find_engine, has_server
from benchflow.cli.submit_options import AGENT, RUN
from benchflow.paths import RESCORED

if TYPE_CHECKING:
    from benchflow.jobs import Engine, Job
    from benchflow.results.summary import Summary

app = typer.Typer(help="Jobs: list, show, watch, cancel, resume, pause.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="The job's name; JOB/rescored/NAME of one that scores another.", show_default=False)
]
JobsDir = Annotated[Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")]
JOBS = Path("jobs")


# --- reading -------------------------------------------------------------------------------------------------


@app.command("list", cls=BenchCommand)
def list_(jobs_dir: JobsDir = JOBS, as_json: Json = False) -> None:
    """The jobs of a directory, the latest first, with their scorings that run. Starts nothing."""
    from benchflow.cli.figures import format_mean_cell
    from benchflow.cli.glances import glance, list_job_directories
    from benchflow.cli.screen import make_console, make_table, print_json
    from benchflow.cli.terminal import Text, make_line

    running = command.run(_find_running_jobs())
    jobs = []
    for directory in list_job_directories(jobs_dir):
        scorings = [
            scoring
            for scoring in list_job_directories(directory / RESCORED)
            if _compute_job_id(scoring) in (running or ())
        ]
        for place in [*scorings, directory]:
            if (seen := glance(place)) is not None:
                summary, is_own = seen
                name = summary.job if place == directory else f"{directory.name}/{RESCORED}/{summary.job}"
                state = _name_state(summary, None if running is None else _compute_job_id(place) in running)
                jobs.append((summary.model_copy(update={"job": name}), state, is_own))
    if as_json:
        listed = [summary.model_dump(mode="json") | {"state": state, "is_own": own} for summary, state, own in jobs]
        return print_json({"jobs_dir": str(jobs_dir.absolute()), "jobs": listed})
    screen = make_console()
    if not jobs:
        screen.print(make_line(f"There is no job in {jobs_dir}."), soft_wrap=True)
        return None
    right: dict[str, Any] = {"justify": "right", "no_wrap": True}
    rows = make_table(
        ("job", {"overflow": "fold"}), ("done", right), ("passed", right), ("errored", right), ("mean", right), "state"
    )
    for summary, state, is_own in jobs:
        rows.add_row(
            summary.job,
            f"{summary.finished}/{summary.total}",
            str(summary.passed),
            Text(str(summary.errored), "red" if summary.errored else ""),
            format_mean_cell(summary),
            Text.assemble(state, ("" if is_own else ", not yours", "yellow")),
        )
    screen.print(rows)


async def _find_running_jobs() -> set[str] | None:
    """Return the ids of the running jobs; empty if there is no server, None if there is one that does not answer."""
    engine = await find_engine()
    if engine is None:
        return None if has_server() else set()
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError

    from benchflow.contracts import temporal_names

    query = f"WorkflowType='{temporal_names.JOB_WORKFLOW}' AND ExecutionStatus='Running'"
    running = set()
    try:
        async for found in engine.client.list_workflows(query):
            # The list lags behind: a job that has just finished is still in it.
            if (await engine.client.get_workflow_handle(found.id).describe()).status == WorkflowExecutionStatus.RUNNING:
                running.add(found.id)
        return running
    except RPCError:
        return None


def _compute_job_id(directory: Path) -> str:
    """Return the workflow id of the job of a results directory."""
    from benchflow.contracts import ids
    from benchflow.paths import JobPaths

    root = JobPaths.of(directory.parent, directory.name).root
    return ids.job_id(root.name, str(root.parent))


def _name_state(summary: Summary, is_running: bool | None) -> str:
    """Return the state of a job: `running`, `finished`, `incomplete`, or `unknown`.

    Args:
        summary: Summary of the job.
        is_running: Whether its workflow runs; None if the server does not answer.
    """
    if is_running:
        return "running"
    if not summary.not_run:
        return "finished"
    return "unknown" if is_running is None else "incomplete"


@app.command(cls=BenchCommand)
def show(name: Name, jobs_dir: JobsDir = JOBS, as_json: Json = False) -> None:
    """What a job is, how far it is, and its results so far. Starts nothing."""
    from benchflow.cli.figures import show_agents
    from benchflow.cli.job_report import make_document, show_errors, show_question, show_rows, show_totals, show_ui
    from benchflow.cli.mode_display import show_mode
    from benchflow.cli.screen import make_console, print_json, show_place
    from benchflow.cli.terminal import make_line
    from benchflow.contracts import ids
    from benchflow.paths import JobPaths
    from benchflow.results.summary import read_results, read_spec, summarize

    paths = JobPaths.of(jobs_dir, name)
    spec, results = read_spec(paths), read_results(paths)
    summary = summarize(name, spec.total, results, spec)
    job_id = ids.job_id(paths.root.name, str(paths.root.parent))
    running, progress, engine = command.run(_query_job(job_id))
    state = _name_state(summary, running)
    if as_json:
        ui = engine.ui_of(job_id) if engine else None
        facts: dict[str, Any] = {"id": job_id, "name": name, "directory": str(paths.root), "ui": ui, "state": state}
        facts |= {"total": spec.total, "progress": progress, "spec": spec.model_dump(mode="json")}
        return print_json(make_document(facts, summary, results, spec.run.mode))
    screen = make_console()
    agents = ", ".join(agent.label for agent in spec.agents)
    screen.print(make_line((name, "bold"), f"  {state}"), soft_wrap=True)
    show_place("tasks", ", ".join(task.name for task in spec.tasks), screen)
    show_place("agents", agents + (f", {spec.repeats} times" if spec.repeats > 1 else ""), screen)
    show_place("sandbox", spec.run.sandbox, screen)
    show_place("results", str(paths.root), screen)
    if engine:
        show_ui(engine, job_id, screen)
    if progress:
        about = f"{progress['open_count']} open, {progress['waiting']} waiting, {progress['concurrency']} at a time"
        show_place("now", about + (", paused" if progress["paused"] else ""), screen)
        if progress["asked"]:
            show_question(progress["asked"]["message"], paths, screen)
    show_rows(results, screen)
    show_mode(paths, spec.run.mode, results, screen)
    show_errors(results, screen)
    if len(summary.agents) > 1:
        show_agents(summary, screen)
    show_totals(summary, screen)


async def _query_job(job_id: str) -> tuple[bool | None, dict[str, Any] | None, Engine | None]:
    """Return whether the job of this id runs, its progress, and the engine on its server. Never starts a server.

    The first is None if the server does not answer, the progress if no worker does, or the job does not run; the engine
    if the server does not answer, or does not know the job.
    """
    engine = await find_engine()
    if engine is None:
        return None if has_server() else False, None, None
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.exceptions import TemporalError
    from temporalio.service import RPCError

    from benchflow.contracts import temporal_names
    from benchflow.contracts.job import JobProgress
    from benchflow.errors import BenchFlowError
    from benchflow.workflow_executions import is_not_found

    handle = engine.client.get_workflow_handle(job_id)
    try:
        if (await handle.describe()).status != WorkflowExecutionStatus.RUNNING:
            return False, None, engine
    except RPCError as error:
        return False if is_not_found(error) else None, None, None
    try:
        progress = await handle.query(temporal_names.PROGRESS, result_type=JobProgress)
    except (TemporalError, BenchFlowError):
        # It runs, but no worker answers now.
        return True, None, engine
    return True, progress.model_dump(mode="json", exclude={"recent"}), engine


@app.command(cls=BenchCommand)
def watch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB | ROLLOUT", help="A job, or of a rollout: JOB/TASK, JOB/TASK__ID, its id.", show_default=False
        ),
    ],
    follow_rollout: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the trajectory of a rollout while it is written, to its end.")
    ] = False,
    jobs_dir: JobsDir = JOBS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; of a rollout, each event as a line.")
    ] = False,
) -> None:
    """Follow a running job to its end, or show the trajectory of one of its rollouts. Ctrl-C leaves them running.

    Without --follow a rollout's trajectory is shown as far as it is.
    """
    if follow_rollout or ("/" in name and f"/{RESCORED}/" not in name):
        from benchflow.cli.rollout_watch import watch_rollout

        raise typer.Exit(watch_rollout(name, jobs_dir, to_the_end=follow_rollout, as_json=as_json))
    from benchflow.cli.bench_submit import detach_from
    from benchflow.cli.job_report import finish
    from benchflow.cli.screen import make_console
    from benchflow.cli.watch import follow
    from benchflow.jobs import open_job

    screen = make_console(stderr=as_json)
    opened: list[Job] = []

    async def work() -> None:
        job = await open_job(name, jobs_dir)
        opened.append(job)
        if await job.is_running():
            job.attached = True
            await follow(job, screen)
        else:
            await job.fetch()

    try:
        command.run(work())
    except KeyboardInterrupt:
        if not opened:
            raise
        detach_from(opened[0], screen)
    raise typer.Exit(finish(opened[0], screen, as_json))


# --- controlling ---------------------------------------------------------------------------------------------


@app.command(cls=BenchCommand)
def cancel(
    name: Name,
    jobs_dir: JobsDir = JOBS,
    rollout: Annotated[
        list[str] | None,
        typer.Option("--rollout", metavar="TASK", help="Only the running rollouts of this task; repeatable."),
    ] = None,
) -> None:
    """Cancel a job, or some of its rollouts.

    Agents are stopped, sandboxes removed, and what there is is recorded.
    """
    from benchflow.cli.screen import format_count, make_console
    from benchflow.cli.terminal import make_line

    if rollout:
        count = command.run(_cancel_rollouts(name, jobs_dir, rollout))
        make_console().print(make_line(f"Asked {format_count(count, 'rollout')} of {name} to stop."), soft_wrap=True)
    else:
        _control(name, jobs_dir, lambda job: job.cancel(), "is being cancelled")


async def _cancel_rollouts(name: str, jobs_dir: Path, tasks: list[str]) -> int:
    """Cancel the running rollouts of a job that are of these tasks or have these ids, and return how many there are.

    Raises:
        ConfigError: None of them is running.
    """
    from benchflow.cli.watch import Labels
    from benchflow.contracts import temporal_names
    from benchflow.errors import ConfigError
    from benchflow.jobs import open_job

    job = await open_job(name, jobs_dir)
    labels = Labels(job.id, job.spec)
    ours = f"{temporal_names.ATTR_JOB}='{name}' AND WorkflowType='{temporal_names.ROLLOUT_WORKFLOW}'"
    query = f"{ours} AND ExecutionStatus='Running'"
    running = [found.id async for found in job.engine.client.list_workflows(query)]
    running = [rollout for rollout in running if rollout.startswith(f"{job.id}/r/")]
    chosen = [rollout for rollout in running if rollout in tasks or labels.task(rollout) in tasks]
    if not chosen:
        now = ", ".join(sorted({labels.task(rollout) for rollout in running})) or "none"
        raise ConfigError(
            f"no rollout of {', '.join(tasks)} is running", key="--rollout", remedy=f"running tasks: {now}"
        )
    for rollout in chosen:
        await job.cancel_rollout(rollout)
    return len(chosen)


@app.command(cls=BenchCommand)
def pause(name: Name, jobs_dir: JobsDir = JOBS) -> None:
    """Start no further rollout of a job; those that run go on."""
    _control(name, jobs_dir, lambda job: job.pause(), "is paused; bench job unpause lets it go on")


@app.command(cls=BenchCommand)
def unpause(name: Name, jobs_dir: JobsDir = JOBS) -> None:
    """Let a paused job go on."""
    _control(name, jobs_dir, lambda job: job.unpause(), "goes on")


@app.command(cls=BenchCommand)
def concurrency(
    name: Name,
    number: Annotated[int, typer.Argument(metavar="N", min=1, max=500, help="Sandboxes that run at a time.")],
    jobs_dir: JobsDir = JOBS,
) -> None:
    """Change how many sandboxes of a job run at a time."""
    _control(name, jobs_dir, lambda job: job.set_concurrency(number), f"runs {number} at a time")


def _control(name: str, jobs_dir: Path, action: Any, done: str) -> None:
    """Call `action` with the job of this name, and print that the job `done`."""
    from benchflow.cli.screen import make_console
    from benchflow.cli.terminal import make_line
    from benchflow.jobs import open_job

    async def work() -> None:
        await action(await open_job(name, jobs_dir))

    command.run(work())
    make_console().print(make_line(f"{name} {done}."), soft_wrap=True)


# --- resuming ------------------------------------------------------------------------------------------------


@app.command(cls=BenchCommand)
def resume(
    name: Name,
    jobs_dir: JobsDir = JOBS,
    errored: Annotated[bool, typer.Option("--errored", help="Run those again that errored, too.")] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--concurrency",
            metavar="N",
            min=1,
            max=500,
            help="Sandboxes that run at a time, those of branches included. "
            "[dim]\\[default: as it was last started][/dim]",
            rich_help_panel=RUN,
        ),
    ] = None,
    context_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The build context that the job was submitted with.")
    ] = None,
    trust: Trust = False,
    yes: Yes = False,
    no_preflight: Annotated[
        bool,
        typer.Option(
            "--no-preflight",
            help="Don't ask each model for one token before the job starts.",
            rich_help_panel=AGENT,
        ),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return at once.")] = False,
    as_json: Json = False,
) -> None:
    """Run what has no result, or lost its model: never started, lost or cancelled.

    A job whose tasks were changed meanwhile is not mixed with its old
    results: the changes are listed instead.
    """
    from benchflow.cli.bench_submit import start
    from benchflow.cli.resume import plan_again

    plan = plan_again(
        name,
        jobs_dir,
        concurrency=concurrency,
        context_root=context_root,
        trust=trust,
        preflight=not no_preflight,
    )
    again = ("cancelled", "not_started", "model_endpoint", *(["errored"] if errored else []))
    start(plan, again=again, detach=detach, as_json=as_json, yes=yes)


@app.command(cls=BenchCommand)
def fetch(name: Name, jobs_dir: JobsDir = JOBS) -> None:
    """Lay out the results of a job that ran on a cluster."""
    from benchflow.cli.screen import format_count, make_console
    from benchflow.jobs import open_job

    async def work() -> tuple[int, int]:
        job = await open_job(name, jobs_dir)
        return await job.fetch(), len(job.results())

    fetched, here = command.run(work())
    make_console().print(f"{format_count(fetched, 'rollout')} fetched, {here} here.")
