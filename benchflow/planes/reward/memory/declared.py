"""Resolve what a task declares about memory: the directories to capture, and the reward functions of a verifier."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from benchflow.contracts.reward import RewardFuncSpec
from benchflow.contracts.task import Task
from benchflow.planes.reward.functions import make_function


def list_directories(task: Task, skill_paths: Sequence[str], allowed: Collection[str] = ()) -> tuple[str, ...]:
    """Return the directories that the task's reward functions read, for `capture_memory`; none for most tasks.

    A function declares them by a method `memory_directories(skill_paths)`.

    Args:
        task: The task.
        skill_paths: Directories in which the agent looks for skills.
        allowed: Modules that the user lets tasks load functions from.
    """
    rows = list(task.reward.funcs) if task.reward else []
    rows += [row for step in (None, *(step.name for step in task.steps)) for row in make_memory_rows(task, step)]
    places: list[str] = []
    for index, spec in enumerate(rows):
        function = make_function(spec, file=task.config_file, index=index, allowed=allowed)
        if reads := getattr(function, "memory_directories", None):
            places += reads(skill_paths)
    return tuple(dict.fromkeys(places))


def make_memory_rows(task: Task, step: str | None = None) -> list[RewardFuncSpec]:
    """Return the entries of `reward.funcs` that `verifier.memory.expected_skills` is short for.

    Args:
        task: The task.
        step: Step whose verifier counts; None for the task's own.
    """
    config = next((one.verifier for one in task.steps if one.name == step), task.verifier)
    if config.memory is None or not config.memory.expected_skills:
        return []
    taken = {spec.name for spec in task.reward.funcs} if task.reward else set()
    name = "skills" if "skills" not in taken else "expected-skills"
    return [RewardFuncSpec(type="skills", name=name, options={"expected": config.memory.expected_skills})]
