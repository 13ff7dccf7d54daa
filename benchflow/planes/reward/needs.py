"""What scoring a task takes, said before anything runs: functions that can be made, a model to judge, a key for it.

Most tasks need none of these, and every command that submits one asks here: so they are imported when one does.
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
"""What judges may take together, with all that they are asked again."""

HARDEN_SEC = 600.0
"""Seconds in which a sandbox is made ready for a verifier, whatever an agent has left there."""

FUNCTIONS_SEC = 900.0
"""What reward functions may take together."""

_JUDGES = frozenset({"llm-judge", "reasoning-judge"})
"""Types of reward functions that ask a model."""


def check_scoring(task: Task, settings: JudgeSettings, allowed: Collection[str] = ()) -> list[str]:
    """The variables that may hold the keys of the task's judges, by name; none for a task that no model judges.

    allowed: the modules that the user lets tasks name. Raises the typed error of the first thing that would keep the
    task from being scored: an option of a reward function, a judge without a model, a missing package.
    """
    if task.reward is not None:
        from benchflow.planes.reward.functions import check_functions

        check_functions(task.reward, file=f"{task.name}/{task.config_file}", allowed=allowed)
    credentials = []
    for key, model in _judges(task):
        from benchflow.planes.reward.judge import credential_of, judge_model, require_library

        wanted = settings.model or model
        if wanted is None:
            raise TaskError(
                "no model is named to judge",
                file=f"{task.name}/{task.config_file}",
                key=key,
                remedy="name one there, or give --judge-model openai/… or anthropic/…",
            )
        require_library()
        # The name of a key's variable alone would leave the model and the address to be found wrong when it judges.
        judge_model(settings, wanted)
        credentials.append(credential_of(settings, wanted))
    return list(dict.fromkeys(credentials))


def own_judges(task: Task) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values a task has sent to addresses of its own, as the keys of judges; and where.

    A row whose options are invalid yields nothing: `check_scoring` says why.
    """
    for spec in task.reward.funcs if task.reward else []:
        address = spec.options.get("base_url")
        if address is None or (spec.type not in _JUDGES and "credential" not in spec.options):
            continue
        from benchflow.planes.reward.judge import credential_of

        with contextlib.suppress(ValidationError, JudgeError):
            settings = JudgeSettings(
                model=spec.options.get("model"), base_url=address, credential=spec.options.get("credential")
            )
            yield credential_of(settings, _named_in_options(spec)), str(address)


def scoring_sec(task: Task, config: VerifierConfig) -> float:
    """The most seconds that scoring a step may take: its verifier's own, and what else runs and is asked."""
    judged = any(True for _ in _judges(task))
    collecting = sum(command.timeout_sec for command in config.collect)
    functions = FUNCTIONS_SEC if task.reward is not None and task.reward.funcs else 0.0
    return HARDEN_SEC + config.timeout_sec + collecting + functions + (JUDGING_SEC if judged else 0.0)


def table_of(task: Task, step: str | None) -> RewardTable | None:
    """The reward functions of a step: the task's own, and what its verifier says of skills."""
    from benchflow.planes.reward.memory import memory_rows

    implied = memory_rows(task, step)
    if not implied:
        return task.reward
    table = task.reward or RewardTable()
    return table.model_copy(update={"funcs": [*table.funcs, *implied]})


def _judges(task: Task) -> Iterator[tuple[str, str | None]]:
    """Where a model judges, and which one the task wants."""
    document = task.verifier_document
    if document is not None:
        strategy, at = document.strategy, f"verifier.strategies.{document.default_strategy}.model"
        if strategy.type == "llm-judge":
            yield at, strategy.model or _named_in_rubrics(task)
        elif strategy.type == "agent-judge":
            yield at, strategy.model
    for at, config in _verifiers(task):
        if config.type == "llm-judge":
            judge = config.judge
            yield f"{at}.judge.model", (judge.model if judge else None) or _named_in_rubrics(task)
    for index, spec in enumerate(task.reward.funcs if task.reward else []):
        if spec.type in _JUDGES:
            yield f"reward.funcs[{index}].model", spec.options.get("model") or _named_in_options(spec)


def _named_in_options(spec: RewardFuncSpec) -> str | None:
    rubric = spec.options.get("rubric")
    return rubric.get("judge", {}).get("model") if isinstance(rubric, dict) else None


def _named_in_rubrics(task: Task) -> str | None:
    return next((rubric.judge.model for rubric in task.rubrics.values() if rubric.judge.model), None)


def _verifiers(task: Task) -> Iterator[tuple[str, VerifierConfig]]:
    yield "verifier", task.verifier
    for index, step in enumerate(task.steps):
        yield f"steps[{index}].verifier", step.verifier
