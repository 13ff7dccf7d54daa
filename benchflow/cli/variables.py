"""Which variables of the user's environment a task set takes, and the question whether it may.

Published task formats let a task write `${NAME}`, and their own tools ask whoever runs it first: a task that somebody
else wrote could take any key. So the variables are named, with the sandbox that each goes to, and nothing is started
before the user has agreed: at the terminal, or by `--yes`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow.cli import command

if TYPE_CHECKING:
    from benchflow.cli.terminal import Screen
    from benchflow.contracts.task import Task
    from benchflow.jobs import JobPlan
    from benchflow.secrets import HostVariable

Found = dict["HostVariable", list[str]]
"""The tasks that take each variable for each use, by name."""


def variables_of(tasks: Iterable[tuple[Path, Task]]) -> Found:
    """Return what tasks and their own environment manifests take. A manifest that cannot be read takes nothing here."""
    from benchflow.errors import ManifestError
    from benchflow.planes.environment.manifest import read_manifest
    from benchflow.secrets import host_variables
    from benchflow.tasks import manifest_of

    found: Found = {}
    for path, task in tasks:
        manifest = None
        try:
            source = manifest_of(path, task)
            manifest = read_manifest(source) if source is not None else None
        except ManifestError:
            # `submit` and `env check` say why.
            pass
        for variable in host_variables(task, manifest):
            found.setdefault(variable, []).append(task.name)
    return found


def variables_taken(plan: JobPlan) -> Found:
    """Return what the tasks of a job take: what is set here, and on a cluster, whose workers have their own, all."""
    from benchflow.secrets import OF_ORACLE, host_variables
    from benchflow.temporal import cluster_target

    is_cluster = cluster_target() is not None
    has_oracle = any(agent.name == "oracle" for agent in plan.config.agents)
    found: Found = {}
    for _, task in plan.tasks:
        # A manifest that was given as an option is the user's own.
        world = plan.worlds.get(task.name) if plan.config.environment_manifest is None else None
        for variable in host_variables(task, world.manifest if world is not None else None):
            is_used = has_oracle or variable.taker != OF_ORACLE
            if is_used and (is_cluster or variable.name in os.environ):
                found.setdefault(variable, []).append(task.name)
    return found


def show_variables(found: Found, screen: Screen) -> None:
    """Print a line for each variable and use."""
    from benchflow.cli.screen import plural
    from benchflow.cli.terminal import line

    if found:
        screen.print("Variables of your environment that the tasks take:")
    for variable, tasks in sorted(found.items()):
        of = tasks[0] if len(tasks) == 1 else plural(len(tasks), "task")
        screen.print(line("  ", (variable.name, "bold cyan"), f"  for {variable.taker}", (f"  ({of})", "dim")))


def variables_document(found: Found) -> list[dict[str, Any]]:
    """Return the same for JSON."""
    return [{**variable._asdict(), "tasks": tasks} for variable, tasks in sorted(found.items())]


def confirm_variables(plan: JobPlan, *, is_agreed: bool) -> None:
    """Name the variables that a job's tasks take, and ask whether they may, unless the user has agreed already.

    Raises `ConfigError` where nobody can be asked. A refusal ends the process.
    """
    import typer

    from benchflow.cli.screen import console
    from benchflow.errors import ConfigError

    found = variables_taken(plan)
    if not found:
        return
    # Never on stdout, which may belong to a JSON object.
    screen = console(stderr=True)
    show_variables(found, screen)
    if is_agreed:
        return
    if not sys.stdin.isatty():
        names = ", ".join(dict.fromkeys(variable.name for variable in sorted(found)))
        raise ConfigError(
            f"the tasks take variables of your environment: {names}",
            key="--yes",
            remedy="look whether they may have them, and give --yes (-y); or unset them",
        )
    screen.print("Proceed? (Y/n) ", end="")
    answer = sys.stdin.readline()
    # An end of input is no consent, an empty line is.
    if not answer or answer.strip().lower() not in ("", "y", "yes"):
        screen.print("Nothing was started.")
        raise typer.Exit(command.USAGE)
