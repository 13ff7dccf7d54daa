"""`bench stack …`: start, show and stop the embedded stack of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from benchflow.cli import command
from benchflow.cli.command import BenchCommand, Json

if TYPE_CHECKING:
    from benchflow.stack import StackRecord

app = typer.Typer(help="The local stack: Temporal server, worker, supervisor.", no_args_is_help=True)


@app.command(cls=BenchCommand)
def start(as_json: Json = False) -> None:
    """Start the local stack, or find it running. `bench submit` does this by itself."""
    from benchflow.cli.screen import make_console, print_json
    from benchflow.stack import ensure_stack

    record = ensure_stack()
    if as_json:
        return print_json(_list_facts(record, None))
    _show(record, make_console())


@app.command(cls=BenchCommand)
def status(as_json: Json = False) -> None:
    """What the local stack is doing. Starts nothing."""
    from benchflow.cli.screen import make_console, print_json, show_place
    from benchflow.cli.terminal import Text
    from benchflow.paths import StatePaths
    from benchflow.sanitise import sanitise_log
    from benchflow.stack import find_running, read_record

    paths = StatePaths.default()
    record = find_running(paths)
    if record is None:
        last = read_record(paths)
        failed = last.error if last is not None and last.state == "failed" else None
        if as_json:
            return print_json({"state": "stopped", "state_directory": str(paths.root), "error": failed})
        screen = make_console()
        screen.print("The local stack does not run; the next bench submit starts it.")
        if failed:
            screen.print(Text(f"It failed when it last ran: {sanitise_log(failed)}"), soft_wrap=True)
        return None
    workflows = command.run(_count_open_workflows(record))
    if as_json:
        return print_json(_list_facts(record, workflows))
    screen = make_console()
    _show(record, screen)
    if record.state == "running":
        show_place("open", "the server does not answer now" if workflows is None else f"{workflows} workflows", screen)


@app.command(cls=BenchCommand)
def stop(as_json: Json = False) -> None:
    """Stop the local stack. Jobs that run go on when it is started again."""
    from benchflow.cli.screen import format_count, make_console, print_json
    from benchflow.paths import StatePaths
    from benchflow.stack import find_running, stop_stack

    record = find_running(StatePaths.default())
    workflows = command.run(_count_open_workflows(record)) if record else None
    stopped = stop_stack()
    if as_json:
        return print_json({"stopped": stopped, "open_workflows": workflows})
    screen = make_console()
    screen.print("Stopped." if stopped else "The local stack did not run.")
    if workflows:
        screen.print(f"{format_count(workflows, 'open workflow')} will go on when it is started again.")


async def _count_open_workflows(record: StackRecord) -> int | None:
    """Return the number of running workflows, of jobs and rollouts; None if the server does not answer."""
    from temporalio.service import RPCError

    from benchflow.errors import ServerUnavailableError
    from benchflow.temporal import connect, make_stack_target

    if record.state != "running":
        return None
    try:
        client = await connect(make_stack_target(record))
        return (await client.count_workflows("ExecutionStatus='Running'")).count
    except (ServerUnavailableError, RPCError):
        return None


def _read_ui_login(record: StackRecord) -> str:
    """Return the address of the Web UI, with its token."""
    from benchflow.paths import StatePaths
    from benchflow.stack import read_ui_login

    return read_ui_login(StatePaths.default(), record)


def _describe_reach(record: StackRecord) -> str:
    """Return who can reach the server and its Web UI, for display."""
    if record.exposure is None:
        return "this user alone"
    return f"every user of this host: {record.exposure}"


def _list_facts(record: StackRecord, workflows: int | None) -> dict[str, Any]:
    """Return the facts of a stack as a JSON object."""
    from benchflow.paths import StatePaths

    return {
        "state": record.state,
        "address": record.address,
        "namespace": record.namespace,
        "ui": _read_ui_login(record),
        "reachable_by": _describe_reach(record),
        "supervisor_pid": record.supervisor.pid,
        "server_pid": record.server.pid if record.server else None,
        "worker_pid": record.worker.pid if record.worker else None,
        "restarts": record.restarts,
        "open_workflows": workflows,
        "state_directory": str(StatePaths.default().root),
    }


def _show(record: StackRecord, screen: Any) -> None:
    """Print the facts of a stack."""
    from benchflow.cli.screen import show_place
    from benchflow.paths import StatePaths

    def process(found: Any) -> str:
        return "none" if found is None else f"pid {found.pid}" + ("" if found.alive else " (gone)")

    restarts = ", ".join(f"{name} {count}" for name, count in record.restarts.items())
    show_place("state", record.state, screen)
    place = record.address if record.socket is None else f"{record.address} behind {record.socket}"
    show_place("server", f"{place}, namespace {record.namespace}, {process(record.server)}", screen)
    show_place("worker", process(record.worker), screen)
    show_place("Web UI", _read_ui_login(record), screen)
    show_place("reach", _describe_reach(record), screen)
    show_place("restarts", restarts or "none", screen)
    show_place("files", str(StatePaths.default().root), screen)
