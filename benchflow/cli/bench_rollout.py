"""`bench rollout …`: answer an agent's question, preview the score meanwhile, roll back, replay from the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchflow.cli import command
from benchflow.cli.command import BenchCommand, Json, Trust, Yes

if TYPE_CHECKING:
    from benchflow.cli.chosen import Chosen
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rollback import Restored
    from benchflow.contracts.rollout_records import Answer, Question

app = typer.Typer(
    help="Rollouts: answer their agents, look at their score, put them back, run them again from their records.",
    no_args_is_help=True,
)


@app.command(cls=BenchCommand)
def answer(
    rollout: Annotated[
        str, typer.Argument(metavar="ROLLOUT", help="JOB/TASK, JOB/TASK__ID, or its id.", show_default=False)
    ],
    option: Annotated[
        str | None,
        typer.Argument(metavar="OPTION", help="The id of an option; without it the question is shown."),
    ] = None,
    content: Annotated[
        str | None, typer.Option(metavar="JSON", help="What a form is filled in with: an object.")
    ] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Answer with a refusal.")] = False,
    jobs_dir: Annotated[
        Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")
    ] = Path("jobs"),
    as_json: Json = False,
) -> None:
    """Answer what an agent asks, in a rollout with --permissions ask.

    The agent waits for it, however long, and the rollout's time limit does
    not run meanwhile.
    """
    from benchflow.cli.chosen import choose
    from benchflow.cli.screen import make_console, print_json
    from benchflow.cli.terminal import Text, make_line
    from benchflow.sanitise import sanitise_log

    chosen = choose(rollout, jobs_dir)
    given = _parse_form(content)
    question = command.run(_send_answer(chosen, option, given, refuse))
    if as_json:
        return print_json({"rollout": chosen.id, "question": question.model_dump(mode="json")})
    screen = make_console()
    screen.print(make_line((chosen.label, "bold"), " asks:"), soft_wrap=True)
    # Indented: no line of the agent's text may pass for an option, or for a line of the command.
    screen.print(Text("\n".join(f"│ {row}" for row in sanitise_log(question.text).split("\n"))), soft_wrap=True)
    if option is not None or given is not None or refuse:
        screen.print("answered.", style="dim")
        return None
    for row in question.options:
        screen.print(make_line(f"  {row.id}  {row.name}"), soft_wrap=True)
    if question.form is not None and not question.options:
        screen.print(make_line(f"  --content: {json.dumps(question.form)}"), soft_wrap=True)
    return None


@app.command(cls=BenchCommand)
def verify(
    rollout: Annotated[
        str, typer.Argument(metavar="ROLLOUT", help="JOB/TASK, JOB/TASK__ID, or its id.", show_default=False)
    ],
    jobs_dir: Annotated[
        Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")
    ] = Path("jobs"),
    as_json: Json = False,
) -> None:
    """What the verifier would say now, while the agent waits for an answer.

    Nothing is ended, and nothing that the verifier brings stays in the
    sandbox. What it itself does to the workspace is done.
    """
    from benchflow.cli.chosen import choose
    from benchflow.cli.screen import format_reward as shown
    from benchflow.cli.screen import make_console, print_json
    from benchflow.cli.terminal import make_line

    chosen = choose(rollout, jobs_dir)
    result = command.run(_preview_score(chosen))
    if as_json:
        return print_json({"rollout": chosen.id, "verify": result.model_dump(mode="json", exclude={"events"})})
    screen = make_console()
    screen.print(make_line((chosen.label, "bold"), "  reward ", (shown(result.reward), "bold")), soft_wrap=True)
    for name, value in result.items.items():
        screen.print(make_line(f"  {name}  {shown(value)}"), soft_wrap=True)
    for warning in result.warnings:
        screen.print(make_line(f"warning: {warning}"), soft_wrap=True)
    return None


@app.command(cls=BenchCommand)
def rollback(
    rollout: Annotated[
        str, typer.Argument(metavar="ROLLOUT", help="JOB/TASK, JOB/TASK__ID, or its id.", show_default=False)
    ],
    node: Annotated[str, typer.Argument(metavar="NODE", help="As bench tree show names it.", show_default=False)],
    jobs_dir: Annotated[
        Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")
    ] = Path("jobs"),
    as_json: Json = False,
) -> None:
    """Put a rollout back to a node, and have it go on from there.

    NODE must have a checkpoint (bench tree show marks them). What came of it
    is undone; what models have used for that is still counted. A rollout that
    has ended goes on from a node of its own if its job was submitted with
    --keep checkpoints; bench job watch shows how far it is.
    """
    from benchflow.cli.chosen import choose
    from benchflow.cli.screen import make_console, print_json
    from benchflow.cli.terminal import make_line

    chosen = choose(rollout, jobs_dir)
    said = command.run(_roll_back(chosen, node))
    if as_json:
        return print_json(said.model_dump(mode="json"))
    undone = f"; undone: {', '.join(said.undone)}" if said.undone else ""
    make_console().print(make_line(f"{chosen.label} is at {said.node} again{undone}"), soft_wrap=True)
    return None


@app.command(cls=BenchCommand)
def replay(
    rollout: Annotated[
        str, typer.Argument(metavar="ROLLOUT", help="JOB/TASK, JOB/TASK__ID, or its id.", show_default=False)
    ],
    until: Annotated[
        str | None, typer.Option(metavar="NODE", help="The last node whose calls are answered from the record.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with an error at the first call that is not in the record.")
    ] = False,
    job_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the new job. [dim]\\[default: JOB-replay-TIME][/dim]")
    ] = None,
    trust: Trust = False,
    jobs_dir: Annotated[
        Path, typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.")
    ] = Path("jobs"),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run a rollout again, with its model's answers taken from its record.

    They are the recorded ones, byte for byte, for as long as the agent asks
    what it asked; from then on the model answers, unless --strict.
    """
    from benchflow.cli.bench_submit import start
    from benchflow.cli.chosen import choose
    from benchflow.cli.resume import plan_replay

    plan = plan_replay(choose(rollout, jobs_dir), until=until, strict=strict, job_name=job_name, trust=trust)
    start(plan, as_json=as_json, yes=yes)


def _parse_form(content: str | None) -> dict[str, Any] | None:
    """Parse the answer to a form, a JSON object. Raise `UsageError` if it is none."""
    from benchflow.errors import UsageError

    if content is None:
        return None
    try:
        form = json.loads(content)
    except ValueError:
        form = None
    if not isinstance(form, dict):
        raise UsageError(f"{content!r} is no JSON object", key="--content", remedy="""write '{"name": "value"}'""")
    return form


async def _send_answer(chosen: Chosen, option: str | None, content: dict[str, Any] | None, refuse: bool) -> Question:
    """Return the question for which the rollout waits. Send the answer to it, if one was given.

    Args:
        chosen: The rollout.
        option: Id of the chosen option.
        content: Content of a form.
        refuse: Send an answer that has neither, which refuses.

    Raises:
        StackError: There is no server.
        UsageError: The rollout does not run, asks nothing, or does not offer the option.
    """
    from temporalio.service import RPCError

    from benchflow.cli.running_engine import find_engine
    from benchflow.contracts import temporal_names
    from benchflow.contracts.job import RolloutProgress
    from benchflow.contracts.rollout_records import Answer
    from benchflow.errors import StackError, UsageError
    from benchflow.workflow_executions import require_not_found

    engine = await find_engine()
    if engine is None:
        raise StackError("no server runs, and so does no rollout", remedy="bench stack start")
    handle = engine.client.get_workflow_handle(chosen.id)
    try:
        progress: RolloutProgress = await handle.query(temporal_names.PROGRESS, result_type=RolloutProgress)
        question = progress.question
        if question is None:
            raise UsageError(f"{chosen.label} asks nothing now", key="ROLLOUT", remedy="bench job watch shows it")
        if option is not None or content is not None or refuse:
            given = Answer(question=question.id, option=option, content=content)
            _require_offered(question, given)
            await handle.signal(temporal_names.ANSWER, given)
    except RPCError as error:
        require_not_found(error)
        raise UsageError(f"{chosen.label} does not run: {error.message}", key="ROLLOUT") from error
    return question


async def _roll_back(chosen: Chosen, node: str) -> Restored:
    """Roll a rollout back to a node: in its workflow if it runs, else by a restart if its checkpoints are retained."""
    from temporalio.client import WorkflowExecutionStatus

    from benchflow.cli.running_engine import find_engine
    from benchflow.errors import StackError
    from benchflow.jobs.job_client import read_status
    from benchflow.jobs.rollback_request import roll_back_running

    engine = await find_engine()
    status = await read_status(engine.client, chosen.id) if engine is not None else None
    if engine is not None and status == WorkflowExecutionStatus.RUNNING:
        return await roll_back_running(engine.client, chosen.id, node)
    if chosen.spec.run.keep == "checkpoints":
        return await _restart(chosen, node)
    if engine is None:
        raise StackError("no server runs, and so does no rollout", remedy="bench stack start")
    return await roll_back_running(engine.client, chosen.id, node)


async def _restart(chosen: Chosen, node: str) -> Restored:
    """Restart an ended rollout from a node."""
    from benchflow.cli.resume import plan_again
    from benchflow.jobs.rollback_request import roll_back_ended

    jobs_dir = chosen.job.root.parent
    plan = plan_again(chosen.job.root.name, jobs_dir, concurrency=None, context_root=None, preflight=False)
    return await roll_back_ended(plan, chosen.index, node)


async def _preview_score(chosen: Chosen) -> VerifyResult:
    """Return the result of a verification preview (`soft_verify`).

    Raises:
        StackError: There is no server.
        UsageError: The rollout does not run, or does not wait for an answer.
        ServerUnavailableError: The server does not answer in time.
        VerifierError: The verification has failed.
    """
    from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
    from temporalio.service import RPCError

    from benchflow.cli.running_engine import find_engine
    from benchflow.contracts import temporal_names
    from benchflow.contracts.reward import VerifyResult
    from benchflow.errors import ServerUnavailableError, StackError, UsageError, VerifierError
    from benchflow.workflow_executions import require_not_found

    engine = await find_engine()
    if engine is None:
        raise StackError("no server runs, and so does no rollout", remedy="bench stack start")
    try:
        handle = engine.client.get_workflow_handle(chosen.id)
        said: VerifyResult = await handle.execute_update(temporal_names.SOFT_VERIFY, result_type=VerifyResult)
    except RPCError as error:
        require_not_found(error)
        raise UsageError(f"{chosen.label} does not run: {error.message}", key="ROLLOUT") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise ServerUnavailableError("the Temporal server has not answered in time", remedy="ask again") from error
    except WorkflowUpdateFailedError as error:
        told = getattr(error.cause, "message", str(error.cause))
        if getattr(error.cause, "type", "") == UsageError.__name__:
            raise UsageError(
                f"{chosen.label} cannot be looked at now: {told}",
                key="ROLLOUT",
                remedy="wait until its agent asks something: --permissions ask",
            ) from error
        raise VerifierError(f"{chosen.label}: {told}") from error
    return said


def _require_offered(question: Question, answer: Answer) -> None:
    """Raise `UsageError` if an answer has an option that is not offered, or a form that is not asked for.

    The agent would not get the answer that was meant.
    """
    from benchflow.errors import UsageError

    offered = [row.id for row in question.options]
    if answer.option is not None and answer.option not in offered:
        raise UsageError(
            f"{answer.option!r} is not offered", key="OPTION", remedy=f"use one of: {', '.join(offered) or '--content'}"
        )
    if answer.content is not None and question.kind != "form":
        raise UsageError("this question has options, and no form", key="--content", remedy=f"one of: {offered}")
