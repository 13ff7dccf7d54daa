"""A rollout in Temporal's Web UI: its search attributes, and its state as Markdown.

Names, questions and errors come from task sets and agents, which are not trusted: `sanitised_markdown` removes markup,
HTML and links from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair

from benchflow.contracts import temporal_names
from benchflow.contracts.environment import ReadyWorld
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rewards import scalar_of, shown_keys
from benchflow.contracts.rollout_records import Phase
from benchflow.sanitise import sanitise_markdown as shown
from benchflow.workflows.hosts import SLOT
from benchflow.workflows.rollout_slots import JOB_SLOT, RolloutSlots
from benchflow.workflows.rollout_state import RolloutState


def make_rollout_attributes(spec: RolloutSpec) -> list[SearchAttributePair[Any]]:
    """Return the search attributes with which a rollout's workflow starts: job, task, agent, phase and model."""
    pairs = [
        (temporal_names.ATTR_JOB, spec.job_name),
        (temporal_names.ATTR_TASK, spec.task.name),
        (temporal_names.ATTR_AGENT, spec.agent.name),
        (temporal_names.ATTR_PHASE, "plan"),
    ]
    if spec.agent.model:
        pairs.append((temporal_names.ATTR_MODEL, spec.agent.model))
    return [SearchAttributePair(SearchAttributeKey.for_keyword(key), value) for key, value in pairs]


def format_rollout_summary(spec: RolloutSpec) -> str:
    """Return the line that the Web UI shows for a rollout's workflow: task, agent and repeat, as Markdown."""
    return f"{shown(spec.task.name)} · {shown(spec.agent.label)} · repeat {spec.repeat}"


def format_phase_detail(state: RolloutState, phase: Phase, slots: RolloutSlots, waits_for: str | None) -> str:
    """Return the progress of a rollout within its phase, e.g. `step 2 of 3`; empty if there is nothing to add.

    Args:
        state: State of the rollout.
        phase: Phase that the rollout is in.
        slots: Slot account of the rollout.
        waits_for: Reason of the wait that stops the deadline's clock (`Deadline.waits_for`); None if it does not wait.

    Returns:
        Plain text, not sanitised.
    """
    if state.question is not None:
        return f"asks: {state.question.text}"
    if waits_for == SLOT:
        return "waits for a slot of a host"
    if waits_for == JOB_SLOT:
        return "waits for a slot of its job"
    if phase == "branch":
        n_ended, n_running = len(state.outcomes), len(state.pending)
        waiting = f", {slots.n_waiting} wait for a slot" if slots.n_waiting else ""
        return f"{n_ended} of {n_ended + n_running} children have ended{waiting}"
    n_steps = len(state.plan.steps)
    return f"step {len(state.steps) + 1} of {n_steps}" if n_steps > 1 and phase in ("execute", "verify") else ""


def format_rollout_details(state: RolloutState, phase: str, timing: Mapping[str, float]) -> str:
    """Return the state of a rollout as Markdown: phase, sandbox, world, question, steps, error and timing.

    Args:
        state: State of the rollout.
        phase: Phase and progress within it, as sanitised Markdown.
        timing: Seconds of work by phase.
    """
    spec, sandbox, question, error = state.spec, state.sandbox, state.question, state.error or state.agent_failure
    world = state.readied.world if state.readied is not None else None
    lines = [
        f"**{shown(spec.task.name)}** · {shown(spec.agent.label)} · repeat {spec.repeat} · attempt {spec.attempt}",
        "",
        f"phase: {phase}",
    ]
    if sandbox is not None:
        lines.append(f"\nsandbox: `{sandbox.name}` on `{sandbox.host_id}`")
    if world is not None:
        lines.append(f"\nworld: {_format_world(world)}")
    if question is not None:
        lines += ["", f"the agent asks (`{question.id}`): {shown(question.text)}", ""]
        lines += [f"- {shown(option.id)} {shown(option.name)}" for option in question.options]
    if state.steps:
        lines += ["", "| node | step | stop reason | reward |", "|---|---|---|---|"]
    for number, outcome in enumerate(state.steps, 1):
        rewards = outcome.verify.rewards if outcome.verify else None
        scalar = scalar_of(rewards)
        reward = f"{scalar:g}" if scalar is not None else shown(shown_keys(rewards))
        lines.append(f"| n{number} | {shown(outcome.step.name or '')} | {shown(outcome.turn.stop_reason)} | {reward} |")
    if error is not None:
        lines += ["", f"error: `{error.category}` {shown(error.message)}"]
    lines += [""] + [f"- {name}: {seconds:.2f} s" for name, seconds in timing.items()]
    return "\n".join(lines)


def show(details: Callable[[], str]) -> None:
    """Set the details that the Web UI shows of the running workflow. An error is logged, not raised.

    Args:
        details: Returns the details as Markdown.
    """
    try:
        workflow.set_current_details(details())
    except Exception:
        workflow.logger.exception("the workflow's details can't be shown")


def _format_world(world: ReadyWorld) -> str:
    """Return a world's services, the addresses of its ports and its start time, as Markdown in one line."""
    services = [f"{shown(service.name)} {service.state}" for service in world.services if service.state != "left_out"]
    ports = [f"port {port} at `{address}`" for port, address in world.ports.items()]
    return ", ".join([*services, *ports, f"ready in {world.seconds:.2f} s"])
