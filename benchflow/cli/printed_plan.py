"""The plan of a submit, printed by `--dry-run`, and the notices that are printed before a plan starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchflow.cli.submit_request import FileRequest
    from benchflow.cli.terminal import Screen
    from benchflow.contracts.task import Task
    from benchflow.jobs import JobPlan


def show_warnings(plan: JobPlan, screen: Screen) -> None:
    """Print the warnings of a plan."""
    from benchflow.cli.terminal import make_line

    for warning in plan.warnings:
        screen.print(make_line(("warning: ", "yellow"), warning))


def show_endpoints(plan: JobPlan, screen: Screen) -> None:
    """Print where model calls of agents and judges go, if not to the provider, and the names of the keys sent there."""
    from benchflow.cli.terminal import make_line

    judge = plan.config.judge
    called = [("the judge", judge.base_url, [judge.credential] if judge.credential else [])]
    called += [(agent.label, agent.base_url, [*agent.credentials]) for agent in plan.config.agents]
    for who, address, names in called:
        if address is not None:
            given = f", with {', '.join(names)}" if names else ""
            screen.print(make_line((f"{who}: ", "dim"), f"model calls go to {address}{given}"), soft_wrap=True)


def show_plan(plan: JobPlan, as_json: bool, of_file: FileRequest | None = None) -> None:
    """Print what a submit of this plan would run.

    Args:
        plan: The plan.
        as_json: Print a JSON object instead of text.
        of_file: Request of the plan's configuration file to the user's environment; None without a file.
    """
    import os

    from benchflow.cli.job_report import describe
    from benchflow.cli.screen import format_count, make_console, make_table, print_json
    from benchflow.cli.terminal import make_line
    from benchflow.cli.variables import list_taken_variables, show_variables

    missing = sorted(name for name in plan.variables if name not in os.environ)
    if as_json:
        return print_json(_make_plan_document(plan, missing, of_file))
    screen = make_console()
    screen.print(make_line((plan.name, "bold"), f"  {describe(plan.config, len(plan.tasks))}"), soft_wrap=True)
    if plan.sandbox_reason:
        screen.print(make_line(f"sandbox {plan.config.sandbox}: {plan.sandbox_reason}", style="dim"), soft_wrap=True)
    worlds = ["world"] if plan.worlds else []
    rows = make_table("task", "steps", "agent timeout", "image", *worlds, ("path", {"overflow": "fold"}))
    for path, task in plan.tasks:
        limit = plan.config.agent_timeout_sec or task.agent.timeout_sec
        rows.add_row(
            task.name,
            str(len(task.steps) or 1),
            f"{limit:g} s" if limit else "none",
            _find_image(plan, task),
            *([plan.worlds[task.name].manifest.name if task.name in plan.worlds else ""] if worlds else []),
            str(path),
        )
    screen.print(rows)
    show_warnings(plan, screen)
    show_endpoints(plan, screen)
    show_variables(list_taken_variables(plan, of_file), screen)
    if missing:
        screen.print(make_line(("not set here:", "yellow"), f" {', '.join(missing)}"), soft_wrap=True)
    screen.print(f"{format_count(plan.total, 'rollout')} would be run. Nothing was started, and no model was asked.")


def _find_image(plan: JobPlan, task: Task) -> str:
    """Return the image that a task runs in: that of its world, else its own, else its Dockerfile."""
    world = plan.worlds.get(task.name)
    own = world.manifest.image if world else None
    return own or task.sandbox.docker_image or task.dockerfile or ""


def _make_plan_document(plan: JobPlan, missing: list[str], of_file: FileRequest | None) -> dict[str, Any]:
    """Return a plan as a JSON object.

    Args:
        plan: The plan.
        missing: Variables that it takes and that are not set.
        of_file: Request of its configuration file; None without a file.
    """
    from benchflow.cli.variables import list_taken_variables, make_variables_document

    return {
        "job": {"id": plan.id, "name": plan.name, "directory": str(plan.directory.root)},
        "tasks": [
            {"name": task.name, "path": str(path.absolute())}
            | ({"environment": str(plan.worlds[task.name].source.absolute())} if task.name in plan.worlds else {})
            for path, task in plan.tasks
        ],
        "agents": [
            {"name": agent.name, "model": agent.model}
            | agent.model_dump(mode="json", exclude={"record"}, exclude_defaults=True)
            for agent in plan.config.agents
        ],
        "sandbox": plan.config.sandbox,
        "sandbox_reason": plan.sandbox_reason,
        "concurrency": plan.config.concurrency,
        "repeats": plan.config.repeats,
        "branch": plan.config.branch.model_dump(mode="json") if plan.config.branch is not None else None,
        "total": plan.total,
        "variables_not_set": missing,
        "variables_taken": make_variables_document(list_taken_variables(plan, of_file)),
        "warnings": plan.warnings,
        "dry_run": True,
    }
