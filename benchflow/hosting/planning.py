"""Plan a rollout: the steps of its task, its time limits, and checks that the task can run at all."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.activities import RolloutPlan
from benchflow.contracts.environment import unproven_warning
from benchflow.contracts.rollout_records import Step
from benchflow.contracts.sandbox_config import Healthcheck
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import UnsupportedFeatureError
from benchflow.hosting.clean_room import compute_clean_room_sec
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.sandbox_readiness import compute_health_limit
from benchflow.planes.environment.exports import check_environment
from benchflow.planes.reward.needs import check_scoring, compute_scoring_timeout
from benchflow.tasks import compose_turn_prompt, require_supported

INSTALL_SEC = 1800.0
"""Maximum number of seconds for building an agent's toolbox."""

WORLD_SEC = 300.0
"""Seconds for a world beside its own readiness timeout: to start its services, and to capture its baseline."""


def plan(rollout: Hosted) -> RolloutPlan:
    """Return the plan of a rollout: steps, time limits and warnings, after a check that the task can run here.

    Raises:
        TaskError: The task can't be read, or can't be scored.
        UnsupportedFeatureError: The task needs a feature that the sandbox or the engine lacks.
        MissingSecretError: A variable that task, agent, world or judges need is not set.
        JudgeError: A judge of the task can't be used.
        ConfigError: The task's environment in code can't be imported here.
    """
    task, spec, environment = rollout.task, rollout.spec, rollout.spec.task.environment
    warnings = require_supported(task, rollout.provider.capabilities())
    rollout.secrets.check(task)
    rollout.secrets.check_agent(spec.agent)
    if environment is not None:
        rollout.secrets.check_world(environment)
        check_environment(environment, spec.job_id)
    judging = check_scoring(task, spec.run.judge, spec.run.allow_code)
    if spec.run.judge.base_url is None:
        rollout.secrets.check_judges(judging, task)
    if environment is not None and environment.unproven is not None:
        warnings = [*warnings, unproven_warning(environment)]
    return RolloutPlan(
        steps=_apply_branch(rollout, lower(rollout)),
        strategy=task.multi_step_reward_strategy,
        has_healthcheck=task.sandbox.healthcheck is not None,
        build_timeout_sec=task.sandbox.build_timeout_sec,
        setup_timeout_sec=sum(command.timeout_sec for command in task.sandbox.setup_commands),
        install_timeout_sec=INSTALL_SEC if rollout.record.install is not None else 0.0,
        healthcheck_timeout_sec=compute_health_limit(task.sandbox.healthcheck or Healthcheck(command="true")),
        readiness_timeout_sec=environment.manifest.readiness.timeout_sec + WORLD_SEC if environment else 0.0,
        warnings=warnings,
    )


def lower(rollout: Hosted) -> list[Step]:
    """Return the steps of the task, one per turn; each of the task's `steps` is scored, or else the last turn is.

    Raises:
        UnsupportedFeatureError: The task's scenes are for another agent.
    """
    task, spec = rollout.task, rollout.spec

    def step(index: int, name: str | None, timeout: float | None, verifier: VerifierConfig) -> dict[str, Any]:
        room_sec = compute_clean_room_sec(rollout.blueprint, name, verifier, spec.run)
        return {
            "index": index,
            "name": name,
            "agent": spec.agent.name,
            "model": spec.agent.model,
            # A new session for each step, which does not know the messages of the one before.
            "session": index if rollout.has_agent else 0,
            "timeout_sec": _choose_turn_timeout(rollout, timeout),
            "idle_timeout_sec": spec.run.agent_idle_timeout_sec,
            # An oracle's work may be scored a second time, in a clean room.
            "verify_timeout_sec": compute_scoring_timeout(task, verifier)
            * (1 if rollout.has_agent or not room_sec else 2)
            + room_sec,
        }

    if task.scenes:
        return _list_scene_steps(rollout, step(0, None, task.agent.timeout_sec, task.verifier))
    if not task.steps:
        return [Step(**step(0, None, task.agent.timeout_sec, task.verifier))]
    return [
        Step(
            **step(index, config.name, config.agent.timeout_sec, config.verifier),
            min_reward=config.min_reward,
            healthcheck=config.healthcheck is not None,
        )
        for index, config in enumerate(task.steps)
    ]


def _list_scene_steps(rollout: Hosted, common: dict[str, Any]) -> list[Step]:
    """Return one step per turn of the scenes; each scene is a session, and only the last step is scored."""
    task, agent = rollout.task, rollout.spec.agent
    wanted = {task.roles[turn.role].agent for scene in task.scenes for turn in scene.turns}
    if agent.name not in wanted:
        raise UnsupportedFeatureError(
            f"the task's scenes are for the agent {', '.join(sorted(wanted))}, not for {agent.name}",
            file=task.config_file,
            key="agents.roles",
            remedy=f"run it with --agent {sorted(wanted)[0]}",
        )
    steps: list[Step] = []
    for session, scene in enumerate(task.scenes):
        for turn in scene.turns:
            own = {
                "role": turn.role,
                "session": session,
                "prompt": compose_turn_prompt(task, scene, turn),
                "scored": False,
            }
            steps.append(Step(**common | own | {"index": len(steps)}))
    return [*steps[:-1], steps[-1].model_copy(update={"scored": True})]


def _apply_branch(rollout: Hosted, steps: list[Step]) -> list[Step]:
    """Return the steps of a child: its own ones have its role, the first of them has its prompt."""
    branch = rollout.spec.branch
    if branch is None:
        return steps
    child, first = branch.child, branch.checkpoint.steps_done
    prompt = {"prompt": child.prompt} if child.prompt is not None else {}
    role = {"role": child.role} if child.role is not None else {}
    own = [step.model_copy(update=role | (prompt if step.index == first else {})) for step in steps[first:]]
    return [*steps[:first], *own]


def _choose_turn_timeout(rollout: Hosted, of_step: float | None) -> float:
    """Return the timeout of a turn in seconds: the job's, else the oracle's, else the step's, at most the deadline."""
    run = rollout.spec.run
    candidates = [run.agent_timeout_sec]
    if rollout.record.protocol == "oracle":
        candidates.append(rollout.task.oracle.timeout_sec)
    candidates.append(of_step)
    wanted = next((limit for limit in candidates if limit is not None), run.deadline_sec)
    return min(wanted, run.deadline_sec)
