"""List the variables of the user's environment that tasks or a configuration file take, and ask for consent.

Published task formats let a task write `${NAME}`, and their own tools ask the user first: a task by another author
could take any key. So the variables are listed, with the sandbox that each goes to, and nothing is started before the
user has agreed: at the terminal, or by `--yes`. A configuration file is passed on like a task set, so the same holds
for variables that go to an address which only the file names, or into a sandbox. The command line, and a program that
uses the Python API, are the user's own word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow.cli import command

if TYPE_CHECKING:
    from benchflow.cli.submit_request import FileRequest
    from benchflow.cli.terminal import Screen
    from benchflow.contracts.environment import Manifest
    from benchflow.contracts.task import Task
    from benchflow.jobs import JobPlan
    from benchflow.secrets import HostVariable

Found = dict["HostVariable", list[str]]
"""For each use of a variable, the names of the tasks that have it, or of the configuration file."""

_MAX_LISTED = 10
"""Maximum number of uses that an error lists."""


def list_variables(tasks: Iterable[tuple[Path, Task]]) -> Found:
    """Return the variables that tasks and their own environment manifests take. Skips a manifest that cannot be read.

    Args:
        tasks: Tasks, each with its directory.
    """
    from benchflow.errors import ManifestError
    from benchflow.planes.environment.environment_manifest import read_manifest
    from benchflow.tasks import find_manifest

    found: Found = {}
    for path, task in tasks:
        manifest = None
        try:
            source = find_manifest(path, task)
            manifest = read_manifest(source) if source is not None else None
        except ManifestError:
            # `submit` and `env check` report the error.
            pass
        for variable in _list_task_variables(task, manifest):
            found.setdefault(variable, []).append(task.name)
    return found


def _list_task_variables(task: Task, manifest: Manifest | None) -> Iterator[HostVariable]:
    """Yield the variables that a task, its world and its judges take."""
    from benchflow.planes.reward.needs import list_own_judges
    from benchflow.secrets import HostVariable, list_host_variables

    yield from list_host_variables(task, manifest)
    for name, address in list_own_judges(task):
        yield HostVariable(name, f"a judge, sent to {address}")


def list_taken_variables(plan: JobPlan, of_file: FileRequest | None = None) -> Found:
    """Return the variables that a job takes and that are set here; on a cluster, whose workers have their own, all.

    Args:
        plan: Plan of the job.
        of_file: Request of its configuration file; None without a file.
    """
    from benchflow.cli.submit_request import WORLD_KEYS
    from benchflow.secrets import OF_ORACLE
    from benchflow.temporal import find_cluster_target

    is_cluster = find_cluster_target() is not None
    has_oracle = any(agent.name == "oracle" for agent in plan.config.agents)
    found: Found = {}
    is_given = any(getattr(plan.config, key) is not None for key in WORLD_KEYS)
    has_own_world = is_given and (of_file is None or not of_file.names_world)
    for _, task in plan.tasks:
        # A world that is an option is the user's own word.
        world = plan.worlds.get(task.name) if not has_own_world else None
        for variable in _list_task_variables(task, world.manifest if world is not None else None):
            is_used = has_oracle or variable.taker != OF_ORACLE
            if is_used and (is_cluster or variable.name in os.environ):
                found.setdefault(variable, []).append(task.name)
    if of_file is not None:
        for variable in _list_file_variables(plan, of_file):
            if is_cluster or variable.name in os.environ or variable.name in plan.values:
                found[variable] = [of_file.file.name]
    return found


def _list_file_variables(plan: JobPlan, of_file: FileRequest) -> Iterator[HostVariable]:
    """Yield the variables that a configuration file sends to addresses that it names, or to agents in their sandboxes.

    A loopback address is no exception: any user of this host may open a port of it first, and sandboxes publish their
    own ports there.
    """
    from benchflow.planes.reward.needs import check_scoring
    from benchflow.secrets import HostVariable, find_variables

    for agent in plan.config.agents:
        for name in find_variables([agent.env]).keys() & of_file.variables:
            yield HostVariable(name, f"the agent {agent.label}, in the sandbox")
        for name in agent.credentials if agent.base_url in of_file.addresses else ():
            # A value that comes from no variable is the file's own, unless it comes from the command line.
            if name not in plan.values or of_file.is_given_keys:
                yield HostVariable(name, f"the model of {agent.label}, sent to {agent.base_url}")
    judge = plan.config.judge
    if judge.base_url in of_file.addresses:
        for _, task in plan.tasks:
            for name in check_scoring(task, judge, plan.config.allow_code):
                yield HostVariable(name, f"the judge, sent to {judge.base_url}")


def show_variables(found: Found, screen: Screen) -> None:
    """Print a line for each variable and use."""
    from benchflow.cli.screen import format_count
    from benchflow.cli.terminal import make_line

    if found:
        screen.print("Variables of your environment that are taken:")
    for variable, tasks in sorted(found.items()):
        of = tasks[0] if len(tasks) == 1 else format_count(len(tasks), "task")
        screen.print(make_line("  ", (variable.name, "bold cyan"), f"  for {variable.taker}", (f"  ({of})", "dim")))


def make_variables_document(found: Found) -> list[dict[str, Any]]:
    """Return the uses of variables as JSON objects."""
    return [{**variable._asdict(), "tasks": tasks} for variable, tasks in sorted(found.items())]


def confirm_variables(plan: JobPlan, of_file: FileRequest | None = None, *, is_agreed: bool) -> None:
    """Print the variables that a job takes, and ask the user for consent, unless that was given already.

    Args:
        plan: Plan of the job.
        of_file: Request of its configuration file; None without a file.
        is_agreed: Whether the user has agreed on the command line.

    Raises:
        ConfigError: There is no terminal on which to ask.
        typer.Exit: The user has refused.
    """
    import typer

    from benchflow.cli.screen import make_console
    from benchflow.errors import ConfigError

    found = list_taken_variables(plan, of_file)
    if not found:
        return
    # Never on stdout, which may belong to a JSON object.
    screen = make_console(stderr=True)
    show_variables(found, screen)
    if is_agreed:
        return
    if not sys.stdin.isatty():
        uses = [f"{variable.name} for {variable.taker}" for variable in sorted(found)]
        more = f"; and {len(uses) - _MAX_LISTED} more" if len(uses) > _MAX_LISTED else ""
        raise ConfigError(
            f"the job takes variables of your environment: {'; '.join(uses[:_MAX_LISTED])}{more}",
            key="--yes",
            remedy="look whether it may have them, and give --yes (-y); or unset them",
        )
    screen.print("Proceed? (Y/n) ", end="")
    answer = sys.stdin.readline()
    # An end of input is no consent, an empty line is.
    if not answer or answer.strip().lower() not in ("", "y", "yes"):
        screen.print("Nothing was started.")
        raise typer.Exit(command.USAGE)
