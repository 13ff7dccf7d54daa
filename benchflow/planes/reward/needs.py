"""Requirements of scoring a task, checked before anything runs: reward functions, a judge's model, its API key.

Most tasks have none of these, but every command that submits one checks: so the modules are imported only when needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from pydantic import ValidationError

from benchflow.contracts.reward import JudgeSettings, RewardFuncSpec, RewardTable
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import JudgeError, TaskError

JUDGING_SEC = 1800.0
"""Seconds for all judges of a step together, with their retries."""

HARDEN_SEC = 600.0
"""Seconds to prepare a sandbox for a verifier, whatever the agent has left there."""

FUNCTIONS_SEC = 900.0
"""Seconds for all reward functions of a step together."""

_JUDGES = frozenset({"llm-judge", "reasoning-judge"})
"""Types of reward functions that ask a model."""


def check_scoring(task: Task, settings: JudgeSettings, allowed: Collection[str] = ()) -> list[str]:
    """Check that a task can be scored; return the names of the variables with its judges' API keys, each once.

    Args:
        task: The task.
        settings: The job's settings for judges.
        allowed: Modules that the user allows tasks to name.

    Raises:
        TaskError: A reward function is invalid, or no model is named for a judge.
        JudgeError: A judge's model or address cannot be used, or a package for it is missing.
    """
    if task.reward is not None:
        from benchflow.planes.reward.functions import check_functions

        check_functions(task.reward, file=f"{task.name}/{task.config_file}", allowed=allowed)
    credentials = []
    for key, model in _list_judges(task):
        from benchflow.planes.reward.judge import find_credential, require_library, resolve_model

        wanted = settings.model or model
        if wanted is None:
            raise TaskError(
                "no model is named to judge",
                file=f"{task.name}/{task.config_file}",
                key=key,
                remedy="name one there, or give --judge-model openai/… or anthropic/…",
            )
        require_library()
        # Also check model and address now: otherwise a mistake in them would show only when the judge is asked.
        resolve_model(settings, wanted)
        credentials.append(find_credential(settings, wanted))
    return list(dict.fromkeys(credentials))


def list_own_judges(task: Task) -> Iterator[tuple[str, str]]:
    """Yield the name of each API key variable that a task sends to a judge at its own address, and the address.

    A row whose options are invalid yields nothing: `check_scoring` reports it.
    """
    for spec in task.reward.funcs if task.reward else []:
        address = spec.options.get("base_url")
        if address is None or (spec.type not in _JUDGES and "credential" not in spec.options):
            continue
        from benchflow.planes.reward.judge import find_credential

        with contextlib.suppress(ValidationError, JudgeError):
            settings = JudgeSettings(
                model=spec.options.get("model"), base_url=address, credential=spec.options.get("credential")
            )
            yield find_credential(settings, _find_option_model(spec)), str(address)


def compute_scoring_timeout(task: Task, config: VerifierConfig) -> float:
    """Return the timeout of scoring a step, in seconds: hardening, verifier, collect commands, functions, judges.

    Args:
        task: The task.
        config: Configuration of the step's verifier.
    """
    judged = any(True for _ in _list_judges(task))
    collecting = sum(command.timeout_sec for command in config.collect)
    functions = FUNCTIONS_SEC if task.reward is not None and task.reward.funcs else 0.0
    return HARDEN_SEC + config.timeout_sec + collecting + functions + (JUDGING_SEC if judged else 0.0)


def make_reward_table(task: Task, step: str | None) -> RewardTable | None:
    """Return the reward functions of a step: the task's own, and those that its verifier's skill settings imply."""
    from benchflow.planes.reward.memory import make_memory_rows

    implied = make_memory_rows(task, step)
    if not implied:
        return task.reward
    table = task.reward or RewardTable()
    return table.model_copy(update={"funcs": [*table.funcs, *implied]})


def _list_judges(task: Task) -> Iterator[tuple[str, str | None]]:
    """Yield the key of each judge's model in the task's files, and the model, if one is named."""
    document = task.verifier_document
    if document is not None:
        strategy, at = document.strategy, f"verifier.strategies.{document.default_strategy}.model"
        if strategy.type == "llm-judge":
            yield at, strategy.model or _find_rubric_model(task)
        elif strategy.type == "agent-judge":
            yield at, strategy.model
    for at, config in _list_verifiers(task):
        if config.type == "llm-judge":
            judge = config.judge
            yield f"{at}.judge.model", (judge.model if judge else None) or _find_rubric_model(task)
    for index, spec in enumerate(task.reward.funcs if task.reward else []):
        if spec.type in _JUDGES:
            yield f"reward.funcs[{index}].model", spec.options.get("model") or _find_option_model(spec)


def _find_option_model(spec: RewardFuncSpec) -> str | None:
    rubric = spec.options.get("rubric")
    return rubric.get("judge", {}).get("model") if isinstance(rubric, dict) else None


def _find_rubric_model(task: Task) -> str | None:
    return next((rubric.judge.model for rubric in task.rubrics.values() if rubric.judge.model), None)


def _list_verifiers(task: Task) -> Iterator[tuple[str, VerifierConfig]]:
    """Yield the verifier of the task and of each step, with its key."""
    yield "verifier", task.verifier
    for index, step in enumerate(task.steps):
        yield f"steps[{index}].verifier", step.verifier
