"""Compose the prompts that the agent is given."""

from __future__ import annotations

from benchflow.contracts.rollout_records import Step
from benchflow.contracts.task import SceneSpec, Task, TurnSpec


def compose_prompt(task: Task, step_name: str | None = None) -> str:
    """Return the instruction of the task, or of one of its steps, below the agent's `prompt_prefix`.

    Raises:
        KeyError: The task has no step of this name.
    """
    if step_name is None:
        instruction, agent = task.instruction, task.agent
    else:
        instruction = task.step_files[step_name].instruction
        agent = next(step.agent for step in task.steps if step.name == step_name)
    return f"{agent.prompt_prefix}\n\n{instruction}" if agent.prompt_prefix else instruction


def compose_step_prompt(task: Task, step: Step) -> str:
    """Return the prompt of a rollout's step: its own, else the instruction of the task's step."""
    return step.prompt if step.prompt is not None else compose_prompt(task, step.name)


def compose_turn_prompt(task: Task, scene: SceneSpec, turn: TurnSpec) -> str:
    """Return the prompt of a turn: its own, else the scene's, else the role's, else the task's instruction."""
    said = turn.prompt or task.scene_prompts.get(scene.name) or task.role_prompts.get(turn.role) or task.instruction
    return f"{task.agent.prompt_prefix}\n\n{said}" if task.agent.prompt_prefix else said
