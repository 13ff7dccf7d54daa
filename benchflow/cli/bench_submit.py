"""`bench submit` and its alias `bench eval create`: run agents on tasks, and print a table of rewards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchflow.cli import command
from benchflow.cli.command import AllowCode, Json, Yes
from benchflow.cli.submit_options import (
    AGENT,
    RUN,
    SCORE,
    EndpointPolicy,
    NoPreflight,
    OnTampering,
    Rebuild,
    RequireProvenState,
    RewardKey,
    StopAfterErrors,
    VerifyIn,
    concurrency_option,
)

if TYPE_CHECKING:
    from benchflow.cli.submit_request import FileRequest
    from benchflow.cli.terminal import Screen
    from benchflow.jobs import Job, JobPlan

_JOB = "The job"
_TASKS = "Which tasks"
_SHOW = "What is shown"


def submit(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="A task, a directory of tasks, or a package (tasks/).", show_default=False),
    ] = None,
    tasks_dir: Annotated[
        list[Path] | None,
        typer.Option("--tasks-dir", metavar="DIR", help="The same as PATH.", rich_help_panel=_TASKS),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only tasks of this name; repeatable.", rich_help_panel=_TASKS),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="No tasks of this name; repeatable.", rich_help_panel=_TASKS),
    ] = None,
    context_root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Build context instead of each task's environment/.", rich_help_panel=_TASKS),
    ] = None,
    environment_manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The world of all tasks, instead of the one that they or their package name.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The world of all tasks: an environment of an installed package, by its entry point.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    environment_import_path: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The world of all tasks: an environment of your own, installed or in this directory.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT",
            help="NAME or NAME:MODEL; repeatable; see bench agent list. [dim]\\[default: oracle][/dim]",
            rich_help_panel=AGENT,
        ),
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
    agent_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V",
            help="A variable of the agent's; K alone hands yours on. Its value is recorded nowhere; repeatable.",
            rich_help_panel=AGENT,
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An endpoint of your own, of the kind that the agent speaks, as the host of the sandboxes reaches it.",
            rich_help_panel=AGENT,
        ),
    ] = None,
    effort: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="How hard the model thinks.", rich_help_panel=AGENT)
    ] = None,
    permissions: Annotated[
        str | None,
        typer.Option(
            metavar="auto|deny|ask",
            help="Who answers what an agent asks; ask waits for bench rollout answer. [dim]\\[default: auto][/dim]",
            rich_help_panel=AGENT,
        ),
    ] = None,
    agent_idle_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SEC", help="How long an agent may be silent. [dim]\\[default: 600][/dim]", rich_help_panel=AGENT
        ),
    ] = None,
    endpoint_policy: EndpointPolicy = None,
    stop_after_errors: StopAfterErrors = None,
    no_preflight: NoPreflight = False,
    sandbox: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where it runs: docker, local, …; auto is docker if it answers, else local. "
            "[dim]\\[default: auto][/dim]",
            rich_help_panel=RUN,
        ),
    ] = None,
    concurrency: Annotated[int | None, concurrency_option("4")] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--repeats",
            metavar="N",
            min=1,
            max=10_000,
            help="Rollouts per task and agent. [dim]\\[default: 1][/dim]",
            rich_help_panel=RUN,
        ),
    ] = None,
    rebuild: Rebuild = False,
    max_retries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Further attempts after a failure that may pass. [dim]\\[default: 2][/dim]",
            rich_help_panel=RUN,
        ),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY:K=V,… | FILE",
            help="Children go on from one state, whose value is what they earn: group:n=8, after_steps:steps=1+3,n=4, "
            "or a file; see docs/branching.md.",
            rich_help_panel=RUN,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE:K=V,…",
            help="What the job is for: grpo:n=8 (a group a task, in groups.jsonl) or value:depths=0+2,n=4 (V(s) at "
            "these depths, in values.jsonl).",
            rich_help_panel=RUN,
        ),
    ] = None,
    agent_timeout: Annotated[
        float | None,
        typer.Option(metavar="SEC", help="Of a turn; overrides the tasks' own.", rich_help_panel=AGENT),
    ] = None,
    sandbox_setup_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SEC",
            help="To prepare the sandbox for the agent. [dim]\\[default: 120][/dim]",
            rich_help_panel=RUN,
        ),
    ] = None,
    judge_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Of tasks that a model judges: openai/… or anthropic/…; instead of the one that they name.",
            rich_help_panel=SCORE,
        ),
    ] = None,
    judge_base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An endpoint of your own for it.", rich_help_panel=SCORE),
    ] = None,
    judge_key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The variable that holds its key. [dim]\\[default: the provider's][/dim]",
            rich_help_panel=SCORE,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="evidence|workspace|checkpoints",
            help="What is kept: what scorers read, the workspace too (to score it again), "
            "and checkpoints as well (to roll it back after its end). "
            "[dim]\\[default: evidence][/dim]",
            rich_help_panel=SCORE,
        ),
    ] = None,
    keep_max_mb: Annotated[
        int | None,
        typer.Option(
            metavar="MB",
            min=1,
            help="The most that is kept of one rollout. [dim]\\[default: 256][/dim]",
            rich_help_panel=SCORE,
        ),
    ] = None,
    verify_in: VerifyIn = None,
    on_tampering: OnTampering = None,
    require_proven_state: RequireProvenState = False,
    reward_key: RewardKey = None,
    allow_code: AllowCode = None,
    yes: Yes = False,
    job_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A name that exists is attached to. [dim]\\[default: DIR-TIME-RANDOM][/dim]",
            rich_help_panel=_JOB,
        ),
    ] = None,
    jobs_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where results go. [dim]\\[default: jobs][/dim]", rich_help_panel=_JOB),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML; the command line wins over it.", rich_help_panel=_JOB),
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
    from benchflow.cli.submit_request import job_config

    request, of_file = job_config(
        paths=[*(paths or []), *(tasks_dir or [])],
        config=config,
        model=model,
        max_retries=max_retries,
        agents=agent,
        imported=agent_import_path,
        agent_env=agent_env,
        base_url=base_url,
        effort=effort,
        permissions=permissions,
        agent_idle_timeout_sec=agent_idle_timeout,
        endpoint_policy=endpoint_policy,
        preflight=False if no_preflight else None,
        stop_after_errors=stop_after_errors,
        sandbox=sandbox,
        jobs_dir=jobs_dir,
        job_name=job_name,
        concurrency=concurrency,
        repeats=repeats,
        include=include,
        exclude=exclude,
        context_root=context_root,
        environment_manifest=environment_manifest,
        environment_name=environment,
        environment_import_path=environment_import_path,
        sandbox_setup_timeout=sandbox_setup_timeout,
        branch=branch,
        mode=mode,
        agent_timeout_sec=agent_timeout,
        judge={"model": judge_model, "base_url": judge_base_url, "credential": judge_key},
        keep=keep,
        keep_max_mb=keep_max_mb,
        verify_in=verify_in,
        on_tampering=on_tampering,
        rebuild=rebuild or None,
        reward_key=reward_key,
        allow_code=allow_code,
        require_proven_state=require_proven_state or None,
    )
    from benchflow.cli.printed_plan import show_plan
    from benchflow.jobs import plan_job

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
    from benchflow.cli.screen import console
    from benchflow.cli.variables import confirm_variables

    confirm_variables(plan, of_file, is_agreed=yes)
    screen = console(stderr=as_json)
    submitted: list[Job] = []

    async def work() -> None:
        job = await submit_and_say(plan, again, screen, asks=not detach and screen.is_terminal and sys.stdin.isatty())
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
    from benchflow.cli.job_report import show_way_back, waiting_line
    from benchflow.cli.terminal import Text

    state = waiting_line(job.directory) if job.is_asking else "The job runs on."
    screen.print(Text.assemble("\n", ("Detached.", "bold"), " ", state), soft_wrap=True)
    show_way_back(job, screen)
    raise typer.Exit(command.INTERRUPTED)


async def submit_and_say(plan: JobPlan, again: tuple[str, ...], screen: Screen, *, asks: bool) -> Job:
    """Submit a plan, and print which job it is. asks: whether the user can decide about a job with equal errors."""
    from benchflow.cli.job_report import describe, show_ui
    from benchflow.cli.printed_plan import show_endpoints, show_warnings
    from benchflow.cli.screen import plural
    from benchflow.cli.terminal import line
    from benchflow.jobs import submit as submit_plan

    screen.print(line((plan.name, "bold"), f"  {describe(plan.config, len(plan.tasks))}"), soft_wrap=True)
    if plan.sandbox_reason:
        screen.print(line(f"sandbox {plan.config.sandbox}: {plan.sandbox_reason}", style="dim"), soft_wrap=True)
    show_warnings(plan, screen)
    show_endpoints(plan, screen)
    if screen.is_terminal:
        with screen.waiting(f"submitting {plural(len(plan.tasks), 'task')} …"):
            job = await submit_plan(plan, again=again, asks=asks)
    else:
        job = await submit_plan(plan, again=again)
    for warning in job.warnings:
        screen.print(line(("warning: ", "yellow"), warning), soft_wrap=True)
    show_ui(job.engine, job.id, screen)
    if job.attached:
        screen.print("This job runs already; attached to it.")
    elif not job.started:
        screen.print("Every rollout of this job has its result; nothing is run again.")
    elif job.started < job.spec.total:
        screen.print(
            f"{job.spec.total - job.started} of {plural(job.spec.total, 'rollout')} have their result already."
        )
    return job
